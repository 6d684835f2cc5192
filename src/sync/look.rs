//! Look: turns hints into what is really there.
//!
//! One thread stats what was hinted, watches new directories and then scans them, so that the engine's loop never waits
//! for a disk. Hints that pile up beyond a bound are thrown away for one rescan, which costs less and misses nothing.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use tokio::sync::mpsc;

use crate::checkpoint::Rank;
use crate::clock::{self, Duration, Instant};
use crate::disk::{self, Stat};
use crate::key::Key;
use crate::sync::Event;
use crate::sync::inotify::{Hint, WatchError, Watcher};
use crate::sync::scan::{Found, Tree, Unnameable, Visitor, What};

/// What speaks for a file being complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Closed after writing, or renamed into place, itself or with its directory.
    Settled,
    /// It is there; somebody may still be writing.
    Seen,
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub struct Look {
    /// What was found.
    pub found: Found,
    /// What speaks for its being complete.
    pub evidence: Evidence,
}

/// What one batch of looks brought.
#[derive(Debug, Default)]
pub struct Looks {
    /// Found.
    pub looks: Vec<Look>,
    /// No longer there, file or directory.
    pub gone: Vec<Key>,
    /// Found under names that can't be keys.
    pub unnameable: Vec<Unnameable>,
}

enum Ask {
    Hint(Hint),
    Look(Key, Evidence),
}

/// Why everything is looked at after hints were thrown away.
const TOO_MANY: &str = "too many events";

/// More hints than this are answered by a rescan.
const MOST_WAITING: usize = 100_000;

/// A file that is written to all the time is looked at this often.
const TOUCH_INTERVAL: Duration = Duration::from_millis(500);

/// A scan hands over what it found in batches of this many.
const BATCH: usize = 256;

/// The thread that looks, and the watches that it keeps.
pub struct Looker {
    asks: Sender<Ask>,
    waiting: Arc<AtomicUsize>,
    watcher: Arc<Option<Watcher>>,
    tree: Arc<Tree>,
    events: mpsc::Sender<Event>,
}

impl Looker {
    /// Starts the thread; with `watching`, inotify too. Without inotify (a limit) the engine polls: the error says why.
    pub fn start(tree: Tree, events: mpsc::Sender<Event>, watching: bool) -> (Looker, Option<WatchError>) {
        let (asks, receiver) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let (hints, count) = (asks.clone(), Arc::clone(&waiting));
        let lost = Arc::new(AtomicBool::new(false));
        let hints_lost = Arc::clone(&lost);
        let hint = move |hint: Hint| {
            // One hint stands for all that are thrown away until it is heard.
            let hint = if count.load(Ordering::Relaxed) < MOST_WAITING {
                hint
            } else if !hints_lost.swap(true, Ordering::SeqCst) {
                Hint::Rescan(TOO_MANY)
            } else {
                return;
            };
            count.fetch_add(1, Ordering::Relaxed);
            // The receiver is gone only when the engine is: then nobody needs the hint.
            let _ = hints.send(Ask::Hint(hint));
        };
        let (watcher, error) = match watching.then(|| Watcher::start(hint)).transpose() {
            Ok(watcher) => (watcher, None),
            Err(error) => (None, Some(error)),
        };
        let (watcher, tree) = (Arc::new(watcher), Arc::new(tree));
        let worker = Worker {
            tree: Arc::clone(&tree),
            watcher: Arc::clone(&watcher),
            events: events.clone(),
            waiting: Arc::clone(&waiting),
            lost,
            touched: HashMap::new(),
            later: BinaryHeap::new(),
            pointers: HashMap::new(),
        };
        std::thread::Builder::new()
            .name("look".to_owned())
            .spawn(move || worker.work(&receiver))
            .expect("a process that can start no thread can't do anything");
        (Looker { asks, waiting, watcher, tree, events }, error)
    }

    /// Asks for a look at one key, of which this much is known already.
    pub fn look(&self, key: Key, evidence: Evidence) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The thread ends only with the engine.
        let _ = self.asks.send(Ask::Look(key, evidence));
    }

    /// The tree that is looked at.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Scans everything on a thread of its own: watches each directory, then reads it. Ends with [`Event::ScanEnded`].
    pub fn scan(&self, id: u64) {
        let (tree, watcher, events) = (Arc::clone(&self.tree), Arc::clone(&self.watcher), self.events.clone());
        tokio::task::spawn_blocking(move || {
            let mut batch = Batch::new(&watcher, &events, Evidence::Seen, Some(id));
            let root = tree.root().to_owned();
            tree.walk(&root, &mut batch);
            batch.hand_over();
            let trouble = batch.trouble.take();
            let _ = events.blocking_send(Event::ScanEnded { id, unwatched: trouble });
        });
    }
}

/// Collects what a walk finds and hands it over in batches.
struct Batch<'a> {
    watcher: &'a Option<Watcher>,
    events: &'a mpsc::Sender<Event>,
    evidence: Evidence,
    scan: Option<u64>,
    looks: Looks,
    trouble: Option<WatchError>,
    closed: bool,
}

impl<'a> Batch<'a> {
    fn new(
        watcher: &'a Option<Watcher>,
        events: &'a mpsc::Sender<Event>,
        evidence: Evidence,
        scan: Option<u64>,
    ) -> Batch<'a> {
        Batch { watcher, events, evidence, scan, looks: Looks::default(), trouble: None, closed: false }
    }

    fn gone(&mut self, tree: &Tree, path: &Path) {
        self.looks.gone.extend(path.strip_prefix(tree.root()).ok().and_then(|p| Key::from_path(p).ok()));
    }

    fn hand_over(&mut self) {
        let looks = std::mem::take(&mut self.looks);
        if !(looks.looks.is_empty() && looks.gone.is_empty() && looks.unnameable.is_empty()) {
            self.closed = self.events.blocking_send(Event::Looked { looks, scan: self.scan }).is_err();
        }
    }
}

impl Visitor for Batch<'_> {
    fn directory(&mut self, path: &Path) {
        if let Some(watcher) = self.watcher {
            match watcher.add(path) {
                Ok(()) | Err(WatchError::Gone) => {}
                Err(error) => self.trouble = Some(error),
            }
        }
    }

    fn found(&mut self, found: Found) {
        self.looks.looks.push(Look { found, evidence: self.evidence });
        if self.looks.looks.len() >= BATCH {
            self.hand_over();
        }
    }

    fn unnameable(&mut self, name: Unnameable) {
        self.looks.unnameable.push(name);
    }

    fn wanted(&self) -> bool {
        !self.closed
    }
}

/// A walk around a pointer, which has been looked at already.
struct Beside<'a, 'b> {
    pointer: &'a Key,
    batch: &'a mut Batch<'b>,
}

impl Visitor for Beside<'_, '_> {
    fn directory(&mut self, path: &Path) {
        self.batch.directory(path);
    }

    fn found(&mut self, found: Found) {
        if found.key != *self.pointer {
            self.batch.found(found);
        }
    }

    fn unnameable(&mut self, name: Unnameable) {
        self.batch.unnameable(name);
    }

    fn wanted(&self) -> bool {
        self.batch.wanted()
    }
}

struct Worker {
    tree: Arc<Tree>,
    watcher: Arc<Option<Watcher>>,
    events: mpsc::Sender<Event>,
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicBool>,
    /// What was written to lately.
    touched: HashMap<PathBuf, Touched>,
    /// When to look at what was written to again too soon after a look.
    later: BinaryHeap<Reverse<(Instant, PathBuf)>>,
    /// The versions of pointers that were looked at together with what they may name.
    pointers: HashMap<Key, Stat>,
}

/// A file that is being written to.
struct Touched {
    /// When it was looked at because of that.
    looked: Instant,
    /// Whether another look is due.
    again: bool,
}

impl Worker {
    fn work(mut self, asks: &Receiver<Ask>) {
        loop {
            let first = match self.later.peek() {
                Some(Reverse((at, _))) => asks.recv_timeout(at.saturating_duration_since(clock::now())),
                None => asks.recv().map_err(RecvTimeoutError::from),
            };
            let mut batch = match first {
                Ok(first) => vec![first],
                Err(RecvTimeoutError::Timeout) => {
                    if !self.answer(Vec::new()) {
                        return;
                    }
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            batch.extend(asks.try_iter().take(BATCH * 4 - 1));
            self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
            if !self.answer(batch) {
                return;
            }
        }
    }

    /// Looks at everything that a batch names, each path once. Returns whether anybody still listens.
    fn answer(&mut self, batch: Vec<Ask>) -> bool {
        let mut paths: Vec<(PathBuf, Evidence)> = Vec::with_capacity(batch.len());
        let mut index: HashMap<PathBuf, usize> = HashMap::new();
        let mut rescan = None;
        for path in self.due() {
            index.insert(path.clone(), paths.len());
            paths.push((path, Evidence::Seen));
        }
        for ask in batch {
            let (path, evidence) = match ask {
                Ask::Look(key, evidence) => (self.tree.path(&key), evidence),
                Ask::Hint(Hint::Rescan(why)) => {
                    if why == TOO_MANY {
                        // Before the rescan begins: what is thrown away from now on asks for another one.
                        self.lost.store(false, Ordering::SeqCst);
                    }
                    rescan = Some(why);
                    continue;
                }
                Ask::Hint(Hint::Closed(path) | Hint::Placed(path)) => (path, Evidence::Settled),
                Ask::Hint(Hint::Gone(path) | Hint::Created(path)) => (path, Evidence::Seen),
                Ask::Hint(Hint::Touched(path)) if self.was_looked_at_lately(&path) => continue,
                Ask::Hint(Hint::Touched(path)) => (path, Evidence::Seen),
            };
            if path == self.tree.root() {
                rescan = Some("SRC itself changed");
                continue;
            }
            match index.get(&path) {
                // Only the latest hint counts: a file that was closed and then opened again isn't settled.
                Some(&at) => paths[at].1 = evidence,
                None => {
                    index.insert(path.clone(), paths.len());
                    paths.push((path, evidence));
                }
            }
        }
        if let Some(why) = rescan
            && self.events.blocking_send(Event::Rescan(why)).is_err()
        {
            return false;
        }
        let (watcher, events) = (Arc::clone(&self.watcher), self.events.clone());
        let mut settled = Batch::new(&watcher, &events, Evidence::Settled, None);
        for (path, evidence) in paths {
            settled.evidence = evidence;
            match disk::symlink_metadata_below(self.tree.root(), &path) {
                Ok(meta) if meta.is_dir() => {
                    // A file that had this name is gone.
                    settled.gone(&self.tree, &path);
                    self.tree.walk(&path, &mut settled);
                }
                Ok(_) if self.is_pointer(&path) => self.look_at_pointer(&path, evidence, &mut settled),
                Ok(_) if self.tree.look(&path, &mut settled) => {}
                _ => settled.gone(&self.tree, &path),
            }
        }
        settled.hand_over();
        let (closed, trouble) = (settled.closed, settled.trouble.is_some());
        if trouble {
            return self.events.blocking_send(Event::Rescan("watch limit")).is_ok();
        }
        !closed
    }

    fn is_pointer(&self, path: &Path) -> bool {
        let relative = path.strip_prefix(self.tree.root()).ok();
        relative.and_then(|path| Key::from_path(path).ok()).is_some_and(|key| Rank::of(&key) == Rank::Pointer)
    }

    /// What a pointer says may be newer than the hint that led here, and the hints of what it names may not have come yet.
    /// So everything that it may name is looked at after the pointer itself, and handed over before it.
    fn look_at_pointer(&mut self, path: &Path, evidence: Evidence, batch: &mut Batch) {
        let before = std::mem::take(&mut batch.looks);
        batch.evidence = evidence;
        self.tree.look(path, batch);
        let pointer = std::mem::replace(&mut batch.looks, before);
        for look in &pointer.looks {
            let What::File(stat) = look.found.what else { continue };
            let known = self.pointers.insert(look.found.key.clone(), stat);
            if !known.is_some_and(|known| known.same_version(&stat))
                && let Some(directory) = path.parent()
            {
                batch.evidence = Evidence::Seen;
                self.tree.walk(directory, &mut Beside { pointer: &look.found.key, batch });
            }
        }
        batch.looks.looks.extend(pointer.looks);
        batch.looks.unnameable.extend(pointer.unnameable);
    }

    /// Whether a file that was written to has to wait for its look, which then comes by itself.
    fn was_looked_at_lately(&mut self, path: &Path) -> bool {
        let now = clock::now();
        if self.touched.len() > 4096 {
            self.touched.retain(|_, touched| touched.again || now.duration_since(touched.looked) < TOUCH_INTERVAL);
        }
        match self.touched.get_mut(path) {
            Some(touched) if touched.again => true,
            Some(touched) if now.duration_since(touched.looked) < TOUCH_INTERVAL => {
                touched.again = true;
                self.later.push(Reverse((touched.looked + TOUCH_INTERVAL, path.to_owned())));
                true
            }
            _ => {
                self.touched.insert(path.to_owned(), Touched { looked: now, again: false });
                false
            }
        }
    }

    /// What was written to again after its look, and has waited long enough.
    fn due(&mut self) -> Vec<PathBuf> {
        let now = clock::now();
        let mut due = Vec::new();
        while self.later.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, path))) = self.later.pop() else { break };
            self.touched.insert(path.clone(), Touched { looked: now, again: false });
            due.push(path);
        }
        due
    }
}

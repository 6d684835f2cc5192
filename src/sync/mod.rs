//! The engine: one loop over a closed set of events.
//!
//! Preflight and Recover (`recover`) make an `Engine`; Follow (`follow`) runs it while the trainer works; Drain (`drain`)
//! and Prove (`prove`) end a run; `once` is `sync`, the same without Follow. Reading order of the stages below the loop:
//! watch and scan find (`look`), `plan` decides, `settle` and `order` say when, `upload` acts, `commit` holds the prefix.
//!
//! Invariants: only the loop changes the journal and what is pending, so there are no locks between stages; it never waits
//! for a disk or for the network, only for the next event.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::checkpoint::Rank;
use crate::clock::{self, Duration, Instant};
use crate::config::Config;
use crate::disk::Stat;
use crate::exit::{Ending, ExitCode, Signal};
use crate::journal::Journal;
use crate::key::Key;
use crate::marker::{Marker, MarkerIdentity, MarkerKind};
use crate::metrics::Metrics;
use crate::store::retry::{Patience, Until};
use crate::store::{ErrorKind, SharedStore};

pub mod buffers;
pub mod commit;
pub mod forecast;
pub mod inotify;
pub mod look;
pub mod order;
pub mod plan;
pub mod scan;
pub mod settle;
pub mod upload;

mod drain;
mod follow;
mod jobs;
mod observe;
mod once;
mod prove;
mod recover;

pub use follow::watch;
pub use once::{PlanLine, dry_run, sync};

use commit::Hold;
use forecast::Forecast;
use look::{Evidence, Look, Looker, Looks};
use plan::{Action, Rules, decide};
use recover::Remote;
use scan::What;
use settle::{Pending, PendingFiles};
use upload::{First, Job, Outcome, Progress, Uploader, YOUNG_NS};

/// What a run of the engine needs from outside.
pub struct Outside {
    /// Where to; already tries again for as long as `patience` says.
    pub store: SharedStore,
    /// How long requests go on trying.
    pub patience: Patience,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What the outside asks.
    pub signals: watch::Receiver<Signal>,
}

/// What the disk tells the loop. Jobs, their progress, signals and the clock are the loop's other sources.
#[derive(Debug)]
pub enum Event {
    /// Things were looked at, hinted or as part of a scan.
    Looked {
        /// What was found.
        looks: Looks,
        /// The scan that this belongs to.
        scan: Option<u64>,
    },
    /// Something may have been missed.
    Rescan(&'static str),
    /// A scan has seen everything.
    ScanEnded {
        /// Which one.
        id: u64,
        /// Why not every directory could be watched.
        unwatched: Option<inotify::WatchError>,
    },
}

/// The journal is made to outlive the node this often.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// While something is pending, gauges are brought up to date this often.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// What the manifest, the head and the last line may still take when the time is over: the grace was configured less this.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// From the first signal on nothing is tried for longer than the process will live, whatever the engine waits for.
fn heed_signals(outside: &Outside, grace: Duration) {
    let (patience, mut signals) = (outside.patience.clone(), outside.signals.clone());
    tokio::spawn(async move {
        if signals.wait_for(|signal| *signal != Signal::Run).await.is_ok() {
            patience.limit(clock::now() + grace + LAST_WORDS);
        }
    });
}

/// Ends when a first signal's grace is over.
async fn grace_is_over(signals: &mut watch::Receiver<Signal>, grace: Duration) {
    follow::stopped(signals).await;
    clock::sleep(grace).await;
}

/// Why a file that should be in the bucket isn't.
#[derive(Clone, Debug)]
struct Trouble {
    why: String,
    scan: u64,
}

/// Where the current scan stands.
#[derive(Debug, Default)]
struct Scanning {
    /// The one that runs.
    running: Option<u64>,
    /// The last one that was begun.
    last: u64,
    /// The tick at which the running one began: all that it finds counts as seen at once.
    tick: u64,
    /// Another is wanted as soon as this one ends.
    again: Option<&'static str>,
}

/// The state of one run.
pub(crate) struct Engine {
    config: Config,
    store: SharedStore,
    patience: Patience,
    metrics: Arc<Metrics>,
    signals: tokio::sync::watch::Receiver<Signal>,

    journal: Journal,
    hold: Hold,
    looker: Looker,
    events: mpsc::Receiver<Event>,
    progress: mpsc::Receiver<Progress>,
    uploader: Arc<Uploader>,
    jobs: JoinSet<(Key, Outcome)>,
    /// Uploads that are being thrown away.
    aborts: JoinSet<()>,

    rules: Rules,
    pending: PendingFiles,
    remote: HashMap<Key, Remote>,
    missing: BTreeMap<String, Trouble>,
    skipped: BTreeMap<String, Trouble>,
    links: BTreeMap<Key, (Key, u64)>,
    links_waiting: HashMap<Key, Vec<Key>>,

    tick: u64,
    scanning: Scanning,
    rescan_interval: Option<Duration>,
    next_rescan: Option<Instant>,
    next_sync: Option<Instant>,
    last_change: Instant,
    watched: bool,

    /// While draining: the files that the current scan saw and that must be up.
    present: Vec<Key>,
    /// While draining: whether the current round found anything to do.
    dirty: bool,
    /// While draining: what was given up; it stays missing.
    given_up: HashSet<Key>,
    /// While draining: versions that changed under the reader, and how often.
    unsteady: HashMap<Key, (Stat, u32)>,
    /// While draining: changes of files after this moment (the volume's clock, ns) are too late to be promised.
    quiet_until_ns: Option<i64>,
    /// While draining: the latest change that the first scan saw, by the volume's clock.
    newest_change_ns: i64,

    marker: Option<Marker>,
    /// Markers that nobody closed yet, as they were first seen.
    markers_seen: HashMap<MarkerKind, (Stat, Instant)>,
    /// The marker of an attempt that failed, while nothing but changes of files speaks for a new one.
    failed: Option<Marker>,
    passed: Vec<MarkerIdentity>,
    /// The last end in the bucket, ours or an earlier process's: what makes a marker stale.
    run_end: Option<crate::head::RunEnd>,
    /// A manifest and a marker of a run that ended are in the bucket: nothing may change before they are moved away.
    verdict_stands: bool,
    marker_gone: bool,
    /// After a first signal: when following and sending must end.
    grace_ends: Option<Instant>,
    /// While draining: when that must end.
    deadline: Option<Instant>,
    run: u64,
    started_at: String,
    stop: Option<Ending>,
    stop_signal: Option<ExitCode>,
    files_sent: u64,
    bytes_sent: u64,
    forecast: Forecast,
    next_forecast: Instant,
    behind: bool,
}

impl Engine {
    /// Waits for the next thing to happen, or until `until`, and deals with it and with what it allows to begin.
    async fn step(&mut self, until: Option<Instant>) {
        let now = clock::now();
        let gauges = (!self.pending.is_empty()).then(|| now + GAUGE_INTERVAL);
        let wake = [self.pending.next_due(), self.next_rescan, self.next_sync, gauges, until];
        let wake = wake.into_iter().flatten().min();
        tokio::select! {
            Some(event) = self.events.recv() => {
                self.on_event(event);
                // What has piled up meanwhile is dealt with in one go.
                for _ in 0..64 {
                    let Ok(event) = self.events.try_recv() else { break };
                    self.on_event(event);
                }
            }
            Some(done) = self.jobs.join_next() => self.on_job(done),
            Some(progress) = self.progress.recv() => self.on_progress(progress),
            by = self.hold.lost() => self.stop_with(superseded(&by)),
            Ok(()) = self.signals.changed(), if self.stop_signal.is_none() => self.on_signal(),
            () = sleep_until(wake) => {}
        }
        while let Some(done) = self.jobs.try_join_next() {
            self.on_job(done);
        }
        self.on_time();
        self.dispatch();
        self.keep_journal();
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Looked { looks, scan } => {
                let tick = match scan {
                    Some(_) => self.scanning.tick,
                    None => {
                        self.tick += 1;
                        self.tick
                    }
                };
                for look in looks.looks {
                    self.observe(look, scan, tick);
                }
                for name in looks.unnameable {
                    self.trouble(&name.name, name.why);
                }
                for key in looks.gone {
                    self.on_gone(&key);
                }
            }
            Event::Rescan(why) => self.rescan(why),
            Event::ScanEnded { id, unwatched } => self.on_scan_ended(id, unwatched),
        }
    }

    fn on_time(&mut self) {
        let now = clock::now();
        while let Some(key) = self.pending.pop_due(now) {
            self.looker.look(key, Evidence::Seen);
        }
        if self.next_rescan.is_some_and(|at| at <= now) {
            self.next_rescan = None;
            self.rescan("interval");
        }
        let (files, bytes) = self.pending.count();
        self.metrics.queue(files, bytes);
        self.metrics.found(self.files_sent + files, self.bytes_sent + bytes);
        self.metrics.oldest_unsynced(self.pending.oldest(now));
        if now >= self.next_forecast {
            self.next_forecast = now + GAUGE_INTERVAL;
            self.look_ahead(now, bytes);
        }
        if self.jobs.is_empty() {
            // Nothing is stuck when nothing is to be done.
            self.metrics.progress_beat();
        }
    }

    /// Whether saves come faster than uploads: said when it begins and when it ends.
    fn look_ahead(&mut self, now: Instant, waiting_bytes: u64) {
        let sent_bytes = self.metrics.sent_bytes_total();
        let behind = self.forecast.take(now, self.pending.noticed_bytes(), sent_bytes, waiting_bytes);
        self.metrics.falling_behind(behind);
        match behind {
            Some(left) if !self.behind => {
                tracing::warn!(waiting_bytes, seconds = left.as_secs(), "falling behind: more comes than goes");
            }
            None if self.behind => tracing::info!("keeping up again"),
            _ => {}
        }
        self.behind = behind.is_some();
    }

    fn on_signal(&mut self) {
        let Signal::Stop(code) = *self.signals.borrow_and_update() else { return };
        let grace_ends = clock::now() + self.config.grace;
        self.stop_signal = Some(code);
        self.grace_ends = Some(grace_ends);
        let until = self.deadline.map_or(grace_ends, |deadline| deadline.min(grace_ends));
        if self.rules.draining {
            self.deadline = Some(until);
        }
        self.patience.set(Until::Deadline(until));
    }

    /// What was given up was seen again: it is missing as long as it is there.
    fn still_missing(&mut self, key: &Key) {
        if let Some(trouble) = self.missing.get_mut(key.as_str()) {
            trouble.scan = self.scanning.last;
        }
    }

    fn trouble(&mut self, name: &str, why: String) {
        let known = self.missing.get_mut(name);
        if known.as_ref().is_none_or(|known| known.why != why) {
            tracing::error!(path = %crate::exit::one_line(name), why = %why, "can't be uploaded");
        }
        let trouble = Trouble { why, scan: self.scanning.last };
        self.missing.insert(name.to_owned(), trouble);
    }

    fn keep_journal(&mut self) {
        self.journal.flush();
        if let Some(notice) = self.journal.take_notice() {
            tracing::warn!("{notice}");
        }
        let now = clock::now();
        if self.next_sync.is_some_and(|at| at <= now) {
            self.next_sync = None;
            if let Some(handle) = self.journal.sync_handle() {
                tokio::task::spawn_blocking(move || {
                    if let Err(error) = handle.sync() {
                        tracing::warn!(%error, "the journal could not be made durable");
                    }
                });
            }
        } else if self.next_sync.is_none() && self.journal.wants_sync() {
            self.next_sync = Some(now + SYNC_INTERVAL);
        }
    }

    fn stop_with(&mut self, ending: Ending) {
        self.patience.set(Until::Stop);
        self.stop.get_or_insert(ending);
    }

    /// The files that should be in the bucket and aren't, a line each.
    fn missing_lines(&self) -> Vec<String> {
        self.missing.iter().map(|(path, trouble)| format!("{}: {}", crate::exit::one_line(path), trouble.why)).collect()
    }
}

fn superseded(by: &str) -> Ending {
    Ending::new(ExitCode::Fenced, by.to_owned())
        .with_hint("only one chiefsync may write to a prefix; give each job a prefix of its own")
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

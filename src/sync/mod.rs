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

/// How many files of each lane go at a time: small ones wait for answers, large ones for buffers.
const LANES: [usize; 2] = [16, 8];

/// The journal is made to outlive the node this often.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// While something is pending, gauges are brought up to date this often.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// While draining, a version that can't be read whole this often is given up.
const UNSTEADY_READS: u32 = 5;

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

    /// One thing was looked at: decides what is to be done, and when.
    fn observe(&mut self, look: Look, scan: Option<u64>, tick: u64) {
        let Look { found, evidence } = look;
        if let Some(kind) = MarkerKind::of(found.key.as_str()) {
            match &found.what {
                What::File(stat) => return self.observe_marker(kind, *stat, evidence),
                // Below that name the bucket says that a run has ended: nothing else may get it.
                What::FileLink { .. } | What::DirectoryLink { .. } | What::BadLink(_) => {
                    return self
                        .trouble(kind.file_name(), "a link is no end marker: it must be a regular file".to_owned());
                }
                What::Special(_) | What::Unreadable(_) => {}
            }
        }
        if let What::File(stat) = &found.what {
            // Also what nobody waits for is a sign of life: a large file that is still under its temporary name.
            let age_ns = clock::wall_ns().saturating_sub(stat.ctime_ns).max(0).unsigned_abs();
            let changed_at = clock::now().checked_sub(Duration::from_nanos(age_ns));
            self.last_change = changed_at.map_or(self.last_change, |at| at.max(self.last_change));
        }
        let known = self.journal.get(found.key.as_str());
        let target = match &found.what {
            What::FileLink { target, .. } => self.journal.get(target.as_str()),
            _ => None,
        };
        let action = decide(&found, known, target, &self.rules);
        let key = found.key;
        if self.rules.draining && scan.is_some() {
            match &action {
                Action::Missing(_) | Action::Skip(_) | Action::RecordLink { .. } => {}
                _ if self.given_up.contains(&key) => return self.still_missing(&key),
                _ => self.present.push(key.clone()),
            }
        }
        match action {
            Action::Unchanged => {
                self.missing.remove(key.as_str());
                self.waits_no_more(&key);
            }
            Action::LookAgain => {
                let known = self.journal.get(key.as_str()).expect("looked at again because the journal knows it");
                let (stat, young_until_ns) = (known.stat, known.stat.ctime_ns.saturating_add(YOUNG_NS));
                let left_ns = young_until_ns.saturating_sub(clock::wall_ns());
                if self.rules.draining || left_ns <= 0 {
                    self.see(key, Action::LookAgain, stat, Evidence::Settled, tick, scan);
                } else {
                    let left = Duration::from_nanos(left_ns.unsigned_abs().min(YOUNG_NS.unsigned_abs()));
                    self.pending.look_at(key, clock::now() + left);
                }
            }
            Action::Wait => {
                self.waits_no_more(&key);
                tracing::debug!(path = %key, "looks temporary: waits for the end marker");
            }
            Action::Skip(what) => {
                self.waits_no_more(&key);
                let trouble = Trouble { why: what, scan: self.scanning.last };
                if self.skipped.insert(key.to_string(), trouble.clone()).is_none() {
                    tracing::warn!(path = %key, why = %trouble.why, "skipped");
                }
            }
            Action::RecordLink { target } => {
                self.waits_no_more(&key);
                self.links.insert(key, (target, self.scanning.last));
            }
            Action::Missing(why) => {
                self.waits_no_more(&key);
                self.trouble(key.as_str(), why);
            }
            // A scan may have seen a pointer later than it looked around it. After the end marker nothing new comes.
            Action::Upload { rank: Rank::Pointer, .. } if scan.is_some() && !self.rules.draining => {
                self.looker.look(key, evidence);
            }
            Action::Upload { stat, .. } => self.see(key, action, stat, evidence, tick, scan),
            Action::Copy { ref target, stat } => {
                let up = self.journal.get(target.as_str()).is_some_and(|up| up.stat.same_version(&stat));
                let never = self.looker.tree().ignores(target.as_str()) || MarkerKind::of(target.as_str()).is_some();
                if up || never {
                    self.see(key, action, stat, evidence, tick, scan);
                } else if self.rules.draining && self.missing.contains_key(target.as_str()) {
                    self.waits_no_more(&key);
                    self.trouble(key.as_str(), format!("it is a link to {target}, which can't be uploaded"));
                } else {
                    // Its target goes first; what is left then is a copy on the server.
                    self.waits_no_more(&key);
                    self.dirty = true;
                    let waiting = self.links_waiting.entry(target.clone()).or_default();
                    if !waiting.contains(&key) {
                        waiting.push(key);
                    }
                }
            }
        }
    }

    /// What was to be sent under this name is something else now; a job that is at it finds out by itself.
    fn waits_no_more(&mut self, key: &Key) {
        if self.pending.get(key.as_str()).is_some_and(|p| !matches!(p.phase, settle::Phase::Sending { .. })) {
            self.pending.remove(key);
        }
    }

    /// A file differs from what is up.
    fn see(&mut self, key: Key, action: Action, stat: Stat, evidence: Evidence, tick: u64, scan: Option<u64>) {
        let now = clock::now();
        self.last_change = now;
        if self.rules.draining {
            if self.given_up.contains(&key) {
                return self.still_missing(&key);
            }
            self.newest_change_ns = self.newest_change_ns.max(stat.ctime_ns);
            if self.quiet_until_ns.is_some_and(|until| stat.ctime_ns > until) {
                let quiet = self.config.quiet.as_secs_f32();
                self.trouble(key.as_str(), format!("still changes more than {quiet} s after the end"));
                self.pending.remove(&key);
                self.given_up.insert(key);
                return;
            }
            self.dirty = true;
        }
        let rank = Rank::of(&key);
        self.pending.see(&key, action, stat, rank, evidence, now, tick, scan, self.rules.draining);
    }

    fn observe_marker(&mut self, kind: MarkerKind, stat: Stat, evidence: Evidence) {
        // An old one is complete; a young one that nobody closed yet is looked at again. The volume's clock may be ahead.
        let age_ns = clock::wall_ns().saturating_sub(stat.ctime_ns);
        let (settle, now) = (self.pending.settle(), clock::now());
        if evidence == Evidence::Seen && age_ns < i64::try_from(settle.as_nanos()).unwrap_or(i64::MAX) {
            let first = self.markers_seen.get(&kind).filter(|(seen, _)| seen.same_version(&stat)).map(|(_, at)| *at);
            if first.is_none_or(|at| now.duration_since(at) < settle) {
                self.markers_seen.insert(kind, (stat, first.unwrap_or(now)));
                self.pending.look_at(kind.key(), first.unwrap_or(now) + settle);
                return;
            }
        }
        self.markers_seen.remove(&kind);
        match crate::marker::read(&self.config.source) {
            Ok(Some(marker)) if self.passed.contains(&marker.identity) => {}
            Ok(Some(marker)) => {
                let stale = crate::marker::is_stale(&marker, self.run_end.as_ref(), self.config.pod_uid.as_deref());
                if let Some(why) = stale {
                    tracing::warn!(path = kind.file_name(), why, "stale end marker: following past it");
                    self.passed.push(marker.identity);
                } else {
                    self.marker = Some(marker);
                }
            }
            Ok(None) => {}
            Err(error) => self.trouble(kind.file_name(), format!("the end marker can't be read: {error}")),
        }
    }

    fn on_gone(&mut self, key: &Key) {
        self.links.remove(key);
        self.skipped.remove(key.as_str());
        self.missing.remove(key.as_str());
        let waiting = self.pending.get(key.as_str()).is_some_and(|p| !matches!(p.phase, settle::Phase::Sending { .. }));
        if waiting && self.pending.remove(key).is_some() {
            tracing::info!(path = %key, "gone before it was uploaded");
        }
        if MarkerKind::of(key.as_str()).is_some() {
            self.last_change = clock::now();
            self.marker_gone = true;
        }
        self.abort_upload(key);
    }

    fn on_scan_ended(&mut self, id: u64, unwatched: Option<inotify::WatchError>) {
        self.scanning.running = None;
        let vanished: Vec<Key> = self
            .pending
            .iter()
            .filter(|(_, p)| p.scan < id && !matches!(p.phase, settle::Phase::Sending { .. }))
            .map(|(key, _)| key.clone())
            .collect();
        for key in vanished {
            // Seen by a hint after the scan had passed, or gone: one more look tells.
            self.looker.look(key, Evidence::Seen);
        }
        // What was given up while draining is not looked at any more, and stays missing.
        let (draining, given_up) = (self.rules.draining, &self.given_up);
        self.missing.retain(|path, trouble| trouble.scan >= id || draining && given_up.contains(path.as_str()));
        self.skipped.retain(|_, trouble| trouble.scan >= id);
        self.links.retain(|_, (_, scan)| *scan >= id);
        // What an earlier process began of files that are gone, or that need no upload any more.
        let open = self.journal.uploads().map(|(key, _)| key.clone()).filter(|key| !self.given_up.contains(key));
        for key in open.collect::<Vec<_>>() {
            self.abort_upload(&key);
        }
        while self.aborts.try_join_next().is_some() {}
        if let Some(error) = unwatched
            && self.watched
        {
            self.watched = false;
            self.say_unwatched(&error);
        }
        self.next_rescan = self.rescan_interval.map(|interval| clock::now() + interval);
        self.metrics.progress_beat();
        if let Some(why) = self.scanning.again.take() {
            self.rescan(why);
        }
    }

    fn say_unwatched(&mut self, error: &inotify::WatchError) {
        let polling = Duration::from_secs(10);
        self.rescan_interval = self.rescan_interval.map(|interval| interval.min(polling));
        let hint = match error {
            inotify::WatchError::Limit => "raise fs.inotify.max_user_watches or max_user_instances on the node",
            _ => "changes are found by scanning alone",
        };
        tracing::warn!(?error, hint, "inotify can't watch every directory: scanning every {} s", polling.as_secs());
    }

    /// Begins a full scan, or another one when the running one ends.
    fn rescan(&mut self, why: &'static str) {
        if self.scanning.running.is_some() {
            self.scanning.again = Some(why);
            return;
        }
        if why == "overflow" {
            self.metrics.overflow();
        }
        tracing::debug!(why, "scan");
        // Only what this scan sees counts as present.
        self.present.clear();
        self.metrics.rescans(why);
        self.tick += 1;
        self.scanning.tick = self.tick;
        self.scanning.last += 1;
        self.scanning.running = Some(self.scanning.last);
        self.looker.scan(self.scanning.last);
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

    /// Begins what may begin: up to a bounded number of jobs a lane.
    fn dispatch(&mut self) {
        if self.stop.is_some() || self.verdict_stands {
            return;
        }
        for (lane, &limit) in LANES.iter().enumerate() {
            while self.pending.sending(lane) < limit {
                let Some((key, pending)) = self.pending.start(lane) else { break };
                let job = self.job(key.clone(), &pending);
                let uploader = Arc::clone(&self.uploader);
                self.jobs.spawn(async move {
                    let outcome = uploader.run(job).await;
                    (key, outcome)
                });
            }
        }
    }

    fn job(&self, key: Key, pending: &Pending) -> Job {
        let known = self.journal.get(key.as_str());
        let remote = self.remote.get(key.as_str());
        let mut link = None;
        let rebuild = remote.filter(|remote| remote.size_bytes == pending.stat.size);
        let first = match (&pending.action, known) {
            (Action::Upload { .. }, _) if let Some(there) = rebuild => {
                First::Rebuild { etag: there.etag.clone(), digest: there.digest.clone() }
            }
            (Action::Upload { compare: true, .. }, Some(known)) => First::Compare(known.clone()),
            (Action::LookAgain, Some(known)) => First::Recheck(known.clone()),
            (Action::Copy { target, stat }, _) => {
                link = Some(target.clone());
                match self.journal.get(target.as_str()) {
                    Some(up) if up.stat.same_version(stat) => {
                        First::Copy { source: target.clone(), uploaded: up.clone() }
                    }
                    _ => First::Send,
                }
            }
            _ => First::Send,
        };
        // What a listing showed is newer than what the journal says.
        let there = remote.map(|remote| remote.etag.clone()).or_else(|| known.map(|known| known.etag.clone()));
        Job {
            path: self.looker.tree().path(link.as_ref().unwrap_or(&key)),
            stat: pending.stat,
            growing: pending.growing && !self.rules.draining,
            first,
            there,
            resume: self.journal.upload(key.as_str()).cloned(),
            link,
            last_look: self.rules.draining,
            key,
        }
    }

    fn on_job(&mut self, done: Result<(Key, Outcome), tokio::task::JoinError>) {
        // A job tells its progress before it ends: take that in first.
        while let Ok(progress) = self.progress.try_recv() {
            self.on_progress(progress);
        }
        let (key, outcome) = match done {
            Ok(done) => done,
            Err(error) if error.is_cancelled() => return,
            Err(error) => return self.stop_with(Ending::fault(format!("an upload ended unexpectedly: {error}"))),
        };
        let Some((pending, again)) = self.pending.finish(&key) else { return };
        self.metrics.progress_beat();
        match outcome {
            Outcome::Sent(uploaded) => {
                let took = pending.noticed.elapsed();
                if let Some(closed) = pending.closed {
                    self.metrics.lag(closed.elapsed());
                }
                let bytes = uploaded.stat.size;
                self.metrics.file_done(bytes);
                self.files_sent += 1;
                self.bytes_sent += bytes;
                let action = if uploaded.link.is_some() { "copied" } else { "uploaded" };
                tracing::info!(path = %key, bytes, ms = took.as_millis() as u64, "{action}");
                self.is_up(key, uploaded, again);
            }
            Outcome::Same(uploaded) => {
                self.metrics.file_unchanged(1);
                tracing::debug!(path = %key, bytes = uploaded.stat.size, "already there");
                self.is_up(key, uploaded, again);
            }
            Outcome::Changed if self.rules.draining && self.is_unsteady(&key, pending.stat) => {
                self.give_up(key, "reads as changed, again and again, though nothing says that it changes".to_owned());
            }
            Outcome::Changed => {
                tracing::debug!(path = %key, "changed while it was read: again later");
                self.dirty = true;
                self.looker.look(key, again.unwrap_or(Evidence::Seen));
            }
            Outcome::Gone => {
                tracing::info!(path = %key, "gone before it was uploaded");
                self.abort_upload(&key);
                self.looker.look(key, Evidence::Seen);
            }
            Outcome::Unreadable(why) => self.give_up(key, why),
            Outcome::Superseded(by) => self.stop_with(superseded(&by)),
            Outcome::Failed(error) if error.kind == ErrorKind::Stop => {
                self.stop_with(Ending::from_store_error(&error));
            }
            Outcome::Failed(error) => self.give_up(key, error.to_string()),
        }
    }

    /// Whether the very same version could not be read whole several times. One that goes on changing has newer versions,
    /// and `see` gives it up when it is too late.
    fn is_unsteady(&mut self, key: &Key, stat: Stat) -> bool {
        let (version, times) = self.unsteady.entry(key.clone()).or_insert((stat, 0));
        *times = if version.same_version(&stat) { *times + 1 } else { 1 };
        *version = stat;
        *times >= UNSTEADY_READS
    }

    /// What was sent, or was there already, is what the file was.
    fn is_up(&mut self, key: Key, uploaded: crate::journal::Uploaded, again: Option<Evidence>) {
        self.missing.remove(key.as_str());
        self.remote.remove(key.as_str());
        // One that was begun when the file was larger.
        self.abort_upload(&key);
        if uploaded.young_parts > 0 && !self.rules.draining {
            let young_until_ns = uploaded.stat.ctime_ns.saturating_add(YOUNG_NS);
            let left_ns = young_until_ns.saturating_sub(clock::wall_ns()).clamp(0, YOUNG_NS).unsigned_abs();
            self.pending.look_at(key.clone(), clock::now() + Duration::from_nanos(left_ns));
        } else if uploaded.partial {
            // It grew, and goes on growing: the next look comes by itself only if it makes an event.
            self.pending.look_at(key.clone(), clock::now() + self.pending.settle());
        }
        self.journal.record(key.clone(), uploaded);
        if let Some(evidence) = again {
            self.looker.look(key.clone(), evidence);
        }
        for link in self.links_waiting.remove(&key).unwrap_or_default() {
            self.looker.look(link, Evidence::Settled);
        }
    }

    fn give_up(&mut self, key: Key, why: String) {
        self.metrics.file_failed();
        self.trouble(key.as_str(), why);
        self.given_up.insert(key);
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

    fn on_progress(&mut self, progress: Progress) {
        match progress {
            Progress::Begun(key, upload) => {
                self.journal.begin_upload(key, upload);
                self.next_sync.get_or_insert(clock::now() + SYNC_INTERVAL / 10);
            }
            Progress::Part(key, part, sha256) => {
                self.journal.part_done(key.as_str(), part, sha256);
                self.metrics.progress_beat();
            }
            Progress::Over(key) => self.journal.end_upload(key.as_str()),
        }
    }

    /// Throws away what an upload of a file that is gone left in the store.
    fn abort_upload(&mut self, key: &Key) {
        if self.pending.get(key.as_str()).is_some() {
            return;
        }
        if let Some(upload) = self.journal.upload(key.as_str()) {
            let (store, key, id) = (Arc::clone(&self.store), key.clone(), upload.id.clone());
            self.journal.end_upload(key.as_str());
            self.aborts.spawn(async move {
                if let Err(error) = store.abort(&key, &id).await {
                    tracing::warn!(path = %key, %error, "an unfinished upload could not be thrown away");
                }
            });
        }
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

//! What is counted while it happens: the numbers behind `/metrics`, the live view and the manifest.
//!
//! Invariants: counting never waits on I/O and never fails; what happens once a small file costs a few atomic additions.
//! Counters only grow. What has an age (the oldest file, the last sign of life) is computed when somebody asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::clock::{self, Duration, Instant};
use crate::key::Key;
use crate::stage::Stage;

mod exposition;
mod histogram;

pub use exposition::CONTENT_TYPE;
use histogram::Histogram;
pub use histogram::LagSnapshot;

/// Files below this size come and go too fast to be watched one by one.
pub const TRACKED_FROM_BYTES: u64 = 1024 * 1024;

/// Without a sign of life for this long, `/healthz` says that the process is stuck.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(300);

/// Everything that is counted, shared by engine, server and live view.
#[derive(Debug, Default)]
pub struct Metrics {
    started: Started,
    stage: AtomicU8,
    found_files: AtomicU64,
    found_bytes: AtomicU64,
    queued_files: AtomicU64,
    queued_bytes: AtomicU64,
    done_files: AtomicU64,
    done_bytes: AtomicU64,
    unchanged_files: AtomicU64,
    failed_files: AtomicU64,
    sent_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    hash_ns: AtomicU64,
    read_ns: AtomicU64,
    send_ns: AtomicU64,
    overflows: AtomicU64,
    /// Milliseconds after `started`.
    last_beat_ms: AtomicU64,
    lag: Histogram,
    oldest_unsynced: Mutex<Option<Instant>>,
    falling_behind: Mutex<Option<Duration>>,
    retries: Mutex<BTreeMap<&'static str, u64>>,
    rescans: Mutex<BTreeMap<&'static str, u64>>,
    under_way: Mutex<Vec<Weak<UnderWay>>>,
}

/// When the counting began.
#[derive(Debug)]
struct Started(Instant);

impl Default for Started {
    fn default() -> Started {
        Started(clock::now())
    }
}

/// A large file on its way.
#[derive(Debug)]
struct UnderWay {
    key: Key,
    bytes: u64,
    sent: AtomicU64,
}

/// One file on its way; it has ended when this is dropped.
#[derive(Debug)]
#[must_use = "the file counts as ended once this is dropped"]
pub struct FileProgress(Option<Arc<UnderWay>>);

impl FileProgress {
    /// So many more bytes have left.
    pub fn advance(&self, bytes: u64) {
        if let Some(file) = &self.0 {
            file.sent.fetch_add(bytes, Relaxed);
        }
    }
}

impl Metrics {
    /// All zero, in the first stage, alive now.
    pub fn new() -> Arc<Metrics> {
        Arc::default()
    }

    /// The run has entered a stage. That is a sign of life too.
    pub fn stage(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
        self.progress_beat();
    }

    /// The stage that the run is in.
    pub fn current_stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Relaxed)).min(Stage::ALL.len() - 1)]
    }

    /// What there is to bring over in all, as far as it is known now: the live view's total.
    pub fn found(&self, files: u64, bytes: u64) {
        self.found_files.store(files, Relaxed);
        self.found_bytes.store(bytes, Relaxed);
    }

    /// What waits or is under way.
    pub fn queue(&self, files: u64, bytes: u64) {
        self.queued_files.store(files, Relaxed);
        self.queued_bytes.store(bytes, Relaxed);
    }

    /// Since when the oldest file waits that isn't durable in the bucket; `None` when all are.
    pub fn oldest_unsynced(&self, since: Option<Instant>) {
        *lock(&self.oldest_unsynced) = since;
    }

    /// A file begins its way; files below [`TRACKED_FROM_BYTES`] are counted, not shown.
    pub fn begin_file(&self, key: &Key, bytes: u64) -> FileProgress {
        if bytes < TRACKED_FROM_BYTES {
            return FileProgress(None);
        }
        let file = Arc::new(UnderWay { key: key.clone(), bytes, sent: AtomicU64::new(0) });
        let mut all = lock(&self.under_way);
        all.retain(|file| file.strong_count() > 0);
        all.push(Arc::downgrade(&file));
        FileProgress(Some(file))
    }

    /// Bytes that the store has accepted.
    pub fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
    }

    /// A file is durable in the bucket.
    pub fn file_done(&self, bytes: u64) {
        self.done_files.fetch_add(1, Relaxed);
        self.done_bytes.fetch_add(bytes, Relaxed);
    }

    /// So many files were there already.
    pub fn file_unchanged(&self, files: u64) {
        self.unchanged_files.fetch_add(files, Relaxed);
    }

    /// A file was given up, for this time or for good.
    pub fn file_failed(&self) {
        self.failed_files.fetch_add(1, Relaxed);
    }

    /// Bytes that the store copied by itself instead of receiving them again.
    pub fn copied(&self, bytes: u64) {
        self.copied_bytes.fetch_add(bytes, Relaxed);
    }

    /// How long a file took from its close to being durable.
    pub fn lag(&self, close_to_durable: Duration) {
        self.lag.observe(close_to_durable);
    }

    /// A request is tried again. That is a sign of life too: an outage of the store is no reason to be killed.
    pub fn retry(&self, reason: &'static str) {
        *lock(&self.retries).entry(reason).or_default() += 1;
        self.progress_beat();
    }

    /// Time spent hashing.
    pub fn hash_time(&self, spent: Duration) {
        self.hash_ns.fetch_add(nanoseconds(spent), Relaxed);
    }

    /// Time spent reading files.
    pub fn read_time(&self, spent: Duration) {
        self.read_ns.fetch_add(nanoseconds(spent), Relaxed);
    }

    /// Time spent sending, all requests added up.
    pub fn send_time(&self, spent: Duration) {
        self.send_ns.fetch_add(nanoseconds(spent), Relaxed);
    }

    /// A full scan, and why.
    pub fn rescans(&self, why: &'static str) {
        *lock(&self.rescans).entry(why).or_default() += 1;
    }

    /// The kernel dropped events.
    pub fn overflow(&self) {
        self.overflows.fetch_add(1, Relaxed);
    }

    /// The engine's loop has come round, or something got done.
    pub fn progress_beat(&self) {
        let ms = u64::try_from(self.started.0.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_beat_ms.store(ms, Relaxed);
    }

    /// How long ago the last sign of life was, if that is too long: `/healthz` fails then.
    pub fn stuck_for(&self) -> Option<Duration> {
        let silent = self.started.0.elapsed().saturating_sub(Duration::from_millis(self.last_beat_ms.load(Relaxed)));
        (silent > ALIVE_WITHIN).then_some(silent)
    }

    /// The forecast: how much longer the upload of a save takes than the trainer leaves until the next; `None` while
    /// uploads keep up.
    pub fn falling_behind(&self, by: Option<Duration>) {
        *lock(&self.falling_behind) = by;
    }

    /// Bytes that the store has accepted so far.
    pub fn sent_bytes_total(&self) -> u64 {
        self.sent_bytes.load(Relaxed)
    }

    /// All numbers as they are now.
    pub fn snapshot(&self) -> Snapshot {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let seconds = |counter: &AtomicU64| Duration::from_nanos(counter.load(Relaxed)).as_secs_f64();
        Snapshot {
            stage: self.current_stage(),
            running: self.started.0.elapsed(),
            found_files: load(&self.found_files),
            found_bytes: load(&self.found_bytes),
            queued_files: load(&self.queued_files),
            queued_bytes: load(&self.queued_bytes),
            done_files: load(&self.done_files),
            done_bytes: load(&self.done_bytes),
            unchanged_files: load(&self.unchanged_files),
            failed_files: load(&self.failed_files),
            sent_bytes: load(&self.sent_bytes),
            copied_bytes: load(&self.copied_bytes),
            hash_seconds: seconds(&self.hash_ns),
            read_seconds: seconds(&self.read_ns),
            send_seconds: seconds(&self.send_ns),
            overflows: load(&self.overflows),
            oldest_unsynced: lock(&self.oldest_unsynced).map(|since| since.elapsed()),
            falling_behind: *lock(&self.falling_behind),
            retries: lock(&self.retries).clone(),
            rescans: lock(&self.rescans).clone(),
            lag: self.lag.snapshot(),
            current: self.current_files(),
        }
    }

    fn current_files(&self) -> Vec<CurrentFile> {
        let mut all = lock(&self.under_way);
        all.retain(|file| file.strong_count() > 0);
        all.iter()
            .filter_map(Weak::upgrade)
            .map(|file| CurrentFile {
                key: file.key.clone(),
                bytes: file.bytes,
                sent_bytes: file.sent.load(Relaxed).min(file.bytes),
            })
            .collect()
    }
}

/// The numbers at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Where the run is.
    pub stage: Stage,
    /// Since the start.
    pub running: Duration,
    /// Files there are to bring over in all, as far as known.
    pub found_files: u64,
    /// Their bytes.
    pub found_bytes: u64,
    /// Files that wait or are under way.
    pub queued_files: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Files that became durable.
    pub done_files: u64,
    /// Their bytes.
    pub done_bytes: u64,
    /// Files that were there already.
    pub unchanged_files: u64,
    /// Files that were given up.
    pub failed_files: u64,
    /// Bytes that the store accepted.
    pub sent_bytes: u64,
    /// Bytes that the store copied by itself.
    pub copied_bytes: u64,
    /// Spent hashing.
    pub hash_seconds: f64,
    /// Spent reading.
    pub read_seconds: f64,
    /// Spent sending.
    pub send_seconds: f64,
    /// How often the kernel dropped events.
    pub overflows: u64,
    /// Age of the oldest file that isn't durable.
    pub oldest_unsynced: Option<Duration>,
    /// The forecast.
    pub falling_behind: Option<Duration>,
    /// Tries again, by reason.
    pub retries: BTreeMap<&'static str, u64>,
    /// Full scans, by reason.
    pub rescans: BTreeMap<&'static str, u64>,
    /// Close to durable.
    pub lag: LagSnapshot,
    /// Large files under way.
    pub current: Vec<CurrentFile>,
}

impl Snapshot {
    /// The numbers that a run's manifest keeps: what the last scrape would have missed.
    pub fn figures(&self) -> BTreeMap<String, f64> {
        #[allow(clippy::cast_precision_loss)]
        let count = |n: u64| n as f64;
        let mut figures: BTreeMap<String, f64> = [
            ("running_seconds", self.running.as_secs_f64()),
            ("sent_bytes", count(self.sent_bytes)),
            ("copied_bytes", count(self.copied_bytes)),
            ("unchanged_files", count(self.unchanged_files)),
            ("hash_seconds", self.hash_seconds),
            ("read_seconds", self.read_seconds),
            ("send_seconds", self.send_seconds),
            ("overflows", count(self.overflows)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        figures.extend(self.retries.iter().map(|(reason, tries)| (format!("retries_{reason}"), count(*tries))));
        figures
    }
}

/// A large file under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentFile {
    /// Its name.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// How much of it has left.
    pub sent_bytes: u64,
}

/// A panic elsewhere never stops the counting: every value behind these locks is whole at any moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_shown_until_it_ends() {
        let metrics = Metrics::new();
        let (small, large) = (Key::new("small").unwrap(), Key::new("large").unwrap());
        let _small = metrics.begin_file(&small, TRACKED_FROM_BYTES - 1);
        let progress = metrics.begin_file(&large, 3 * TRACKED_FROM_BYTES);
        progress.advance(TRACKED_FROM_BYTES);
        let current = metrics.snapshot().current;
        assert_eq!(current, [CurrentFile { key: large, bytes: 3 << 20, sent_bytes: 1 << 20 }]);
        drop(progress);
        assert!(metrics.snapshot().current.is_empty());
    }

    #[test]
    fn the_stage_is_the_one_that_was_set() {
        let metrics = Metrics::new();
        assert_eq!(metrics.current_stage(), Stage::Preflight);
        for stage in Stage::ALL {
            metrics.stage(stage);
            assert_eq!(metrics.current_stage(), stage);
        }
    }

    #[test]
    fn a_start_counts_as_a_sign_of_life() {
        assert_eq!(Metrics::new().stuck_for(), None);
    }
}

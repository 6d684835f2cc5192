//! Tries again what is worth another try, for as long as the engine has patience.
//!
//! Invariants: only [`ErrorKind::Retry`] is repeated, and a refusal ([`ErrorKind::Stop`]) of an operation that worked before,
//! which is an outage and no misconfiguration. A change of patience wakes every sleeper. An outage is said once when it
//! begins and once when it is over, however many requests it holds up.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{
    Body, Condition, Download, ETag, ErrorKind, ListFrom, Meta, OpenUpload, Operation, Page, RetryReason, SharedStore,
    Store, StoreError, StoredPart, UploadId, WriteOptions, Written,
};
use crate::clock::{self, Duration, Instant};
use crate::key::{Key, Prefix};

/// The longest first pause; each further one may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// A pause that would be shorter than this, because the deadline is near, is no longer worth it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

/// An outage that begins this soon after another one was said is part of the same trouble: it stays below `warn`.
const SAID_RECENTLY: Duration = Duration::from_secs(60);

/// How long to go on trying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Without end: training runs, and there is nothing better to do.
    Forever,
    /// Until this moment.
    Deadline(Instant),
    /// Not at all: the error that is there is the answer.
    Stop,
}

/// The engine's handle on how long all requests together go on trying; clones share it.
#[derive(Clone, Debug)]
pub struct Patience {
    until: Arc<watch::Sender<Until>>,
    /// Whatever is set, nothing is tried after this.
    limit: Arc<OnceLock<Instant>>,
}

impl Patience {
    /// A handle that starts with `until`.
    pub fn new(until: Until) -> Patience {
        Patience { until: Arc::new(watch::Sender::new(until)), limit: Arc::default() }
    }

    /// Changes it for every request, also those that wait right now: they try again at once, or give up.
    pub fn set(&self, until: Until) {
        self.until.send_replace(match (until, self.limit.get()) {
            (Until::Forever, Some(&limit)) => Until::Deadline(limit),
            (Until::Deadline(end), Some(&limit)) => Until::Deadline(end.min(limit)),
            (until, _) => until,
        });
    }

    /// Sets an end to patience, now and whatever is set later: the process has only so long to live. The first one counts.
    pub fn limit(&self, at: Instant) {
        // A second limit can't be later than the process's end either.
        let _ = self.limit.set(at);
        self.set(self.get());
    }

    /// What holds now.
    pub fn get(&self) -> Until {
        *self.until.borrow()
    }

    /// Waits before the next try number `attempt` (from 1); `false` when patience is at an end.
    async fn pause(&self, attempt: u32) -> bool {
        let mut changes = self.until.subscribe();
        let until = *changes.borrow_and_update();
        let longest = FIRST_PAUSE.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(LONGEST_PAUSE);
        let jittered = longest.mul_f64(random_fraction());
        let pause = match until {
            Until::Stop => return false,
            Until::Forever => jittered,
            // Half of what is left, so that the last try comes close to the deadline whatever the jitter says.
            Until::Deadline(end) => {
                let left = end.saturating_duration_since(clock::now()) / 2;
                if left < SHORTEST_PAUSE {
                    return false;
                }
                jittered.min(left)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            _ = changes.changed() => !matches!(self.get(), Until::Stop),
        }
    }
}

/// From 0 to 1. Where the kernel gives no randomness the pauses are merely not spread.
fn random_fraction() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

/// Is told of every repeated request: for metrics.
pub type OnRetry = Arc<dyn Fn(RetryReason, &StoreError) + Send + Sync>;

/// A store whose requests are repeated.
pub struct Retry {
    inner: SharedStore,
    patience: Patience,
    on_retry: OnRetry,
    /// Operations that have worked, one bit each.
    worked: AtomicU32,
    outage: Mutex<Outage>,
}

/// What is known of the trouble right now.
#[derive(Default)]
struct Outage {
    /// Requests that wait for another try.
    struggling: usize,
    since: Option<Instant>,
    /// Whether this outage was said aloud.
    said: bool,
    /// Whether any of the requests came through in the end.
    recovered: bool,
    last_said: Option<Instant>,
}

impl Retry {
    /// Repeats `inner`'s requests while `patience` lasts; `on_retry` is told of each.
    pub fn new(inner: SharedStore, patience: Patience, on_retry: OnRetry) -> Retry {
        Retry { inner, patience, on_retry, worked: AtomicU32::new(0), outage: Mutex::default() }
    }

    async fn run<T, F>(&self, operation: Operation, mut request: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let bit = 1 << operation as u32;
        let mut attempt = 0;
        // Kept by a guard: the request may be dropped while it waits.
        let mut struggle: Option<Struggle<'_>> = None;
        loop {
            let mut error = match request().await {
                Ok(output) => {
                    self.worked.fetch_or(bit, Ordering::Relaxed);
                    if let Some(struggle) = struggle.as_mut() {
                        struggle.recovered = true;
                    }
                    return Ok(output);
                }
                Err(error) => error,
            };
            let worked_before = self.worked.load(Ordering::Relaxed) & bit != 0;
            if error.kind == ErrorKind::Stop && worked_before {
                error.kind = ErrorKind::Retry(RetryReason::Denied);
            }
            let ErrorKind::Retry(reason) = error.kind else {
                // These answers are about the object: the bucket is there, and the operation is allowed. A digest or a name
                // may be refused before anybody looks at bucket or permission.
                if matches!(error.kind, ErrorKind::Fenced | ErrorKind::Missing) {
                    self.worked.fetch_or(bit, Ordering::Relaxed);
                }
                return Err(error);
            };
            if self.patience.get() == Until::Stop {
                return Err(error);
            }
            attempt += 1;
            (self.on_retry)(reason, &error);
            struggle.get_or_insert_with(|| Struggle::begin(self, reason, &error));
            if !self.patience.pause(attempt).await {
                return Err(error);
            }
        }
    }

    fn outage(&self) -> std::sync::MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's part in an outage: from its first failure to its end.
struct Struggle<'a> {
    retry: &'a Retry,
    recovered: bool,
}

impl<'a> Struggle<'a> {
    fn begin(retry: &'a Retry, reason: RetryReason, error: &StoreError) -> Struggle<'a> {
        let now = clock::now();
        let mut outage = retry.outage();
        outage.struggling += 1;
        let is_first = outage.since.is_none();
        outage.since.get_or_insert(now);
        let said_recently = outage.last_said.is_some_and(|at| now.saturating_duration_since(at) < SAID_RECENTLY);
        if is_first && !said_recently {
            outage.said = true;
            outage.last_said = Some(now);
            tracing::warn!(reason = reason.name(), hint = error.hint.as_deref(), "{error}; trying again");
        } else {
            tracing::debug!(reason = reason.name(), "{error}; trying again");
        }
        drop(outage);
        Struggle { retry, recovered: false }
    }
}

impl Drop for Struggle<'_> {
    fn drop(&mut self) {
        let mut outage = self.retry.outage();
        outage.struggling = outage.struggling.saturating_sub(1);
        outage.recovered |= self.recovered;
        if outage.struggling > 0 {
            return;
        }
        let ended = std::mem::take(&mut *outage);
        outage.last_said = ended.last_said;
        // Given up is not back: then the error goes to the caller, who says so.
        if let (Some(since), true, true) = (ended.since, ended.said, ended.recovered) {
            let lasted = clock::now().saturating_duration_since(since);
            tracing::info!("back after {:.1} s: {}", lasted.as_secs_f64(), self.retry.url());
        }
    }
}

#[async_trait]
impl Store for Retry {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn prefix(&self) -> &Prefix {
        self.inner.prefix()
    }

    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError> {
        self.run(Operation::Put, || self.inner.put(key, body.clone(), options.clone())).await
    }

    async fn create_upload(&self, key: &Key, options: WriteOptions) -> Result<UploadId, StoreError> {
        self.run(Operation::CreateUpload, || self.inner.create_upload(key, options.clone())).await
    }

    async fn put_part(&self, key: &Key, id: &UploadId, number: u32, body: Body) -> Result<StoredPart, StoreError> {
        self.run(Operation::PutPart, || self.inner.put_part(key, id, number, body.clone())).await
    }

    async fn copy_part(
        &self,
        key: &Key,
        id: &UploadId,
        number: u32,
        source: &Key,
        source_etag: &ETag,
        offset: u64,
        len_bytes: u64,
    ) -> Result<StoredPart, StoreError> {
        let inner = &self.inner;
        self.run(Operation::CopyPart, || inner.copy_part(key, id, number, source, source_etag, offset, len_bytes)).await
    }

    async fn list_parts(&self, key: &Key, id: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
        self.run(Operation::ListParts, || self.inner.list_parts(key, id)).await
    }

    async fn list_uploads(&self, key: &Key) -> Result<Vec<OpenUpload>, StoreError> {
        self.run(Operation::ListUploads, || self.inner.list_uploads(key)).await
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[StoredPart],
        condition: Condition,
    ) -> Result<Written, StoreError> {
        self.run(Operation::Complete, || self.inner.complete(key, id, parts, condition.clone())).await
    }

    async fn abort(&self, key: &Key, id: &UploadId) -> Result<(), StoreError> {
        self.run(Operation::Abort, || self.inner.abort(key, id)).await
    }

    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError> {
        self.run(Operation::List, || self.inner.list(from)).await
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.run(Operation::Head, || self.inner.head(key)).await
    }

    /// Only the request is repeated; a body that breaks off on its way down ends the stream with its error.
    async fn get(&self, key: &Key, range: Option<(u64, u64)>, if_match: Option<&ETag>) -> Result<Download, StoreError> {
        self.run(Operation::Get, || self.inner.get(key, range, if_match)).await
    }

    async fn copy(
        &self,
        source: &Key,
        source_etag: &ETag,
        key: &Key,
        options: WriteOptions,
    ) -> Result<Written, StoreError> {
        self.run(Operation::Copy, || self.inner.copy(source, source_etag, key, options.clone())).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.run(Operation::Delete, || self.inner.delete(key)).await
    }
}

//! A store that fails on purpose, by a script: what a server can't be made to do, and what needs no server.
//!
//! ```
//! # use chiefsync::store::{ErrorKind, Operation, RetryReason, SharedStore, faults::{Fault, Faulty, When}};
//! # fn example(store: SharedStore) {
//! let faulty = Faulty::new(store);
//! let lost = Fault::LoseAnswer(ErrorKind::Retry(RetryReason::Connection));
//! let rule = faulty.faults().add(When::operation(Operation::Complete).key("model").times(1), lost);
//! // ... run what is tested ...
//! assert_eq!(rule.hits(), 1);
//! # }
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;

use super::{
    Body, BodySource, Condition, Download, ETag, ErrorKind, ListFrom, Meta, OpenUpload, Operation, Page, SharedStore,
    Store, StoreError, StoredPart, UploadId, WriteOptions, Written,
};
use crate::key::{Key, Prefix};

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing is done; this is the answer.
    Refuse(ErrorKind),
    /// It is done, but this is the answer: a connection that broke at the wrong moment.
    LoseAnswer(ErrorKind),
    /// Waits at the gate, then all goes its way.
    Wait(Gate),
    /// One bit of the body is turned over after it was hashed, on its way up or down.
    FlipBit,
}

/// Which requests a fault is for: all of them, narrowed by each method.
#[derive(Clone, Debug, Default)]
pub struct When {
    operation: Option<Operation>,
    key_part: String,
    skip: u64,
    times: Option<u64>,
}

impl When {
    /// Every request.
    pub fn any() -> When {
        When::default()
    }

    /// Only this operation.
    pub fn operation(operation: Operation) -> When {
        When { operation: Some(operation), ..When::default() }
    }

    /// Only keys that hold this text.
    pub fn key(self, part: &str) -> When {
        When { key_part: part.to_owned(), ..self }
    }

    /// Not the first `count` that would match.
    pub fn skip(self, count: u64) -> When {
        When { skip: count, ..self }
    }

    /// At most `count` of them.
    pub fn times(self, count: u64) -> When {
        When { times: Some(count), ..self }
    }

    fn matches(&self, operation: Operation, key: &str) -> bool {
        self.operation.is_none_or(|wanted| wanted == operation) && key.contains(&self.key_part)
    }
}

/// Where requests wait until a test lets them through; it counts them, so that a test knows when one has come.
#[derive(Clone, Debug)]
pub struct Gate(Arc<watch::Sender<(u64, bool)>>);

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Gate {
        Gate(Arc::new(watch::Sender::new((0, false))))
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.0.send_modify(|state| state.1 = true);
    }

    /// Waits until `count` requests have come.
    pub async fn arrived(&self, count: u64) {
        let _ = self.0.subscribe().wait_for(|state| state.0 >= count).await;
    }

    async fn pass(&self) {
        self.0.send_modify(|state| state.0 += 1);
        let _ = self.0.subscribe().wait_for(|state| state.1).await;
    }
}

/// A fault that is in the script; dropping it leaves it there.
#[derive(Clone, Debug)]
pub struct Rule(Arc<Line>);

#[derive(Debug)]
struct Line {
    when: When,
    fault: Fault,
    seen: AtomicU64,
    hits: AtomicU64,
}

impl Rule {
    /// How often it struck.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::SeqCst)
    }
}

/// The script; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Vec<Rule>>>);

impl Faults {
    /// Adds a line to the script. Of several that match a request, the first strikes.
    pub fn add(&self, when: When, fault: Fault) -> Rule {
        let rule = Rule(Arc::new(Line { when, fault, seen: AtomicU64::new(0), hits: AtomicU64::new(0) }));
        self.lines().push(rule.clone());
        rule
    }

    /// Takes all of them back.
    pub fn clear(&self) {
        self.lines().clear();
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, operation: Operation, key: &str) -> Option<Fault> {
        self.lines().iter().find_map(|Rule(line)| {
            if !line.when.matches(operation, key) {
                return None;
            }
            let turn = line.seen.fetch_add(1, Ordering::SeqCst);
            let first = line.when.skip;
            if turn < first || line.when.times.is_some_and(|times| turn - first >= times) {
                return None;
            }
            line.hits.fetch_add(1, Ordering::SeqCst);
            Some(line.fault.clone())
        })
    }
}

/// A store behind a script of faults.
pub struct Faulty {
    inner: SharedStore,
    faults: Faults,
}

impl Faulty {
    /// `inner` with an empty script.
    pub fn new(inner: SharedStore) -> Faulty {
        Faulty { inner, faults: Faults::default() }
    }

    /// The script.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// Runs one request under the script; `true` tells it to turn over a bit.
    async fn run<T, F>(&self, operation: Operation, key: &str, request: impl FnOnce(bool) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let error = |kind| StoreError::new(kind, operation.name(), format!("{}{key}", self.inner.url()), "on purpose");
        match self.faults.strike(operation, key) {
            None => request(false).await,
            Some(Fault::Refuse(kind)) => Err(error(kind)),
            Some(Fault::LoseAnswer(kind)) => request(false).await.and_then(|_| Err(error(kind))),
            Some(Fault::FlipBit) => request(true).await,
            Some(Fault::Wait(gate)) => {
                gate.pass().await;
                request(false).await
            }
        }
    }
}

fn flip(bytes: Bytes) -> Bytes {
    let mut bytes = Vec::from(bytes);
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    Bytes::from(bytes)
}

/// The body as it would arrive with one bit turned over; its digest stays.
fn flip_body(body: Body) -> Body {
    let bytes = match &body.source {
        BodySource::Bytes(bytes) => bytes.clone(),
        BodySource::File { file, offset } => {
            let mut bytes = vec![0; usize::try_from(body.len_bytes).unwrap_or(0)];
            let got = file.read_at(&mut bytes, *offset).unwrap_or(0);
            bytes.truncate(got);
            Bytes::from(bytes)
        }
    };
    Body { source: BodySource::Bytes(flip(bytes)), ..body }
}

fn flip_download(download: Download) -> Download {
    let mut is_first = true;
    let bytes = download.bytes.map(move |piece| if std::mem::take(&mut is_first) { piece.map(flip) } else { piece });
    Download { bytes: bytes.boxed(), ..download }
}

#[async_trait]
impl Store for Faulty {
    fn url(&self) -> String {
        self.inner.url()
    }

    fn prefix(&self) -> &Prefix {
        self.inner.prefix()
    }

    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError> {
        self.run(Operation::Put, key.as_str(), |is_flipped| {
            self.inner.put(key, if is_flipped { flip_body(body) } else { body }, options)
        })
        .await
    }

    async fn create_upload(&self, key: &Key, options: WriteOptions) -> Result<UploadId, StoreError> {
        self.run(Operation::CreateUpload, key.as_str(), |_| self.inner.create_upload(key, options)).await
    }

    async fn put_part(&self, key: &Key, id: &UploadId, number: u32, body: Body) -> Result<StoredPart, StoreError> {
        self.run(Operation::PutPart, key.as_str(), |is_flipped| {
            self.inner.put_part(key, id, number, if is_flipped { flip_body(body) } else { body })
        })
        .await
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
        self.run(Operation::CopyPart, key.as_str(), |_| {
            self.inner.copy_part(key, id, number, source, source_etag, offset, len_bytes)
        })
        .await
    }

    async fn list_parts(&self, key: &Key, id: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
        self.run(Operation::ListParts, key.as_str(), |_| self.inner.list_parts(key, id)).await
    }

    async fn list_uploads(&self, key: &Key) -> Result<Vec<OpenUpload>, StoreError> {
        self.run(Operation::ListUploads, key.as_str(), |_| self.inner.list_uploads(key)).await
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[StoredPart],
        condition: Condition,
    ) -> Result<Written, StoreError> {
        self.run(Operation::Complete, key.as_str(), |_| self.inner.complete(key, id, parts, condition)).await
    }

    async fn abort(&self, key: &Key, id: &UploadId) -> Result<(), StoreError> {
        self.run(Operation::Abort, key.as_str(), |_| self.inner.abort(key, id)).await
    }

    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError> {
        self.run(Operation::List, &from.starts_with, |_| self.inner.list(from)).await
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.run(Operation::Head, key.as_str(), |_| self.inner.head(key)).await
    }

    async fn get(&self, key: &Key, range: Option<(u64, u64)>, if_match: Option<&ETag>) -> Result<Download, StoreError> {
        self.run(Operation::Get, key.as_str(), |is_flipped| {
            let download = self.inner.get(key, range, if_match);
            download.map(move |got| if is_flipped { got.map(flip_download) } else { got })
        })
        .await
    }

    async fn copy(
        &self,
        source: &Key,
        source_etag: &ETag,
        key: &Key,
        options: WriteOptions,
    ) -> Result<Written, StoreError> {
        self.run(Operation::Copy, key.as_str(), |_| self.inner.copy(source, source_etag, key, options)).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.run(Operation::Delete, key.as_str(), |_| self.inner.delete(key)).await
    }
}

//! Where objects live: one small trait, its errors named by what the caller does next, and the stores behind it.
//!
//! A store is rooted at the destination's prefix: a [`Key`] is relative to it, so nothing outside can be named.
//! Implementations: `s3` (the only file that knows the AWS SDK), `local` (`file://`); wrappers: `retry`, `faults`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::config::Destination;
use crate::digest::Sha256;
use crate::key::{Key, Prefix};

pub mod faults;
pub mod hashing;
pub mod inventory;
pub mod local;
mod operation;
pub mod probe;
pub mod retry;
pub mod s3;

pub use self::operation::Operation;

/// A store that is shared between tasks.
pub type SharedStore = Arc<dyn Store>;

/// Fixed credentials, for stores that this program starts itself; everywhere else the SDK's own settings hold.
#[derive(Clone)]
pub struct FixedCredentials {
    /// The access key's id.
    pub access_key_id: String,
    /// The secret.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for FixedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedCredentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// How to open a store; the default takes everything from the environment.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Names on one page of a listing, from 1 to 1,000.
    pub page_size: u16,
    /// Where S3 is, instead of `AWS_ENDPOINT_URL`.
    pub endpoint_url: Option<String>,
    /// The region, instead of `AWS_REGION`.
    pub region: Option<String>,
    /// Credentials, instead of the SDK's chain.
    pub credentials: Option<FixedCredentials>,
    /// A PEM file with the only authorities to trust over TLS, instead of `AWS_CA_BUNDLE`.
    pub ca_bundle: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions { page_size: 1000, endpoint_url: None, region: None, credentials: None, ca_bundle: None }
    }
}

/// The store behind a destination. Makes no request: whether it is there, the first one tells.
///
/// # Errors
/// [`ErrorKind::Stop`] when what is configured can't work: no region, no usable directory.
pub async fn open(destination: &Destination, options: &OpenOptions) -> Result<SharedStore, StoreError> {
    Ok(match destination {
        Destination::S3 { bucket, prefix } => Arc::new(s3::S3Store::connect(bucket, prefix, options).await?),
        Destination::File { directory } => Arc::new(local::LocalStore::open(directory, options)?),
    })
}

/// An entity tag, opaque: compared, never read. Stored without the quotes that HTTP puts around it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ETag(Box<str>);

impl ETag {
    /// From a header or a listing, with or without quotes.
    pub fn new(text: &str) -> ETag {
        ETag(text.trim_matches('"').into())
    }

    /// Without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As HTTP wants it in `If-Match`.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a multipart upload that has begun.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UploadId(pub String);

/// What must hold in the store for a write to happen; where it doesn't, the write ends [`ErrorKind::Fenced`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Condition {
    /// Write whatever is there.
    #[default]
    None,
    /// There is no object of this name (`If-None-Match: *`).
    Absent,
    /// The object is the one with this tag (`If-Match`).
    Matches(ETag),
}

/// Bytes to send, with the digest that was taken of them: the store refuses bytes that don't match it.
#[derive(Clone)]
pub struct Body {
    /// The bytes, or where to read them.
    pub source: BodySource,
    /// How many bytes are sent.
    pub len_bytes: u64,
    /// Their SHA-256: checksum header and signature's payload hash in one.
    pub sha256: Sha256,
}

/// Where a [`Body`]'s bytes come from.
#[derive(Clone)]
pub enum BodySource {
    /// In memory; sent without a copy.
    Bytes(Bytes),
    /// A range of an open file, streamed through the same descriptor that was hashed, in small reads: for parts larger
    /// than the memory budget.
    File {
        /// The open file.
        file: Arc<crate::disk::ReadFile>,
        /// Where the range starts, in bytes.
        offset: u64,
    },
}

impl Body {
    /// A body of bytes, hashed here: for small control objects.
    pub fn hashed(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        let sha256 = Sha256::of(&bytes);
        Body::bytes(bytes, sha256)
    }

    /// A body of bytes whose digest is known.
    pub fn bytes(bytes: Bytes, sha256: Sha256) -> Body {
        Body { len_bytes: bytes.len() as u64, source: BodySource::Bytes(bytes), sha256 }
    }
}

/// How to write an object.
#[derive(Clone, Default, Debug)]
pub struct WriteOptions {
    /// What must hold for the write to happen.
    pub condition: Condition,
    /// User metadata (`x-amz-meta-*`): names in lower case.
    pub metadata: Vec<(String, String)>,
    /// MIME type; the store's default where there is none.
    pub content_type: Option<&'static str>,
    /// For [`Store::create_upload`]: some parts will be copies ([`Store::copy_part`]). MinIO refuses those in an upload that
    /// declares checksums, so this one goes without (the bytes sent are still checked) and the object will have none. Only
    /// the process that began such an upload goes on with it.
    pub for_copies: bool,
}

impl WriteOptions {
    /// Nothing but a condition.
    pub fn when(condition: Condition) -> WriteOptions {
        WriteOptions { condition, ..WriteOptions::default() }
    }
}

/// What a write left in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The tag of the object that is there now.
    pub etag: ETag,
    /// `ChecksumSHA256` as the store returned it (for several parts: `…-N`); `None` where it returns none.
    pub checksum: Option<String>,
}

/// A part of a multipart upload that the store holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPart {
    /// From 1.
    pub number: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// The part's tag, echoed when the upload is completed.
    pub etag: ETag,
    /// The part's checksum, where the store returned it: only then it is echoed.
    pub sha256: Option<Sha256>,
}

/// A multipart upload that was begun and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenUpload {
    /// The object that it would become.
    pub key: Key,
    /// Its name.
    pub id: UploadId,
}

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name below the prefix.
    pub key: Key,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Its tag.
    pub etag: ETag,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The objects, in the store's order.
    pub objects: Vec<Listed>,
    /// Full names below the prefix that are no [`Key`] (a `//`, a trailing `/`): shown, never touched.
    pub foreign: Vec<String>,
    /// Where the next page starts; `None` on the last.
    pub next: Option<String>,
}

/// Which part of a listing is wanted.
#[derive(Clone, Debug, Default)]
pub struct ListFrom {
    /// Only names that start with this text (below the store's prefix); empty for all.
    pub starts_with: String,
    /// Only names after this one, in the order of bytes.
    pub after: Option<String>,
    /// The token of an earlier page; wins over `after`.
    pub token: Option<String>,
}

/// What a HEAD tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Length in bytes.
    pub size_bytes: u64,
    /// Its tag.
    pub etag: ETag,
    /// `ChecksumSHA256` as the store keeps it; `None` where it has none.
    pub checksum: Option<String>,
    /// User metadata, names in lower case.
    pub metadata: Vec<(String, String)>,
}

/// An object on its way down.
pub struct Download {
    /// What is known of it.
    pub meta: Meta,
    /// Its bytes, piece by piece.
    pub bytes: BoxStream<'static, Result<Bytes, StoreError>>,
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download").field("meta", &self.meta).finish_non_exhaustive()
    }
}

impl Download {
    /// The whole body in memory: for control objects.
    ///
    /// # Errors
    /// What the stream ended with, or [`ErrorKind::Stop`] when there are more than `limit_bytes`: the bucket is not trusted
    /// with our memory.
    pub async fn collect(mut self, limit_bytes: u64) -> Result<Vec<u8>, StoreError> {
        use futures_util::StreamExt as _;
        let mut all = Vec::with_capacity(usize::try_from(self.meta.size_bytes.min(limit_bytes)).unwrap_or(0));
        while let Some(piece) = self.bytes.next().await {
            let piece = piece?;
            if (all.len() + piece.len()) as u64 > limit_bytes {
                return Err(StoreError::new(
                    ErrorKind::Stop,
                    "GetObject",
                    "",
                    format!("larger than {limit_bytes} bytes"),
                ));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

/// What the caller does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// Again, later: the reason names the counter.
    Retry(RetryReason),
    /// Give up for good: credentials, permission, no such bucket.
    Stop,
    /// A condition did not hold: somebody else wrote.
    Fenced,
    /// The bytes that arrived are not the bytes that were hashed.
    Corrupt,
    /// There is no such object or upload.
    Missing,
    /// The store can't do this operation at all: use another way.
    Unsupported,
    /// The store refuses this one request (a name, a size): other objects may go on.
    Refused,
}

/// Why a request is worth another try.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RetryReason {
    /// 503, 429, SlowDown.
    SlowDown,
    /// Any other 5xx.
    Server,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Connection,
    /// The credentials have expired; fresh ones are fetched.
    Expired,
    /// The clocks differ; the next request is signed with the server's.
    Skew,
    /// Another write to the same name was under way (409).
    Conflict,
    /// The store refuses what it allowed before: a policy or a bucket that is being changed under us.
    Denied,
}

impl RetryReason {
    /// The word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            RetryReason::SlowDown => "slow_down",
            RetryReason::Server => "server",
            RetryReason::Timeout => "timeout",
            RetryReason::Connection => "connection",
            RetryReason::Expired => "expired",
            RetryReason::Skew => "skew",
            RetryReason::Conflict => "conflict",
            RetryReason::Denied => "denied",
        }
    }
}

/// What went wrong: the operation, the object, the store's own words, and a hint where one helps. Never holds a secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation} {target}: {message}")]
pub struct StoreError {
    /// What the caller does next.
    pub kind: ErrorKind,
    /// S3's name of the operation, also for other stores.
    pub operation: &'static str,
    /// The object or the bucket, as a URL.
    pub target: String,
    /// The store's code and words.
    pub message: String,
    /// What a person can do about it.
    pub hint: Option<String>,
}

impl StoreError {
    /// An error without a hint.
    pub fn new(
        kind: ErrorKind,
        operation: &'static str,
        target: impl Into<String>,
        message: impl Into<String>,
    ) -> StoreError {
        StoreError { kind, operation, target: target.into(), message: message.into(), hint: None }
    }

    /// The same with a hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> StoreError {
        self.hint = Some(hint.into());
        self
    }

    /// Whether another try may help.
    pub fn is_retry(&self) -> bool {
        matches!(self.kind, ErrorKind::Retry(_))
    }
}

/// Objects below one prefix.
///
/// All calls may be repeated: a put of the same bytes under the same condition, a part, an abort, a delete. What a repeated
/// call may find changed by its own earlier try (a condition that held before, an upload that is complete) is sorted out
/// by the caller, who holds the digests.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The destination as a person would type it, for logs and errors.
    fn url(&self) -> String;

    /// What stands in front of every key.
    fn prefix(&self) -> &Prefix;

    /// Writes one object from one body.
    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError>;

    /// Begins a multipart upload; metadata and content type are fixed here, the condition is checked at [`Store::complete`].
    async fn create_upload(&self, key: &Key, options: WriteOptions) -> Result<UploadId, StoreError>;

    /// Writes one part (numbers from 1). A part written twice keeps the later bytes.
    async fn put_part(&self, key: &Key, id: &UploadId, number: u32, body: Body) -> Result<StoredPart, StoreError>;

    /// Copies `len_bytes` from `offset` of another object, if it still has `source_etag`, as one part (UploadPartCopy).
    #[allow(clippy::too_many_arguments)]
    async fn copy_part(
        &self,
        key: &Key,
        id: &UploadId,
        number: u32,
        source: &Key,
        source_etag: &ETag,
        offset: u64,
        len_bytes: u64,
    ) -> Result<StoredPart, StoreError>;

    /// The parts that the store holds, by number.
    async fn list_parts(&self, key: &Key, id: &UploadId) -> Result<Vec<StoredPart>, StoreError>;

    /// Open uploads of exactly this key (MinIO knows no other question).
    async fn list_uploads(&self, key: &Key) -> Result<Vec<OpenUpload>, StoreError>;

    /// Makes the object from its parts.
    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[StoredPart],
        condition: Condition,
    ) -> Result<Written, StoreError>;

    /// Throws an upload away; one that is already gone is no error.
    async fn abort(&self, key: &Key, id: &UploadId) -> Result<(), StoreError>;

    /// One page of a listing.
    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError>;

    /// What is known of an object, its checksum included.
    async fn head(&self, key: &Key) -> Result<Meta, StoreError>;

    /// An object's bytes: all, or `range` = (offset, length) in bytes; only if it still has `if_match`.
    async fn get(&self, key: &Key, range: Option<(u64, u64)>, if_match: Option<&ETag>) -> Result<Download, StoreError>;

    /// Copies an object on the server, if the source still has `source_etag`; metadata goes along.
    async fn copy(
        &self,
        source: &Key,
        source_etag: &ETag,
        key: &Key,
        options: WriteOptions,
    ) -> Result<Written, StoreError>;

    /// Removes an object; one that is already gone is no error. Never conditional: MinIO ignores conditions here.
    async fn delete(&self, key: &Key) -> Result<(), StoreError>;
}

/// How often a small object whose bytes arrive damaged is sent again.
const INTACT_TRIES: u32 = 4;

/// Writes one of chiefsync's own small objects; bytes that arrive damaged are sent again.
///
/// # Errors
/// The store's; [`ErrorKind::Corrupt`] only when no try arrived whole.
pub async fn put_intact(
    store: &dyn Store,
    key: &Key,
    body: Body,
    options: WriteOptions,
) -> Result<Written, StoreError> {
    let mut tries = 1;
    loop {
        match store.put(key, body.clone(), options.clone()).await {
            Err(error) if error.kind == ErrorKind::Corrupt && tries < INTACT_TRIES => tries += 1,
            other => return other,
        }
    }
}

//! `file://`: the same semantics on a directory, without a server.
//!
//! Layout below the root: every object is the plain file of its name; what the store itself needs is in `.chiefsync/local/`
//! (`tmp/` files being written, `uploads/<id>/` multipart uploads, `notes/` checksums and metadata, `lock`) and no key.
//!
//! Invariants: an object appears by rename, whole and checked; its tag is its size and time of change, and the store gives
//! every version a time of its own, so that any change, a stranger's too, changes the tag, and a copy that keeps times
//! (`cp -a`) keeps it. Conditions are checked and the rename is done under one lock that holds between processes. Nothing
//! outside the root is touched: links are not followed.

mod listing;
mod notes;
mod objects;
mod uploads;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once};

use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::{
    Body, Condition, Download, ETag, ErrorKind, ListFrom, Meta, OpenOptions, OpenUpload, Page, RetryReason, Store,
    StoreError, StoredPart, UploadId, WriteOptions, Written,
};
use crate::disk::{Directory, Lock, Stat};
use crate::key::{Key, Prefix};

/// The directory that is the store's own.
const OWN: &str = ".chiefsync/local";

/// The longest segment of a name that Linux file systems take, in bytes.
const LONGEST_SEGMENT_BYTES: usize = 255;

/// How much is read or written at once.
const PIECE_BYTES: usize = 256 * 1024;

/// Objects below one directory. Cheap to clone.
#[derive(Clone)]
pub struct LocalStore(Arc<Inner>);

struct Inner {
    root: PathBuf,
    prefix: Prefix,
    page_size: usize,
    /// Listings that wait for their next page, by its token.
    walks: Mutex<HashMap<String, listing::Walk>>,
    sweep: Once,
}

/// What an operation that failed was doing: the S3 name and the key.
#[derive(Clone, Copy)]
struct Doing<'a> {
    store: &'a LocalStore,
    operation: &'static str,
    key: Option<&'a Key>,
}

impl Doing<'_> {
    fn error(self, kind: ErrorKind, message: impl Into<String>) -> StoreError {
        StoreError::new(kind, self.operation, self.store.target(self.key), message)
    }

    /// From the kernel's words to what the caller does next.
    fn failed(self, error: &io::Error) -> StoreError {
        use io::ErrorKind as Io;
        let (kind, hint) = match error.kind() {
            Io::NotFound => (ErrorKind::Missing, None),
            Io::StorageFull | Io::QuotaExceeded => (
                ErrorKind::Retry(RetryReason::Server),
                Some("the destination's file system is full: free space there; uploads go on when there is room"),
            ),
            Io::PermissionDenied | Io::ReadOnlyFilesystem => {
                (ErrorKind::Stop, Some("the destination's directory must be writable for this user"))
            }
            Io::StaleNetworkFileHandle | Io::TimedOut | Io::ResourceBusy => {
                (ErrorKind::Retry(RetryReason::Server), None)
            }
            Io::IsADirectory | Io::NotADirectory | Io::DirectoryNotEmpty => (
                ErrorKind::Refused,
                Some("a directory can't hold an object a and an object a/b at once: rename one or exclude it"),
            ),
            _ => match error.raw_os_error() {
                // EIO, ENOMEM, EMFILE, ENFILE: the machine's trouble, not the object's.
                Some(5 | 12 | 23 | 24) => (ErrorKind::Retry(RetryReason::Server), None),
                // ELOOP: a link where a directory or file was expected.
                Some(40) => (ErrorKind::Refused, Some("a link stands in the way, and links are not followed")),
                _ => (ErrorKind::Refused, None),
            },
        };
        let mut failed = self.error(kind, error.to_string());
        failed.hint = hint.map(str::to_owned);
        failed
    }
}

/// An object's tag: changes with every version, see the module's text.
fn tag_of(stat: &Stat) -> ETag {
    ETag::new(&format!("{:x}-{:x}", stat.mtime_ns, stat.size))
}

impl LocalStore {
    /// A store in `directory`, which is made when something is first written.
    ///
    /// # Errors
    /// [`ErrorKind::Stop`] when something else than a directory is there.
    pub fn open(directory: &Path, options: &OpenOptions) -> Result<LocalStore, StoreError> {
        let store = LocalStore(Arc::new(Inner {
            root: directory.to_owned(),
            prefix: Prefix::default(),
            page_size: usize::from(options.page_size.clamp(1, 1000)),
            walks: Mutex::default(),
            sweep: Once::new(),
        }));
        match Directory::open(directory) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let doing = Doing { store: &store, operation: "Connect", key: None };
                Err(StoreError { kind: ErrorKind::Stop, ..doing.failed(&e) })
            }
            _ => Ok(store),
        }
    }

    fn target(&self, key: Option<&Key>) -> String {
        format!("file://{}/{}", self.0.root.display(), key.map_or("", Key::as_str))
    }

    fn root(&self) -> io::Result<Directory> {
        Directory::open(&self.0.root)
    }

    fn root_created(&self) -> io::Result<Directory> {
        match self.root() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                crate::disk::create_dir_all(&self.0.root)?;
                self.root()
            }
            other => other,
        }
    }

    /// The store's own directory `name`, made if need be. The first call removes what crashed writers left long ago.
    fn own(&self, name: &str) -> io::Result<Directory> {
        let own = self.root_created()?.descend_created(OWN)?;
        self.0.sweep.call_once(|| objects::sweep(&own));
        own.child_created(name)
    }

    fn lock(&self) -> io::Result<Lock> {
        self.root_created()?.descend_created(OWN)?.lock("lock")
    }

    /// Runs `work` where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        work: impl FnOnce(Doing<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (store, key) = (self.clone(), key.cloned());
        let result = tokio::task::spawn_blocking(move || {
            let doing = Doing { store: &store, operation, key: key.as_ref() };
            if let Some(key) = doing.key {
                check(doing, key)?;
            }
            work(doing)
        });
        match result.await {
            Ok(result) => result,
            Err(e) => Err(StoreError::new(ErrorKind::Refused, operation, self.url(), e.to_string())),
        }
    }
}

/// Names that this store can't hold.
fn check(doing: Doing<'_>, key: &Key) -> Result<(), StoreError> {
    if key.is_within(OWN) {
        return Err(doing.error(ErrorKind::Refused, format!("{OWN}/ is the store's own")));
    }
    if key.as_str().split('/').any(|segment| segment.len() > LONGEST_SEGMENT_BYTES) {
        let message = format!("a segment of the name is longer than {LONGEST_SEGMENT_BYTES} bytes");
        return Err(doing.error(ErrorKind::Refused, message));
    }
    if key.as_str().len() > crate::key::MAX_KEY_BYTES {
        return Err(doing.error(ErrorKind::Refused, "the name is longer than S3 takes"));
    }
    Ok(())
}

#[async_trait]
impl Store for LocalStore {
    fn url(&self) -> String {
        self.target(None)
    }

    fn prefix(&self) -> &Prefix {
        &self.0.prefix
    }

    async fn put(&self, key: &Key, body: Body, options: WriteOptions) -> Result<Written, StoreError> {
        self.blocking("PutObject", Some(key), move |doing| objects::put(doing, &body, options)).await
    }

    async fn create_upload(&self, key: &Key, options: WriteOptions) -> Result<UploadId, StoreError> {
        self.blocking("CreateMultipartUpload", Some(key), move |doing| uploads::create(doing, options)).await
    }

    async fn put_part(&self, key: &Key, id: &UploadId, number: u32, body: Body) -> Result<StoredPart, StoreError> {
        let id = id.clone();
        self.blocking("UploadPart", Some(key), move |doing| uploads::put_part(doing, &id, number, &body)).await
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
        let (id, source, source_etag) = (id.clone(), source.clone(), source_etag.clone());
        self.blocking("UploadPartCopy", Some(key), move |doing| {
            uploads::copy_part(doing, &id, number, &source, &source_etag, offset, len_bytes)
        })
        .await
    }

    async fn list_parts(&self, key: &Key, id: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
        let id = id.clone();
        self.blocking("ListParts", Some(key), move |doing| uploads::list_parts(doing, &id)).await
    }

    async fn list_uploads(&self, key: &Key) -> Result<Vec<OpenUpload>, StoreError> {
        self.blocking("ListMultipartUploads", Some(key), uploads::list).await
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[StoredPart],
        condition: Condition,
    ) -> Result<Written, StoreError> {
        let (id, parts) = (id.clone(), parts.to_vec());
        self.blocking("CompleteMultipartUpload", Some(key), move |doing| {
            uploads::complete(doing, &id, &parts, &condition)
        })
        .await
    }

    async fn abort(&self, key: &Key, id: &UploadId) -> Result<(), StoreError> {
        let id = id.clone();
        self.blocking("AbortMultipartUpload", Some(key), move |doing| uploads::abort(doing, &id)).await
    }

    async fn list(&self, from: &ListFrom) -> Result<Page, StoreError> {
        let from = from.clone();
        self.blocking("ListObjectsV2", None, move |doing| listing::page(doing, &from)).await
    }

    async fn head(&self, key: &Key) -> Result<Meta, StoreError> {
        self.blocking("HeadObject", Some(key), |doing| objects::open(doing).map(|(_, meta)| meta)).await
    }

    async fn get(&self, key: &Key, range: Option<(u64, u64)>, if_match: Option<&ETag>) -> Result<Download, StoreError> {
        let if_match = if_match.cloned();
        let (file, meta, offset, len_bytes) =
            self.blocking("GetObject", Some(key), move |doing| objects::get(doing, range, if_match.as_ref())).await?;
        let (store, key) = (self.clone(), key.clone());
        let file = Arc::new(file);
        let pieces = futures_util::stream::unfold((offset, offset + len_bytes), move |(at, end)| {
            let (store, key, file) = (store.clone(), key.clone(), file.clone());
            async move {
                if at >= end {
                    return None;
                }
                let piece = store.blocking("GetObject", Some(&key), move |doing| objects::piece(doing, &file, at, end));
                Some(match piece.await {
                    Ok(bytes) => (Ok(bytes.clone()), (at + bytes.len() as u64, end)),
                    Err(error) => (Err(error), (end, end)),
                })
            }
        });
        Ok(Download { meta, bytes: pieces.boxed() })
    }

    async fn copy(
        &self,
        source: &Key,
        source_etag: &ETag,
        key: &Key,
        options: WriteOptions,
    ) -> Result<Written, StoreError> {
        let (source, source_etag) = (source.clone(), source_etag.clone());
        self.blocking("CopyObject", Some(key), move |doing| objects::copy(doing, &source, &source_etag, options)).await
    }

    async fn delete(&self, key: &Key) -> Result<(), StoreError> {
        self.blocking("DeleteObject", Some(key), objects::delete).await
    }
}

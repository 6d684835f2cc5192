//! Buckets, objects and uploads: one index in memory behind one lock, over one of three media.
//!
//! Invariants:
//! - What a reader sees is complete and checked: content gets its name only here, under the lock, together with
//!   its condition. That makes conditional writes atomic.
//! - The lock is held for lookups, renames and a line of the log; never while content moves.
//! - After [`Store::close`] nothing changes any more, so that another server may open the same directory.

mod blob;
mod directory;
mod multipart;

pub(crate) use blob::{Blob, Draft, Reader, Sink};
pub(crate) use multipart::{CompletedPart, Completion, NewPart, Upload};

use crate::checksum::Checksum;
use crate::clock::now;
use crate::conditions::Conditions;
use directory::{Directory, Record};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Where content is kept.
#[derive(Clone, Debug, Default)]
pub enum Medium {
    /// In memory; gone with the server.
    #[default]
    Memory,
    /// In a directory that survives the server, with objects where a person can find them: `DIR/bucket/key`.
    Directory(PathBuf),
    /// Nowhere: sizes only, nothing verified, for measuring clients. Content whose key contains one of these texts
    /// is kept in memory and checked all the same (a client that reads its own small control objects needs them).
    Discard {
        /// The texts; [`Medium::discard`] fills in chiefsync's own.
        keep: Vec<String>,
    },
}

impl Medium {
    /// Discards everything but chiefsync's control objects.
    pub fn discard() -> Medium {
        Medium::Discard { keep: vec![".chiefsync/".into()] }
    }
}

/// The headers that are stored with an object and given back with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Headers {
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    pub content_language: Option<String>,
    pub content_disposition: Option<String>,
    pub cache_control: Option<String>,
    /// `x-amz-meta-*`, by the name behind the prefix.
    pub user: BTreeMap<String, String>,
}

/// One object as the index knows it.
#[derive(Debug)]
pub(crate) struct Object {
    pub info: ObjectInfo,
    pub blob: Blob,
}

/// What is known about an object besides its content; what the directory's log holds for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectInfo {
    pub size: u64,
    pub etag: String,
    pub modified: SystemTime,
    pub checksum: Option<Checksum>,
    pub headers: Headers,
    /// The sizes of its parts, if it was uploaded in parts.
    pub parts: Vec<u64>,
}

/// What a write brings along; the store adds the time.
#[derive(Debug)]
pub(crate) struct NewObject {
    pub draft: Draft,
    pub size: u64,
    pub etag: String,
    pub checksum: Option<Checksum>,
    pub headers: Headers,
    pub parts: Vec<u64>,
}

#[derive(Debug)]
struct Bucket {
    created: SystemTime,
    objects: BTreeMap<String, Arc<Object>>,
    uploads: BTreeMap<String, Upload>,
}

#[derive(Debug, Default)]
struct State {
    buckets: BTreeMap<String, Bucket>,
    closed: bool,
}

impl State {
    fn bucket(&self, name: &str) -> S3Result<&Bucket> {
        self.buckets.get(name).ok_or_else(|| S3ErrorCode::NoSuchBucket.into())
    }

    /// The bucket, for a change.
    fn bucket_mut(&mut self, name: &str) -> S3Result<&mut Bucket> {
        if self.closed {
            return Err(S3ErrorCode::ServiceUnavailable.into());
        }
        self.buckets.get_mut(name).ok_or_else(|| S3ErrorCode::NoSuchBucket.into())
    }
}

#[derive(Debug)]
enum Shelf {
    Memory,
    Directory(Directory),
    Discard { keep: Vec<String> },
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Store {
    state: Mutex<State>,
    shelf: Shelf,
    min_part_bytes: u64,
    serial: AtomicU64,
}

impl Store {
    pub fn open(medium: &Medium, min_part_bytes: u64) -> io::Result<Store> {
        let mut state = State::default();
        let shelf = match medium {
            Medium::Memory => Shelf::Memory,
            Medium::Discard { keep } => Shelf::Discard { keep: keep.clone() },
            Medium::Directory(root) => {
                let (directory, buckets) = Directory::open(root)?;
                state.buckets = buckets;
                Shelf::Directory(directory)
            }
        };
        Ok(Store { state: Mutex::new(state), shelf, min_part_bytes, serial: AtomicU64::new(0) })
    }

    /// Refuses every change from here on.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Whether this key's content is to be thrown away unread.
    pub fn discards(&self, key: &str) -> bool {
        matches!(&self.shelf, Shelf::Discard { keep } if !keep.iter().any(|part| key.contains(part)))
    }

    // Buckets

    /// Makes a bucket; says whether it is new.
    pub fn create_bucket(&self, name: &str) -> S3Result<bool> {
        let mut state = self.lock();
        if state.buckets.contains_key(name) {
            return Ok(false);
        }
        if state.closed {
            return Err(S3ErrorCode::ServiceUnavailable.into());
        }
        let created = now();
        if let Shelf::Directory(directory) = &self.shelf {
            directory.record(name, &Record::Bucket { created }).map_err(io_error)?;
        }
        state.buckets.insert(name.into(), Bucket { created, objects: BTreeMap::new(), uploads: BTreeMap::new() });
        Ok(true)
    }

    pub fn buckets(&self) -> Vec<(String, SystemTime)> {
        self.lock().buckets.iter().map(|(name, bucket)| (name.clone(), bucket.created)).collect()
    }

    pub fn has_bucket(&self, name: &str) -> S3Result<()> {
        self.lock().bucket(name).map(|_| ())
    }

    // Content on its way in

    /// A place for content that will be stored under `key`.
    pub fn sink(&self, key: &str, expected_bytes: u64) -> S3Result<Sink> {
        match &self.shelf {
            Shelf::Directory(directory) => Sink::file(directory.temporary(self.next_serial())).map_err(io_error),
            Shelf::Discard { .. } if self.discards(key) => Ok(Sink::Discard),
            Shelf::Memory | Shelf::Discard { .. } => Ok(Sink::memory(expected_bytes)),
        }
    }

    // Objects

    /// Gives a draft its name, if the conditions hold at that very moment.
    pub fn put(&self, bucket: &str, key: &str, new: NewObject, conditions: &Conditions) -> S3Result<Arc<Object>> {
        let mut state = self.lock();
        let objects = &mut state.bucket_mut(bucket)?.objects;
        conditions.check_write(objects.get(key).map(|object| object.info.etag.as_str()))?;
        self.place(objects, bucket, key, new)
    }

    /// The last step of every write. The caller holds the lock and has checked everything.
    fn place(
        &self,
        objects: &mut BTreeMap<String, Arc<Object>>,
        bucket: &str,
        key: &str,
        new: NewObject,
    ) -> S3Result<Arc<Object>> {
        let info = ObjectInfo {
            size: new.size,
            etag: new.etag,
            modified: now(),
            checksum: new.checksum,
            headers: new.headers,
            parts: new.parts,
        };
        let blob = match (&self.shelf, new.draft) {
            (Shelf::Directory(directory), Draft::File(temp)) => {
                let old = objects.get(key).map(|object| &object.blob);
                directory.put(bucket, key, temp, &info, old).map_err(io_error)?
            }
            (_, Draft::Memory(pieces)) => Blob::Memory(pieces),
            (_, Draft::Discarded) => Blob::Discarded,
            (_, Draft::File(_)) => {
                return Err(s3_error!(InternalError, "a file without a directory"));
            }
        };
        let object = Arc::new(Object { info, blob });
        objects.insert(key.into(), Arc::clone(&object));
        Ok(object)
    }

    pub fn get(&self, bucket: &str, key: &str) -> S3Result<Arc<Object>> {
        let state = self.lock();
        state.bucket(bucket)?.objects.get(key).cloned().ok_or_else(|| S3ErrorCode::NoSuchKey.into())
    }

    /// Looks an object up and opens a range of it that `select` chooses, both at one moment.
    pub fn open_object(
        &self,
        bucket: &str,
        key: &str,
        select: impl FnOnce(&ObjectInfo) -> S3Result<Range<u64>>,
    ) -> S3Result<(Arc<Object>, Reader)> {
        let state = self.lock();
        let object = state.bucket(bucket)?.objects.get(key).ok_or(S3ErrorCode::NoSuchKey)?;
        let range = select(&object.info)?;
        let reader = Reader::open(&object.blob, range).map_err(io_error)?;
        Ok((Arc::clone(object), reader))
    }

    /// Removes an object. One that isn't there is no error, as in S3, unless the conditions ask for it.
    pub fn delete(&self, bucket: &str, key: &str, conditions: &Conditions) -> S3Result<bool> {
        let mut state = self.lock();
        let objects = &mut state.bucket_mut(bucket)?.objects;
        let Some(object) = objects.get(key) else {
            return conditions.check_write(None).map(|()| false);
        };
        conditions.check_write(Some(&object.info.etag))?;
        if let Shelf::Directory(directory) = &self.shelf {
            directory.delete(bucket, key, &object.blob).map_err(io_error)?;
        }
        objects.remove(key);
        Ok(true)
    }

    /// Shows the sorted objects of a bucket to `look`, under the lock.
    pub fn with_objects<R>(&self, bucket: &str, look: impl FnOnce(&BTreeMap<String, Arc<Object>>) -> R) -> S3Result<R> {
        Ok(look(&self.lock().bucket(bucket)?.objects))
    }

    // Helpers

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A failing disk, as S3 would say it.
pub(crate) fn io_error(error: io::Error) -> S3Error {
    S3Error::with_message(S3ErrorCode::InternalError, format!("storage: {error}"))
}

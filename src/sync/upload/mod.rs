//! Upload: one version of one file into one object, checked on the way.
//!
//! Invariants: a file is read through one descriptor, and its version is the same before and after; bytes are hashed once,
//! and the store refuses what does not match; a write is conditional on what is known to be there. A multipart upload that
//! an earlier process left is continued: parts whose digests match what is on disk are not sent again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock;
use crate::digest::{self, Digest, Hasher, Sha256};
use crate::disk::{PIECE_BYTES, ReadFile, Stat};
use crate::journal::{OpenUpload, Uploaded};
use crate::key::Key;
use crate::metrics::{FileProgress, Metrics};
use crate::store::hashing::sha256_of_range;
use crate::store::{
    Body, BodySource, Condition, ETag, ErrorKind, Meta, SharedStore, StoreError, StoredPart, UploadId, WriteOptions,
    Written,
};
use crate::sync::buffers::{Buffer, Buffers};
use crate::sync::commit::Hold;
use crate::sync::settle::SMALL_BYTES;

mod parts;
mod write;

use parts::read_into;
use write::is_ours;

/// A file system's clock may tick this slowly: what was read sooner after a change is hashed once more.
pub const YOUNG_NS: i64 = 2_000_000_000;

/// What a part that is streamed takes of the memory for pieces and its connection: bounds how many go at a time.
const STREAM_BYTES: u64 = 1024 * 1024;

/// The metadata that tells our own completed upload from somebody else's object.
const NONCE: &str = "chiefsync-upload";

/// How often bytes that arrived damaged, or an object that somebody else changed, are tried again.
const TRIES: u32 = 4;

/// What to send.
#[derive(Clone, Debug)]
pub struct Job {
    /// The object.
    pub key: Key,
    /// The file, with no link at its end.
    pub path: PathBuf,
    /// The version that was seen.
    pub stat: Stat,
    /// Whether the file may grow while it is read: then what was there at the start goes up.
    pub growing: bool,
    /// What to do before sending.
    pub first: First,
    /// The object that is known to be there; `None`: none is.
    pub there: Option<ETag>,
    /// A multipart upload that an earlier try began.
    pub resume: Option<OpenUpload>,
    /// The link's target, if the object is made from another one.
    pub link: Option<Key>,
    /// Nothing that changes from now on is promised: what is read now needs no second look.
    pub last_look: bool,
}

/// What is done before bytes are sent, because perhaps none need be.
#[derive(Clone, Debug)]
pub enum First {
    /// Nothing: the content is new.
    Send,
    /// Compare with the version that is up.
    Compare(Uploaded),
    /// Hash the leading parts that were read too soon after a change.
    Recheck(Uploaded),
    /// Compare with an object that is known by a listing only.
    Rebuild {
        /// The listed object.
        etag: ETag,
        /// Its digest, if an earlier manifest tells; else a HEAD is asked for the checksum.
        digest: Option<Digest>,
    },
    /// Copy the target's object on the server.
    Copy {
        /// The object to copy.
        source: Key,
        /// What is known of it.
        uploaded: Uploaded,
    },
}

/// How a job ended.
#[derive(Debug)]
pub enum Outcome {
    /// The bytes are there.
    Sent(Uploaded),
    /// The bytes were there already.
    Same(Uploaded),
    /// The file changed while it was read: look again.
    Changed,
    /// The file is gone.
    Gone,
    /// The file can't be read.
    Unreadable(String),
    /// The prefix belongs to somebody else now.
    Superseded(String),
    /// The store refused or stayed away.
    Failed(StoreError),
}

/// What the journal should know before a job ends.
#[derive(Debug)]
pub enum Progress {
    /// A multipart upload has a name.
    Begun(Key, OpenUpload),
    /// The store holds a part.
    Part(Key, StoredPart, Sha256),
    /// The upload is over: completed or thrown away.
    Over(Key),
}

/// What one job and the next share.
pub struct Uploader {
    /// SRC: nothing outside of it is ever opened.
    pub root: Arc<Path>,
    /// Where to.
    pub store: SharedStore,
    /// The parts' memory.
    pub buffers: Buffers,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Whether writes are conditional.
    pub fence: bool,
    /// Whether the store refuses bytes that don't match their digest; if not, they are read back.
    pub verified_by_store: bool,
    /// Whether SRC is on a file system of this machine, where a small read doesn't wait for a network.
    pub local_volume: bool,
    /// Our hold on the prefix, asked when a condition fails.
    pub hold: Hold,
    /// Where progress goes.
    pub progress: mpsc::Sender<Progress>,
}

enum Stop {
    Changed,
    Io(io::Error),
    Store(StoreError),
    /// The object is ours, under this tag, and holds other bytes than were sent.
    Damaged(ETag, StoreError),
    Superseded(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Io(error)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Store(error)
    }
}

/// A part in memory, or the place where it can be read again.
struct Part {
    body: Body,
    young: bool,
    /// For a part that is streamed: its share of the memory, held until it is sent.
    _room: Option<Buffer>,
}

impl Uploader {
    /// Does the job. Never panics on what the volume or the bucket holds.
    pub async fn run(&self, job: Job) -> Outcome {
        match self.try_run(&job).await {
            Ok(outcome) => outcome,
            Err(Stop::Changed) => Outcome::Changed,
            Err(Stop::Superseded(by)) => Outcome::Superseded(by),
            Err(Stop::Store(error) | Stop::Damaged(_, error)) => Outcome::Failed(error),
            Err(Stop::Io(error)) => match error.kind() {
                io::ErrorKind::NotFound => Outcome::Gone,
                // The path is something else now: a directory, a FIFO, a link (ELOOP). A look will tell.
                io::ErrorKind::InvalidInput => Outcome::Changed,
                _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Outcome::Changed,
                _ => Outcome::Unreadable(error.to_string()),
            },
        }
    }

    async fn try_run(&self, job: &Job) -> Result<Outcome, Stop> {
        if let First::Copy { source, uploaded } = &job.first {
            match self.copy(job, source, uploaded).await {
                Err(Stop::Store(e))
                    if matches!(e.kind, ErrorKind::Unsupported | ErrorKind::Refused | ErrorKind::Missing) => {}
                other => return other,
            }
        }
        if job.stat.size <= digest::MIN_PART_BYTES && self.buffers.fits(job.stat.size) {
            self.run_single(job).await
        } else {
            self.run_parts(job).await
        }
    }

    /// A file of one part: read once into memory, hashed, sent.
    async fn run_single(&self, job: &Job) -> Result<Outcome, Stop> {
        let mut buffer = self.buffers.take(job.stat.size).await;
        let root = Arc::clone(&self.root);
        let (path, expected, growing, metrics) = (job.path.clone(), job.stat, job.growing, Arc::clone(&self.metrics));
        let read = move || {
            let started = clock::now();
            let file = ReadFile::open_below(&root, &path)?;
            check_before(&file, &expected, growing)?;
            let read_at_ns = clock::wall_ns();
            let sha256 = fill(&file, buffer.as_mut_slice(), 0)?;
            check_after(&file, &expected, growing)?;
            metrics.read_time(started.elapsed());
            Ok::<_, Stop>((buffer.into_bytes(), sha256, read_at_ns < expected.ctime_ns.saturating_add(YOUNG_NS)))
        };
        // Handing a few kilobytes to another thread costs more than reading them, unless the volume may hang.
        let at_once = self.local_volume && job.stat.size <= SMALL_BYTES;
        let (bytes, sha256, young) = if at_once { read()? } else { blocking(read).await? };
        let digest = Digest::One(sha256);
        let young_parts = u32::from(young && !job.last_look);
        if let Some(etag) = self.is_there_already(job, &digest).await? {
            return Ok(Outcome::Same(uploaded(job, digest, etag, young_parts)));
        }
        let progress = self.metrics.begin_file(&job.key, job.stat.size);
        let body = Body::bytes(bytes, sha256);
        let started = clock::now();
        let written = self
            .write(job, &job.there, &digest, None, |condition| {
                self.store.put(&job.key, body.clone(), WriteOptions::when(condition))
            })
            .await?;
        self.metrics.send_time(started.elapsed());
        self.metrics.sent(job.stat.size);
        progress.advance(job.stat.size);
        Ok(Outcome::Sent(uploaded(job, digest, written.etag, young_parts)))
    }

    /// A file of several parts, or one too large for the memory budget.
    async fn run_parts(&self, job: &Job) -> Result<Outcome, Stop> {
        let root = Arc::clone(&self.root);
        let (path, expected, growing) = (job.path.clone(), job.stat, job.growing);
        let file = blocking(move || {
            let file = ReadFile::open_below(&root, &path)?;
            check_before(&file, &expected, growing)?;
            file.advise_sequential();
            Ok::<_, Stop>(Arc::new(file))
        })
        .await?;
        if let Some(outcome) = self.compare_on_disk(job, &file).await? {
            return Ok(outcome);
        }
        if digest::part_count(job.stat.size) == 1 {
            return self.send_streamed(job, &file).await;
        }
        if let Some(outcome) = self.completed_earlier(job, &file).await? {
            return Ok(outcome);
        }
        let progress = Arc::new(self.metrics.begin_file(&job.key, job.stat.size));
        let mut there = job.there.clone();
        let mut damaged = None;
        for _ in 0..TRIES {
            let (id, nonce, stored) = self.open_upload(job).await?;
            let (parts, digest, young_parts) = match self.send_parts(job, &file, &id, stored, &progress).await {
                // The upload is gone: expired, or aborted by a lifecycle rule. Begin another.
                Err(Stop::Store(e)) if e.kind == ErrorKind::Missing => {
                    self.tell(Progress::Over(job.key.clone())).await;
                    continue;
                }
                other => other?,
            };
            let (again, expected) = (Arc::clone(&file), job.stat);
            blocking(move || check_after(&again, &expected, growing)).await?;
            let answered = AtomicBool::new(false);
            let written = self
                .write(job, &there, &digest, Some(&nonce), |condition| async {
                    let written = self.store.complete(&job.key, &id, &parts, condition).await;
                    answered.fetch_or(written.is_ok(), Ordering::Relaxed);
                    written
                })
                .await;
            let written = match written {
                Err(Stop::Store(e)) if e.kind == ErrorKind::Missing => {
                    self.tell(Progress::Over(job.key.clone())).await;
                    continue;
                }
                Err(Stop::Damaged(etag, error)) => {
                    tracing::warn!(path = %job.key, %error, "the parts arrived damaged; sending all of them again");
                    self.tell(Progress::Over(job.key.clone())).await;
                    there = Some(etag);
                    damaged = Some(error);
                    continue;
                }
                other => other?,
            };
            if !answered.load(Ordering::Relaxed) {
                // The same bytes were there under another upload's name: then ours is still open.
                match self.store.abort(&job.key, &id).await {
                    Err(e) if e.kind != ErrorKind::Missing => return Err(e.into()),
                    _ => {}
                }
            }
            self.tell(Progress::Over(job.key.clone())).await;
            return Ok(Outcome::Sent(uploaded(job, digest, written.etag, if job.last_look { 0 } else { young_parts })));
        }
        Err(Stop::Store(damaged.unwrap_or_else(|| {
            let message = format!("the multipart upload disappeared {TRIES} times");
            StoreError::new(ErrorKind::Refused, "CompleteMultipartUpload", job.key.as_str(), message)
        })))
    }

    /// The upload that an earlier process began may be the object by now, and nobody heard so: then nothing is sent again.
    async fn completed_earlier(&self, job: &Job, file: &Arc<ReadFile>) -> Result<Option<Outcome>, Stop> {
        // Where the store checks nothing, its word is no proof.
        let Some(resume) = job.resume.as_ref().filter(|_| self.verified_by_store) else { return Ok(None) };
        let meta = match self.store.head(&job.key).await {
            Err(e) if e.kind == ErrorKind::Missing => return Ok(None),
            other => other?,
        };
        let by_nonce = meta.metadata.iter().any(|(name, value)| name == NONCE && *value == resume.nonce);
        if !by_nonce || meta.size_bytes != job.stat.size {
            return Ok(None);
        }
        let digest = self.hash_on_disk(job, file, None).await?;
        let Some(digest) = digest.filter(|digest| Some(digest.checksum()) == meta.checksum) else { return Ok(None) };
        self.tell(Progress::Over(job.key.clone())).await;
        Ok(Some(Outcome::Same(uploaded(job, digest, meta.etag, young_parts_now(job)))))
    }

    /// A single part that no buffer holds: hashed in one pass, streamed in a second through the same descriptor.
    async fn send_streamed(&self, job: &Job, file: &Arc<ReadFile>) -> Result<Outcome, Stop> {
        let progress = self.metrics.begin_file(&job.key, job.stat.size);
        let part =
            read_into(self.room(job.stat.size).await, Arc::clone(file), job.stat, 0, Arc::clone(&self.metrics)).await?;
        let digest = Digest::One(part.body.sha256);
        let written = self
            .write(job, &job.there, &digest, None, |condition| {
                self.store.put(&job.key, part.body.clone(), WriteOptions::when(condition))
            })
            .await?;
        let (again, expected, growing) = (Arc::clone(file), job.stat, job.growing);
        blocking(move || check_after(&again, &expected, growing)).await?;
        self.metrics.sent(job.stat.size);
        progress.advance(job.stat.size);
        Ok(Outcome::Sent(uploaded(job, digest, written.etag, u32::from(part.young && !job.last_look))))
    }

    /// Whether a large file is what is up already: hashed until the first part that differs.
    async fn compare_on_disk(&self, job: &Job, file: &Arc<ReadFile>) -> Result<Option<Outcome>, Stop> {
        let (known, etag, count) = match &job.first {
            First::Send | First::Copy { .. } => return Ok(None),
            First::Compare(known) => (known.digest.clone(), known.etag.clone(), known.digest.parts().len()),
            First::Recheck(known) => (known.digest.clone(), known.etag.clone(), known.young_parts as usize),
            First::Rebuild { etag, digest: Some(digest) } => (digest.clone(), etag.clone(), digest.parts().len()),
            First::Rebuild { digest: None, .. } if !self.verified_by_store => return Ok(None),
            First::Rebuild { etag, digest: None } => {
                let meta = match self.store.head(&job.key).await {
                    Err(e) if e.kind == ErrorKind::Missing => return Ok(None),
                    other => other?,
                };
                if meta.etag != *etag || meta.size_bytes != job.stat.size || meta.checksum.is_none() {
                    return Ok(None);
                }
                let digest = self.hash_on_disk(job, file, None).await?;
                return Ok(digest.filter(|d| Some(d.checksum()) == meta.checksum).map(|digest| {
                    let young = young_parts_now(job);
                    Outcome::Same(uploaded(job, digest, meta.etag, young))
                }));
            }
        };
        if known.parts().len() != digest::part_count(job.stat.size) as usize {
            return Ok(None);
        }
        let same = self.hash_on_disk(job, file, Some((known.clone(), count))).await?.is_some();
        let young = if matches!(job.first, First::Recheck(_)) { 0 } else { young_parts_now(job) };
        Ok(same.then(|| Outcome::Same(uploaded(job, known, etag, young))))
    }

    /// The file's digest; or, with one to compare and a count of leading parts, `None` at the first that differs.
    async fn hash_on_disk(
        &self,
        job: &Job,
        file: &Arc<ReadFile>,
        known: Option<(Digest, usize)>,
    ) -> Result<Option<Digest>, Stop> {
        let (file, stat, growing, metrics) = (Arc::clone(file), job.stat, job.growing, Arc::clone(&self.metrics));
        blocking(move || {
            let started = clock::now();
            let count = known.as_ref().map_or(digest::part_count(stat.size), |(_, count)| *count as u32);
            let mut parts = Vec::with_capacity(count as usize);
            for index in 0..count {
                let (offset, len) = digest::part_range(stat.size, index);
                let part = hash(&file, offset, len)?;
                if known.as_ref().is_some_and(|(digest, _)| digest.parts()[index as usize] != part) {
                    return Ok(None);
                }
                parts.push(part);
            }
            check_after(&file, &stat, growing)?;
            metrics.hash_time(started.elapsed());
            Ok(Some(known.map_or_else(|| Digest::from(parts), |(digest, _)| digest)))
        })
        .await
    }

    /// Whether a small file, which is in memory already, is what is up.
    async fn is_there_already(&self, job: &Job, digest: &Digest) -> Result<Option<ETag>, Stop> {
        Ok(match &job.first {
            First::Send | First::Copy { .. } => None,
            First::Compare(known) | First::Recheck(known) => (known.digest == *digest).then(|| known.etag.clone()),
            First::Rebuild { etag, digest: Some(known) } => (known == digest).then(|| etag.clone()),
            First::Rebuild { digest: None, .. } if !self.verified_by_store => None,
            First::Rebuild { etag, digest: None } => match self.store.head(&job.key).await {
                Ok(meta) => (meta.etag == *etag && is_ours(&meta, job.stat.size, digest, None)).then_some(meta.etag),
                Err(e) if e.kind == ErrorKind::Missing => None,
                Err(e) => return Err(e.into()),
            },
        })
    }

    /// Makes the object from another one that the store has.
    async fn copy(&self, job: &Job, source: &Key, from: &Uploaded) -> Result<Outcome, Stop> {
        let written = self
            .write(job, &job.there, &from.digest, None, |condition| {
                self.store.copy(source, &from.etag, &job.key, WriteOptions::when(condition))
            })
            .await?;
        self.metrics.copied(job.stat.size);
        Ok(Outcome::Sent(uploaded(job, from.digest.clone(), written.etag, 0)))
    }

    async fn tell(&self, progress: Progress) {
        // The engine is gone only when the process is about to end; the bucket still knows.
        let _ = self.progress.send(progress).await;
    }
}

fn uploaded(job: &Job, digest: Digest, etag: ETag, young_parts: u32) -> Uploaded {
    Uploaded { stat: job.stat, digest, etag, young_parts, link: job.link.clone(), partial: job.growing }
}

fn young_parts_now(job: &Job) -> u32 {
    let young = !job.last_look && clock::wall_ns() < job.stat.ctime_ns.saturating_add(YOUNG_NS);
    if young { digest::part_count(job.stat.size) } else { 0 }
}

/// Whether what was opened is the version that was seen.
fn check_before(file: &ReadFile, expected: &Stat, growing: bool) -> Result<(), Stop> {
    check(&file.opened(), expected, growing)
}

/// Whether it still is.
fn check_after(file: &ReadFile, expected: &Stat, growing: bool) -> Result<(), Stop> {
    check(&file.stat()?, expected, growing)
}

fn check(now: &Stat, expected: &Stat, growing: bool) -> Result<(), Stop> {
    let grown = growing && now.ino == expected.ino && now.size >= expected.size;
    if now.same_version(expected) || grown { Ok(()) } else { Err(Stop::Changed) }
}

/// Fills `buffer` from `offset` and hashes it while it is in the cache.
fn fill(file: &ReadFile, buffer: &mut [u8], offset: u64) -> Result<Sha256, Stop> {
    let mut hasher = Hasher::default();
    let mut at = offset;
    for piece in buffer.chunks_mut(PIECE_BYTES) {
        if file.read_at(piece, at)? < piece.len() {
            return Err(Stop::Changed);
        }
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(hasher.finish())
}

/// Hashes a range without keeping it.
fn hash(file: &ReadFile, offset: u64, len_bytes: u64) -> Result<Sha256, Stop> {
    file.sha256(offset, len_bytes)?.ok_or(Stop::Changed)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Stop> + Send + 'static) -> Result<T, Stop> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Stop::Io(io::Error::other(format!("reading ended early: {error}")))),
    }
}

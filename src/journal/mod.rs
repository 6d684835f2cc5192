//! The journal: what was uploaded, so that a restart does not do it again.
//!
//! One file per control directory and destination: JSON lines, each behind its CRC, only ever appended to, compacted when
//! more than half of it counts no longer. Held in memory in full; the file is read once, at open.
//!
//! Invariants: deleting the journal, cutting it anywhere or losing lines of it costs work and never correctness, because
//! what it says is checked against disk (stat) and bucket (ETag) before it counts. One process writes it at a time. A file
//! system that refuses it (read-only, full) turns it into memory, with one notice, and the run goes on.

mod file;
mod line;
mod state;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::clock;
use crate::digest::{Digest, Sha256};
use crate::disk::{AppendFile, Stat, SyncHandle};
use crate::head::Outcome;
use crate::key::Key;
use crate::store::{ETag, StoredPart, UploadId};

use self::line::{Header, Line};
use self::state::State;

/// A file version that is in the bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Uploaded {
    /// Of the local file that was read; for a link, of its target.
    pub stat: Stat,
    /// Of the bytes that were sent.
    pub digest: Digest,
    /// What the store answered.
    pub etag: ETag,
    /// Leading parts that were read within 2 s of the mtime: to be hashed once more, because a write within the same tick of
    /// the file system's clock would not show.
    pub young_parts: u32,
    /// The object was made by a server-side copy of this other key.
    pub link: Option<Key>,
    /// A growing file: a prefix of it is up, of `stat.size` bytes, with that prefix's digest.
    pub partial: bool,
}

/// A multipart upload that has begun.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenUpload {
    /// Of the file that is being read.
    pub stat: Stat,
    /// The store's name of it.
    pub id: UploadId,
    /// In the object's metadata: tells after a lost answer whether this very upload became the object.
    pub nonce: String,
    /// The parts that are up, by number, each with the digest of what was sent.
    pub parts: BTreeMap<u32, (StoredPart, Sha256)>,
}

/// The end of a run as this journal's process left it in the bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The run's number in the head.
    pub run: u64,
    /// Of `manifest.json`.
    pub manifest_etag: ETag,
    /// Digest over the sorted entries ([`crate::manifest::tree_digest`]): an unchanged tree has an unchanged proof.
    pub tree: Sha256,
    /// How it ended.
    pub outcome: Outcome,
}

/// Why there is no journal at all; everything milder is a notice.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process follows the same SRC to the same DEST.
    #[error("{} is held by another chiefsync{}", path.display(), holder_pid.map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote into it; of its own PID namespace, which need not be ours.
        holder_pid: Option<u32>,
    },
}

impl JournalError {
    /// What a person can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            JournalError::Locked { .. } => {
                "let the other one end, or give this one a control directory of its own (--control)"
            }
        }
    }
}

/// Everything that this process knows to be in the bucket.
pub struct Journal {
    destination: String,
    holder: String,
    created_at: String,
    state: State,
    was_empty: bool,
    has_gaps: bool,
    /// Lines that are not in the file yet.
    pending: Vec<u8>,
    /// Some of them should outlive a crash of the node.
    pending_durable: bool,
    backing: Option<Backing>,
    /// Where to write it again, after the file could not take it.
    given_up: Option<GivenUp>,
    /// Kept while this process lives, also when the file is given up: the holder's id stays ours.
    _lock: Option<file::Lock>,
    notice: Option<String>,
}

/// The file behind a journal that is not just memory.
struct Backing {
    paths: file::Paths,
    file: AppendFile,
    header_bytes: u64,
    file_bytes: u64,
    /// A failed compaction is tried again when the file has doubled.
    compact_from_bytes: u64,
    wants_sync: bool,
}

/// A file that could not take the journal may take it later: volumes run full, and checkpoints are rotated away.
struct GivenUp {
    paths: file::Paths,
    try_again_at: clock::Instant,
}

/// A journal, and what is to be said about how it was found.
pub struct Opened {
    /// The journal.
    pub journal: Journal,
    /// For the log, at warning level.
    pub notices: Vec<String>,
}

/// Below this size a journal is not worth compacting.
const COMPACT_FROM_BYTES: u64 = 1024 * 1024;

/// How long a file that could not take the journal is left alone.
const TRY_AGAIN_AFTER: clock::Duration = clock::Duration::from_secs(60);

/// More than this is not kept back for the next [`Journal::flush`].
const MAX_PENDING_BYTES: usize = 1024 * 1024;

impl Journal {
    /// Opens the journal of `destination_url` in the control directory, which is created where it is missing; without one,
    /// or where it can't be written, the journal lives in memory, with what could be read of an old one.
    ///
    /// # Errors
    /// Only [`JournalError::Locked`].
    pub fn open(directory: Option<&Path>, destination_url: &str) -> Result<Opened, JournalError> {
        let mut notices = Vec::new();
        let Some(directory) = directory else {
            return Ok(Opened { journal: Journal::in_memory(destination_url), notices });
        };
        let paths = file::Paths::new(directory, destination_url);
        let journal = match file::open(&paths, destination_url, &mut notices) {
            Ok(mut journal) => {
                journal.was_empty = journal.state.is_empty();
                journal.compact_if_worthwhile();
                journal
            }
            Err(file::OpenError::Journal(error)) => return Err(error),
            Err(file::OpenError::Io(error)) => {
                notices.push(in_memory_notice(&paths.journal, &error));
                Journal::read_only(Some(directory), destination_url)
            }
        };
        Ok(Opened { journal, notices })
    }

    /// What the journal says, without lock or write: for `--dry-run` and `verify`. A journal that can't be read is empty.
    pub fn read_only(directory: Option<&Path>, destination_url: &str) -> Journal {
        let mut journal = Journal::in_memory(destination_url);
        if let Some(directory) = directory {
            let paths = file::Paths::new(directory, destination_url);
            if let Ok(Ok(Some(contents))) = file::read(&paths.journal, destination_url) {
                journal.state = contents.state;
                journal.was_empty = journal.state.is_empty();
            }
        }
        journal
    }

    fn in_memory(destination_url: &str) -> Journal {
        Journal {
            destination: destination_url.to_owned(),
            holder: random_hex(),
            created_at: clock::timestamp(),
            state: State::default(),
            was_empty: true,
            has_gaps: false,
            pending: Vec::new(),
            pending_durable: false,
            backing: None,
            given_up: None,
            _lock: None,
            notice: None,
        }
    }

    fn attach(&mut self, paths: file::Paths, file: AppendFile, header_bytes: u64, file_bytes: u64) {
        self.backing = Some(Backing {
            paths,
            file,
            header_bytes,
            file_bytes,
            compact_from_bytes: COMPACT_FROM_BYTES,
            // The header names the holder, and a new file its directory entry.
            wants_sync: file_bytes == header_bytes,
        });
    }

    /// Whether a restart will find what is recorded here.
    pub fn is_persistent(&self) -> bool {
        self.backing.is_some()
    }

    /// Whether nothing usable was found at open: the state is to be rebuilt from the bucket.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// Whether lines of it were lost: then the bucket may hold more than it says.
    pub fn has_gaps(&self) -> bool {
        self.has_gaps
    }

    /// Who we are to the head: random, kept across restarts of whoever has this journal.
    pub fn holder_id(&self) -> &str {
        &self.holder
    }

    /// What is up under this key.
    pub fn get(&self, key: &str) -> Option<&Uploaded> {
        self.state.files.get(key).map(|uploaded| &**uploaded)
    }

    /// Everything that is up, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Uploaded)> {
        self.state.files.iter().map(|(key, uploaded)| (key, &**uploaded))
    }

    /// How many files are up.
    pub fn len(&self) -> usize {
        self.state.files.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.state.files.is_empty()
    }

    /// A file version is in the bucket.
    pub fn record(&mut self, key: Key, uploaded: Uploaded) {
        let len_bytes = self.write(&Line::uploaded(&key, &uploaded));
        self.state.record(key, uploaded, len_bytes);
    }

    /// Nothing is known of this key any more.
    pub fn forget(&mut self, key: &str) {
        if self.state.files.contains_key(key) {
            self.write(&Line::Forgotten(key.into()));
            self.state.forget(key);
        }
    }

    /// The multipart uploads that have begun and not ended.
    pub fn uploads(&self) -> impl Iterator<Item = (&Key, &OpenUpload)> {
        self.state.uploads.iter()
    }

    /// The one under this key.
    pub fn upload(&self, key: &str) -> Option<&OpenUpload> {
        self.state.uploads.get(key)
    }

    /// A multipart upload has begun; it takes the place of an earlier one of the same key.
    pub fn begin_upload(&mut self, key: Key, mut upload: OpenUpload) {
        let parts = std::mem::take(&mut upload.parts);
        let len_bytes = self.write(&Line::begun(&key, &upload));
        self.state.begin_upload(key.clone(), upload, len_bytes);
        self.pending_durable = true;
        for (part, sha256) in parts.into_values() {
            self.part_done(key.as_str(), part, sha256);
        }
    }

    /// A part is up; of an upload that is not open it is not kept.
    pub fn part_done(&mut self, key: &str, part: StoredPart, sha256: Sha256) {
        if self.state.uploads.contains_key(key) {
            let len_bytes = self.write(&Line::part(key, &part, sha256));
            self.state.part_done(key, part, sha256, len_bytes);
        }
    }

    /// The upload is complete or aborted.
    pub fn end_upload(&mut self, key: &str) {
        if self.state.uploads.contains_key(key) {
            self.write(&Line::UploadEnded(key.into()));
            self.state.end_upload(key);
            self.pending_durable = true;
        }
    }

    /// The end of the last run, if nothing was begun since.
    pub fn ended(&self) -> Option<&Ended> {
        self.state.ended.as_ref()
    }

    /// A run has ended, or (`None`) the next has begun.
    pub fn set_ended(&mut self, ended: Option<Ended>) {
        if self.state.ended != ended {
            let len_bytes = self.write(&Line::run_ended(ended.as_ref()));
            self.state.set_ended(ended, len_bytes);
            self.pending_durable = true;
        }
    }

    /// Writes what was recorded since with one write(2): from here on a killed process has not forgotten it. Where the file
    /// can't take it the journal lives on in memory, and [`Journal::take_notice`] says so, once; a minute later the file is
    /// tried again.
    pub fn flush(&mut self) {
        let Some(backing) = &mut self.backing else { return self.try_again() };
        if self.pending.is_empty() {
            return;
        }
        let written = backing.file.append(&self.pending);
        match written {
            Ok(()) => {
                backing.file_bytes += self.pending.len() as u64;
                backing.wants_sync |= std::mem::take(&mut self.pending_durable);
                self.pending.clear();
                self.pending.shrink_to(64 * 1024);
                self.compact_if_worthwhile();
            }
            Err(error) => {
                // A torn line would be cut off at the next open anyway; without it there is nothing to complain about then.
                let _ = backing.file.truncate(backing.file_bytes);
                self.give_up(&error);
            }
        }
    }

    /// What is to be said about the journal since it was opened; once.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Whether something in the file should outlive a crash of the node and may not yet: upload ids, completions, the end.
    pub fn wants_sync(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.wants_sync)
    }

    /// Whoever takes this handle makes durable what was flushed so far, by [`SyncHandle::sync`] on a thread that may block.
    /// What it fails with goes to [`Journal::sync_failed`].
    pub fn sync_handle(&mut self) -> Option<SyncHandle> {
        let backing = self.backing.as_mut()?;
        backing.wants_sync = false;
        backing.file.sync_handle().ok()
    }

    /// The file could not be made durable (network file systems report a full disk only here): from now on in memory.
    pub fn sync_failed(&mut self, error: &io::Error) {
        self.give_up(error);
    }

    fn give_up(&mut self, error: &io::Error) {
        if let Some(Backing { paths, .. }) = self.backing.take() {
            self.notice = Some(in_memory_notice(&paths.journal, error));
            self.pending = Vec::new();
            self.given_up = Some(GivenUp { paths, try_again_at: clock::now() + TRY_AGAIN_AFTER });
        }
    }

    fn try_again(&mut self) {
        let header = self.header_line();
        let Some(GivenUp { paths, try_again_at }) = &mut self.given_up else { return };
        if clock::now() < *try_again_at {
            return;
        }
        *try_again_at = clock::now() + TRY_AGAIN_AFTER;
        if let Ok((file, file_bytes)) = file::rewrite(paths, &header, &self.state) {
            let paths = paths.clone();
            self.notice = Some(format!("journal {} is written again", paths.journal.display()));
            self.given_up = None;
            self.attach(paths, file, header.len() as u64, file_bytes);
            self.state.live_bytes = file_bytes - header.len() as u64;
        }
    }

    /// Keeps one line for the next flush; returns its length in the file.
    fn write(&mut self, line: &Line<'_>) -> u64 {
        if self.backing.is_none() {
            return 0;
        }
        if self.pending.len() > MAX_PENDING_BYTES {
            self.flush();
        }
        let start = self.pending.len();
        line::append_line(&mut self.pending, line);
        (self.pending.len() - start) as u64
    }

    fn header_line(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let header = Header {
            schema: line::SCHEMA,
            destination: self.destination.as_str().into(),
            holder: self.holder.as_str().into(),
            created_at: self.created_at.as_str().into(),
        };
        line::append_line(&mut bytes, &header);
        bytes
    }

    fn compact_if_worthwhile(&mut self) {
        let Some(backing) = &self.backing else { return };
        let needed_bytes = backing.header_bytes + self.state.live_bytes;
        if backing.file_bytes > backing.compact_from_bytes && needed_bytes < backing.file_bytes / 2 {
            self.compact();
        }
    }

    /// Rewrites the file with what still counts; where that fails the old file stays in use.
    fn compact(&mut self) {
        let header = self.header_line();
        let Some(backing) = &mut self.backing else { return };
        // What is pending is part of the state already.
        match file::rewrite(&backing.paths, &header, &self.state) {
            Ok((file, file_bytes)) => {
                backing.file = file;
                backing.header_bytes = header.len() as u64;
                backing.file_bytes = file_bytes;
                backing.compact_from_bytes = COMPACT_FROM_BYTES;
                backing.wants_sync = false;
                self.state.live_bytes = file_bytes - backing.header_bytes;
                self.pending.clear();
                self.pending_durable = false;
            }
            Err(_) => backing.compact_from_bytes = backing.file_bytes.saturating_mul(2),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
    }
}

fn in_memory_notice(path: &Path, error: &io::Error) -> String {
    format!(
        "journal {} can't be written ({error}): it is kept in memory, and a restart will compare with the bucket instead \
         (hint: --control names a writable directory)",
        path.display()
    )
}

/// A name that nobody else has: 128 random bits in hexadecimal. For holders and for the nonces of uploads.
///
/// # Panics
/// When the kernel has no randomness; without it nothing else (TLS, signatures) works either.
pub fn random_hex() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel gives random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;

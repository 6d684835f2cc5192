//! Objects: written to a temporary file, checked, renamed into place under the lock; read through one descriptor.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::notes::{self, Note};
use super::{Doing, PIECE_BYTES, tag_of};
use crate::clock;
use crate::digest::{Hasher, Sha256};
use crate::disk::{Directory, Kind, NewFile, ReadFile};
use crate::key::Key;
use crate::store::{
    Body, BodySource, Condition, ETag, ErrorKind, Meta, RetryReason, StoreError, WriteOptions, Written,
};

/// What a crashed writer left is removed after this long: no write takes a day.
const LEFTOVER_AGE_NS: i64 = 24 * 60 * 60 * 1_000_000_000;

/// A file in `tmp/` on its way to a name; removed when it gets none.
pub(super) struct Temporary {
    directory: Directory,
    name: String,
    pub(super) file: NewFile,
    placed: bool,
}

impl Temporary {
    pub(super) fn create(doing: Doing<'_>) -> Result<Temporary, StoreError> {
        let create = || {
            let directory = doing.store.own("tmp")?;
            let name = temporary_name();
            let file = directory.create(&name)?;
            Ok(Temporary { directory, name, file, placed: false })
        };
        create().map_err(|e| no_root(doing, &e))
    }

    /// Gives it its name; what has it is replaced.
    pub(super) fn place(mut self, directory: &Directory, name: &str) -> io::Result<()> {
        self.directory.rename(&self.name, directory, name)?;
        self.placed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // Left behind, it is swept a day later.
            let _ = self.directory.remove_file(&self.name);
        }
    }
}

/// A name that no other writer has.
pub(super) fn temporary_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let random = getrandom::u64().unwrap_or_default();
    format!("{}-{}-{random:016x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Removes temporary files that no living writer can own.
pub(super) fn sweep(own: &Directory) {
    let Ok(directory) = own.child("tmp") else { return };
    let Ok(entries) = directory.entries() else { return };
    let oldest = clock::wall_ns() - LEFTOVER_AGE_NS;
    for (name, _) in entries {
        let Some(name) = name.to_str() else { continue };
        if let Ok(Some((Kind::File, stat))) = directory.stat(name)
            && stat.mtime_ns < oldest
        {
            let _ = directory.remove_file(name);
        }
    }
}

/// A write that finds no directory to write to: not the object is missing, the destination is.
fn no_root(doing: Doing<'_>, error: &io::Error) -> StoreError {
    let mut failed = doing.failed(error);
    if failed.kind == ErrorKind::Missing {
        failed.kind = ErrorKind::Stop;
    }
    failed
}

/// Writes the body, hashing what is written.
pub(super) fn receive(doing: Doing<'_>, body: &Body) -> Result<Temporary, StoreError> {
    let mut temporary = Temporary::create(doing)?;
    let mut hasher = Hasher::default();
    let mut take = |piece: &[u8]| {
        hasher.update(piece);
        temporary.file.append(piece).map_err(|e| doing.failed(&e))
    };
    match &body.source {
        BodySource::Bytes(bytes) if bytes.len() as u64 == body.len_bytes => {
            bytes.chunks(PIECE_BYTES).try_for_each(&mut take)?;
        }
        BodySource::Bytes(bytes) => {
            let message = format!("{} bytes instead of {}", bytes.len(), body.len_bytes);
            return Err(doing.error(ErrorKind::Corrupt, message));
        }
        BodySource::File { file, offset } => {
            each_piece(doing, file, *offset, body.len_bytes, &mut take)?;
        }
    }
    if hasher.finish() != body.sha256 {
        return Err(doing.error(ErrorKind::Corrupt, "BadDigest: the bytes are not the ones that were hashed"));
    }
    Ok(temporary)
}

/// Reads a range piece by piece; a file that ends before it got shorter since.
pub(super) fn each_piece(
    doing: Doing<'_>,
    file: &ReadFile,
    offset: u64,
    len_bytes: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let (mut at, end) = (offset, offset + len_bytes);
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(len_bytes).unwrap_or(PIECE_BYTES))];
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let got = file
            .read_at(&mut buffer[..want], at)
            .map_err(|e| doing.error(ErrorKind::Refused, format!("{}: {e}", file.path().display())))?;
        if got < want {
            let message = format!("{}: got shorter while it was sent", file.path().display());
            return Err(doing.error(ErrorKind::Corrupt, message));
        }
        take(&buffer[..got])?;
        at += got as u64;
    }
    Ok(())
}

pub(super) fn put(doing: Doing<'_>, body: &Body, options: WriteOptions) -> Result<Written, StoreError> {
    let temporary = receive(doing, body)?;
    let note = Note {
        checksum: Some(body.sha256.to_base64()),
        metadata: lower(options.metadata),
        content_type: options.content_type.map(str::to_owned),
    };
    publish(doing, temporary, note, &options.condition)
}

fn lower(metadata: Vec<(String, String)>) -> Vec<(String, String)> {
    let mut metadata: Vec<_> = metadata.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
    metadata.sort();
    metadata
}

/// Gives a finished file its object's name, if the condition holds, and makes that durable.
pub(super) fn publish(
    doing: Doing<'_>,
    temporary: Temporary,
    note: Note,
    condition: &Condition,
) -> Result<Written, StoreError> {
    let Some(key) = doing.key else { return Err(doing.error(ErrorKind::Refused, "no name")) };
    let failed = |e: io::Error| doing.failed(&e);
    temporary.file.sync().map_err(failed)?;

    let lock = doing.store.lock().map_err(failed)?;
    let there = current(doing, key)?;
    let holds = match condition {
        Condition::None => true,
        Condition::Absent => there.is_none(),
        Condition::Matches(etag) => there.as_ref() == Some(etag),
    };
    if !holds {
        let message = match &there {
            Some(etag) => format!("PreconditionFailed: the object's tag is {etag}"),
            None => "PreconditionFailed: there is no such object".to_owned(),
        };
        return Err(doing.error(ErrorKind::Fenced, message));
    }
    let etag = stamp(&temporary.file, there.as_ref()).map_err(failed)?;
    let checksum = note.checksum.clone();
    let root = doing.store.root_created().map_err(failed)?;
    let directory = root.descend_created(key.directory()).map_err(failed)?;
    let is_empty_directory = matches!(directory.stat(key.file_name()).map_err(failed)?, Some((Kind::Directory, _)));
    if is_empty_directory {
        // S3 knows no directories: an empty one is no object's, and is not in the way.
        directory.remove_directory(key.file_name()).map_err(failed)?;
    }
    notes::write(doing.store, key, &etag, note, there.as_ref()).map_err(failed)?;
    temporary.place(&directory, key.file_name()).map_err(failed)?;
    drop(lock);
    directory.sync().map_err(failed)?;
    Ok(Written { etag, checksum })
}

/// Gives a version a time of change that no earlier version of its object has, and returns the tag that follows.
///
/// The kernel's own stamps are only as fine as its tick, and some file systems keep whole seconds.
fn stamp(file: &NewFile, there: Option<&ETag>) -> io::Result<ETag> {
    let mut at = clock::wall_ns();
    loop {
        file.set_modified_ns(at)?;
        let etag = tag_of(&file.stat()?);
        if Some(&etag) != there {
            return Ok(etag);
        }
        at += 2_000_000_000;
    }
}

/// The tag of what has the key's name now.
fn current(doing: Doing<'_>, key: &Key) -> Result<Option<ETag>, StoreError> {
    let stat = || doing.store.root()?.descend(key.directory())?.stat(key.file_name());
    match stat() {
        Ok(Some((Kind::File, stat))) => Ok(Some(tag_of(&stat))),
        Ok(_) => Ok(None),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(doing.failed(&e)),
    }
}

/// Opens the object behind the operation's key.
pub(super) fn open(doing: Doing<'_>) -> Result<(ReadFile, Meta), StoreError> {
    let Some(key) = doing.key else { return Err(doing.error(ErrorKind::Refused, "no name")) };
    let open = || doing.store.root()?.descend(key.directory())?.file(key.file_name());
    let file = open().map_err(|e| match e.kind() {
        // A directory of this name, or a file where a directory of it would be: no such object.
        io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            doing.error(ErrorKind::Missing, "NoSuchKey: there is no such object")
        }
        _ => doing.failed(&e),
    })?;
    let stat = file.stat().map_err(|e| doing.failed(&e))?;
    let etag = tag_of(&stat);
    let note = notes::read(doing.store, key, &etag);
    Ok((file, Meta { size_bytes: stat.size, etag, checksum: note.checksum, metadata: note.metadata }))
}

/// The object, and the range of it that is wanted: offset and length in bytes.
pub(super) fn get(
    doing: Doing<'_>,
    range: Option<(u64, u64)>,
    if_match: Option<&ETag>,
) -> Result<(ReadFile, Meta, u64, u64), StoreError> {
    let (file, meta) = open(doing)?;
    if if_match.is_some_and(|etag| *etag != meta.etag) {
        let message = format!("PreconditionFailed: the object's tag is {}", meta.etag);
        return Err(doing.error(ErrorKind::Fenced, message));
    }
    let (offset, len_bytes) = match range {
        None => (0, meta.size_bytes),
        Some((offset, _)) if offset >= meta.size_bytes => {
            return Err(doing.error(ErrorKind::Refused, "InvalidRange: the object ends before it"));
        }
        Some((offset, len_bytes)) => (offset, len_bytes.min(meta.size_bytes - offset)),
    };
    Ok((file, meta, offset, len_bytes))
}

/// The next bytes of a download.
pub(super) fn piece(doing: Doing<'_>, file: &ReadFile, at: u64, end: u64) -> Result<Bytes, StoreError> {
    let want = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
    let mut buffer = vec![0; want];
    let got = file.read_at(&mut buffer, at).map_err(|e| doing.failed(&e))?;
    if got < want {
        return Err(doing.error(ErrorKind::Retry(RetryReason::Server), "the object got shorter while it was read"));
    }
    Ok(Bytes::from(buffer))
}

/// Opens another object that is copied from, at the version `etag`.
pub(super) fn open_source<'a>(doing: Doing<'a>, source: &'a Key, etag: &ETag) -> Result<(ReadFile, Meta), StoreError> {
    let (file, meta) = open(Doing { key: Some(source), ..doing })?;
    if meta.etag == *etag {
        return Ok((file, meta));
    }
    let message = format!("PreconditionFailed: the tag of {source} is {}", meta.etag);
    Err(doing.error(ErrorKind::Fenced, message))
}

pub(super) fn copy(
    doing: Doing<'_>,
    source: &Key,
    source_etag: &ETag,
    options: WriteOptions,
) -> Result<Written, StoreError> {
    let (file, meta) = open_source(doing, source, source_etag)?;
    let mut temporary = Temporary::create(doing)?;
    temporary.file.append_range(&file, 0, meta.size_bytes).map_err(|e| doing.failed(&e))?;
    let after = file.stat().map_err(|e| doing.failed(&e))?;
    if tag_of(&after) != meta.etag {
        return Err(doing.error(ErrorKind::Fenced, "PreconditionFailed: the source changed while it was copied"));
    }
    let noted = notes::read(doing.store, source, source_etag);
    let metadata = if options.metadata.is_empty() { noted.metadata } else { lower(options.metadata) };
    let content_type = options.content_type.map(str::to_owned).or(noted.content_type);
    publish(doing, temporary, Note { checksum: meta.checksum, metadata, content_type }, &options.condition)
}

pub(super) fn delete(doing: Doing<'_>) -> Result<(), StoreError> {
    let Some(key) = doing.key else { return Ok(()) };
    if current(doing, key)?.is_none() {
        return Ok(());
    }
    let failed = |e: io::Error| doing.failed(&e);
    let _lock = doing.store.lock().map_err(failed)?;
    let root = doing.store.root().map_err(failed)?;
    let Ok(directory) = root.descend(key.directory()) else { return Ok(()) };
    directory.remove_file(key.file_name()).map_err(failed)?;
    notes::remove(doing.store, key).map_err(failed)?;
    // A directory that only this object kept goes with it, as it does in S3; the first that holds more ends this.
    let mut path = key.directory();
    while let Some((above, name)) = split_last(path) {
        if root.descend(above).and_then(|parent| parent.remove_directory(name)).is_err() {
            break;
        }
        path = above;
    }
    Ok(())
}

fn split_last(path: &str) -> Option<(&str, &str)> {
    if path.is_empty() { None } else { Some(path.rsplit_once('/').unwrap_or(("", path))) }
}

/// The digest of a range of an object while it is appended to a temporary file.
pub(super) fn copy_and_hash(
    doing: Doing<'_>,
    file: &ReadFile,
    offset: u64,
    len_bytes: u64,
    temporary: &mut Temporary,
) -> Result<Sha256, StoreError> {
    let mut hasher = Hasher::default();
    each_piece(doing, file, offset, len_bytes, |piece| {
        hasher.update(piece);
        temporary.file.append(piece).map_err(|e| doing.failed(&e))
    })?;
    Ok(hasher.finish())
}

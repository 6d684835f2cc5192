//! Multipart uploads: a directory each, a file a part, named by number and digest; completing concatenates them.

use std::io;

use serde::{Deserialize, Serialize};

use super::notes::Note;
use super::objects::{Temporary, copy_and_hash, open_source, publish, receive};
use super::{Doing, OWN};
use crate::digest::{Digest, Sha256};
use crate::disk::Directory;
use crate::key::Key;
use crate::store::{
    Body, Condition, ETag, ErrorKind, OpenUpload, StoreError, StoredPart, UploadId, WriteOptions, Written,
};

/// The file that says what an upload will become.
const ABOUT: &str = "upload.json";

/// It is small; more than this is none of ours.
const ABOUT_LIMIT_BYTES: u64 = 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct About {
    key: Key,
    metadata: Vec<(String, String)>,
    content_type: Option<String>,
}

/// An upload that is there and is this key's.
struct Upload {
    directory: Directory,
    about: About,
}

fn open(doing: Doing<'_>, id: &UploadId) -> Result<Upload, StoreError> {
    let missing = || doing.error(ErrorKind::Missing, "NoSuchUpload: there is no such upload");
    // Ids are ours; one that isn't must not name another directory.
    let is_plain = !id.0.is_empty() && id.0.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !is_plain {
        return Err(missing());
    }
    let open = || -> io::Result<Upload> {
        let directory = doing.store.root()?.descend(&format!("{OWN}/uploads/{}", id.0))?;
        let about = directory.file(ABOUT)?.read_all(ABOUT_LIMIT_BYTES)?;
        Ok(Upload { directory, about: serde_json::from_slice(&about)? })
    };
    match open() {
        Ok(upload) if Some(&upload.about.key) == doing.key => Ok(upload),
        Ok(_) => Err(missing()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(missing()),
        Err(e) => Err(doing.failed(&e)),
    }
}

pub(super) fn create(doing: Doing<'_>, options: WriteOptions) -> Result<UploadId, StoreError> {
    let Some(key) = doing.key else { return Err(doing.error(ErrorKind::Refused, "no name")) };
    let about =
        About { key: key.clone(), metadata: options.metadata, content_type: options.content_type.map(str::to_owned) };
    let bytes = serde_json::to_vec(&about).map_err(|e| doing.error(ErrorKind::Refused, e.to_string()))?;
    let id = super::objects::temporary_name();
    let mut temporary = Temporary::create(doing)?;
    temporary.file.append(&bytes).map_err(|e| doing.failed(&e))?;
    let directory = doing.store.own("uploads").and_then(|uploads| uploads.child_created(&id));
    let directory = directory.map_err(|e| doing.failed(&e))?;
    temporary.place(&directory, ABOUT).map_err(|e| doing.failed(&e))?;
    Ok(UploadId(id))
}

/// `00001-<sha256>`: the listing of the directory is the listing of the parts.
fn part_name(number: u32, sha256: Sha256) -> String {
    format!("{number:05}-{sha256}")
}

fn part_of_name(name: &str) -> Option<(u32, Sha256)> {
    let (number, digest) = name.split_once('-')?;
    Some((number.parse().ok()?, Sha256::from_hex(digest)?))
}

fn stored(number: u32, size_bytes: u64, sha256: Sha256) -> StoredPart {
    StoredPart { number, size_bytes, etag: ETag::new(&sha256.to_hex()), sha256: Some(sha256) }
}

/// Gives a finished part its name; an earlier one of the same number goes.
fn place(
    doing: Doing<'_>,
    upload: &Upload,
    number: u32,
    temporary: Temporary,
    sha256: Sha256,
    size_bytes: u64,
) -> Result<StoredPart, StoreError> {
    let failed = |e: io::Error| doing.failed(&e);
    temporary.file.sync().map_err(failed)?;
    let name = part_name(number, sha256);
    let _lock = doing.store.lock().map_err(failed)?;
    temporary.place(&upload.directory, &name).map_err(failed)?;
    for (other, _) in upload.directory.entries().map_err(failed)? {
        let Some(other) = other.to_str() else { continue };
        if other != name && part_of_name(other).is_some_and(|(of, _)| of == number) {
            upload.directory.remove_file(other).map_err(failed)?;
        }
    }
    Ok(stored(number, size_bytes, sha256))
}

pub(super) fn put_part(doing: Doing<'_>, id: &UploadId, number: u32, body: &Body) -> Result<StoredPart, StoreError> {
    let upload = open(doing, id)?;
    let temporary = receive(doing, body)?;
    place(doing, &upload, number, temporary, body.sha256, body.len_bytes)
}

pub(super) fn copy_part(
    doing: Doing<'_>,
    id: &UploadId,
    number: u32,
    source: &Key,
    source_etag: &ETag,
    offset: u64,
    len_bytes: u64,
) -> Result<StoredPart, StoreError> {
    let upload = open(doing, id)?;
    let (file, meta) = open_source(doing, source, source_etag)?;
    if offset + len_bytes > meta.size_bytes {
        return Err(doing.error(ErrorKind::Refused, "InvalidRange: the source ends before it"));
    }
    let mut temporary = Temporary::create(doing)?;
    let sha256 = copy_and_hash(doing, &file, offset, len_bytes, &mut temporary)?;
    place(doing, &upload, number, temporary, sha256, len_bytes)
}

pub(super) fn list_parts(doing: Doing<'_>, id: &UploadId) -> Result<Vec<StoredPart>, StoreError> {
    parts_of(doing, &open(doing, id)?)
}

fn parts_of(doing: Doing<'_>, upload: &Upload) -> Result<Vec<StoredPart>, StoreError> {
    let mut parts = Vec::new();
    for (name, _) in upload.directory.entries().map_err(|e| doing.failed(&e))? {
        let Some(name) = name.to_str() else { continue };
        let Some((number, sha256)) = part_of_name(name) else { continue };
        if let Some((_, stat)) = upload.directory.stat(name).map_err(|e| doing.failed(&e))? {
            parts.push(stored(number, stat.size, sha256));
        }
    }
    parts.sort_by_key(|part| part.number);
    Ok(parts)
}

pub(super) fn list(doing: Doing<'_>) -> Result<Vec<OpenUpload>, StoreError> {
    let Some(key) = doing.key else { return Ok(Vec::new()) };
    let entries = doing.store.root().and_then(|root| root.descend(&format!("{OWN}/uploads"))?.entries());
    let entries = match entries {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| doing.failed(&e))?,
    };
    let mut ids: Vec<_> = entries.into_iter().filter_map(|(name, _)| name.into_string().ok()).map(UploadId).collect();
    ids.sort_by(|a, b| a.0.cmp(&b.0));
    ids.retain(|id| open(doing, id).is_ok());
    Ok(ids.into_iter().map(|id| OpenUpload { key: key.clone(), id }).collect())
}

pub(super) fn complete(
    doing: Doing<'_>,
    id: &UploadId,
    parts: &[StoredPart],
    condition: &Condition,
) -> Result<Written, StoreError> {
    let upload = open(doing, id)?;
    let there = parts_of(doing, &upload)?;
    let refuse = |message: String| Err(doing.error(ErrorKind::Refused, message));
    if parts.is_empty() {
        return refuse("MalformedXML: no parts".to_owned());
    }
    if !parts.is_sorted_by(|a, b| a.number < b.number) {
        return refuse("InvalidPartOrder: parts must be in order".to_owned());
    }
    let mut temporary = Temporary::create(doing)?;
    let mut digests = Vec::with_capacity(parts.len());
    for part in parts {
        let held = there.iter().find(|held| held.number == part.number && held.etag == part.etag);
        let Some((held, sha256)) = held.and_then(|held| Some((held, held.sha256?))) else {
            return refuse(format!("InvalidPart: part {} is not there, or is another", part.number));
        };
        let file = upload.directory.file(&part_name(held.number, sha256)).map_err(|e| doing.failed(&e))?;
        temporary.file.append_range(&file, 0, held.size_bytes).map_err(|e| doing.failed(&e))?;
        digests.push(sha256);
    }
    let composite = match Digest::from(digests.clone()).checksum() {
        // S3 marks an upload's checksum by its number of parts, one part too.
        _ if digests.len() == 1 => format!("{}-1", Sha256::of(digests[0].as_bytes()).to_base64()),
        several => several,
    };
    let note = Note {
        checksum: Some(composite),
        metadata: upload.about.metadata.clone(),
        content_type: upload.about.content_type.clone(),
    };
    let written = publish(doing, temporary, note, condition)?;
    remove(doing, &upload, id).map_err(|e| doing.failed(&e))?;
    Ok(written)
}

pub(super) fn abort(doing: Doing<'_>, id: &UploadId) -> Result<(), StoreError> {
    match open(doing, id) {
        Ok(upload) => remove(doing, &upload, id).map_err(|e| doing.failed(&e)),
        Err(error) if error.kind == ErrorKind::Missing => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes an upload; first what makes it one, so that a half-removed one is already gone.
fn remove(doing: Doing<'_>, upload: &Upload, id: &UploadId) -> io::Result<()> {
    upload.directory.remove_file(ABOUT)?;
    for (name, _) in upload.directory.entries()? {
        if let Some(name) = name.to_str() {
            upload.directory.remove_file(name)?;
        }
    }
    match doing.store.own("uploads")?.remove_directory(&id.0) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

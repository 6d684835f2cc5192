//! What a plain file can't say about its object: checksum and user metadata, in a small file beside, found by the key.
//!
//! A note holds the versions that it speaks of by their tags: the one being written and the one that it replaces. So it may
//! be written before the object is renamed into place, and is true before and after, also when the process dies between.

use std::io;

use serde::{Deserialize, Serialize};

use super::LocalStore;
use crate::digest::Sha256;
use crate::disk::Directory;
use crate::key::Key;
use crate::store::ETag;

/// Notes are small; more than this is none of ours.
const LIMIT_BYTES: u64 = 1024 * 1024;

/// What is noted of one version of an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) checksum: Option<String>,
    #[serde(default)]
    pub(super) metadata: Vec<(String, String)>,
    #[serde(default)]
    pub(super) content_type: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    /// For a person who looks: the name is only a digest.
    key: Key,
    versions: Vec<(ETag, Note)>,
}

/// Where a key's note is: names may be too long, or directories of others.
fn place(key: &Key) -> (String, String) {
    let digest = Sha256::of(key.as_str().as_bytes()).to_hex();
    let (directory, name) = digest.split_at(2);
    (directory.to_owned(), name.to_owned())
}

fn directory(store: &LocalStore, key: &Key) -> io::Result<(Directory, String)> {
    let (directory, name) = place(key);
    Ok((store.own("notes")?.child_created(&directory)?, name))
}

/// The note on the version `etag`; none for what a stranger wrote.
pub(super) fn read(store: &LocalStore, key: &Key, etag: &ETag) -> Note {
    let (below, name) = place(key);
    let read = || -> io::Result<File> {
        let path = format!("{}/notes/{below}", super::OWN);
        let bytes = store.root()?.descend(&path)?.file(&name)?.read_all(LIMIT_BYTES)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    let versions = read().map(|file| file.versions).unwrap_or_default();
    versions.into_iter().find(|(of, _)| of == etag).map(|(_, note)| note).unwrap_or_default()
}

/// Notes the version that is about to appear, and keeps what is known of the one that is there.
pub(super) fn write(store: &LocalStore, key: &Key, etag: &ETag, note: Note, replaced: Option<&ETag>) -> io::Result<()> {
    let mut versions = vec![(etag.clone(), note)];
    if let Some(old) = replaced {
        versions.push((old.clone(), read(store, key, old)));
    }
    let bytes = serde_json::to_vec(&File { key: key.clone(), versions })?;
    let temporary = super::objects::temporary_name();
    let temporaries = store.own("tmp")?;
    let mut file = temporaries.create(&temporary)?;
    let (directory, name) = directory(store, key)?;
    file.append(&bytes).and_then(|()| temporaries.rename(&temporary, &directory, &name)).inspect_err(|_| {
        let _ = temporaries.remove_file(&temporary);
    })
}

/// Forgets a key.
pub(super) fn remove(store: &LocalStore, key: &Key) -> io::Result<()> {
    let (directory, name) = directory(store, key)?;
    directory.remove_file(&name).map(|_| ())
}

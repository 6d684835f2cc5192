//! End markers: DONE and FAILED in SRC's root.
//!
//! A bare `touch` is enough; `run` and the library write a small JSON document. Only a regular file counts: a directory
//! named DONE is somebody's output, and so is a link, whose target may have been written at any time by anybody; both are
//! uploaded like everything else.
//!
//! When both are there, the one that was written last (ctime: no program can set it back) is the trainer's last word: an
//! attempt that failed leaves FAILED behind, and a script that only ever touches DONE does not remove it. On a tie FAILED
//! wins, because a success must not be claimed on doubt.

use std::io;
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Sha256;
use crate::disk::{self, ReadFile, Stat};
use crate::head::RunEnd;
use crate::key::Key;

/// What is read of a marker; a larger one is a marker too, but no document.
pub const MAX_MARKER_BYTES: u64 = 64 * 1024;

/// A marker that changes while it is read is read again at once, this often.
const LOOKS: u32 = 8;

/// Which end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum MarkerKind {
    /// The trainer succeeded.
    Done,
    /// The trainer failed.
    Failed,
}

impl MarkerKind {
    /// Both.
    pub const ALL: [MarkerKind; 2] = [MarkerKind::Done, MarkerKind::Failed];

    /// The file's name in SRC, and the object's below the prefix.
    pub fn file_name(self) -> &'static str {
        match self {
            MarkerKind::Done => "DONE",
            MarkerKind::Failed => "FAILED",
        }
    }

    /// The object's key.
    ///
    /// # Panics
    /// Never: the names are plain.
    pub fn key(self) -> Key {
        Key::new(self.file_name()).expect("a plain name")
    }

    /// The kind of marker that a key names.
    pub fn of(key: &str) -> Option<MarkerKind> {
        MarkerKind::ALL.into_iter().find(|kind| kind.file_name() == key)
    }
}

/// What tells one marker from another one of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MarkerIdentity {
    /// The inode.
    pub ino: u64,
    /// Last change of content or inode: nanoseconds since 1970.
    pub ctime_ns: i64,
    /// Length in bytes.
    pub size: u64,
    /// Of what was read: all of it, up to [`MAX_MARKER_BYTES`].
    pub sha256: Sha256,
}

/// What the trainer's side says about the end. Each field by itself: one that is missing or of the wrong kind says nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MarkerDocument {
    /// The version of this document.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub schema: Option<u32>,
    /// The run, in the trainer's own words.
    #[serde(deserialize_with = "lenient_text", skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Which try of the run, from 1.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u64>,
    /// The pod that the trainer ran in.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The trainer's.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// For people.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The last step.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// RFC 3339.
    #[serde(deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

fn lenient<'de, D: Deserializer<'de>, T: serde::de::DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// Text, or a number as text.
fn lenient_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// An end marker as it was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Marker {
    /// DONE or FAILED.
    pub kind: MarkerKind,
    /// Which one.
    pub identity: MarkerIdentity,
    /// What it says, where it is JSON; anything else is just text.
    pub document: Option<MarkerDocument>,
    /// Its content, the first [`MAX_MARKER_BYTES`] of it.
    pub bytes: Bytes,
    /// The version that was read.
    pub stat: Stat,
}

impl Marker {
    /// From the version and what was read of it.
    fn of(kind: MarkerKind, stat: Stat, bytes: Vec<u8>) -> Marker {
        let sha256 = Sha256::of(&bytes);
        let document = (stat.size <= MAX_MARKER_BYTES).then(|| parse(&bytes)).flatten();
        let identity = MarkerIdentity { ino: stat.ino, ctime_ns: stat.ctime_ns, size: stat.size, sha256 };
        Marker { kind, identity, document, bytes: bytes.into(), stat }
    }

    /// Whether `bytes` is all of it; otherwise the object is sent from the file.
    pub fn is_whole(&self) -> bool {
        self.identity.size == self.bytes.len() as u64
    }
}

/// The end marker in SRC's root.
///
/// # Errors
/// The file's own: a marker that is there and can't be read, or (`ResourceBusy`) not yet.
pub fn read(source: &Path) -> io::Result<Option<Marker>> {
    let done = read_kind(source, MarkerKind::Done)?;
    let failed = read_kind(source, MarkerKind::Failed)?;
    Ok(match (done, failed) {
        (Some(done), Some(failed)) if done.identity.ctime_ns > failed.identity.ctime_ns => Some(done),
        (done, failed) => failed.or(done),
    })
}

fn read_kind(source: &Path, kind: MarkerKind) -> io::Result<Option<Marker>> {
    let path = source.join(kind.file_name());
    let found = match disk::symlink_metadata(&path) {
        Ok(meta) if meta.is_file() => Stat::of(&meta),
        Ok(_) => return Ok(None),
        Err(e) if is_absent(&e) => return Ok(None),
        Err(e) => return Err(e),
    };
    let file = match ReadFile::open(&path) {
        Err(e) if is_absent(&e) => return Ok(None),
        // Another user's `touch` under a strict umask: nothing in it needs to be read.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied && found.size == 0 => {
            return Ok(Some(Marker::of(kind, found, Vec::new())));
        }
        other => other?,
    };
    for _ in 0..LOOKS {
        let stat = file.stat()?;
        let mut bytes = vec![0; usize::try_from(stat.size.min(MAX_MARKER_BYTES)).expect("64 KiB fit")];
        let filled = file.read_at(&mut bytes, 0)?;
        // Still being written: the content has to be the version's whose identity it stands for.
        if filled == bytes.len() && file.stat()? == stat {
            return Ok(Some(Marker::of(kind, stat, bytes)));
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, format!("{} changes while it is read", path.display())))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn parse(bytes: &[u8]) -> Option<MarkerDocument> {
    // serde takes a list for a struct as well; a document is an object.
    (bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')).then_some(())?;
    serde_json::from_slice(bytes).ok()
}

/// Whether `marker` was left by an earlier run, and why; such a marker is said and followed past. `ended` is the last end in
/// the bucket, `pod_uid` this pod.
///
/// - A document that names a pod decides alone: this pod's is never stale, another one's always.
/// - Otherwise it is stale when the last end in the bucket is of that very marker (inode, ctime, content) and was written by
///   another pod. A pod's environment does not change while it lives, so an end without a pod is another pod's for
///   whoever knows its own, and the other way round.
/// - Where neither side knows a pod, the same marker is not stale: nothing says that a new run has begun, so this is the
///   sidecar's container restarted after the end, and it just proves again.
pub fn is_stale(marker: &Marker, ended: Option<&RunEnd>, pod_uid: Option<&str>) -> Option<String> {
    let name = marker.kind.file_name();
    let written_for = marker.document.as_ref().and_then(|document| document.pod_uid.as_deref());
    if let (Some(other), Some(ours)) = (written_for, pod_uid) {
        return (other != ours).then(|| format!("{name} was written in pod {other}, and this is pod {ours}"));
    }
    let ended = ended?;
    if ended.marker.as_ref() != Some(&marker.identity) || ended.pod_uid.as_deref() == pod_uid {
        return None;
    }
    let by =
        ended.pod_uid.as_deref().map_or_else(|| "a process outside of any pod".to_owned(), |pod| format!("pod {pod}"));
    Some(format!("{name} is the very marker that {by} ended the last run on, at {}", ended.at))
}

#[cfg(test)]
mod tests;

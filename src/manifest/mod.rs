//! The manifest: the end of a run, every file with its digest.
//!
//! `.chiefsync/manifest.json` is JSON for programs and one entry a line for `grep`: facts on the first line, then files,
//! links, skipped and missing, then counts and the tree's digest on the last. [`ManifestWriter`] writes it entry by entry,
//! [`Manifest::parse`] reads it and believes nothing: every path is a [`Key`] outside of the control directory, every digest
//! has the parts that its size asks for, entries are in order and so never twice, and counts and tree digest agree with them.

mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::{Digest, Hasher, Sha256, part_count};
use crate::head::{Holder, Outcome, read_control, url_of};
use crate::key::{Key, MAX_KEY_BYTES};
use crate::marker::{Marker, MarkerDocument, MarkerIdentity, MarkerKind};
use crate::store::{ETag, Store, StoreError};

pub use self::write::{Finished, ManifestWriter};

/// The version of the schema that this program writes and reads.
pub const SCHEMA: u32 = 1;

/// What is read of a manifest; a million files take about 250 MiB.
pub const MAX_MANIFEST_BYTES: u64 = 1024 * 1024 * 1024;

/// The manifest's name below the prefix.
pub fn key() -> Key {
    Key::control("manifest.json")
}

/// What is known of the run as a whole.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Facts {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run's number in the head.
    pub run: u64,
    /// The head's generation when it was written.
    pub generation: u64,
    /// How the run ended.
    pub outcome: Outcome,
    /// Who wrote it: host, pod, version.
    pub holder: Holder,
    /// The end marker, where there was one.
    pub marker: Option<MarkerFacts>,
    /// RFC 3339, for people.
    pub started_at: String,
    /// RFC 3339, for people.
    pub ended_at: String,
    /// Measured values by name, the unit at the name's end.
    pub figures: BTreeMap<String, f64>,
}

/// The end marker without its bytes.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct MarkerFacts {
    /// DONE or FAILED.
    pub kind: MarkerKind,
    /// Which one.
    pub identity: MarkerIdentity,
    /// What it says.
    #[serde(default)]
    pub document: Option<MarkerDocument>,
}

impl From<&Marker> for MarkerFacts {
    fn from(marker: &Marker) -> MarkerFacts {
        MarkerFacts { kind: marker.kind, identity: marker.identity, document: marker.document.clone() }
    }
}

/// A file that is in the bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// Its path and key.
    pub path: Key,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Of its content.
    pub digest: Digest,
    /// Of its object.
    pub etag: ETag,
    /// On the volume it is a link to this file.
    pub link: Option<Key>,
}

/// A link to a directory, which no object stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkEntry {
    /// Where the link is.
    pub path: Key,
    /// The directory, relative to SRC.
    pub target: Key,
}

/// Something that is not in the bucket. Its name need not be a key, nor UTF-8 on the volume.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The path, for people.
    pub path: String,
    /// Why.
    pub why: String,
}

/// How much there is of what.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Files in the bucket.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// Links to directories.
    pub links: u64,
    /// What was passed over on purpose (sockets, devices).
    pub skipped: u64,
    /// What should be there and is not.
    pub missing: u64,
    /// Files that this process sent.
    pub uploaded_files: u64,
    /// What this process sent, in bytes.
    pub uploaded_bytes: u64,
}

/// A manifest as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// The run as a whole.
    pub facts: Facts,
    /// In the order of their paths' bytes.
    pub files: Vec<FileEntry>,
    /// In the order of their paths' bytes.
    pub links: Vec<LinkEntry>,
    /// Passed over on purpose.
    pub skipped: Vec<Absent>,
    /// What should be there and is not.
    pub missing: Vec<Absent>,
    /// How much there is of what.
    pub counts: Counts,
    /// Over files and links.
    pub tree: Sha256,
}

/// Why there is no manifest to be had.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// What is there is none, or contradicts itself.
    #[error("{target} can't be believed: {why}")]
    Garbled {
        /// The object, as a URL.
        target: String,
        /// What is wrong with it, and in which line.
        why: String,
    },
    /// The store's own error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ManifestError {
    /// What a person can do about it.
    pub fn hint(&self) -> Option<&str> {
        match self {
            ManifestError::Garbled { .. } => Some("`chiefsync sync` compares everything again and writes a new one"),
            ManifestError::Store(error) => error.hint.as_deref(),
        }
    }
}

impl Manifest {
    /// The manifest under `at` ([`key`], or an earlier run's); `None` when there is none.
    ///
    /// # Errors
    /// [`ManifestError::Garbled`] for anything that is no manifest, else the store's.
    pub async fn read(store: &dyn Store, at: &Key) -> Result<Option<(Manifest, ETag)>, ManifestError> {
        let garbled = |why| ManifestError::Garbled { target: url_of(store, at), why };
        let Some((bytes, etag)) = read_control(store, at, MAX_MANIFEST_BYTES).await? else { return Ok(None) };
        let bytes = bytes.ok_or_else(|| garbled(format!("it is larger than {MAX_MANIFEST_BYTES} bytes")))?;
        Ok(Some((Manifest::parse(&bytes).map_err(garbled)?, etag)))
    }

    /// Reads and checks a manifest.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn parse(json: &[u8]) -> Result<Manifest, String> {
        let manifest: Document = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let manifest = Manifest::from(manifest);
        if manifest.facts.schema != SCHEMA {
            return Err(format!("its schema is {}, and this version knows {SCHEMA}", manifest.facts.schema));
        }
        let counted = Counts {
            files: manifest.files.len() as u64,
            bytes: manifest.files.iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes)),
            links: manifest.links.len() as u64,
            skipped: manifest.skipped.len() as u64,
            missing: manifest.missing.len() as u64,
            ..manifest.counts
        };
        if counted != manifest.counts {
            return Err(format!("it says {:?}, and holds {counted:?}", manifest.counts));
        }
        let mut tree = TreeDigest::default();
        manifest.files.iter().for_each(|file| tree.file(&file.path, file.size_bytes, &file.digest));
        manifest.links.iter().for_each(|link| tree.link(&link.path, &link.target));
        let tree = tree.finish();
        if tree != manifest.tree {
            return Err(format!("its entries have the tree digest {tree}, and it says {}", manifest.tree));
        }
        Ok(manifest)
    }
}

/// A digest over a whole tree: what is where, of which content.
///
/// SHA-256 over a line per file, `path NUL size NUL checksum LF` with the checksum as S3 writes it, and after them a line per
/// link to a directory, `path NUL NUL target NUL LF`; both in the order of the paths' bytes. No name holds a NUL, so that no
/// two trees have the same lines.
#[derive(Clone, Default)]
pub struct TreeDigest(Hasher);

impl TreeDigest {
    /// Takes the next file.
    pub fn file(&mut self, path: &Key, size_bytes: u64, digest: &Digest) {
        self.0.update(format!("{path}\0{size_bytes}\0{}\n", digest.checksum()).as_bytes());
    }

    /// Takes the next link to a directory.
    pub fn link(&mut self, path: &Key, target: &Key) {
        self.0.update(format!("{path}\0\0{target}\0\n").as_bytes());
    }

    /// The digest of everything taken.
    pub fn finish(self) -> Sha256 {
        self.0.finish()
    }
}

/// The digest of a tree without links to directories: of `(path, size in bytes, digest)`, sorted by path.
pub fn tree_digest<'a>(files: impl IntoIterator<Item = (&'a Key, u64, &'a Digest)>) -> Sha256 {
    let mut tree = TreeDigest::default();
    files.into_iter().for_each(|(path, size_bytes, digest)| tree.file(path, size_bytes, digest));
    tree.finish()
}

/// The JSON as it stands there. Fields that a later version adds are passed over.
#[derive(Deserialize)]
struct Document {
    schema: u32,
    run: u64,
    generation: u64,
    outcome: Outcome,
    holder: Holder,
    #[serde(default)]
    marker: Option<MarkerFacts>,
    started_at: String,
    ended_at: String,
    #[serde(default)]
    figures: BTreeMap<String, f64>,
    #[serde(deserialize_with = "in_order")]
    files: Vec<FileEntry>,
    #[serde(deserialize_with = "in_order")]
    links: Vec<LinkEntry>,
    skipped: Vec<Absent>,
    missing: Vec<Absent>,
    counts: Counts,
    tree: Sha256,
}

impl From<Document> for Manifest {
    fn from(document: Document) -> Manifest {
        let Document { schema, run, generation, outcome, holder, marker, started_at, ended_at, figures, .. } = document;
        let facts = Facts { schema, run, generation, outcome, holder, marker, started_at, ended_at, figures };
        let Document { files, links, skipped, missing, counts, tree, .. } = document;
        Manifest { facts, files, links, skipped, missing, counts, tree }
    }
}

/// An entry that stands under a path of its own.
trait Entry: Sized {
    /// The entry as the JSON has it.
    type Json: DeserializeOwned;

    /// Checks it.
    fn checked(json: Self::Json) -> Result<Self, String>;

    fn path(&self) -> &Key;
}

#[derive(Deserialize)]
struct FileJson {
    path: Key,
    size: u64,
    digest: Digest,
    etag: ETag,
    #[serde(default)]
    link: Option<Key>,
}

impl Entry for FileEntry {
    type Json = FileJson;

    fn checked(json: FileJson) -> Result<FileEntry, String> {
        let FileJson { path, size: size_bytes, digest, etag, link } = json;
        check_path(&path)?;
        let (parts, expected) = (digest.parts().len(), part_count(size_bytes));
        if parts != expected as usize {
            return Err(format!("{path:?} of {size_bytes} bytes has {expected} parts, and {parts} digests stand here"));
        }
        Ok(FileEntry { path, size_bytes, digest, etag, link })
    }

    fn path(&self) -> &Key {
        &self.path
    }
}

#[derive(Deserialize)]
struct LinkJson {
    path: Key,
    target: Key,
}

impl Entry for LinkEntry {
    type Json = LinkJson;

    fn checked(LinkJson { path, target }: LinkJson) -> Result<LinkEntry, String> {
        check_path(&path)?;
        Ok(LinkEntry { path, target })
    }

    fn path(&self) -> &Key {
        &self.path
    }
}

fn check_path(path: &Key) -> Result<(), String> {
    if path.is_control() {
        return Err(format!("{path:?} belongs to chiefsync itself"));
    }
    if path.as_str().len() > MAX_KEY_BYTES {
        return Err(format!("a path is {} bytes long, and S3 takes at most {MAX_KEY_BYTES}", path.as_str().len()));
    }
    Ok(())
}

/// Entries one by one, each behind the one before.
fn in_order<'de, D: Deserializer<'de>, T: Entry>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct InOrder<T>(PhantomData<T>);

    impl<'de, T: Entry> Visitor<'de> for InOrder<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
            let mut entries: Vec<T> = Vec::new();
            while let Some(entry) = seq.next_element_seed(After(entries.last()))? {
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    deserializer.deserialize_seq(InOrder(PhantomData))
}

/// One entry behind another one. Checked inside of its own braces: there a parser still knows the line.
struct After<'a, T>(Option<&'a T>);

impl<'de, T: Entry> DeserializeSeed<'de> for After<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Entry> Visitor<'de> for After<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let entry = T::checked(T::Json::deserialize(MapAccessDeserializer::new(map))?).map_err(A::Error::custom)?;
        match self.0 {
            Some(last) if last.path() == entry.path() => {
                Err(A::Error::custom(format!("{:?} stands here twice", entry.path())))
            }
            Some(last) if last.path() > entry.path() => {
                Err(A::Error::custom(format!("{:?} is out of order", entry.path())))
            }
            _ => Ok(entry),
        }
    }
}

#[cfg(test)]
mod tests;

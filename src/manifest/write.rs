//! Writing a manifest entry by entry, into one buffer that is sent as it is.

use std::io::Write as _;

use bytes::Bytes;
use serde::Serialize;

use super::{Absent, Counts, Facts, TreeDigest};
use crate::digest::{Digest, Sha256};
use crate::key::Key;
use crate::store::ETag;

/// The lists in the order in which they stand there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Section {
    Files,
    Links,
    Skipped,
    Missing,
    End,
}

impl Section {
    fn opening(self) -> &'static str {
        match self {
            Section::Files => ",\n\"files\":[",
            Section::Links => "\n],\n\"links\":[",
            Section::Skipped => "\n],\n\"skipped\":[",
            Section::Missing => "\n],\n\"missing\":[",
            Section::End => "\n],\n",
        }
    }

    fn next(self) -> Section {
        match self {
            Section::Files => Section::Links,
            Section::Links => Section::Skipped,
            Section::Skipped => Section::Missing,
            Section::Missing | Section::End => Section::End,
        }
    }
}

/// Writes a manifest: first the files, then the links, then what was skipped, then what is missing; files and links in the
/// order of their paths' bytes.
///
/// # Panics
/// When they come in another order: a manifest that its reader would refuse must not be written.
pub struct ManifestWriter {
    json: Vec<u8>,
    section: Section,
    /// Nothing stands in this section yet.
    is_first: bool,
    last: Option<Key>,
    counts: Counts,
    tree: TreeDigest,
}

/// A manifest that is ready to be sent.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The JSON.
    pub bytes: Bytes,
    /// Over files and links.
    pub tree: Sha256,
    /// How much there is of what.
    pub counts: Counts,
}

impl ManifestWriter {
    /// Begins one for about `expected_files`.
    pub fn new(facts: &Facts, expected_files: usize) -> ManifestWriter {
        // Rather too much: what is not written to costs no memory, and growing would hold it all twice for a moment.
        let mut json = Vec::with_capacity(4096 + expected_files.saturating_mul(256));
        let mut facts = facts.clone();
        // JSON has no other numbers.
        facts.figures.retain(|_, value| value.is_finite());
        write_json(&mut json, &facts);
        json.pop();
        json.extend_from_slice(Section::Files.opening().as_bytes());
        ManifestWriter {
            json,
            section: Section::Files,
            is_first: true,
            last: None,
            counts: Counts::default(),
            tree: TreeDigest::default(),
        }
    }

    /// A file that is in the bucket; `link` when on the volume it is a link to that other file.
    pub fn file(&mut self, path: &Key, size_bytes: u64, digest: &Digest, etag: &ETag, link: Option<&Key>) {
        self.entry_with_path(Section::Files, path);
        write!(self.json, ",\"size\":{size_bytes},\"digest\":[").expect("memory does not fail");
        for (index, part) in digest.parts().iter().enumerate() {
            self.json.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
            for byte in part.as_bytes() {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                self.json.push(DIGITS[usize::from(byte >> 4)]);
                self.json.push(DIGITS[usize::from(byte & 15)]);
            }
            self.json.push(b'"');
        }
        self.json.extend_from_slice(b"],\"etag\":");
        write_json(&mut self.json, etag);
        if let Some(link) = link {
            self.json.extend_from_slice(b",\"link\":");
            write_json(&mut self.json, link.as_str());
        }
        self.json.push(b'}');
        self.counts.files += 1;
        self.counts.bytes = self.counts.bytes.saturating_add(size_bytes);
        self.tree.file(path, size_bytes, digest);
    }

    /// A link to the directory `target`, relative to SRC.
    pub fn link(&mut self, path: &Key, target: &Key) {
        self.entry_with_path(Section::Links, path);
        self.json.extend_from_slice(b",\"target\":");
        write_json(&mut self.json, target.as_str());
        self.json.push(b'}');
        self.counts.links += 1;
        self.tree.link(path, target);
    }

    /// Something that was passed over on purpose.
    pub fn skipped(&mut self, absent: &Absent) {
        self.entry(Section::Skipped);
        write_json(&mut self.json, absent);
        self.counts.skipped += 1;
    }

    /// Something that should be there and is not.
    pub fn missing(&mut self, absent: &Absent) {
        self.entry(Section::Missing);
        write_json(&mut self.json, absent);
        self.counts.missing += 1;
    }

    /// Ends it, with what this process sent.
    pub fn finish(mut self, uploaded_files: u64, uploaded_bytes: u64) -> Finished {
        self.go_to(Section::End);
        let counts = Counts { uploaded_files, uploaded_bytes, ..self.counts };
        let tree = self.tree.finish();
        self.json.extend_from_slice(b"\"counts\":");
        write_json(&mut self.json, &counts);
        self.json.extend_from_slice(b",\"tree\":");
        write_json(&mut self.json, &tree);
        self.json.extend_from_slice(b"}\n");
        Finished { bytes: self.json.into(), tree, counts }
    }

    fn entry_with_path(&mut self, section: Section, path: &Key) {
        self.entry(section);
        assert!(self.last.as_ref().is_none_or(|last| last < path), "{path:?} is out of order");
        self.last = Some(path.clone());
        self.json.extend_from_slice(b"{\"path\":");
        write_json(&mut self.json, path.as_str());
    }

    fn entry(&mut self, section: Section) {
        self.go_to(section);
        self.json.extend_from_slice(if self.is_first { b"\n" } else { b",\n" });
        self.is_first = false;
    }

    fn go_to(&mut self, section: Section) {
        assert!(self.section <= section, "{section:?} after {:?}", self.section);
        while self.section < section {
            self.section = self.section.next();
            self.json.extend_from_slice(self.section.opening().as_bytes());
            self.is_first = true;
            self.last = None;
        }
    }
}

fn write_json<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("a manifest has only plain fields, and memory does not fail");
}

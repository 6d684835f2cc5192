//! What a journal's lines add up to, and how many bytes of the file still count.
//!
//! Invariant: `live_bytes` is the length of the lines that a compaction would write, less the header.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::line::Line;
use super::{Ended, OpenUpload, Uploaded};
use crate::digest::Sha256;
use crate::key::Key;
use crate::store::StoredPart;

/// The sum of all changes.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct State {
    /// Boxed, so that the table's spare slots cost 24 bytes each and not 136.
    pub files: HashMap<Key, Box<Uploaded>>,
    pub uploads: HashMap<Key, OpenUpload>,
    pub ended: Option<Ended>,
    pub live_bytes: u64,
}

impl State {
    /// Whether nothing at all is known.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.uploads.is_empty() && self.ended.is_none()
    }

    /// Takes over one line of `len_bytes`; false when its content makes no sense.
    pub fn apply(&mut self, line: Line<'_>, len_bytes: u64) -> bool {
        match line {
            Line::Uploaded(line) => match line.into_parts() {
                Some((key, uploaded)) => self.record(key, uploaded, len_bytes),
                None => return false,
            },
            Line::Forgotten(key) => self.forget(&key),
            Line::Begun(line) => match line.into_parts() {
                Some((key, upload)) => self.begin_upload(key, upload, len_bytes),
                None => return false,
            },
            Line::Part(line) => match line.into_parts() {
                // Its upload's first line may have been garbled: then the part is of no use.
                Some((key, part, sha256)) => self.part_done(&key, part, sha256, len_bytes),
                None => return false,
            },
            Line::UploadEnded(key) => self.end_upload(&key),
            Line::RunEnded(None) => self.set_ended(None, 0),
            Line::RunEnded(Some(line)) => match line.into_ended() {
                Some(ended) => self.set_ended(Some(ended), len_bytes),
                None => return false,
            },
        }
        true
    }

    pub fn record(&mut self, key: Key, uploaded: Uploaded, len_bytes: u64) {
        self.live_bytes += len_bytes;
        match self.files.entry(key) {
            Entry::Occupied(mut entry) => {
                let old = std::mem::replace(&mut **entry.get_mut(), uploaded);
                let replaced_bytes = Line::uploaded(entry.key(), &old).len_bytes();
                self.live_bytes = self.live_bytes.saturating_sub(replaced_bytes);
            }
            Entry::Vacant(entry) => {
                entry.insert(Box::new(uploaded));
            }
        }
    }

    pub fn forget(&mut self, key: &str) {
        if let Some((key, old)) = self.files.remove_entry(key) {
            self.outlived(&Line::uploaded(&key, &old));
        }
    }

    pub fn begin_upload(&mut self, key: Key, upload: OpenUpload, len_bytes: u64) {
        self.end_upload(key.as_str());
        self.live_bytes += len_bytes;
        self.uploads.insert(key, upload);
    }

    pub fn part_done(&mut self, key: &str, part: StoredPart, sha256: Sha256, len_bytes: u64) {
        if let Some(upload) = self.uploads.get_mut(key) {
            self.live_bytes += len_bytes;
            if let Some((old, old_sha256)) = upload.parts.insert(part.number, (part, sha256)) {
                self.outlived(&Line::part(key, &old, old_sha256));
            }
        }
    }

    pub fn end_upload(&mut self, key: &str) {
        if let Some((key, upload)) = self.uploads.remove_entry(key) {
            self.outlived(&Line::begun(&key, &upload));
            for (part, sha256) in upload.parts.values() {
                self.outlived(&Line::part(key.as_str(), part, *sha256));
            }
        }
    }

    pub fn set_ended(&mut self, ended: Option<Ended>, len_bytes: u64) {
        if let Some(old) = self.ended.take() {
            self.outlived(&Line::run_ended(Some(&old)));
        }
        if ended.is_some() {
            self.live_bytes += len_bytes;
        }
        self.ended = ended;
    }

    /// A line of the file that counts no longer.
    fn outlived(&mut self, line: &Line<'_>) {
        self.live_bytes = self.live_bytes.saturating_sub(line.len_bytes());
    }

    /// The lines that stand for everything here, in the order in which they can be read again.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let files = self.files.iter().map(|(key, uploaded)| Line::uploaded(key, uploaded));
        let uploads = self.uploads.iter().flat_map(|(key, upload)| {
            let parts = upload.parts.values().map(|(part, sha256)| Line::part(key.as_str(), part, *sha256));
            std::iter::once(Line::begun(key, upload)).chain(parts)
        });
        let ended = self.ended.iter().map(|ended| Line::run_ended(Some(ended)));
        files.chain(uploads).chain(ended)
    }
}

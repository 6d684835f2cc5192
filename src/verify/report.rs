//! What was found out, for people and programs.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::config::show_size;
use crate::exit::{Ending, ExitCode};
use crate::head::{Head, Holder, RunEnd};
use crate::manifest::{self, Facts};
use crate::store::ETag;

use super::{Compared, Verification};

/// What was found out about one path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(into = "&'static str")]
pub enum Verdict {
    /// All that was compared is the same.
    Match,
    /// It is in the bucket, and not below SRC.
    MissingLocally,
    /// Something else is there than should be.
    Differs,
    /// It should be in the bucket, and is not.
    MissingRemotely,
}

impl Verdict {
    /// The words for tables and programs.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Match => "match",
            Verdict::MissingLocally => "missing locally",
            Verdict::Differs => "differs",
            Verdict::MissingRemotely => "missing remotely",
        }
    }
}

impl From<Verdict> for &'static str {
    fn from(verdict: Verdict) -> &'static str {
        verdict.name()
    }
}

/// A row that pairs what should be with what is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// Below SRC and below the prefix.
    pub path: String,
    /// What was found.
    pub verdict: Verdict,
    /// The length that it should have, in bytes.
    pub bytes: u64,
    /// What exactly, where it is no match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The verdict on the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overall {
    /// Every entry matches.
    Match,
    /// Some don't.
    Differs,
    /// There was nothing to compare with, or no way to.
    #[default]
    Unverified,
}

/// How many entries there are of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// The same everywhere.
    #[serde(rename = "match")]
    pub matching: u64,
    /// Bytes of those.
    pub matching_bytes: u64,
    /// Different somewhere.
    pub differs: u64,
    /// In the bucket alone.
    pub missing_locally: u64,
    /// Not in the bucket.
    pub missing_remotely: u64,
    /// Objects below the prefix that nothing names, like what was rotated away: they stay.
    pub extra: u64,
    /// Sockets, FIFOs, devices: never uploaded.
    pub skipped: u64,
}

/// The head, as far as it was compared.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct HeadFacts {
    /// The run under way, or the last one.
    pub run: u64,
    /// Raised by every taking.
    pub generation: u64,
    /// Raised by every change of meaning.
    pub sequence: u64,
    /// Who may write.
    pub holder: Option<Holder>,
    /// How the run ended; `None` while it is open.
    pub ended: Option<RunEnd>,
    /// How many checkpoints it lists.
    pub checkpoints: u64,
}

impl From<&Head> for HeadFacts {
    fn from(head: &Head) -> HeadFacts {
        HeadFacts {
            run: head.run,
            generation: head.generation,
            sequence: head.sequence,
            holder: head.holder.clone(),
            ended: head.ended.clone(),
            checkpoints: head.checkpoints.len() as u64,
        }
    }
}

/// The manifest, less its entries.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ManifestFacts {
    /// The object's tag.
    pub etag: ETag,
    /// Over files and links.
    pub tree: crate::digest::Sha256,
    /// How much there is of what.
    pub counts: manifest::Counts,
    /// The run as a whole.
    #[serde(flatten)]
    pub facts: Facts,
}

/// All that was found out.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    /// The verdict on the whole.
    pub verdict: Overall,
    /// How many entries there are of what.
    pub counts: Counts,
    /// Those that don't match, in the order of their paths.
    pub entries: Vec<Entry>,
    /// Objects below the prefix that nothing names.
    pub extra: Vec<String>,
    /// The head.
    pub head: Option<HeadFacts>,
    /// What the entries were compared with.
    pub manifest: Option<ManifestFacts>,
}

/// What was found so far.
#[derive(Default)]
pub(super) struct Findings {
    /// What doesn't match, by path.
    wrong: BTreeMap<String, Entry>,
    /// What was compared beside the manifest's files: path and length in bytes.
    compared: Vec<(String, u64)>,
    /// Objects that nothing names.
    pub extra: Vec<String>,
    /// What is never uploaded.
    pub skipped: u64,
}

impl Findings {
    /// Something is wrong with `path`. Of several things the worst decides, and all are told.
    pub fn note(&mut self, path: &str, verdict: Verdict, bytes: u64, why: String) {
        match self.wrong.get_mut(path) {
            None => {
                let entry = Entry { path: path.to_owned(), verdict, bytes, why: Some(why) };
                self.wrong.insert(path.to_owned(), entry);
            }
            Some(known) => {
                known.verdict = known.verdict.max(verdict);
                known.bytes = known.bytes.max(bytes);
                known.why = Some(known.why.take().map_or(why.clone(), |before| format!("{before}; {why}")));
            }
        }
    }

    /// Something that is no file of the manifest was compared.
    pub fn compared(&mut self, path: &str, bytes: u64) {
        self.compared.push((path.to_owned(), bytes));
    }

    pub fn is_empty(&self) -> bool {
        self.wrong.is_empty()
    }

    /// Whether something is wrong with `path` already.
    pub fn has(&self, path: &str) -> bool {
        self.wrong.contains_key(path)
    }
}

impl Compared {
    /// Counts, tells every entry, and says how to end.
    pub(super) fn conclude(self, of: &Verification, mut on_entry: impl FnMut(&Entry)) -> (Report, Ending) {
        let Compared { head, manifest, findings } = self;
        let Findings { wrong, compared, mut extra, skipped } = findings;
        extra.sort_unstable();
        let files = manifest.iter().flat_map(|manifest| &manifest.files);
        let mut all: Vec<(&str, u64)> = files.map(|file| (file.path.as_str(), file.size_bytes)).collect();
        all.extend(compared.iter().map(|(path, bytes)| (path.as_str(), *bytes)));
        all.extend(wrong.values().map(|entry| (entry.path.as_str(), entry.bytes)));
        all.sort_by_key(|(path, _)| *path);
        all.dedup_by_key(|(path, _)| *path);

        let mut counts = Counts { extra: extra.len() as u64, skipped, ..Counts::default() };
        for (path, bytes) in all {
            let right = Entry { path: path.to_owned(), verdict: Verdict::Match, bytes, why: None };
            let entry = wrong.get(path).unwrap_or(&right);
            match entry.verdict {
                Verdict::Match => {
                    counts.matching += 1;
                    counts.matching_bytes += bytes;
                }
                Verdict::Differs => counts.differs += 1,
                Verdict::MissingLocally => counts.missing_locally += 1,
                Verdict::MissingRemotely => counts.missing_remotely += 1,
            }
            on_entry(entry);
        }
        let verdict = if wrong.is_empty() { Overall::Match } else { Overall::Differs };
        let ending = ending(of, &head, manifest.is_some(), &counts);
        let etag = head.ended.as_ref().map(|ended| ended.manifest.clone());
        let manifest = manifest.zip(etag).map(|(manifest, etag)| ManifestFacts {
            etag,
            tree: manifest.tree,
            counts: manifest.counts,
            facts: manifest.facts,
        });
        let head = Some(HeadFacts::from(&head));
        (Report { verdict, counts, entries: wrong.into_values().collect(), extra, head, manifest }, ending)
    }
}

fn ending(of: &Verification, head: &Head, has_manifest: bool, counts: &Counts) -> Ending {
    let url = of.store.url();
    let run = match &head.ended {
        Some(ended) => format!("run {} ({})", head.run, ended.outcome.name()),
        None => {
            let holder = head.holder.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string);
            format!("run {}, which is still open (held by {holder})", head.run)
        }
    };
    let with = if !has_manifest {
        String::new()
    } else if of.config.source.is_some() {
        ", its manifest and SRC".to_owned()
    } else {
        " and its manifest".to_owned()
    };
    let beside =
        if counts.extra == 0 { String::new() } else { format!("; {} other objects beside them", counts.extra) };
    let wrong = counts.differs + counts.missing_locally + counts.missing_remotely;
    if wrong == 0 {
        let deep = if of.config.deep { ", every byte read back" } else { "" };
        let summary = format!(
            "match: {} entries, {} in {url} agree with {run}{with}{deep}{beside}",
            counts.matching,
            show_size(counts.matching_bytes),
        );
        return Ending::new(ExitCode::Proven, summary);
    }
    let kinds = [
        (counts.missing_remotely, "missing remotely"),
        (counts.differs, "differ"),
        (counts.missing_locally, "missing locally"),
    ];
    let kinds: Vec<_> = kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let summary = format!("{} in {url} for {run}, {} match{beside}", kinds.join(", "), counts.matching);
    let hint = if head.ended.is_none() {
        "the run is open: what was written a moment ago may still be on its way; verify it again when the run has ended"
    } else if counts.missing_remotely + counts.differs == 0 {
        "SRC has lost what the bucket still has"
    } else {
        "`chiefsync sync SRC DEST` brings up what SRC holds; who else writes below this prefix?"
    };
    Ending::new(ExitCode::Differs, summary).with_hint(hint)
}

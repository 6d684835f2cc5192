//! The head: the one small object that changes meaning, by compare-and-swap.
//!
//! `.chiefsync/head.json` says who may write below the prefix ([`Holder`], generation), what counts (the table of
//! checkpoints, ordered by generation and sequence), and whether the run has ended ([`RunEnd`]). Readers trust it, never a
//! listing.
//!
//! Invariants: only a [`Lease`] writes it, and only over the very version that it read; a head that can't be read is never
//! overwritten; fields of later versions are carried along.

mod archive;
mod lease;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::marker::MarkerIdentity;
use crate::store::ETag;

pub use self::archive::{archive_verdict, needs_archive};
pub use self::lease::{Lease, LeaseError, TakeOptions};
pub(crate) use self::lease::{read_control, url_of};

/// The version of the schema that this program writes. It reads no later one: what it doesn't know might forbid writing.
pub const SCHEMA: u32 = 1;

/// What is read of a head; a hundred thousand checkpoints take about 20 MiB.
pub const MAX_HEAD_BYTES: u64 = 64 * 1024 * 1024;

type Unknown = serde_json::Map<String, serde_json::Value>;

/// The head as the bucket holds it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Head {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Who may write; `None` when the last one gave it back.
    pub holder: Option<Holder>,
    /// Raised by every taking: a holder of an older one has been superseded.
    pub generation: u64,
    /// Raised by every change of meaning. (generation, sequence) orders checkpoints: neither steps nor clocks do.
    pub sequence: u64,
    /// The number of the run that is under way or ended last, from 1.
    pub run: u64,
    /// Signs of life of the holder; counts up so that the object changes.
    #[serde(default)]
    pub renewals: u64,
    /// How the run ended; `None` while it is open, whatever DONE may lie in the bucket.
    #[serde(default)]
    pub ended: Option<RunEnd>,
    /// A run whose verdict is on its way to `runs/<n>/`: whoever takes the head finishes that first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archiving: Option<u64>,
    /// Every checkpoint that was ever here, also those that were pruned.
    #[serde(default)]
    pub checkpoints: Vec<CheckpointRow>,
    /// What a later version put here.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Who may write below the prefix.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Random, kept with the journal: the same after a restart.
    pub id: String,
    /// The host's name, in a pod the pod's.
    pub host: String,
    /// The pod, where it is known.
    #[serde(default)]
    pub pod_uid: Option<String>,
    /// Of chiefsync.
    pub version: String,
    /// When it took the head: RFC 3339, for people.
    pub since: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        if let Some(pod) = &self.pod_uid {
            write!(f, " (pod {pod})")?;
        }
        write!(f, " since {}, chiefsync {}", self.since, self.version)
    }
}

/// How a run ended, and what proves it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct RunEnd {
    /// The verdict.
    pub outcome: Outcome,
    /// Of `manifest.json`: another manifest belongs to another end.
    pub manifest: ETag,
    /// The end marker that it was, where there was one.
    #[serde(default)]
    pub marker: Option<MarkerIdentity>,
    /// The pod that wrote it.
    #[serde(default)]
    pub pod_uid: Option<String>,
    /// RFC 3339, for people.
    pub at: String,
}

/// One checkpoint.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct CheckpointRow {
    /// Its name: the directory, or the file's stem.
    pub id: String,
    /// The trainer's step, where it is known.
    #[serde(default)]
    pub step: Option<u64>,
    /// The head's generation when the row last changed its state to committed.
    #[serde(default)]
    pub generation: u64,
    /// The head's sequence at that moment.
    pub sequence: u64,
    /// What may be done with it.
    pub state: CheckpointState,
    /// The key of its record below the prefix.
    #[serde(default)]
    pub record: Option<String>,
    /// How many files it has.
    pub files: u64,
    /// Their length in bytes.
    pub bytes: u64,
    /// What a later version put here.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// What a checkpoint is good for.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum CheckpointState {
    /// Complete, checked, can be restored.
    Committed,
    /// On its way.
    Uploading,
    /// Its files change in place: not to be restored until it is committed again.
    Retracted,
    /// Its objects are being removed.
    Pruning,
    /// Retained away; the row is its tombstone.
    Pruned,
}

impl CheckpointState {
    /// The word for tables and documents.
    pub fn name(self) -> &'static str {
        match self {
            CheckpointState::Committed => "committed",
            CheckpointState::Uploading => "uploading",
            CheckpointState::Retracted => "retracted",
            CheckpointState::Pruning => "pruning",
            CheckpointState::Pruned => "pruned",
        }
    }
}

/// How a run ended.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// DONE was there, and everything is in the bucket, checked.
    Succeeded,
    /// The trainer failed (FAILED); what it left has been uploaded.
    Failed,
    /// The trainer was gone without a marker; what it left has been uploaded.
    Lost,
    /// A signal or a deadline ended the run before the trainer did.
    Interrupted,
    /// A one-shot sync of a directory without an end marker.
    Synced,
}

impl Outcome {
    /// The word for logs and documents.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed => "failed",
            Outcome::Lost => "lost",
            Outcome::Interrupted => "interrupted",
            Outcome::Synced => "synced",
        }
    }
}

impl Head {
    /// The head's name below the prefix.
    pub fn key() -> Key {
        Key::control("head.json")
    }

    /// A head that nobody holds, before the first taking.
    pub fn first(run: u64) -> Head {
        Head {
            schema: SCHEMA,
            holder: None,
            generation: 0,
            sequence: 0,
            run,
            renewals: 0,
            ended: None,
            archiving: None,
            checkpoints: Vec::new(),
            unknown: Unknown::new(),
        }
    }

    /// Reads a head.
    ///
    /// # Errors
    /// Why it is none, or none of this version.
    pub fn parse(json: &[u8]) -> Result<Head, String> {
        let head: Head = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        if head.schema != SCHEMA {
            return Err(format!("its schema is {}, and this version knows {SCHEMA}", head.schema));
        }
        Ok(head)
    }

    /// Whether `id` holds this very generation.
    fn is_held_by(&self, id: &str, generation: u64) -> bool {
        self.generation == generation && self.holder.as_ref().is_some_and(|holder| holder.id == id)
    }
}

#[cfg(test)]
mod archive_tests;
#[cfg(test)]
pub(crate) mod test_store;
#[cfg(test)]
mod tests;

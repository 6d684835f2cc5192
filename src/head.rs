//! The head: the one small object that changes meaning, by compare-and-swap.

use serde::{Deserialize, Serialize};

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

//! The lifecycle of `watch` and `sync`, one word a stage: in logs, spans, metrics and documents alike.

/// Where a run of the engine is. Read in order, the stages tell the story.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Stage {
    /// Asks the destination what it really does, and the volume whether it is there.
    Preflight,
    /// Takes the head, reads the journal, finds multipart uploads that an earlier process left.
    Recover,
    /// Watches SRC and sends what is complete and changed.
    Follow,
    /// After the end marker: sends what is left, without waiting for anything to settle.
    Drain,
    /// Compares disk, journal and bucket; writes the manifest, then the marker.
    Prove,
    /// Gives the head back, leaves the last word.
    Exit,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Stage; 6] =
        [Stage::Preflight, Stage::Recover, Stage::Follow, Stage::Drain, Stage::Prove, Stage::Exit];

    /// The word for logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Preflight => "preflight",
            Stage::Recover => "recover",
            Stage::Follow => "follow",
            Stage::Drain => "drain",
            Stage::Prove => "prove",
            Stage::Exit => "exit",
        }
    }
}

//! What a checkpoint is.
//!
//! Today: the order in which the pieces of one go up, by their names alone. Pure: no I/O.

use crate::key::Key;

/// When a file goes up, relative to the others beside and below it: data first, then what makes data findable, last what
/// names the newest. A reader that follows a pointer must find everything behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Rank {
    /// Anything that no other file is needed to read.
    Data,
    /// Names or describes data: an index, a manifest, a graph.
    Index,
    /// Names the newest checkpoint; every save rewrites it.
    Pointer,
}

impl Rank {
    /// The rank that the frameworks' own names imply.
    pub fn of(key: &Key) -> Rank {
        match key.file_name() {
            // TensorFlow; DeepSpeed; Megatron.
            "checkpoint" | "latest" | "latest_checkpointed_iteration.txt" => Rank::Pointer,
            // This library; DCP; SavedModel; HF Trainer; Orbax.
            "chiefsync.json"
            | ".metadata"
            | "saved_model.pb"
            | "fingerprint.pb"
            | "trainer_state.json"
            | "_CHECKPOINT_METADATA"
            | "commit_success.txt" => Rank::Index,
            name if name.ends_with(".index") || name.ends_with(".index.json") || name.ends_with(".meta") => Rank::Index,
            name if name.starts_with("__") && name.ends_with(".metadata") => Rank::Index,
            _ => Rank::Data,
        }
    }
}

/// Whether a name merely looks temporary: such a file waits until the end marker, then goes up like anything else.
pub fn looks_temporary(key: &Key) -> bool {
    const ENDINGS: [&str; 6] = [".tmp", ".temp", ".partial", ".part", ".incomplete", ".swp"];
    key.as_str().split('/').any(|segment| ENDINGS.iter().any(|ending| segment.ends_with(ending)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_imply_the_order() {
        for (name, rank) in [
            ("ckpt-1.data-00000-of-00001", Rank::Data),
            ("ckpt-1.index", Rank::Index),
            ("checkpoint", Rank::Pointer),
            ("checkpoint/model.bin", Rank::Data),
            ("step-5/.metadata", Rank::Index),
            ("step-5/__0.metadata", Rank::Index),
            ("global_step5/latest", Rank::Pointer),
            ("export/1/saved_model.pb", Rank::Index),
            ("model.safetensors.index.json", Rank::Index),
        ] {
            assert_eq!(Rank::of(&Key::new(name).unwrap()), rank, "{name}");
        }
    }

    #[test]
    fn temporary_names_count_in_every_segment() {
        for (name, temporary) in [("a.tmp", true), ("a.tmp/b", true), ("tmp/a", false), ("a.tmpx", false)] {
            assert_eq!(looks_temporary(&Key::new(name).unwrap()), temporary, "{name}");
        }
    }
}

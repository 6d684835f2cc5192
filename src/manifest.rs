//! The manifest: the end of a run, every file with its digest.

use crate::key::Key;

/// The manifest's name below the prefix.
pub fn key() -> Key {
    Key::control("manifest.json")
}

//! Names: the one that a file under SRC and its object under the prefix share.
//!
//! Invariants: a [`Key`] is relative, UTF-8, has no empty, `.` or `..` segment, and no NUL, so that joining it to a
//! directory or to a prefix never leaves either. A [`Prefix`] is empty or ends in `/`. Pure: no I/O.

use std::borrow::Borrow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest object key that S3 takes, in bytes of UTF-8 (Amazon S3 user guide, "Naming objects").
pub const MAX_KEY_BYTES: usize = 1024;

/// The directory in SRC's root and under the prefix that belongs to chiefsync.
pub const CONTROL_DIR: &str = ".chiefsync";

/// A relative name: of a file below SRC and, byte for byte, of its object below the prefix.
///
/// Cheap to clone; orders by bytes, as S3 listings do.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(Arc<str>);

/// Why a name can't be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// S3 keys are UTF-8; a file system takes any bytes.
    #[error("the name is not UTF-8, and S3 keys must be")]
    NotUtf8,
    /// Nothing at all, or an empty, `.` or `..` segment, an absolute path, a NUL.
    #[error("{0:?} is not a plain relative path")]
    NotRelative(String),
    /// Longer than S3 takes once the prefix stands in front.
    #[error("the key would be {bytes} bytes long with the prefix, and S3 takes at most {MAX_KEY_BYTES}")]
    TooLong {
        /// The length with the prefix, in bytes.
        bytes: usize,
    },
}

impl Key {
    /// Takes `name` if it is a plain relative path.
    pub fn new(name: impl AsRef<str>) -> Result<Key, KeyError> {
        let name = name.as_ref();
        let plain = !name.is_empty()
            && !name.contains('\0')
            && name.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
        if plain { Ok(Key(Arc::from(name))) } else { Err(KeyError::NotRelative(name.to_owned())) }
    }

    /// The key of a path relative to SRC.
    pub fn from_path(relative: &Path) -> Result<Key, KeyError> {
        Key::new(relative.to_str().ok_or(KeyError::NotUtf8)?)
    }

    /// A key below the control directory: `.chiefsync/<name>`.
    ///
    /// # Panics
    /// When `name` is not a plain relative path: names of control objects are ours.
    pub fn control(name: &str) -> Key {
        Key::new(format!("{CONTROL_DIR}/{name}")).expect("control names are plain")
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Everything before the last `/`; empty for a name in the root.
    pub fn directory(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// Whether this is `directory` itself or lies below it. The empty directory holds everything.
    pub fn is_within(&self, directory: &str) -> bool {
        directory.is_empty()
            || self.0.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Whether this names one of chiefsync's own objects or files.
    pub fn is_control(&self) -> bool {
        self.is_within(CONTROL_DIR)
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;
    fn try_from(name: String) -> Result<Key, KeyError> {
        Key::new(name)
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        key.0.to_string()
    }
}

/// What stands in front of every key in the bucket: empty, or segments that end in `/`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prefix(String);

impl Prefix {
    /// Takes `text` with or without slashes around it; `job` and `job/` are one prefix, so that `job` never holds `job-2`.
    pub fn new(text: &str) -> Result<Prefix, KeyError> {
        let trimmed = text.trim_matches('/');
        if trimmed.is_empty() {
            return Ok(Prefix::default());
        }
        Key::new(trimmed)?;
        Ok(Prefix(format!("{trimmed}/")))
    }

    /// The text, with its last `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the bucket's root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The full object key.
    pub fn join(&self, key: &Key) -> String {
        format!("{}{}", self.0, key.as_str())
    }

    /// Whether `key` still fits S3's limit behind this prefix.
    pub fn check(&self, key: &Key) -> Result<(), KeyError> {
        let bytes = self.0.len() + key.as_str().len();
        if bytes > MAX_KEY_BYTES { Err(KeyError::TooLong { bytes }) } else { Ok(()) }
    }

    /// The key that a full object key has below this prefix.
    pub fn strip(&self, full: &str) -> Option<Key> {
        Key::new(full.strip_prefix(&self.0)?).ok()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_inside() {
        for good in ["a", "a/b", "-x", " ", "a b", "a%b", "ä/ö", "a\nb", "...", ".hidden"] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b"] {
            assert_eq!(Key::new(bad), Err(KeyError::NotRelative(bad.to_owned())), "{bad:?}");
        }
    }

    #[test]
    fn a_neighbour_is_not_inside() {
        let key = Key::new("job-2/x").unwrap();
        assert!(!key.is_within("job"));
        assert!(key.is_within("job-2"));
        assert!(key.is_within(""));
        assert_eq!((key.directory(), key.file_name()), ("job-2", "x"));
        assert!(Prefix::new("job").unwrap().strip("job-2/x").is_none());
    }

    #[test]
    fn a_prefix_ends_in_a_slash_and_limits_the_key() {
        for text in ["a/b", "/a/b/", "a/b/"] {
            assert_eq!(Prefix::new(text).unwrap().as_str(), "a/b/");
        }
        assert!(Prefix::new("/").unwrap().is_root());
        assert!(Prefix::new("a//b").is_err());
        let prefix = Prefix::new("p").unwrap();
        assert!(prefix.check(&Key::new("k".repeat(MAX_KEY_BYTES - 2)).unwrap()).is_ok());
        assert_eq!(
            prefix.check(&Key::new("k".repeat(MAX_KEY_BYTES - 1)).unwrap()),
            Err(KeyError::TooLong { bytes: MAX_KEY_BYTES + 1 })
        );
    }
}

//! Scan: one look at everything below SRC.
//!
//! Invariants: links are never walked through; what can't be looked at is reported, not skipped; a directory is handed to
//! `on_directory` before its content is read, so that a watch set there misses nothing.

use std::io;
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

use crate::config::Filter;
use crate::disk::{self, Stat};
use crate::key::{CONTROL_DIR, Key};
use crate::marker::MarkerKind;

/// One thing that a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub key: Key,
    /// What it is.
    pub what: What,
}

/// What a name below SRC stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    File(Stat),
    /// A link to a regular file inside SRC.
    FileLink {
        /// The file that it ends at.
        target: Key,
        /// That file's version.
        stat: Stat,
    },
    /// A link to a directory inside SRC: recorded, so that restore recreates it.
    DirectoryLink {
        /// The directory, relative to SRC.
        target: Key,
    },
    /// A link that ends nowhere, or outside SRC: not followed.
    BadLink(&'static str),
    /// A socket, a FIFO or a device.
    Special(&'static str),
    /// Something that could not be looked at.
    Unreadable(String),
}

/// A name that can't be an object's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnameable {
    /// The name, with what isn't UTF-8 replaced.
    pub name: String,
    /// Why it can't.
    pub why: String,
}

/// What a scan hands over.
pub trait Visitor {
    /// A directory, before it is read.
    fn directory(&mut self, path: &Path);
    /// A file, a link or something else that is no directory.
    fn found(&mut self, found: Found);
    /// Something that can't be uploaded under any key.
    fn unnameable(&mut self, name: Unnameable);
    /// Whether to go on.
    fn wanted(&self) -> bool {
        true
    }
}

/// The tree below SRC, with what of it the user wants.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    real_root: PathBuf,
    filter: Filter,
}

impl Tree {
    /// # Errors
    /// When SRC isn't there or can't be resolved.
    pub fn new(root: &Path, filter: Filter) -> io::Result<Tree> {
        Ok(Tree { root: root.to_owned(), real_root: disk::canonicalize(root)?, filter })
    }

    /// SRC.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The path of a key.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    /// Whether a path relative to SRC is none of our business: ours, the file system's, or excluded. An end marker never
    /// is: `--exclude '*'` leaves out what goes up, not how the run ends.
    pub fn ignores(&self, relative: &str) -> bool {
        if MarkerKind::of(relative).is_some() {
            return false;
        }
        let first = relative.split('/').next().unwrap_or_default();
        first == CONTROL_DIR || first == "lost+found" || self.filter.excludes(relative)
    }

    /// Looks at everything below `below` (SRC itself or a directory in it).
    pub fn walk(&self, below: &Path, visitor: &mut dyn Visitor) {
        let mut walk = WalkDir::new(below).follow_links(false).follow_root_links(below == self.root).into_iter();
        while let Some(entry) = walk.next() {
            if !visitor.wanted() {
                return;
            }
            match entry {
                Ok(entry) if entry.file_type().is_dir() => {
                    if self.is_reserved(entry.path()) {
                        walk.skip_current_dir();
                    } else {
                        visitor.directory(entry.path());
                    }
                }
                Ok(entry) => {
                    self.look(entry.path(), visitor);
                }
                Err(error) => {
                    let gone = error.io_error().is_some_and(|e| e.kind() == io::ErrorKind::NotFound);
                    // What vanishes during a walk is no trouble, unless it is SRC itself.
                    let gone = gone && error.path().is_none_or(|path| path != self.root);
                    if let (false, Some(path)) = (gone, error.path()) {
                        let why = error.io_error().map_or_else(|| error.to_string(), ToString::to_string);
                        self.report(path, What::Unreadable(why), visitor);
                    }
                }
            }
        }
    }

    /// Looks at one path; nothing is reported, and false returned, when it is gone or a directory.
    pub fn look(&self, path: &Path, visitor: &mut dyn Visitor) -> bool {
        match self.what(path) {
            Ok(Some(what)) => self.report(path, what, visitor),
            Ok(None) => return false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return false,
            Err(error) => self.report(path, What::Unreadable(error.to_string()), visitor),
        }
        true
    }

    fn is_reserved(&self, directory: &Path) -> bool {
        directory.strip_prefix(&self.root).is_ok_and(|r| r == Path::new(CONTROL_DIR) || r == Path::new("lost+found"))
    }

    fn report(&self, path: &Path, what: What, visitor: &mut dyn Visitor) {
        let Ok(relative) = path.strip_prefix(&self.root) else { return };
        let lossy = relative.to_string_lossy();
        if self.ignores(&lossy) {
            return;
        }
        match Key::from_path(relative) {
            Ok(key) => visitor.found(Found { key, what }),
            // SRC itself could not be read.
            Err(_) if lossy.is_empty() => {
                visitor.unnameable(Unnameable { name: self.root.display().to_string(), why: describe(&what) });
            }
            Err(error) => visitor.unnameable(Unnameable { name: lossy.into_owned(), why: error.to_string() }),
        }
    }

    fn what(&self, path: &Path) -> io::Result<Option<What>> {
        use std::os::unix::fs::FileTypeExt as _;
        let meta = disk::symlink_metadata(path)?;
        let kind = meta.file_type();
        Ok(Some(if kind.is_file() {
            What::File(Stat::of(&meta))
        } else if kind.is_dir() {
            return Ok(None);
        } else if kind.is_symlink() {
            self.follow(path)?
        } else if kind.is_fifo() {
            What::Special("a FIFO")
        } else if kind.is_socket() {
            What::Special("a socket")
        } else {
            What::Special("a device")
        }))
    }

    /// Where a link ends. Links of links count as one; loops and missing targets end nowhere.
    fn follow(&self, path: &Path) -> io::Result<What> {
        let Ok(real) = disk::canonicalize(path) else {
            return Ok(What::BadLink("the link's target is not there"));
        };
        let Ok(inside) = real.strip_prefix(&self.real_root) else {
            return Ok(What::BadLink("the link's target is outside SRC"));
        };
        let meta = disk::metadata(&real)?;
        match Key::from_path(inside) {
            Ok(target) if meta.is_dir() && !target.is_control() => Ok(What::DirectoryLink { target }),
            Ok(target) if meta.is_file() && !target.is_control() => {
                Ok(What::FileLink { target, stat: Stat::of(&meta) })
            }
            _ => Ok(What::BadLink("the link's target is nothing that is uploaded")),
        }
    }
}

fn describe(what: &What) -> String {
    match what {
        What::Unreadable(why) => why.clone(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct All(Vec<(String, What)>, Vec<Unnameable>, usize);

    impl Visitor for All {
        fn directory(&mut self, _: &Path) {
            self.2 += 1;
        }
        fn found(&mut self, found: Found) {
            self.0.push((found.key.to_string(), found.what));
        }
        fn unnameable(&mut self, name: Unnameable) {
            self.1.push(name);
        }
    }

    #[test]
    #[allow(clippy::disallowed_methods)]
    fn a_scan_reports_everything_once_and_follows_no_link() {
        use std::os::unix::ffi::OsStrExt as _;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join(".chiefsync")).unwrap();
        std::fs::create_dir_all(root.join("lost+found")).unwrap();
        for name in ["a/b/file", "skip.log", ".chiefsync/journal", "lost+found/x"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        for (target, link) in
            [("b/file", "a/link"), ("b", "a/dir"), ("/etc/passwd", "out"), ("nowhere", "dangling"), ("loop", "loop")]
        {
            std::os::unix::fs::symlink(target, root.join(link)).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"bad\xff")), "x").unwrap();

        let filter = Filter::new(&[(false, "*.log".to_owned())]).unwrap();
        let tree = Tree::new(root, filter).unwrap();
        let mut all = All::default();
        tree.walk(root, &mut all);
        all.0.sort_by(|a, b| a.0.cmp(&b.0));
        let names: Vec<_> = all.0.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a/b/file", "a/dir", "a/link", "dangling", "fifo", "loop", "out"]);
        assert!(matches!(all.0[0].1, What::File(stat) if stat.size == 8));
        assert_eq!(all.0[1].1, What::DirectoryLink { target: Key::new("a/b").unwrap() });
        assert!(matches!(&all.0[2].1, What::FileLink { target, .. } if target.as_str() == "a/b/file"));
        assert!(matches!(all.0[3].1, What::BadLink(_)));
        assert_eq!(all.0[4].1, What::Special("a FIFO"));
        assert!(matches!(all.0[6].1, What::BadLink("the link's target is outside SRC")));
        assert_eq!(all.1.len(), 1);
        assert_eq!(all.2, 3);
    }
}

//! SRC on disk, and what a trainer does to it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chiefsync::digest::Hasher;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_NOW};

use super::dev_s3::is_output;
use super::{Cli, Place, Tree, temporary_directory};

/// A directory of one test: SRC, the control directory, a home without anything in it.
pub struct Sandbox {
    root: tempfile::TempDir,
}

impl Sandbox {
    /// With an empty SRC.
    pub fn new() -> Sandbox {
        let sandbox = Sandbox { root: temporary_directory() };
        for directory in [sandbox.src(), sandbox.control(), sandbox.home()] {
            fs::create_dir(directory).expect("a directory");
        }
        sandbox
    }

    /// SRC.
    pub fn src(&self) -> PathBuf {
        self.root.path().join("src")
    }

    /// The control directory.
    pub fn control(&self) -> PathBuf {
        self.root.path().join("control")
    }

    /// What chiefsync believes to be its user's home.
    pub fn home(&self) -> PathBuf {
        self.root.path().join("home")
    }

    /// Beside SRC, on the same file system.
    pub fn outside(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// A path in SRC.
    pub fn path(&self, path: &str) -> PathBuf {
        self.src().join(path)
    }

    // chiefsync

    /// `chiefsync watch`, impatient where a person would be patient; further arguments override.
    pub fn watch(&self, place: &Place, prefix: &str) -> Cli {
        let times = [("SETTLE", "200ms"), ("QUIET", "2s"), ("GROWING_INTERVAL", "1s")];
        // Set, not typed: what a test types then comes first.
        let command = self.command("watch", place, prefix);
        times.iter().fold(command, |cli, (name, value)| cli.env(format!("CHIEFSYNC_{name}"), value))
    }

    /// `chiefsync sync`.
    pub fn sync(&self, place: &Place, prefix: &str) -> Cli {
        self.command("sync", place, prefix)
    }

    /// `chiefsync verify`, with SRC.
    pub fn verify(&self, place: &Place, prefix: &str) -> Cli {
        self.cli(place).arg("verify").arg(self.src()).arg(place.destination(prefix))
    }

    /// chiefsync, nothing typed yet.
    pub fn cli(&self, place: &Place) -> Cli {
        Cli::new(&self.home()).server(place)
    }

    fn command(&self, command: &str, place: &Place, prefix: &str) -> Cli {
        let cli = self.cli(place).arg(command).arg(self.src()).arg(place.destination(prefix));
        cli.arg("--control").arg(self.control())
    }

    // What a trainer does

    /// Writes a file as most programs do: create, write, close. Directories are made as needed.
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.path(path);
        make_parent(&path);
        fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// A directory that was made outside SRC and comes in by one rename.
    pub fn place_directory(&self, path: &str, files: &[(&str, &[u8])]) {
        let made = self.outside("being-made");
        for (name, bytes) in files {
            make_parent(&made.join(name));
            fs::write(made.join(name), bytes).expect("room on the disk");
        }
        make_parent(&self.path(path));
        fs::rename(made, self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    }

    /// Writes a large file from a seed, without holding it in memory.
    pub fn write_large(&self, path: &str, seed: u64, len_bytes: u64) {
        let path = self.path(path);
        make_parent(&path);
        let mut file = File::create(&path).expect("a new file");
        let mut content = Content::new(seed);
        let mut left = len_bytes;
        // Each MiB differs from the others by its first bytes; to make all of them anew would take a debug build minutes.
        let mut piece = vec![0; 1 << 20];
        content.fill(&mut piece);
        while left > 0 {
            let now = usize::try_from(left.min(piece.len() as u64)).expect("at most a MiB");
            content.fill(&mut piece[..64]);
            file.write_all(&piece[..now]).expect("room on the disk");
            left -= now as u64;
        }
    }

    /// Appends, and closes.
    pub fn append(&self, path: &str, bytes: &[u8]) {
        self.open_append(path).write_all(bytes).expect("room on the disk");
    }

    /// Opens to append, and leaves it open.
    pub fn open_append(&self, path: &str) -> File {
        let path = self.path(path);
        make_parent(&path);
        OpenOptions::new().create(true).append(true).open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Overwrites the start of a file without changing its length or its inode.
    pub fn overwrite(&self, path: &str, bytes: &[u8]) {
        OpenOptions::new().write(true).open(self.path(path)).expect("a file").write_all(bytes).expect("room");
    }

    /// Makes a directory with those above it.
    pub fn mkdir(&self, path: &str) {
        fs::create_dir_all(self.path(path)).expect("a directory");
    }

    /// Renames within SRC.
    pub fn rename(&self, from: &str, to: &str) {
        make_parent(&self.path(to));
        fs::rename(self.path(from), self.path(to)).unwrap_or_else(|e| panic!("{from} to {to}: {e}"));
    }

    /// Removes a file, or a directory with all in it.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    /// What the shell's `touch` does: makes the file, or gives the one that is there the time of now.
    pub fn touch(&self, path: &str) {
        let file = self.open_append(path);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        rustix::fs::futimens(&file, &times).expect("times that can be set");
    }

    /// Ends the run well.
    pub fn done(&self) {
        self.touch("DONE");
    }

    /// A symbolic link in SRC; the target is taken as it is.
    pub fn link(&self, target: impl AsRef<Path>, path: &str) {
        make_parent(&self.path(path));
        std::os::unix::fs::symlink(target, self.path(path)).expect("a link");
    }

    /// A FIFO in SRC.
    pub fn fifo(&self, path: &str) {
        rustix::fs::mknodat(CWD, self.path(path), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    }

    /// Sets the time of the last modification back to what it was: what `rsync -t` and `tar` do after writing.
    pub fn set_mtime(&self, path: &str, seconds: i64, nanoseconds: i64) {
        let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::empty()).expect("times that can be set");
    }

    /// The file's times and length.
    pub fn metadata(&self, path: &str) -> fs::Metadata {
        fs::symlink_metadata(self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// The last change that no program can set back, in nanoseconds since 1970.
    pub fn ctime_ns(&self, path: &str) -> i64 {
        let meta = self.metadata(path);
        meta.ctime() * 1_000_000_000 + meta.ctime_nsec()
    }

    // What is there

    /// What the regular files in SRC hold, without chiefsync's own and the markers. Links to files count as files.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        for entry in walkdir::WalkDir::new(self.src()) {
            let entry = entry.expect("a readable SRC");
            let path = entry.path().strip_prefix(self.src()).expect("below SRC").to_str().expect("UTF-8").to_owned();
            if entry.path().is_file() && is_output(&path) {
                tree.insert(path, sha256_of(entry.path()));
            }
        }
        tree
    }
}

fn make_parent(path: &Path) {
    fs::create_dir_all(path.parent().expect("a path below SRC")).expect("a directory");
}

/// The SHA-256 of a file, in hex.
pub fn sha256_of(path: &Path) -> String {
    use std::io::Read as _;
    let mut file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut hasher = Hasher::default();
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).expect("a readable file") {
            0 => return hasher.finish().to_string(),
            len => hasher.update(&piece[..len]),
        }
    }
}

/// Bytes that follow from a seed and that nothing can compress or deduplicate.
pub struct Content(u64);

impl Content {
    /// Starts from `seed`.
    pub fn new(seed: u64) -> Content {
        // xorshift stays at zero once it is there.
        Content(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }

    /// The next bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// So many bytes that follow from a seed.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Content::new(seed).fill(&mut bytes);
    bytes
}

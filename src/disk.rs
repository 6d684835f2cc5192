//! The one door to files: open, read, write by rename, fsync, cache hints.
//!
//! Invariants: a file that is read is opened once and read through that descriptor; what replaces another file appears
//! whole or not at all.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, Mode, OFlags, ResolveFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags};
use serde::{Deserialize, Serialize};

use crate::digest::{Digest, Hasher, Sha256, part_count, part_range};

/// What tells one version of a file from another without reading it.
///
/// Two equal stats mean the same bytes, unless the file was written again within one tick of the file system's clock:
/// the caller looks at young files twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stat {
    /// The device; not compared across restarts, because a volume that is mounted again gets another number.
    #[serde(skip)]
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content: nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of content or inode: nanoseconds since 1970. No program can set it back.
    pub ctime_ns: i64,
}

impl Stat {
    /// Whether both describe the same version, whatever device number the volume has today.
    pub fn same_version(&self, other: &Stat) -> bool {
        (self.ino, self.size, self.mtime_ns, self.ctime_ns) == (other.ino, other.size, other.mtime_ns, other.ctime_ns)
    }

    /// From what the standard library read.
    pub fn of(meta: &std::fs::Metadata) -> Stat {
        Stat {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime_ns: meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec()),
            ctime_ns: meta.ctime().saturating_mul(1_000_000_000).saturating_add(meta.ctime_nsec()),
        }
    }
}

/// Read and hash in pieces that stay in the processor's cache.
pub const PIECE_BYTES: usize = 256 * 1024;

/// Whether this kernel and file system take `RWF_DONTCACHE`; one refusal is enough to stop asking.
static DONTCACHE: AtomicBool = AtomicBool::new(true);

/// `RWF_DONTCACHE` (Linux 6.14): what this read brings into the page cache leaves it again; pages that were there stay.
const RWF_DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// A file that is open for reading: one descriptor for all of a version's bytes.
#[derive(Debug)]
pub struct ReadFile {
    file: File,
    path: PathBuf,
    opened: Stat,
}

impl ReadFile {
    /// Opens `path` without following a last link, and without waiting on a FIFO that took the file's place.
    pub fn open(path: &Path) -> io::Result<ReadFile> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOATIME;
        let open = |flags: OFlags| {
            OpenOptions::new().read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path)
        };
        // Only the owner may leave the access time alone; everyone else may still read.
        let file = match open(flags) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => open(flags - OFlags::NOATIME)?,
            other => other?,
        };
        ReadFile::of(file, path.to_owned())
    }

    /// Opens `path` below `root`, which may be a link itself: no link on the way down is followed, so that a directory that
    /// was replaced by a link since somebody looked leads nowhere (ELOOP).
    pub fn open_below(root: &Path, path: &Path) -> io::Result<ReadFile> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = match open_beneath(root, path, flags | OFlags::NOATIME) {
            Err(Errno::PERM | Errno::ACCESS) => open_beneath(root, path, flags),
            other => other,
        };
        match opened {
            Ok(fd) => ReadFile::of(File::from(fd), path.to_owned()),
            Err(error) if is_unknown_call(error) => ReadFile::open(path),
            Err(error) => Err(error.into()),
        }
    }

    fn of(file: File, path: PathBuf) -> io::Result<ReadFile> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(ReadFile { file, path, opened: Stat::of(&meta) })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version that was opened.
    pub fn opened(&self) -> Stat {
        self.opened
    }

    /// The version behind the descriptor, now.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::of(&self.file.metadata()?))
    }

    /// Fills `buffer` from `offset`; returns how many bytes there were (fewer only at the file's end).
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn read_some(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let fd = self.file.as_fd();
        if DONTCACHE.load(Ordering::Relaxed) {
            match rustix::io::preadv2(fd, &mut [IoSliceMut::new(buffer)], offset, RWF_DONTCACHE) {
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                    DONTCACHE.store(false, Ordering::Relaxed);
                }
                other => return Ok(other?),
            }
        }
        Ok(rustix::io::pread(fd, buffer, offset)?)
    }

    /// The SHA-256 of `len_bytes` from `offset`, without keeping them; `None` when the file ends sooner.
    pub fn sha256(&self, offset: u64, len_bytes: u64) -> io::Result<Option<Sha256>> {
        let mut hasher = Hasher::default();
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(len_bytes).unwrap_or(PIECE_BYTES))];
        let mut done = 0;
        while done < len_bytes {
            let want = piece.len().min(usize::try_from(len_bytes - done).unwrap_or(usize::MAX));
            if self.read_at(&mut piece[..want], offset + done)? < want {
                return Ok(None);
            }
            hasher.update(&piece[..want]);
            done += want as u64;
        }
        Ok(Some(hasher.finish()))
    }

    /// The digest of its first `size_bytes`, part by part; `None` when the file ends sooner.
    pub fn digest(&self, size_bytes: u64) -> io::Result<Option<Digest>> {
        let mut parts = Vec::new();
        for index in 0..part_count(size_bytes) {
            let (offset, len_bytes) = part_range(size_bytes, index);
            let Some(part) = self.sha256(offset, len_bytes)? else { return Ok(None) };
            parts.push(part);
        }
        Ok(Some(Digest::from(parts)))
    }

    /// Says that the file will be read from front to back.
    pub fn advise_sequential(&self) {
        // A hint: a file system that can't take it reads all the same.
        let _ = fadvise(&self.file, 0, None, Advice::Sequential);
    }
}

/// Reads a whole small file, at most `limit_bytes` of it.
///
/// # Errors
/// The file's own, or `InvalidData` when it is larger: nothing on the volume is trusted with our memory.
pub fn read_small(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let file = ReadFile::open(path)?;
    let mut bytes = Vec::new();
    (&file.file).take(limit_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {limit_bytes} bytes")));
    }
    Ok(bytes)
}

/// Replaces `path` by `bytes`, whole or not at all, and durable once this returns.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = directory.join(temporary);
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// What is at `path` itself, links not followed.
pub fn symlink_metadata(path: &Path) -> io::Result<std::fs::Metadata> {
    std::fs::symlink_metadata(path)
}

/// What is at `path` below `root`, no link on the way down followed: where there is one, there is nothing.
pub fn symlink_metadata_below(root: &Path, path: &Path) -> io::Result<std::fs::Metadata> {
    match open_beneath(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
        Ok(fd) => File::from(fd).metadata(),
        Err(error) if is_unknown_call(error) => symlink_metadata(path),
        // The last name may be a link; then only the ones before it count.
        Err(Errno::LOOP) => {
            let parent = path.parent().unwrap_or(root);
            match open_beneath(root, parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
                Ok(_) => symlink_metadata(path),
                Err(_) => Err(io::ErrorKind::NotFound.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// `openat2`, held below `root` and off every link.
fn open_beneath(root: &Path, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let below = path.strip_prefix(root).map_err(|_| Errno::XDEV)?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let directory = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, below, flags, Mode::empty(), resolve)
}

/// Before Linux 5.6 there is no `openat2`; some sandboxes refuse it as if it were forbidden.
fn is_unknown_call(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM)
}

/// What is at `path`, links followed.
pub fn metadata(path: &Path) -> io::Result<std::fs::Metadata> {
    std::fs::metadata(path)
}

/// The real path behind links.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    std::fs::canonicalize(path)
}

/// Creates a directory and those above it.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

/// Removes a file; one that is not there is no error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The kind of file system below `path`, as far as it matters to a watcher.
pub fn is_network_file_system(path: &Path) -> io::Result<bool> {
    // linux/magic.h: NFS, CIFS, SMB2, Lustre, FUSE, 9p, Ceph, AFS, GPFS, OCFS2.
    const NETWORK: [u32; 10] = [
        0x6969,
        0xFF53_4D42,
        0xFE53_4D42,
        0x0BD0_0BD0,
        0x6573_5546,
        0x0102_1997,
        0x00C3_6400,
        0x5346_414F,
        0x4750_4653,
        0x7461_636F,
    ];
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation)]
    Ok(NETWORK.contains(&(rustix::fs::statfs(path)?.f_type as u32)))
}

/// A file that is only ever appended to, by one process at a time.
#[derive(Debug)]
pub struct AppendFile {
    file: File,
}

impl AppendFile {
    /// Opens or creates `path`, readable by its owner and group.
    pub fn open(path: &Path) -> io::Result<AppendFile> {
        Ok(AppendFile {
            file: OpenOptions::new().create(true).read(true).append(true).mode(Mode::from(0o640).bits()).open(path)?,
        })
    }

    /// Takes the exclusive lock, if nobody else has it; it goes with the descriptor, also after a SIGKILL.
    pub fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Appends all of `bytes`.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Cuts the file to `len_bytes`: a torn tail, or what a failed append left.
    pub fn truncate(&mut self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes)
    }

    /// Everything in it.
    pub fn read_all(&mut self) -> io::Result<Vec<u8>> {
        use std::io::{Seek as _, SeekFrom};
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Makes what was appended outlive the node.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

// What the journal needs beyond that: reading line by line, replacing by a stream, syncing beside the writer.

impl ReadFile {
    /// Its bytes from the front, through a buffer.
    pub fn reader(&self) -> impl io::BufRead + '_ {
        io::BufReader::with_capacity(256 * 1024, &self.file)
    }
}

impl AppendFile {
    /// Its length in bytes.
    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// A second descriptor through which another thread makes durable what has been appended so far.
    pub fn sync_handle(&self) -> io::Result<SyncHandle> {
        Ok(SyncHandle { file: self.file.try_clone()? })
    }
}

/// Makes a file durable without holding its writer.
#[derive(Debug)]
pub struct SyncHandle {
    file: File,
}

impl SyncHandle {
    /// Blocks until what was appended before this handle was made outlives the node.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Replaces `path` by what `write` streams, whole or not at all, and durable once this returns. The temporary's name is
/// fixed (`<name>.tmp`), so that crashes leave at most one: only for files that a lock gives to one process.
pub fn replace_with(path: &Path, write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = PathBuf::from(name);
    let written = (|| {
        remove_file(&temporary)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(Mode::from(0o640).bits()).open(&temporary)?;
        let mut file = io::BufWriter::with_capacity(256 * 1024, file);
        write(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Gives a file another name in the same file system, over whatever had that name, durable once this returns.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    sync_directory(to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Makes the names in a directory outlive the node.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Reads a whole small file that the user named, links followed; at most `limit_bytes` of it.
///
/// # Errors
/// The file's own, or `InvalidData` when it is larger.
pub fn read_small_following_links(path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
    read_small(&canonicalize(path)?, limit_bytes)
}

mod directory;

pub use directory::{Directory, Kind, Lock, NewFile};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_on_the_way_down_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("src"), dir.path().join("outside"));
        for directory in [root.join("real"), outside.clone()] {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("file"), "content").unwrap();
        }
        let link = std::os::unix::fs::symlink::<&Path, PathBuf>;
        link(&outside, root.join("away")).unwrap();
        link(Path::new("real"), root.join("beside")).unwrap();
        link(&root, dir.path().join("volume")).unwrap();
        // SRC itself may be a link.
        let root = dir.path().join("volume");
        assert_eq!(ReadFile::open_below(&root, &root.join("real/file")).unwrap().opened().size, 7);
        assert!(symlink_metadata_below(&root, &root.join("real")).unwrap().is_dir());
        assert!(symlink_metadata_below(&root, &root.join("away")).unwrap().is_symlink());
        for name in ["away/file", "beside/file"] {
            let error = ReadFile::open_below(&root, &root.join(name)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()), "{name}");
            let error = symlink_metadata_below(&root, &root.join(name)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name}");
        }
        let error = ReadFile::open_below(&root, &root.join("real/nothing")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}

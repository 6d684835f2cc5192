//! A directory that is held open: what is done below it, name by name, can't leave it, whatever links are put there meanwhile.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, flock, fsync, futimens, mkdirat,
    openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::{ReadFile, Stat};

/// An open directory. Names given to it are single segments; a link is an error, not a way out.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// What a directory holds under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A link, a socket, a FIFO, a device.
    Other,
}

impl Kind {
    fn of(file_type: FileType) -> Kind {
        match file_type {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            _ => Kind::Other,
        }
    }
}

impl Directory {
    /// Opens `path`; only here a link is followed, because the user named it.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Directory { fd: rustix::fs::open(path, flags, Mode::empty())?, path: path.to_owned() })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory in it.
    pub fn child(&self, name: &str) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Directory { fd: openat(&self.fd, name, flags, Mode::empty())?, path: self.path.join(name) })
    }

    /// A directory in it, made if it is not there.
    pub fn child_created(&self, name: &str) -> io::Result<Directory> {
        match self.child(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&self.fd, name, Mode::from(0o777)) {
                    // What is renamed into it later is only found again after a crash if it is.
                    Ok(()) => self.sync()?,
                    Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                self.child(name)
            }
            other => other,
        }
    }

    /// The directory at the end of `path`, segment by segment; the empty path is this one.
    pub fn descend(&self, path: &str) -> io::Result<Directory> {
        self.walk(path, Directory::child)
    }

    /// The same, with what is not there made.
    pub fn descend_created(&self, path: &str) -> io::Result<Directory> {
        self.walk(path, Directory::child_created)
    }

    fn walk(&self, path: &str, step: fn(&Directory, &str) -> io::Result<Directory>) -> io::Result<Directory> {
        let start = Directory { fd: self.fd.try_clone()?, path: self.path.clone() };
        path.split('/').filter(|segment| !segment.is_empty()).try_fold(start, |at, segment| step(&at, segment))
    }

    /// Opens a regular file in it for reading.
    pub fn file(&self, name: &str) -> io::Result<ReadFile> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.fd, name, flags, Mode::empty())?);
        ReadFile::of(file, self.path.join(name))
    }

    /// What is under `name`, links not followed; `None` when nothing is.
    pub fn stat(&self, name: &str) -> io::Result<Option<(Kind, Stat)>> {
        match statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(raw) => Ok(Some((Kind::of(FileType::from_raw_mode(raw.st_mode)), from_raw(&raw)))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes a new file in it; there must be none of this name.
    pub fn create(&self, name: &str) -> io::Result<NewFile> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(NewFile { file: File::from(openat(&self.fd, name, flags, Mode::from(0o666))?) })
    }

    /// Moves `name` to `new_name` in `target`, replacing a file that is there.
    pub fn rename(&self, name: &str, target: &Directory, new_name: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, name, &target.fd, new_name)?)
    }

    /// Removes a file; `false` when there was none.
    pub fn remove_file(&self, name: &str) -> io::Result<bool> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// Everything in it, in no order.
    pub fn entries(&self) -> io::Result<Vec<(OsString, Kind)>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let mut file_type = entry.file_type();
            if file_type == FileType::Unknown {
                match statat(&self.fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(raw) => file_type = FileType::from_raw_mode(raw.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(e.into()),
                }
            }
            found.push((OsString::from_vec(name.to_vec()), Kind::of(file_type)));
        }
        Ok(found)
    }

    /// Makes what was created, renamed and removed in it outlive the node.
    pub fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.fd)?)
    }

    /// Waits for the exclusive lock behind `name`, among all threads and processes that ask for it.
    pub fn lock(&self, name: &str) -> io::Result<Lock> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::from(0o666))?;
        loop {
            match flock(&fd, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(()) => return Ok(Lock { _fd: fd }),
            }
        }
    }
}

impl ReadFile {
    /// All of it, at most `limit_bytes`.
    ///
    /// # Errors
    /// The file's own, or `InvalidData` when it is larger.
    pub fn read_all(&self, limit_bytes: u64) -> io::Result<Vec<u8>> {
        let len = self.stat()?.size;
        if len > limit_bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {limit_bytes} bytes")));
        }
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let got = self.read_at(&mut bytes, 0)?;
        bytes.truncate(got);
        Ok(bytes)
    }
}

/// Held as long as it lives; it goes with the process, also after a SIGKILL.
#[derive(Debug)]
pub struct Lock {
    _fd: OwnedFd,
}

/// A file that is being written and has no reader yet.
#[derive(Debug)]
pub struct NewFile {
    file: File,
}

impl NewFile {
    /// Appends all of `bytes`.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Appends a range of another file inside the kernel, sharing its blocks where the file system can.
    ///
    /// # Errors
    /// The files' own, or `UnexpectedEof` when `source` ends before the range does.
    pub fn append_range(&mut self, source: &ReadFile, offset: u64, len_bytes: u64) -> io::Result<()> {
        let (mut at, end) = (offset, offset + len_bytes);
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(source.file.as_fd(), Some(&mut at), &self.file, None, want) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
                    return self.append_through_memory(source, at, end);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn append_through_memory(&mut self, source: &ReadFile, mut at: u64, end: u64) -> io::Result<()> {
        let mut buffer = vec![0; 256 * 1024];
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let got = source.read_at(&mut buffer[..want], at)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.file.write_all(&buffer[..got])?;
            at += got as u64;
        }
        Ok(())
    }

    /// Sets the time of the last change: nanoseconds since 1970.
    pub fn set_modified_ns(&self, ns: i64) -> io::Result<()> {
        let at = Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) };
        Ok(futimens(&self.file, &Timestamps { last_access: at, last_modification: at })?)
    }

    /// The version that it is now.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(Stat::of(&self.file.metadata()?))
    }

    /// Makes its content outlive the node.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

#[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
fn from_raw(raw: &rustix::fs::Stat) -> Stat {
    let ns = |seconds: i64, nanoseconds: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds);
    Stat {
        dev: raw.st_dev,
        ino: raw.st_ino,
        size: raw.st_size as u64,
        mtime_ns: ns(raw.st_mtime as i64, raw.st_mtime_nsec as i64),
        ctime_ns: ns(raw.st_ctime as i64, raw.st_ctime_nsec as i64),
    }
}

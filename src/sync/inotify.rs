//! Watch: inotify's events, reduced to hints.
//!
//! Invariants: events are hints, scans are truth. Whatever could have been missed (overflow, a watch limit, an unknown
//! error) comes out as [`Hint::Rescan`]; nothing here decides what is uploaded.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};
use notify::{Config, RecommendedWatcher, RecursiveMode, Watcher as _};

/// Why a path deserves a look, or everything does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Closed after writing.
    Closed(PathBuf),
    /// Renamed to this name.
    Placed(PathBuf),
    /// Created: a file that is perhaps still open, or a directory, whatever had its name before.
    Created(PathBuf),
    /// Written to, and perhaps still open.
    Touched(PathBuf),
    /// Removed or renamed away.
    Gone(PathBuf),
    /// Something may have been missed.
    Rescan(&'static str),
}

/// A watch on directories, each added by itself: what is below a new directory is found by scanning it.
pub struct Watcher {
    inner: Mutex<RecommendedWatcher>,
}

/// Why a directory isn't watched.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchError {
    /// The user's budget of watches or instances is used up (`fs.inotify.max_user_watches`, `max_user_instances`).
    Limit,
    /// The directory is gone.
    Gone,
    /// Anything else.
    Other(String),
}

impl Watcher {
    /// Starts without any directory; hints go to `hint`, on the watcher's own thread.
    ///
    /// # Errors
    /// [`WatchError::Limit`] where the user has no inotify instance left; then polling serves.
    pub fn start(hint: impl Fn(Hint) + Send + 'static) -> Result<Watcher, WatchError> {
        let handler = move |event: notify::Result<notify::Event>| {
            if let Some(reduced) = reduce(event) {
                hint(reduced);
            }
        };
        let inner = RecommendedWatcher::new(handler, Config::default().with_follow_symlinks(false))
            .map_err(|error| classify(&error))?;
        Ok(Watcher { inner: Mutex::new(inner) })
    }

    /// Watches one directory. Adding it twice is harmless, and needed after a rename: the kernel's watch follows the
    /// inode, and is told its new name.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn add(&self, directory: &Path) -> Result<(), WatchError> {
        let mut inner = self.inner.lock().expect("no panic while the watcher is held");
        inner.watch(directory, RecursiveMode::NonRecursive).map_err(|error| classify(&error))
    }
}

fn classify(error: &notify::Error) -> WatchError {
    const EMFILE: i32 = 24;
    const ENOSPC: i32 = 28;
    match &error.kind {
        notify::ErrorKind::MaxFilesWatch => WatchError::Limit,
        notify::ErrorKind::PathNotFound | notify::ErrorKind::WatchNotFound => WatchError::Gone,
        notify::ErrorKind::Io(e) if matches!(e.raw_os_error(), Some(EMFILE | ENOSPC)) => WatchError::Limit,
        notify::ErrorKind::Io(e) if e.kind() == std::io::ErrorKind::NotFound => WatchError::Gone,
        other => WatchError::Other(format!("{other:?}")),
    }
}

fn reduce(event: notify::Result<notify::Event>) -> Option<Hint> {
    let mut event = match event {
        Ok(event) if event.need_rescan() => return Some(Hint::Rescan("overflow")),
        Ok(event) => event,
        Err(error) if classify(&error) == WatchError::Limit => return Some(Hint::Rescan("watch limit")),
        Err(_) => return Some(Hint::Rescan("watch error")),
    };
    let path = if event.paths.is_empty() { return None } else { event.paths.swap_remove(0) };
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Hint::Closed(path)),
        EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(Hint::Placed(path)),
        EventKind::Modify(ModifyKind::Name(RenameMode::From)) | EventKind::Remove(_) => Some(Hint::Gone(path)),
        EventKind::Create(CreateKind::Folder | CreateKind::File | CreateKind::Any) => Some(Hint::Created(path)),
        EventKind::Modify(ModifyKind::Data(_)) => Some(Hint::Touched(path)),
        // Our own reads, and changes of mode or times: a rescan sees what of that matters.
        _ => None,
    }
}

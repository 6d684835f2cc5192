//! Listings in the order of keys, page by page, over a tree of directories.
//!
//! S3 orders by whole names, where `a-b` comes before `a/b`: in its directory a directory sorts as its name with a `/`.
//! A walk waits in memory for the question for its next page, so that a large directory is read once, not once a page; a
//! token whose walk is gone finds its place again by its name.

use std::io;
use std::sync::{Arc, PoisonError};

use super::{Doing, OWN, tag_of};
use crate::disk::{Directory, Kind};
use crate::key::Key;
use crate::store::{ListFrom, Listed, Page, StoreError};

/// Walks that are kept for their next page; further ones start over.
const WALKS: usize = 16;

/// Where a listing stands.
pub(super) struct Walk {
    /// Only names that start with this.
    starts_with: String,
    /// Only names after this one.
    after: Option<String>,
    /// From the root to the directory being listed.
    levels: Vec<Level>,
}

struct Level {
    directory: Arc<Directory>,
    /// What stands in front of its names: empty, or ends in `/`.
    prefix: String,
    /// What is still to come, last first; a directory's name ends in `/`.
    names: Vec<String>,
    /// Names that can't be told as text, already made readable.
    foreign: Vec<String>,
}

impl Walk {
    fn new(doing: Doing<'_>, starts_with: String, after: Option<String>) -> io::Result<Walk> {
        let mut walk = Walk { starts_with, after, levels: Vec::new() };
        let prefix = match walk.starts_with.rfind('/') {
            Some(at) => walk.starts_with[..=at].to_owned(),
            None => String::new(),
        };
        // `//` or `..` in the question names no key.
        let is_plain = match prefix.strip_suffix('/') {
            Some(directory) => Key::new(directory).is_ok_and(|key| !key.is_within(OWN)),
            None => true,
        };
        if is_plain {
            match doing.store.root().and_then(|root| root.descend(&prefix)) {
                Ok(directory) => walk.enter(Arc::new(directory), prefix)?,
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(walk)
    }

    fn enter(&mut self, directory: Arc<Directory>, prefix: String) -> io::Result<()> {
        let (mut names, mut foreign) = (Vec::new(), Vec::new());
        for (name, kind) in directory.entries()? {
            let slash = match kind {
                Kind::File => "",
                Kind::Directory => "/",
                Kind::Other => continue,
            };
            match name.into_string() {
                Ok(name) => names.push(format!("{name}{slash}")),
                Err(name) => foreign.push(format!("{prefix}{}{slash}", name.to_string_lossy())),
            }
        }
        names.retain(|name| self.wants(&prefix, name));
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push(Level { directory, prefix, names, foreign });
        Ok(())
    }

    /// Whether `name` (of a directory: everything below it) can be part of the answer.
    fn wants(&self, prefix: &str, name: &str) -> bool {
        let full = format!("{prefix}{name}");
        let is_own = full.strip_suffix('/') == Some(OWN);
        let starts = full.starts_with(&self.starts_with);
        let is_after = match (&self.after, full.ends_with('/')) {
            (None, _) => true,
            (Some(after), false) => full > *after,
            (Some(after), true) => full > *after || after.starts_with(&full),
        };
        !is_own && starts && is_after
    }

    /// The next object; names that are none are put into `foreign`.
    fn next(&mut self, foreign: &mut Vec<String>) -> io::Result<Option<Listed>> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            foreign.append(&mut level.foreign);
            let Some(name) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            if let Some(directory) = name.strip_suffix('/') {
                let prefix = format!("{}{name}", level.prefix);
                match level.directory.child(directory) {
                    Ok(child) => self.enter(Arc::new(child), prefix)?,
                    // Gone, or replaced by something else, since it was read.
                    Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                    Err(e) => return Err(e),
                }
                continue;
            }
            let Some((Kind::File, stat)) = level.directory.stat(&name)? else { continue };
            let full = format!("{}{name}", level.prefix);
            match Key::new(&full) {
                Ok(key) => return Ok(Some(Listed { key, size_bytes: stat.size, etag: tag_of(&stat) })),
                Err(_) => foreign.push(full),
            }
        }
    }

    /// Whether there may be more.
    fn is_at_end(&self) -> bool {
        self.levels.iter().all(|level| level.names.is_empty() && level.foreign.is_empty())
    }
}

pub(super) fn page(doing: Doing<'_>, from: &ListFrom) -> Result<Page, StoreError> {
    let failed = |e: io::Error| doing.failed(&e);
    let walks = || doing.store.0.walks.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = from.token.as_ref().and_then(|token| walks().remove(&waiting_name(&from.starts_with, token)));
    let mut walk = match waiting {
        Some(walk) => walk,
        None => {
            let after = from.token.clone().or_else(|| from.after.clone());
            Walk::new(doing, from.starts_with.clone(), after).map_err(failed)?
        }
    };
    let mut page = Page::default();
    while page.objects.len() < doing.store.0.page_size {
        match walk.next(&mut page.foreign).map_err(failed)? {
            Some(listed) => page.objects.push(listed),
            None => return Ok(page),
        }
    }
    if let (Some(last), false) = (page.objects.last(), walk.is_at_end()) {
        let token = last.key.to_string();
        let mut walks = walks();
        if walks.len() >= WALKS {
            walks.clear();
        }
        walks.insert(waiting_name(&from.starts_with, &token), walk);
        page.next = Some(token);
    }
    Ok(page)
}

fn waiting_name(starts_with: &str, token: &str) -> String {
    format!("{starts_with}\0{token}")
}

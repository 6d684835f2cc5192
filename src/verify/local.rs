//! SRC against the manifest: names, sizes, and the digest of every file's bytes.

use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use tokio::task::JoinSet;

use super::{Findings, Verdict, Verification};
use crate::digest::Digest;
use crate::disk::ReadFile;
use crate::exit::Ending;
use crate::key::Key;
use crate::manifest::{FileEntry, Manifest};
use crate::marker::{self, MarkerKind};
use crate::sync::scan::{Found, Tree, Unnameable, Visitor, What};

/// A file that changes while it is read is read again this often.
const LOOKS: u32 = 3;

/// More files at a time than this bring nothing.
const MOST_FILES: usize = 8;

/// Everything below SRC, sorted by name.
#[derive(Default)]
pub(super) struct Scan {
    pub found: Vec<Found>,
    pub unnameable: Vec<Unnameable>,
}

impl Visitor for Scan {
    fn directory(&mut self, _: &Path) {}

    fn found(&mut self, found: Found) {
        self.found.push(found);
    }

    fn unnameable(&mut self, name: Unnameable) {
        self.unnameable.push(name);
    }
}

/// Looks at everything below SRC.
pub(super) async fn scan(of: &Verification, source: &Path) -> Result<(Tree, Scan), Ending> {
    let fail = |error: io::Error| {
        Ending::usage(format!("SRC {}: {error}", source.display()), "name a directory that can be read")
    };
    let tree = Tree::new(source, of.config.filter.clone()).map_err(fail)?;
    let walked = tree.clone();
    let scan = tokio::task::spawn_blocking(move || {
        let mut scan = Scan::default();
        walked.walk(walked.root(), &mut scan);
        scan.found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        scan
    });
    Ok((tree, scan.await.map_err(|error| Ending::fault(format!("the scan stopped: {error}")))?))
}

/// Compares SRC with the manifest.
pub(super) async fn compare(
    of: &Verification,
    source: &Path,
    manifest: &Manifest,
    findings: &mut Findings,
) -> Result<(), Ending> {
    let (tree, scan) = scan(of, source).await?;
    let entry_of = |key: &Key| {
        let at = manifest.files.binary_search_by(|file| file.path.cmp(key)).ok()?;
        Some(&manifest.files[at])
    };
    let mut to_hash = Vec::new();
    for Found { key, what } in &scan.found {
        let path = match what {
            What::File(_) if MarkerKind::of(key.as_str()).is_some() => continue,
            What::File(_) => tree.path(key),
            What::FileLink { target, .. } => tree.path(target),
            What::DirectoryLink { target } => {
                compare_link(manifest, key, target, findings);
                continue;
            }
            What::Special(_) => continue,
            What::BadLink(why) => {
                findings.note(key.as_str(), Verdict::MissingRemotely, 0, (*why).to_owned());
                continue;
            }
            What::Unreadable(why) => {
                findings.note(key.as_str(), Verdict::Differs, 0, format!("SRC can't be read: {why}"));
                continue;
            }
        };
        let (What::File(stat) | What::FileLink { stat, .. }) = what else { continue };
        match entry_of(key) {
            None => {
                let why = "it is below SRC, and the manifest doesn't name it".to_owned();
                findings.note(key.as_str(), Verdict::MissingRemotely, stat.size, why);
            }
            Some(file) if file.size_bytes != stat.size => {
                findings.note(key.as_str(), Verdict::Differs, file.size_bytes, other_size(stat.size, file));
            }
            Some(file) => to_hash.push((file, path)),
        }
    }
    for name in &scan.unnameable {
        findings.note(&name.name, Verdict::MissingRemotely, 0, name.why.clone());
    }
    note_missing(&tree, &scan, manifest, findings);
    compare_marker(source, manifest, findings);
    hash_all(of, to_hash, findings).await
}

fn other_size(size_bytes: u64, file: &FileEntry) -> String {
    format!("it has {size_bytes} bytes below SRC, and {} in the manifest", file.size_bytes)
}

fn compare_link(manifest: &Manifest, key: &Key, target: &Key, findings: &mut Findings) {
    match manifest.links.binary_search_by(|link| link.path.cmp(key)).map(|at| &manifest.links[at]) {
        Ok(link) if link.target == *target => findings.compared(key.as_str(), 0),
        Ok(link) => {
            let why = format!("it is a link to {target} below SRC, and to {} in the manifest", link.target);
            findings.note(key.as_str(), Verdict::Differs, 0, why);
        }
        Err(_) => {
            let why = format!("it is a link to {target} below SRC, and the manifest doesn't name it");
            findings.note(key.as_str(), Verdict::MissingRemotely, 0, why);
        }
    }
}

/// What the manifest names and SRC doesn't have.
fn note_missing(tree: &Tree, scan: &Scan, manifest: &Manifest, findings: &mut Findings) {
    let files = manifest.files.iter().map(|file| (&file.path, file.size_bytes));
    let links = manifest.links.iter().map(|link| (&link.path, 0));
    for (path, bytes) in files.chain(links) {
        let is_there = scan.found.binary_search_by(|found| found.key.cmp(path)).is_ok();
        if !is_there && !tree.ignores(path.as_str()) {
            findings.note(path.as_str(), Verdict::MissingLocally, bytes, "it is not below SRC".to_owned());
        }
    }
}

/// The end marker below SRC must be the one that the run ended on.
fn compare_marker(source: &Path, manifest: &Manifest, findings: &mut Findings) {
    let ended_on = manifest.facts.marker.as_ref();
    match (marker::read(source), ended_on) {
        (Err(error), _) => {
            let name = ended_on.map_or(MarkerKind::Done, |facts| facts.kind).file_name();
            findings.note(name, Verdict::Differs, 0, format!("SRC can't be read: {error}"));
        }
        (Ok(None), None) => {}
        (Ok(None), Some(facts)) => {
            let why = "it is not below SRC".to_owned();
            findings.note(facts.kind.file_name(), Verdict::MissingLocally, facts.identity.size, why);
        }
        (Ok(Some(marker)), Some(facts)) if marker.kind == facts.kind => {
            // The inode and its times are another's when SRC was copied.
            if (marker.identity.size, marker.identity.sha256) != (facts.identity.size, facts.identity.sha256) {
                let why = "it says something else below SRC than when the run ended".to_owned();
                findings.note(marker.kind.file_name(), Verdict::Differs, facts.identity.size, why);
            }
        }
        (Ok(Some(marker)), _) => {
            let why = "it is below SRC, and the run ended without it".to_owned();
            findings.note(marker.kind.file_name(), Verdict::MissingRemotely, marker.identity.size, why);
        }
    }
}

/// Hashes files, several at a time.
async fn hash_all(of: &Verification, files: Vec<(&FileEntry, PathBuf)>, findings: &mut Findings) -> Result<(), Ending> {
    of.alive.expect(files.len() as u64, files.iter().map(|(file, _)| file.size_bytes).sum());
    let at_a_time = std::thread::available_parallelism().map_or(2, NonZero::get).min(MOST_FILES);
    let mut hashing = JoinSet::new();
    let mut waiting = files.iter().enumerate();
    loop {
        while hashing.len() < at_a_time {
            let Some((at, (_, path))) = waiting.next() else { break };
            let path = path.clone();
            hashing.spawn_blocking(move || (at, digest_of(&path)));
        }
        let Some(done) = hashing.join_next().await else { return Ok(()) };
        let (at, hashed) = done.map_err(|error| Ending::fault(format!("hashing stopped: {error}")))?;
        let file = files[at].0;
        of.alive.read(file.size_bytes);
        of.alive.file();
        let (verdict, why) = match hashed {
            Ok(Some((_, digest))) if digest == file.digest => continue,
            Ok(Some((size, _))) if size != file.size_bytes => (Verdict::Differs, other_size(size, file)),
            Ok(Some(_)) => (Verdict::Differs, "it has other bytes below SRC".to_owned()),
            Ok(None) => (Verdict::Differs, "it changes below SRC while it is read".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                (Verdict::MissingLocally, "it is gone from SRC meanwhile".to_owned())
            }
            Err(error) => (Verdict::Differs, format!("SRC can't be read: {error}")),
        };
        findings.note(file.path.as_str(), verdict, file.size_bytes, why);
    }
}

/// A file's length and digest, all of one version; `None` when it changes all the time.
pub(super) fn digest_of(path: &Path) -> io::Result<Option<(u64, Digest)>> {
    for _ in 0..LOOKS {
        let file = ReadFile::open(path)?;
        let before = file.stat()?;
        file.advise_sequential();
        if let Some(digest) = file.digest(before.size)?
            && file.stat()? == before
        {
            return Ok(Some((before.size, digest)));
        }
    }
    Ok(None)
}

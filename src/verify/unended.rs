//! SRC against a run that is still open: there is no manifest yet, so each object answers for itself, by the checksum that
//! the store keeps of it, or, where that can't tell, by its bytes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;

use super::bucket::{Wanted, ended_early, list, object_is, streams};
use super::local::{digest_of, scan};
use super::{Findings, Verdict, Verification, failed, verdict_of};
use crate::checkpoint::looks_temporary;
use crate::digest::Digest;
use crate::exit::Ending;
use crate::head::Head;
use crate::key::Key;
use crate::marker::MarkerKind;
use crate::store::inventory::Difference;
use crate::store::{Listed, SharedStore, StoreError};
use crate::sync::scan::{Found, What};

/// Compares every file below SRC with its object.
pub(super) async fn compare(of: &Verification, head: &Head, source: &Path) -> Result<Findings, Ending> {
    let mut findings = Findings::default();
    let (tree, scan) = scan(of, source).await?;
    let mut files = Vec::new();
    for Found { key, what } in &scan.found {
        match what {
            // The marker comes last of all, by whoever ends the run.
            What::File(_) if MarkerKind::of(key.as_str()).is_some() => {}
            What::File(stat) => files.push((key, stat.size, tree.path(key))),
            What::FileLink { target, stat } => files.push((key, stat.size, tree.path(target))),
            What::DirectoryLink { .. } => {}
            What::Special(_) => findings.skipped += 1,
            What::BadLink(why) => findings.note(key.as_str(), Verdict::MissingRemotely, 0, (*why).to_owned()),
            What::Unreadable(why) => {
                findings.note(key.as_str(), Verdict::Differs, 0, format!("SRC can't be read: {why}"));
            }
        }
    }
    for name in &scan.unnameable {
        findings.note(&name.name, Verdict::MissingRemotely, 0, name.why.clone());
    }
    let names: Vec<&str> = files.iter().map(|(key, ..)| key.as_str()).collect();
    let (differences, beside) =
        list(of, &names, |index, listed| files[index].1 == listed.size_bytes).await.map_err(|error| failed(&error))?;
    for Difference { index, listed } in differences {
        let (key, size, _) = &files[index];
        let (verdict, why) = match listed {
            Some(Listed { size_bytes, .. }) => {
                (Verdict::Differs, format!("it has {size} bytes below SRC, and {size_bytes} in the bucket"))
            }
            None if looks_temporary(key) => {
                (Verdict::MissingRemotely, "it looks temporary: it goes up at the run's end".to_owned())
            }
            None => (Verdict::MissingRemotely, "it is not there".to_owned()),
        };
        findings.note(key.as_str(), verdict, *size, why);
    }
    findings.extra = beside.extra;
    if head.archiving.is_none() {
        for marker in beside.markers {
            let why = format!("it is there, and the head says that run {} is open", head.run);
            findings.note(marker.key.as_str(), Verdict::Differs, marker.size_bytes, why);
        }
    }

    let files: Vec<_> = files.into_iter().filter(|(key, ..)| !findings.has(key.as_str())).collect();
    of.alive.expect(files.len() as u64, files.iter().map(|(_, size, _)| size).sum());
    let at_a_time = streams(of.config.memory_bytes);
    let mut comparing = JoinSet::new();
    let mut waiting = files.into_iter();
    loop {
        while comparing.len() < at_a_time {
            let Some((key, size, path)) = waiting.next() else { break };
            let (store, key, deep) = (Arc::clone(&of.store), key.clone(), of.config.deep);
            comparing.spawn(async move {
                let hashed = tokio::task::spawn_blocking(move || digest_of(&path)).await;
                let problem = match hashed {
                    Ok(Ok(Some((size_bytes, digest)))) => object_of(&store, &key, size_bytes, digest, deep).await,
                    Ok(Ok(None)) => Ok(Some((Verdict::Differs, "it changes below SRC while it is read".to_owned()))),
                    Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Ok(Err(error)) => Ok(Some((Verdict::Differs, format!("SRC can't be read: {error}")))),
                    Err(error) => Err(ended_early(&error)),
                };
                (key, size, problem)
            });
        }
        let Some(done) = comparing.join_next().await else { return Ok(findings) };
        let (key, size, problem) = done.map_err(|error| failed(&ended_early(&error)))?;
        of.alive.read(size);
        of.alive.file();
        match problem.map_err(|error| failed(&error))? {
            None => findings.compared(key.as_str(), size),
            Some((verdict, why)) => findings.note(key.as_str(), verdict, size, why),
        }
    }
}

/// Whether the object has this digest; what is wrong if not.
async fn object_of(
    store: &SharedStore,
    key: &Key,
    size_bytes: u64,
    digest: Digest,
    deep: bool,
) -> Result<Option<(Verdict, String)>, StoreError> {
    let is_right = async {
        let meta = store.head(key).await?;
        if meta.size_bytes != size_bytes {
            return Ok(false);
        }
        if !deep && meta.checksum.as_deref() == Some(digest.checksum().as_str()) {
            return Ok(true);
        }
        // No checksum, or one over other parts than ours: only the bytes tell.
        object_is(store, &Wanted { key: key.clone(), etag: meta.etag, size_bytes, digest }).await
    };
    match is_right.await {
        Ok(true) => Ok(None),
        Ok(false) => Ok(Some((Verdict::Differs, "the bucket has other bytes than SRC".to_owned()))),
        Err(error) => verdict_of(error).map(Some),
    }
}

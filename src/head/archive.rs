//! Moving the verdict of the run before to `.chiefsync/runs/<n>/`, so that nobody takes yesterday's DONE for today's tree.
//!
//! Called with the head taken and before anything else below the prefix changes. Each step may be the last one before a
//! crash; what is left then, and what the next call does:
//!
//! | stopped after | in the bucket | next call |
//! | --- | --- | --- |
//! | nothing | head: ended; manifest and marker of run n, all true: the tree is still run n's | all of it |
//! | 1. head: `ended` gone, `archiving` = n | the marker is still there, and the tree still is what it promises; who asks the head knows that the run is open | goes on at 2 |
//! | 2. marker copied to `runs/n/` | the same | copies it again: same bytes |
//! | 3. marker deleted | no DONE, no FAILED; the manifest is no end without `ended` in the head | goes on at 4 |
//! | 4. manifest copied to `runs/n/` | the same | copies it again |
//! | 5. manifest deleted | no verdict in the root | goes on at 6 |
//! | 6. head: run = n + 1, `archiving` gone | a new run that is open | nothing |
//!
//! The marker goes before the manifest, so that a DONE never stands there without the manifest that explains it. DELETE has
//! no conditions that could be relied on; the head is looked at right before each, so that a process that slept through
//! being superseded does not remove its successor's marker.

use super::Head;
use super::lease::{Lease, LeaseError, read_control, url_of};
use crate::key::Key;
use crate::marker::MarkerKind;
use crate::store::{Body, ErrorKind, Store, StoreError, WriteOptions, put_intact};

/// What a store without server-side copy has to carry through our memory at most.
const MAX_CARRIED_BYTES: u64 = 512 * 1024 * 1024;

/// A source that changes between looking and copying is looked at again this often.
const COPIES: u32 = 5;

/// Whether a verdict has to be moved away before a new run changes anything.
pub fn needs_archive(head: &Head) -> bool {
    head.ended.is_some() || head.archiving.is_some()
}

/// Opens a new run: moves manifest and marker of run n, where they are, to `runs/<n>/`, then makes n + 1 the head's run.
/// Returns n, or `None` where there was no verdict (a first run): then nothing changed.
///
/// # Errors
/// What the store or the head ended with; calling again goes on where it stopped.
pub async fn archive_verdict(store: &dyn Store, lease: &mut Lease) -> Result<Option<u64>, LeaseError> {
    let run = lease.head().archiving.unwrap_or(lease.head().run);
    let manifest = crate::manifest::key();
    let names = [MarkerKind::Done.key(), MarkerKind::Failed.key(), manifest];
    if !needs_archive(lease.head()) {
        // A verdict without a word in the head: the process died between the two, the head was lost, or somebody else put it
        // there. It is not today's either.
        let mut found = false;
        for name in &names {
            found = found || is_there(store, name).await?;
        }
        if !found {
            return Ok(None);
        }
    }
    if lease.head().archiving.is_none() {
        lease
            .update(|head| {
                head.ended = None;
                head.archiving = Some(run);
            })
            .await?;
    }
    for name in &names {
        let to = Key::control(&format!("runs/{run}/{}", name.file_name()));
        move_object(store, lease, name, &to).await?;
    }
    lease
        .update(|head| {
            head.run = run.saturating_add(1);
            head.archiving = None;
        })
        .await?;
    Ok(Some(run))
}

async fn is_there(store: &dyn Store, key: &Key) -> Result<bool, StoreError> {
    match store.head(key).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind == ErrorKind::Missing => Ok(false),
        Err(error) => Err(error),
    }
}

/// Copies, then deletes; an object that is not there was moved before.
async fn move_object(store: &dyn Store, lease: &Lease, from: &Key, to: &Key) -> Result<(), LeaseError> {
    let mut copies = 0;
    loop {
        let meta = match store.head(from).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(()),
            other => other?,
        };
        copies += 1;
        match store.copy(from, &meta.etag, to, WriteOptions::default()).await {
            Ok(_) => break,
            Err(error) if error.kind == ErrorKind::Unsupported => {
                carry(store, from, to).await?;
                break;
            }
            Err(error) if matches!(error.kind, ErrorKind::Fenced | ErrorKind::Missing) && copies < COPIES => {}
            Err(error) => return Err(error.into()),
        }
    }
    if !lease.check().await? {
        let holder = Lease::read(store).await?.and_then(|(head, _)| head.holder);
        return Err(LeaseError::Superseded(holder.map(Box::new)));
    }
    Ok(store.delete(from).await?)
}

/// A copy through our memory, for stores that can't.
async fn carry(store: &dyn Store, from: &Key, to: &Key) -> Result<(), StoreError> {
    match read_control(store, from, MAX_CARRIED_BYTES).await? {
        None => Ok(()),
        Some((Some(bytes), _)) => put_intact(store, to, Body::hashed(bytes), WriteOptions::default()).await.map(drop),
        Some((None, _)) => {
            let message = format!("larger than {MAX_CARRIED_BYTES} bytes, and the store can't copy");
            Err(StoreError::new(ErrorKind::Refused, "CopyObject", url_of(store, from), message))
        }
    }
}

//! Hashing what a store holds, without keeping it.

use futures_util::StreamExt as _;

use super::{ETag, ErrorKind, Store, StoreError};
use crate::digest::{Hasher, Sha256};
use crate::key::Key;

/// A body that breaks off on its way down is continued; without any progress this often. A store's own retries end with its
/// answer, so only what breaks after that counts here.
const BREAKS: u32 = 5;

/// The SHA-256 of a `range` (offset and length, in bytes) of an object, as long as it is the one with this `etag`. What
/// breaks off is continued where it broke.
///
/// # Errors
/// The store's own; [`ErrorKind::Corrupt`] when it sends more or fewer bytes than it was asked for.
pub async fn sha256_of_range(
    store: &dyn Store,
    key: &Key,
    (offset, len_bytes): (u64, u64),
    etag: &ETag,
) -> Result<Sha256, StoreError> {
    let mut hasher = Hasher::default();
    let (mut done, mut breaks) = (0, 0);
    while done < len_bytes {
        let mut download = store.get(key, Some((offset + done, len_bytes - done)), Some(etag)).await?;
        let before = done;
        let broken = loop {
            match download.bytes.next().await {
                Some(Ok(piece)) => {
                    hasher.update(&piece);
                    done += piece.len() as u64;
                }
                Some(Err(error)) => break Some(error),
                None => break None,
            }
        };
        breaks = if done > before { 0 } else { breaks + 1 };
        match broken {
            Some(error) if !error.is_retry() || breaks == BREAKS => return Err(error),
            None if done != len_bytes => {
                let message = format!("{done} bytes came, {len_bytes} were asked for");
                let target = format!("{}{key}", store.url());
                return Err(StoreError::new(ErrorKind::Corrupt, "GetObject", target, message));
            }
            _ => {}
        }
    }
    Ok(hasher.finish())
}

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

#[cfg(test)]
mod tests {
    use dev_s3::{Fault, Operation, Options, Server, When};

    use super::*;
    use crate::config::Destination;
    use crate::key::Prefix;
    use crate::store::{FixedCredentials, OpenOptions, SharedStore};

    const BUCKET: &str = "bucket";

    /// A server that holds one object below `job/`, and a store that looks at it without any patience.
    async fn serving(content: &[u8]) -> (Server, SharedStore, Key, ETag) {
        let server = Server::start(Options::memory().bucket(BUCKET)).await.unwrap();
        let etag = ETag::new(&server.put_object_raw(BUCKET, "job/a", content).unwrap());
        let options = OpenOptions {
            endpoint_url: Some(server.endpoint()),
            region: Some("us-east-1".to_owned()),
            credentials: Some(FixedCredentials {
                access_key_id: server.access_key().to_owned(),
                secret_access_key: server.secret_key().to_owned(),
                session_token: None,
            }),
            ..OpenOptions::default()
        };
        let destination = Destination::S3 { bucket: BUCKET.to_owned(), prefix: Prefix::new("job").unwrap() };
        let store = crate::store::open(&destination, &options).await.unwrap();
        (server, store, Key::new("a").unwrap(), etag)
    }

    fn content() -> Vec<u8> {
        (0..1_000_000_u32).map(|n| (n % 251) as u8).collect()
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_continued() {
        let content = content();
        let (server, store, key, etag) = serving(&content).await;
        server
            .faults()
            .add(When::operation(Operation::GetObject).times(2), Fault::ResetAnswer { after_bytes: 300_000 });
        let range = (10, 999_980);
        let digest = sha256_of_range(store.as_ref(), &key, range, &etag).await.unwrap();
        assert_eq!(digest, Sha256::of(&content[10..999_990]));
        assert_eq!(server.count(Operation::GetObject).requests, 3);
    }

    #[tokio::test]
    async fn what_always_breaks_off_is_given_up() {
        let (server, store, key, etag) = serving(&content()).await;
        server.faults().add(When::operation(Operation::GetObject), Fault::ResetAnswer { after_bytes: 0 });
        let error = sha256_of_range(store.as_ref(), &key, (0, 1_000_000), &etag).await.unwrap_err();
        assert!(error.is_retry(), "{error}");
    }

    /// Neither size nor ETag shows it.
    #[tokio::test]
    async fn one_bit_that_is_turned_over_shows() {
        let content = content();
        let (server, store, key, etag) = serving(&content).await;
        server.faults().add(When::operation(Operation::GetObject), Fault::FlipServed { at: 777_777 });
        let digest = sha256_of_range(store.as_ref(), &key, (0, 1_000_000), &etag).await.unwrap();
        assert_ne!(digest, Sha256::of(&content));
    }

    #[tokio::test]
    async fn another_version_is_refused() {
        let (server, store, key, etag) = serving(b"one").await;
        server.put_object_raw(BUCKET, "job/a", b"two").unwrap();
        let error = sha256_of_range(store.as_ref(), &key, (0, 3), &etag).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Fenced, "{error}");
    }
}

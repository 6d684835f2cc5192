//! The cases, one file an idea. Each works below a directory of its own.

pub mod conditions;
pub mod copies;
pub mod digests;
pub mod multipart;
pub mod names;
pub mod objects;

use bytes::Bytes;
use chiefsync::digest::Sha256;
use chiefsync::key::Key;
use chiefsync::store::{Body, Condition, ErrorKind, ListFrom, Store, StoreError, WriteOptions, Written};

/// The smallest part that S3 takes before the last.
pub const PART_BYTES: usize = 5 * 1024 * 1024;

pub fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

/// Bytes that no compression and no shift makes equal.
pub fn bytes(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    Bytes::from(out)
}

/// A body whose digest is another one's.
pub fn forged(content: &Bytes) -> Body {
    Body::bytes(content.clone(), Sha256::of(b"something else"))
}

pub async fn put(store: &dyn Store, name: &str, content: &[u8]) -> Written {
    let body = Body::hashed(Bytes::copy_from_slice(content));
    store.put(&key(name), body, WriteOptions::default()).await.expect("a put")
}

pub async fn read(store: &dyn Store, name: &str) -> Vec<u8> {
    let download = store.get(&key(name), None, None).await.expect("a get");
    download.collect(u64::MAX).await.expect("a body")
}

pub async fn is_missing(store: &dyn Store, name: &str) -> bool {
    matches!(store.head(&key(name)).await, Err(StoreError { kind: ErrorKind::Missing, .. }))
}

/// Every name below `starts_with`, page after page, with the number of pages.
pub async fn names(store: &dyn Store, starts_with: &str) -> (Vec<String>, usize) {
    let mut from = ListFrom { starts_with: starts_with.to_owned(), ..ListFrom::default() };
    let (mut found, mut pages) = (Vec::new(), 0);
    loop {
        let page = store.list(&from).await.expect("a page");
        pages += 1;
        found.extend(page.objects.iter().map(|object| object.key.to_string()));
        match page.next {
            Some(token) => from.token = Some(token),
            None => return (found, pages),
        }
    }
}

#[track_caller]
pub fn assert_kind<T: std::fmt::Debug>(who: &str, result: Result<T, StoreError>, kinds: &[ErrorKind]) -> StoreError {
    let error = result.expect_err("the store should have refused");
    assert!(kinds.contains(&error.kind), "{who}: {:?} for {error} ({:?}), expected {kinds:?}", error.kind, error.hint);
    error
}

pub fn when(condition: Condition) -> WriteOptions {
    WriteOptions::when(condition)
}

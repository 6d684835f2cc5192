//! Bytes that are not the ones that were hashed are refused, and nothing of them stays.

use std::sync::Arc;

use chiefsync::digest::Sha256;
use chiefsync::disk::ReadFile;
use chiefsync::store::{Body, BodySource, Condition, ErrorKind, WriteOptions};

use super::{PART_BYTES, assert_kind, bytes, forged, is_missing, key, read};
use crate::store_conformance::Subject;

pub async fn run(subject: &Subject) {
    a_wrong_digest_stores_nothing(subject).await;
    a_file_goes_up_as_it_was_hashed(subject).await;
}

async fn a_wrong_digest_stores_nothing(subject: &Subject) {
    let store = &*subject.store;
    for len in [0, 10, 2 * 1024 * 1024] {
        let refused = store.put(&key("digests/x"), forged(&bytes(len, 1)), WriteOptions::default()).await;
        assert_kind(subject.name, refused, &[ErrorKind::Corrupt]);
        assert!(is_missing(store, "digests/x").await, "{}", subject.name);
    }
    let id = store.create_upload(&key("digests/y"), WriteOptions::default()).await.unwrap();
    let refused = store.put_part(&key("digests/y"), &id, 1, forged(&bytes(PART_BYTES, 1))).await;
    assert_kind(subject.name, refused, &[ErrorKind::Corrupt]);
    assert!(store.list_parts(&key("digests/y"), &id).await.unwrap().is_empty(), "{}", subject.name);
    store.abort(&key("digests/y"), &id).await.unwrap();
}

async fn a_file_goes_up_as_it_was_hashed(subject: &Subject) {
    let store = &*subject.store;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let content = bytes(PART_BYTES + 12_345, 7);
    std::fs::write(&path, &content).unwrap();
    let file = Arc::new(ReadFile::open(&path).unwrap());
    let range = |offset: usize, len: usize| Body {
        source: BodySource::File { file: file.clone(), offset: offset as u64 },
        len_bytes: len as u64,
        sha256: Sha256::of(&content[offset..offset + len]),
    };

    store.put(&key("file/whole"), range(0, content.len()), WriteOptions::default()).await.unwrap();
    assert!(read(store, "file/whole").await == content, "{}", subject.name);
    store.put(&key("file/none"), range(5, 0), WriteOptions::default()).await.unwrap();
    assert!(read(store, "file/none").await.is_empty(), "{}", subject.name);

    let id = store.create_upload(&key("file/parts"), WriteOptions::default()).await.unwrap();
    let parts = [
        store.put_part(&key("file/parts"), &id, 1, range(0, PART_BYTES)).await.unwrap(),
        store.put_part(&key("file/parts"), &id, 2, range(PART_BYTES, 12_345)).await.unwrap(),
    ];
    store.complete(&key("file/parts"), &id, &parts, Condition::Absent).await.unwrap();
    assert!(read(store, "file/parts").await == content, "{}", subject.name);

    // Written again between hash and send: the store refuses. Truncated: the sender notices.
    let body = range(0, content.len());
    std::fs::write(&path, bytes(content.len(), 8)).unwrap();
    let refused = store.put(&key("file/changed"), body.clone(), WriteOptions::default()).await;
    assert_kind(subject.name, refused, &[ErrorKind::Corrupt]);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
    let refused = store.put(&key("file/changed"), body, WriteOptions::default()).await;
    let error = assert_kind(subject.name, refused, &[ErrorKind::Corrupt]);
    assert!(error.message.contains("shorter"), "{}: {error}", subject.name);
    assert!(is_missing(store, "file/changed").await, "{}", subject.name);
}

//! Copies on the server: whole objects, and ranges as parts of an upload (how a growing file is appended to).

use chiefsync::store::{Body, Condition, ETag, ErrorKind, WriteOptions};

use super::{PART_BYTES, assert_kind, bytes, forged, is_missing, key, put, read, when};
use crate::store_conformance::Subject;

pub async fn run(subject: &Subject) {
    a_copy_is_equal(subject).await;
    a_known_prefix_is_copied_and_the_tail_sent(subject).await;
}

async fn a_copy_is_equal(subject: &Subject) {
    let store = &*subject.store;
    let (from, to) = (key("copies/from"), key("copies/to"));
    let content = bytes(100_000, 1);
    let metadata = vec![("nonce".to_owned(), "n".to_owned())];
    let options = WriteOptions { metadata: metadata.clone(), ..WriteOptions::default() };
    let source = store.put(&from, Body::hashed(content.clone()), options).await.unwrap();

    let wrong = ETag::new("00000000000000000000000000000000");
    let fenced = store.copy(&from, &wrong, &to, WriteOptions::default()).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    let missing = store.copy(&key("copies/none"), &source.etag, &to, WriteOptions::default()).await;
    assert_kind(subject.name, missing, &[ErrorKind::Missing, ErrorKind::Fenced]);
    assert!(is_missing(store, "copies/to").await, "{}", subject.name);

    let copied = store.copy(&from, &source.etag, &to, WriteOptions::default()).await.unwrap();
    let meta = store.head(&to).await.unwrap();
    assert_eq!((&meta.etag, meta.size_bytes), (&copied.etag, 100_000), "{}", subject.name);
    assert_eq!(meta.metadata, metadata, "{}: metadata goes along", subject.name);
    assert!(read(store, "copies/to").await == content, "{}", subject.name);

    let renamed = WriteOptions { metadata: vec![("nonce".to_owned(), "new".to_owned())], ..WriteOptions::default() };
    store.copy(&from, &source.etag, &to, renamed).await.unwrap();
    let meta = store.head(&to).await.unwrap();
    assert_eq!(meta.metadata, [("nonce".to_owned(), "new".to_owned())], "{}: unless new is given", subject.name);

    if subject.known.conditional_copies {
        let fenced = store.copy(&from, &source.etag, &to, when(Condition::Absent)).await;
        assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    }
}

async fn a_known_prefix_is_copied_and_the_tail_sent(subject: &Subject) {
    let store = &*subject.store;
    let name = key("copies/grown");
    let old = bytes(PART_BYTES + 1000, 2);
    let there = put(store, "copies/grown", &old).await;
    let tail = bytes(50_000, 3);

    let options = WriteOptions { for_copies: true, ..WriteOptions::default() };
    let id = store.create_upload(&name, options).await.unwrap();
    let refused = store.put_part(&name, &id, 2, forged(&tail)).await;
    assert_kind(subject.name, refused, &[ErrorKind::Corrupt]);
    let len = PART_BYTES as u64;
    let wrong = ETag::new("00000000000000000000000000000000");
    let fenced = store.copy_part(&name, &id, 1, &name, &wrong, 0, len).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    let first = store.copy_part(&name, &id, 1, &name, &there.etag, 0, len).await.unwrap();
    assert_eq!((first.number, first.size_bytes), (1, len), "{}", subject.name);
    let rest = [&old[PART_BYTES..], &tail].concat();
    let second = store.put_part(&name, &id, 2, Body::hashed(rest)).await.unwrap();
    let parts = store.list_parts(&name, &id).await.unwrap();
    assert_eq!(parts.iter().map(|p| &p.etag).collect::<Vec<_>>(), [&first.etag, &second.etag], "{}", subject.name);
    store.complete(&name, &id, &[first, second], Condition::Matches(there.etag)).await.unwrap();
    assert!(read(store, "copies/grown").await == [&old[..], &tail].concat(), "{}", subject.name);
}

//! Uploads in parts: resumed, completed under a condition, aborted.

use chiefsync::digest::{Digest, Sha256};
use chiefsync::store::{Body, Condition, ETag, ErrorKind, Store, StoredPart, UploadId, WriteOptions};

use super::{PART_BYTES, assert_kind, bytes, is_missing, key, names, put, read};
use crate::store_conformance::Subject;

pub async fn run(subject: &Subject) {
    an_upload_is_resumed_and_completed(subject).await;
    a_part_written_again_replaces_the_first(subject).await;
    a_condition_holds_at_the_end(subject).await;
    wrong_parts_are_refused(subject).await;
    an_aborted_upload_is_gone(subject).await;
    uploads_of_other_names_are_not_listed(subject).await;
}

async fn part(store: &dyn Store, name: &str, id: &UploadId, number: u32, content: &bytes::Bytes) -> StoredPart {
    store.put_part(&key(name), id, number, Body::hashed(content.clone())).await.expect("a part")
}

async fn begin(store: &dyn Store, name: &str) -> UploadId {
    store.create_upload(&key(name), WriteOptions::default()).await.expect("an upload")
}

async fn an_upload_is_resumed_and_completed(subject: &Subject) {
    let (store, paged) = (&*subject.store, &*subject.paged);
    let name = "multipart/resumed";
    let contents: Vec<_> = (0..5).map(|i| bytes(if i == 4 { 1000 } else { PART_BYTES }, i)).collect();
    let options = WriteOptions { metadata: vec![("nonce".to_owned(), "n1".to_owned())], ..WriteOptions::default() };
    let id = store.create_upload(&key(name), options).await.unwrap();
    assert!(store.list_parts(&key(name), &id).await.unwrap().is_empty(), "{}", subject.name);
    // Out of order, as parallel uploads are.
    for number in [4_u32, 1, 5, 2] {
        part(store, name, &id, number, &contents[number as usize - 1]).await;
    }
    assert!(is_missing(store, name).await, "{}: nothing shows before the end", subject.name);

    // Another process finds the upload and its parts, page by page, and sends what is missing.
    let open = store.list_uploads(&key(name)).await.unwrap();
    assert_eq!(open.len(), 1, "{}", subject.name);
    assert_eq!((&open[0].key, &open[0].id), (&key(name), &id), "{}", subject.name);
    let mut parts = paged.list_parts(&key(name), &open[0].id).await.unwrap();
    assert_eq!(parts.iter().map(|p| p.number).collect::<Vec<_>>(), [1, 2, 4, 5], "{}", subject.name);
    for part in &parts {
        let content = &contents[part.number as usize - 1];
        assert_eq!(part.size_bytes, content.len() as u64, "{}", subject.name);
        if subject.known.returns_checksums {
            assert_eq!(part.sha256, Some(Sha256::of(content)), "{}: part {}", subject.name, part.number);
        }
    }
    parts.push(part(store, name, &id, 3, &contents[2]).await);
    parts.sort_by_key(|part| part.number);
    let written = store.complete(&key(name), &id, &parts, Condition::Absent).await.unwrap();

    let whole = contents.concat();
    assert!(read(store, name).await == whole, "{}", subject.name);
    let meta = store.head(&key(name)).await.unwrap();
    assert_eq!((meta.size_bytes, &meta.etag), (whole.len() as u64, &written.etag), "{}", subject.name);
    assert_eq!(meta.metadata, [("nonce".to_owned(), "n1".to_owned())], "{}", subject.name);
    if subject.known.returns_checksums {
        let digest = Digest::from(contents.iter().map(|content| Sha256::of(content)).collect::<Vec<_>>());
        assert_eq!(meta.checksum.as_deref(), Some(&*digest.checksum()), "{}", subject.name);
    }
    assert!(store.list_uploads(&key(name)).await.unwrap().is_empty(), "{}", subject.name);

    // The answer to the first Complete may be lost: the second shows it.
    match store.complete(&key(name), &id, &parts, Condition::None).await {
        Ok(again) => assert_eq!(again.etag, written.etag, "{}", subject.name),
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Missing, "{}: {error}", subject.name);
            assert!(subject.known.forgets_completed_uploads, "{}", subject.name);
        }
    }
    assert_eq!(store.head(&key(name)).await.unwrap().etag, written.etag, "{}", subject.name);
}

async fn a_part_written_again_replaces_the_first(subject: &Subject) {
    let store = &*subject.store;
    let name = "multipart/again";
    let id = begin(store, name).await;
    part(store, name, &id, 1, &bytes(500, 1)).await;
    let second = part(store, name, &id, 1, &bytes(700, 2)).await;
    let parts = store.list_parts(&key(name), &id).await.unwrap();
    assert_eq!(parts.len(), 1, "{}", subject.name);
    assert_eq!((parts[0].size_bytes, &parts[0].etag), (700, &second.etag), "{}", subject.name);
    store.complete(&key(name), &id, &parts, Condition::None).await.unwrap();
    assert_eq!(read(store, name).await, bytes(700, 2), "{}", subject.name);
}

async fn a_condition_holds_at_the_end(subject: &Subject) {
    let store = &*subject.store;
    let name = "multipart/condition";
    let there = put(store, name, b"was there").await;
    let id = begin(store, name).await;
    let parts = [part(store, name, &id, 1, &bytes(100, 1)).await];
    let fenced = store.complete(&key(name), &id, &parts, Condition::Absent).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    let wrong = Condition::Matches(ETag::new("00000000000000000000000000000000"));
    assert_kind(subject.name, store.complete(&key(name), &id, &parts, wrong).await, &[ErrorKind::Fenced]);
    assert_eq!(read(store, name).await, b"was there", "{}", subject.name);
    // A refused completion leaves the upload as it was.
    let right = Condition::Matches(there.etag);
    store.complete(&key(name), &id, &parts, right).await.unwrap();
    assert_eq!(read(store, name).await, bytes(100, 1), "{}", subject.name);
}

async fn wrong_parts_are_refused(subject: &Subject) {
    let store = &*subject.store;
    let name = "multipart/wrong";
    let id = begin(store, name).await;
    let good = part(store, name, &id, 1, &bytes(PART_BYTES, 1)).await;
    let forged = StoredPart { etag: ETag::new("00000000000000000000000000000000"), ..good.clone() };
    let absent = StoredPart { number: 2, ..good.clone() };
    for parts in [vec![forged], vec![good.clone(), absent], vec![]] {
        let refused = store.complete(&key(name), &id, &parts, Condition::None).await;
        assert_kind(subject.name, refused, &[ErrorKind::Refused]);
    }
    if subject.known.refuses_small_parts {
        let small = part(store, name, &id, 2, &bytes(100, 2)).await;
        let last = part(store, name, &id, 3, &bytes(100, 3)).await;
        let refused = store.complete(&key(name), &id, &[good.clone(), small, last], Condition::None).await;
        assert_kind(subject.name, refused, &[ErrorKind::Refused]);
    }
    assert!(is_missing(store, name).await, "{}", subject.name);
    store.complete(&key(name), &id, &[good], Condition::None).await.unwrap();
    assert!(read(store, name).await == bytes(PART_BYTES, 1), "{}", subject.name);
}

async fn an_aborted_upload_is_gone(subject: &Subject) {
    let store = &*subject.store;
    let name = "multipart/aborted";
    let id = begin(store, name).await;
    let parts = [part(store, name, &id, 1, &bytes(100, 1)).await];
    store.abort(&key(name), &id).await.unwrap();
    store.abort(&key(name), &id).await.expect("aborting what is gone is no error");
    assert_kind(subject.name, store.list_parts(&key(name), &id).await, &[ErrorKind::Missing]);
    let late = store.put_part(&key(name), &id, 1, Body::hashed("late")).await;
    assert_kind(subject.name, late, &[ErrorKind::Missing]);
    let late = store.complete(&key(name), &id, &parts, Condition::None).await;
    assert_kind(subject.name, late, &[ErrorKind::Missing]);
    assert!(store.list_uploads(&key(name)).await.unwrap().is_empty(), "{}", subject.name);
    assert!(is_missing(store, name).await, "{}", subject.name);
}

async fn uploads_of_other_names_are_not_listed(subject: &Subject) {
    let store = &*subject.paged;
    let mut mine = Vec::new();
    for _ in 0..4 {
        mine.push(begin(store, "uploads/x").await);
    }
    for name in ["uploads/x-2", "uploads/xa", "uploads/w", "uploads/x.b"] {
        begin(store, name).await;
    }
    let mut found: Vec<_> = store.list_uploads(&key("uploads/x")).await.unwrap().into_iter().map(|o| o.id.0).collect();
    let mut mine: Vec<_> = mine.into_iter().map(|id| id.0).collect();
    found.sort();
    mine.sort();
    assert_eq!(found, mine, "{}", subject.name);
    assert!(names(store, "uploads/").await.0.is_empty(), "{}", subject.name);
}

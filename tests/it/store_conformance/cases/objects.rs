//! Write, read, ask, remove: whole objects and ranges, metadata, listings page by page.

use chiefsync::digest::Sha256;
use chiefsync::store::{Body, ErrorKind, ListFrom, WriteOptions};

use super::{assert_kind, bytes, is_missing, key, names, put, read};
use crate::store_conformance::Subject;

pub async fn run(subject: &Subject) {
    what_is_put_is_read(subject).await;
    ranges_are_exact(subject).await;
    metadata_comes_back(subject).await;
    missing_is_missing(subject).await;
    a_listing_is_complete_and_in_order(subject).await;
}

async fn what_is_put_is_read(subject: &Subject) {
    let store = &*subject.store;
    for (name, len) in [("objects/empty", 0), ("objects/one", 1), ("objects/big", 3 * 1024 * 1024 + 7)] {
        let content = bytes(len, 1);
        let written = put(store, name, &content).await;
        assert_eq!(read(store, name).await, content, "{}: {name}", subject.name);
        let meta = store.head(&key(name)).await.unwrap();
        assert_eq!((meta.size_bytes, &meta.etag), (len as u64, &written.etag), "{}: {name}", subject.name);
        if subject.known.returns_checksums {
            let checksum = Some(Sha256::of(&content).to_base64());
            assert_eq!((&written.checksum, &meta.checksum), (&checksum, &checksum), "{}: {name}", subject.name);
        }
    }
    let first = put(store, "objects/again", b"first").await;
    let second = put(store, "objects/again", b"second").await;
    assert_ne!(first.etag, second.etag, "{}", subject.name);
    assert_eq!(read(store, "objects/again").await, b"second");
}

async fn ranges_are_exact(subject: &Subject) {
    let content = bytes(100_000, 2);
    put(&*subject.store, "ranges/x", &content).await;
    for (offset, len) in [(0, 1), (0, 100_000), (99_999, 1), (500, 70_000)] {
        let download = subject.store.get(&key("ranges/x"), Some((offset, len)), None).await.unwrap();
        assert_eq!(download.meta.size_bytes, 100_000, "{}: the whole object's size", subject.name);
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
        assert!(download.collect(len).await.unwrap() == content[range], "{}: {offset}+{len}", subject.name);
    }
    let over = subject.store.get(&key("ranges/x"), None, None).await.unwrap().collect(99_999).await;
    assert_kind(subject.name, over, &[ErrorKind::Stop]);
    let beyond = subject.store.get(&key("ranges/x"), Some((200_000, 1)), None).await;
    assert_kind(subject.name, beyond, &[ErrorKind::Refused]);
}

async fn metadata_comes_back(subject: &Subject) {
    let metadata = vec![("nonce".to_owned(), "a-1".to_owned()), ("run".to_owned(), "x y".to_owned())];
    let options =
        WriteOptions { metadata: metadata.clone(), content_type: Some("application/json"), ..WriteOptions::default() };
    subject.store.put(&key("metadata/x"), Body::hashed("{}"), options).await.unwrap();
    assert_eq!(subject.store.head(&key("metadata/x")).await.unwrap().metadata, metadata, "{}", subject.name);
    let download = subject.store.get(&key("metadata/x"), None, None).await.unwrap();
    assert_eq!(download.meta.metadata, metadata, "{}", subject.name);
}

async fn missing_is_missing(subject: &Subject) {
    let store = &*subject.store;
    assert_kind(subject.name, store.head(&key("missing/x")).await, &[ErrorKind::Missing]);
    assert_kind(subject.name, store.get(&key("missing/x"), None, None).await, &[ErrorKind::Missing]);
    put(store, "missing/y", b"here").await;
    store.delete(&key("missing/y")).await.unwrap();
    assert!(is_missing(store, "missing/y").await, "{}", subject.name);
    store.delete(&key("missing/y")).await.expect("deleting what is gone is no error");
    let (left, _) = names(store, "missing/").await;
    assert!(left.is_empty(), "{}: {left:?}", subject.name);
}

async fn a_listing_is_complete_and_in_order(subject: &Subject) {
    let store = &*subject.paged;
    // In the order of bytes '-' and '.' come before '/': a walk by directories gets this wrong.
    let mut expected: Vec<String> = ["a/x", "a/y", "a-b", "a.c", "aa", "b", "c/d/e", "c/d/f", "c-", "z"]
        .iter()
        .map(|name| format!("list/{name}"))
        .collect();
    for name in &expected {
        put(store, name, name.as_bytes()).await;
    }
    put(store, "list-2/neighbour", b"").await;
    expected.sort();
    let (found, pages) = names(store, "list/").await;
    assert_eq!(found, expected, "{}", subject.name);
    assert!(pages >= 4, "{}: {pages} pages for ten names at three a page", subject.name);
    let (found, _) = names(store, "list/a").await;
    assert_eq!(found, expected.iter().filter(|n| n.starts_with("list/a")).cloned().collect::<Vec<_>>());

    let after = ListFrom { starts_with: "list/".to_owned(), after: Some("list/c-".to_owned()), ..ListFrom::default() };
    let page = store.list(&after).await.unwrap();
    let found: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(found, ["list/c/d/e", "list/c/d/f", "list/z"], "{}", subject.name);
    let listed = &page.objects[0];
    let meta = store.head(&listed.key).await.unwrap();
    assert_eq!((listed.size_bytes, &listed.etag), (meta.size_bytes, &meta.etag), "{}", subject.name);
    let (nothing, pages) = names(store, "list/nothing").await;
    assert_eq!((nothing.len(), pages), (0, 1), "{}", subject.name);
}

//! Names that break naive encoders, all the way: put, list, head, get, copy, delete.

use chiefsync::store::{Body, ErrorKind, WriteOptions};

use super::{assert_kind, is_missing, key, names, put, read};
use crate::store_conformance::{Nesting, Subject};

const ODD: &[&str] = &[
    " leading and trailing ",
    "-dash",
    "100%",
    "%41",
    "a+b",
    "a&b=c?d#e",
    "äöü-日本語-🦀",
    "line\nbreak",
    "tab\there",
    "quote\"'<>`",
    "back\\slash",
    "semi;colon:comma,",
    "star*[x]{y}|z",
    "...",
    "~tilde!@$^()",
];

pub async fn run(subject: &Subject) {
    odd_names_survive(subject).await;
    long_names_survive_or_are_refused(subject).await;
    nesting_is_possible_or_refused(subject).await;
}

async fn odd_names_survive(subject: &Subject) {
    let store = &*subject.paged;
    let mut expected: Vec<String> = ODD.iter().map(|name| format!("odd/{name}/{name}")).collect();
    for name in &expected {
        put(store, name, name.as_bytes()).await;
    }
    expected.sort();
    let (found, _) = names(store, "odd/").await;
    assert_eq!(found, expected, "{}", subject.name);
    for name in &expected {
        assert_eq!(read(store, name).await, name.as_bytes(), "{}: {name:?}", subject.name);
        let etag = store.head(&key(name)).await.unwrap().etag;
        let copied = format!("copied-{name}");
        store
            .copy(&key(name), &etag, &key(&copied), WriteOptions::default())
            .await
            .unwrap_or_else(|e| panic!("{}: copying {name:?}: {e}", subject.name));
        assert_eq!(read(store, &copied).await, name.as_bytes(), "{}: {copied:?}", subject.name);
        let upload = store.create_upload(&key(name), WriteOptions::default()).await.unwrap();
        let open = store.list_uploads(&key(name)).await.unwrap();
        assert_eq!(open.iter().map(|o| &o.id).collect::<Vec<_>>(), [&upload], "{}: {name:?}", subject.name);
        store.abort(&key(name), &upload).await.unwrap();
        store.delete(&key(name)).await.unwrap();
        assert!(is_missing(store, name).await, "{}: {name:?}", subject.name);
    }
    assert!(names(store, "odd/").await.0.is_empty(), "{}", subject.name);
}

async fn long_names_survive_or_are_refused(subject: &Subject) {
    let store = &*subject.store;
    let room = chiefsync::key::MAX_KEY_BYTES - store.prefix().as_str().len();
    let mut longest = "long".to_owned();
    while longest.len() + 2 <= room {
        let segment = (room - longest.len() - 1).min(200);
        longest = format!("{longest}/{}", "n".repeat(segment));
    }
    assert!((room - 1..=room).contains(&longest.len()));
    put(store, &longest, b"long").await;
    assert_eq!(read(store, &longest).await, b"long", "{}", subject.name);
    let (found, _) = names(store, "long/").await;
    assert_eq!(found, [longest], "{}", subject.name);

    if subject.known.longest_segment_bytes < room {
        let segment = "s".repeat(subject.known.longest_segment_bytes + 1);
        let name = format!("long-segment/{segment}");
        let refused = store.put(&key(&name), Body::hashed("x"), WriteOptions::default()).await;
        assert_kind(subject.name, refused, &[ErrorKind::Refused]);
    }
    if subject.known.limits_keys {
        let too_long = format!("{}/x", "y".repeat(200)).repeat(6);
        let refused = store.put(&key(&too_long), Body::hashed("x"), WriteOptions::default()).await;
        assert_kind(subject.name, refused, &[ErrorKind::Refused]);
    }
}

async fn nesting_is_possible_or_refused(subject: &Subject) {
    let store = &*subject.store;
    put(store, "nest/a", b"file").await;
    let below = store.put(&key("nest/a/b"), Body::hashed("below"), WriteOptions::default()).await;
    match subject.known.nesting {
        Nesting::Both => {
            below.unwrap();
            assert_eq!(names(store, "nest/").await.0, ["nest/a", "nest/a/b"], "{}", subject.name);
        }
        Nesting::Hidden => {
            below.unwrap();
            assert_eq!(names(store, "nest/").await.0, ["nest/a"], "{}", subject.name);
            assert_eq!(read(store, "nest/a/b").await, b"below", "{}", subject.name);
        }
        Nesting::Refused => {
            assert_kind(subject.name, below, &[ErrorKind::Refused]);
        }
    }
    assert_eq!(read(store, "nest/a").await, b"file", "{}", subject.name);
}

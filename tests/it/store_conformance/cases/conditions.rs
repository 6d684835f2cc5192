//! Conditional writes and reads: what the fence stands on.

use std::sync::Arc;

use chiefsync::store::{Body, Condition, ETag, ErrorKind};

use super::{assert_kind, bytes, is_missing, key, put, read, when};
use crate::store_conformance::Subject;

pub async fn run(subject: &Subject) {
    a_put_holds_its_condition(subject).await;
    a_get_holds_its_condition(subject).await;
    only_one_of_many_swaps_wins(subject).await;
}

async fn a_put_holds_its_condition(subject: &Subject) {
    let store = &*subject.store;
    let x = key("conditions/x");
    let wrong = ETag::new("00000000000000000000000000000000");
    let fenced = store.put(&x, Body::hashed("0"), when(Condition::Matches(wrong.clone()))).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    assert!(is_missing(store, "conditions/x").await, "{}", subject.name);

    let first = store.put(&x, Body::hashed("1"), when(Condition::Absent)).await.unwrap();
    let fenced = store.put(&x, Body::hashed("2"), when(Condition::Absent)).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    let fenced = store.put(&x, Body::hashed("3"), when(Condition::Matches(wrong))).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    assert_eq!(read(store, "conditions/x").await, b"1", "{}", subject.name);

    let second = store.put(&x, Body::hashed("4"), when(Condition::Matches(first.etag.clone()))).await.unwrap();
    assert_ne!(first.etag, second.etag);
    let fenced = store.put(&x, Body::hashed("5"), when(Condition::Matches(first.etag))).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    assert_eq!(read(store, "conditions/x").await, b"4", "{}", subject.name);
}

async fn a_get_holds_its_condition(subject: &Subject) {
    let store = &*subject.store;
    let old = put(store, "conditions/read", &bytes(1000, 3)).await;
    let new = put(store, "conditions/read", &bytes(1000, 4)).await;
    let fenced = store.get(&key("conditions/read"), None, Some(&old.etag)).await;
    assert_kind(subject.name, fenced, &[ErrorKind::Fenced]);
    let range = store.get(&key("conditions/read"), Some((10, 20)), Some(&new.etag)).await.unwrap();
    assert_eq!(range.collect(20).await.unwrap(), bytes(1000, 4)[10..30], "{}", subject.name);
}

/// The promise behind the head: of writers that saw the same state, one wins.
async fn only_one_of_many_swaps_wins(subject: &Subject) {
    let store = &*subject.store;
    let mut current = put(store, "conditions/head", b"start").await.etag;
    for round in 0..5 {
        let writers = (0..8).map(|writer| {
            let store = Arc::clone(&subject.store);
            let condition = Condition::Matches(current.clone());
            tokio::spawn(async move {
                let body = Body::hashed(format!("{round}-{writer}"));
                loop {
                    match store.put(&key("conditions/head"), body.clone(), when(condition.clone())).await {
                        // Two writes at once: S3 asks the loser to look again.
                        Err(error) if error.is_retry() => {}
                        other => return other,
                    }
                }
            })
        });
        let mut winners = Vec::new();
        for writer in writers.collect::<Vec<_>>() {
            match writer.await.unwrap() {
                Ok(written) => winners.push(written.etag),
                Err(error) => assert_eq!(error.kind, ErrorKind::Fenced, "{}: {error}", subject.name),
            }
        }
        assert_eq!(winners.len(), 1, "{}: round {round}", subject.name);
        current = winners.remove(0);
        assert_eq!(store.head(&key("conditions/head")).await.unwrap().etag, current, "{}", subject.name);
    }
}

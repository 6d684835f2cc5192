//! `file://` beyond what every store does: strangers in the directory, links, several processes, what a crash leaves.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use chiefsync::config::Destination;
use chiefsync::key::Key;
use chiefsync::store::{self, Body, Condition, ErrorKind, ListFrom, OpenOptions, SharedStore, UploadId, WriteOptions};

async fn open(directory: &Path, page_size: u16) -> SharedStore {
    let destination = Destination::File { directory: directory.to_owned() };
    store::open(&destination, &OpenOptions { page_size, ..OpenOptions::default() }).await.unwrap()
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn put(store: &SharedStore, name: &str, content: &str) -> store::Written {
    store.put(&key(name), Body::hashed(content.to_owned()), WriteOptions::default()).await.unwrap()
}

async fn names(store: &SharedStore) -> Vec<String> {
    let page = store.list(&ListFrom::default()).await.unwrap();
    page.objects.iter().map(|object| object.key.to_string()).collect()
}

#[tokio::test]
async fn an_object_is_the_plain_file_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1000).await;
    put(&store, "run/events", "abc").await;
    assert_eq!(std::fs::read(directory.path().join("run/events")).unwrap(), b"abc");
    std::fs::write(directory.path().join("by-hand"), "x").unwrap();
    assert_eq!(names(&store).await, ["by-hand", "run/events"]);
    store.delete(&key("run/events")).await.unwrap();
    assert!(!directory.path().join("run").exists(), "a directory without objects is none");
}

#[tokio::test]
async fn a_strangers_change_changes_the_tag_and_drops_the_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1000).await;
    let written = put(&store, "x", "ours").await;
    assert!(store.head(&key("x")).await.unwrap().checksum.is_some());
    std::fs::write(directory.path().join("x"), "them").unwrap();
    let meta = store.head(&key("x")).await.unwrap();
    assert_ne!(meta.etag, written.etag);
    assert_eq!((meta.checksum, meta.size_bytes), (None, 4));
    let fenced = store.put(&key("x"), Body::hashed("y"), WriteOptions::when(Condition::Matches(written.etag))).await;
    assert_eq!(fenced.unwrap_err().kind, ErrorKind::Fenced);
}

#[tokio::test]
async fn writes_within_one_tick_have_tags_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path(), 1000).await;
    let mut tags = std::collections::HashSet::new();
    for i in 10..60 {
        assert!(tags.insert(put(&store, "x", &i.to_string()).await.etag), "{i}");
    }
}

#[tokio::test]
async fn a_copy_that_keeps_times_keeps_tags_and_checksums() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    let written = put(&open(&from, 1000).await, "a/b", "abc").await;
    assert!(std::process::Command::new("cp").arg("-a").arg(&from).arg(&to).status().unwrap().success());
    let meta = open(&to, 1000).await.head(&key("a/b")).await.unwrap();
    assert_eq!((meta.etag, meta.checksum), (written.etag, written.checksum));
}

#[tokio::test]
async fn nothing_outside_is_reached() {
    let outside = tempfile::tempdir().unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "s").unwrap();
    symlink(outside.path(), directory.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), directory.path().join("link")).unwrap();
    let store = open(directory.path(), 1000).await;
    assert!(names(&store).await.is_empty());
    for name in ["out/secret", "link"] {
        assert!(store.get(&key(name), None, None).await.is_err(), "{name}");
    }
    let refused = store.put(&key("out/new"), Body::hashed("x"), WriteOptions::default()).await;
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Refused);
    // A link that has the object's name is replaced, not written through.
    put(&store, "link", "ours").await;
    store.delete(&key("out/secret")).await.unwrap();
    assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"s");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
    for name in [".chiefsync/local/lock", ".chiefsync/local/tmp/x"] {
        let refused = store.put(&key(name), Body::hashed("x"), WriteOptions::default()).await;
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Refused, "{name}");
    }
    for id in ["../../..", "", "a/b", "."] {
        let missing = store.list_parts(&key("x"), &UploadId(id.to_owned())).await;
        assert_eq!(missing.unwrap_err().kind, ErrorKind::Missing, "{id:?}");
    }
}

/// Two stores on one directory stand for two processes: the lock is between descriptors.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_processes_wins() {
    let directory = tempfile::tempdir().unwrap();
    let stores = [open(directory.path(), 1000).await, open(directory.path(), 1000).await];
    for round in 0..20 {
        let name = format!("round-{round}");
        let puts = stores.iter().map(|store| {
            let (store, name) = (store.clone(), name.clone());
            tokio::spawn(async move {
                store.put(&key(&name), Body::hashed("x"), WriteOptions::when(Condition::Absent)).await
            })
        });
        let mut won = 0;
        for put in puts.collect::<Vec<_>>() {
            match put.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error.kind, ErrorKind::Fenced, "{error}"),
            }
        }
        assert_eq!(won, 1, "{name}");
    }
}

#[tokio::test]
async fn a_listing_goes_on_where_it_was_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path(), 2).await;
    for name in ["a", "a-b/x", "a.c", "aa/y", "aa/z"] {
        put(&first, name, name).await;
    }
    let mut from = ListFrom::default();
    let mut found = Vec::new();
    loop {
        // Each page is asked for of another process.
        let page = open(directory.path(), 2).await.list(&from).await.unwrap();
        found.extend(page.objects.iter().map(|object| object.key.to_string()));
        match page.next {
            Some(token) => from.token = Some(token),
            None => break,
        }
    }
    assert_eq!(found, ["a", "a-b/x", "a.c", "aa/y", "aa/z"]);
}

#[tokio::test]
async fn what_a_crash_left_is_swept_when_it_is_old() {
    let directory = tempfile::tempdir().unwrap();
    let temporaries = directory.path().join(".chiefsync/local/tmp");
    std::fs::create_dir_all(&temporaries).unwrap();
    for (name, age_h) in [("old", 25), ("young", 1)] {
        let file = std::fs::File::create(temporaries.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age_h * 3600)).unwrap();
    }
    let store = open(directory.path(), 1000).await;
    put(&store, "x", "y").await;
    let left: Vec<_> = std::fs::read_dir(&temporaries).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["young"]);
    assert_eq!(names(&store).await, ["x"]);
}

#[tokio::test]
async fn a_place_that_is_no_directory_is_said_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let destination = Destination::File { directory: file.path().to_owned() };
    let error = store::open(&destination, &OpenOptions::default()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Stop, "{error}");
}

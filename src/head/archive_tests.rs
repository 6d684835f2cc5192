//! The verdict of the run before is moved away, whatever step a crash comes after.

use std::sync::Arc;

use super::test_store::MemoryStore;
use super::tests::{holder, stored, take};
use super::*;

const MANIFEST: &str = ".chiefsync/manifest.json";

/// A bucket in which run 1 has ended.
async fn ended() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    let lease = take(&store, holder("a")).await.unwrap();
    store.set("model.bin", "weights");
    store.set(MANIFEST, "the manifest");
    store.set("DONE", "the marker");
    let end = RunEnd {
        outcome: Outcome::Succeeded,
        manifest: ETag::new("m"),
        marker: None,
        pod_uid: None,
        at: "then".to_owned(),
    };
    lease.release(|head| head.ended = Some(end)).await.unwrap();
    store
}

fn assert_archived(store: &MemoryStore) {
    let keys = [".chiefsync/head.json", ".chiefsync/runs/1/DONE", ".chiefsync/runs/1/manifest.json", "model.bin"];
    assert_eq!(store.keys(), keys);
    assert_eq!(store.text(".chiefsync/runs/1/DONE").unwrap(), "the marker");
    assert_eq!(store.text(".chiefsync/runs/1/manifest.json").unwrap(), "the manifest");
}

#[tokio::test]
async fn a_new_run_moves_the_old_verdict_away() {
    let store = ended().await;
    let mut lease = take(&store, holder("b")).await.unwrap();
    assert!(needs_archive(lease.head()));
    assert_eq!(archive_verdict(&*store, &mut lease).await.unwrap(), Some(1));
    assert_archived(&store);
    let head = stored(&store).await;
    assert_eq!((head.run, head.ended, head.archiving), (2, None, None));
    assert!(!needs_archive(lease.head()));
    assert_eq!(archive_verdict(&*store, &mut lease).await.unwrap(), None, "once");
    assert_eq!(stored(&store).await.run, 2);
}

/// The crash table: after every single request of the first try, the second one completes it; at no moment does a DONE
/// stand beside a head that has forgotten that it is yesterday's.
#[tokio::test]
async fn a_crash_after_any_request_is_caught_up_with() {
    for cannot_copy in [false, true] {
        for requests in 0.. {
            assert!(requests < 100);
            let mut store = Arc::into_inner(ended().await).unwrap();
            store.cannot_copy = cannot_copy;
            let store = Arc::new(store);
            let mut lease = take(&store, holder("b")).await.unwrap();
            store.die_after(Some(requests));
            let finished = archive_verdict(&*store, &mut lease).await.is_ok();
            store.die_after(None);
            let head = stored(&store).await;
            if store.text("DONE").is_some() {
                assert!(needs_archive(&head) && head.run == 1);
                assert_eq!(store.text(MANIFEST).unwrap(), "the manifest");
            }
            assert!(store.text(MANIFEST).is_some() || store.text(".chiefsync/runs/1/manifest.json").is_some());
            // Another process, another pod.
            let mut lease = take(&store, holder("b")).await.unwrap();
            archive_verdict(&*store, &mut lease).await.unwrap();
            assert_archived(&store);
            let head = stored(&store).await;
            assert_eq!((head.run, head.ended, head.archiving), (2, None, None), "after {requests} requests");
            if finished {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_verdict_that_the_head_knows_nothing_of_is_moved_too() {
    let store = Arc::new(MemoryStore::default());
    let mut lease = take(&store, holder("a")).await.unwrap();
    assert_eq!(archive_verdict(&*store, &mut lease).await.unwrap(), None);
    assert_eq!(lease.head().run, 1);
    store.set("FAILED", "");
    assert_eq!(archive_verdict(&*store, &mut lease).await.unwrap(), Some(1));
    assert_eq!(store.keys(), [".chiefsync/head.json", ".chiefsync/runs/1/FAILED"]);
    assert_eq!(lease.head().run, 2);
}

#[tokio::test]
async fn a_superseded_archiver_removes_nothing() {
    let store = ended().await;
    let mut asleep = take(&store, holder("b")).await.unwrap();
    // It gets as far as the copy of the marker, and sleeps before it looks at the head: PUT, HEAD, COPY.
    store.die_after(Some(3));
    archive_verdict(&*store, &mut asleep).await.unwrap_err();
    store.die_after(None);
    let mut awake = take(&store, holder("b")).await.unwrap();
    archive_verdict(&*store, &mut awake).await.unwrap();
    store.set("DONE", "of run 2");
    let error = archive_verdict(&*store, &mut asleep).await.unwrap_err();
    assert!(matches!(error, LeaseError::Superseded(Some(_))), "{error}");
    assert_eq!(store.text("DONE").unwrap(), "of run 2");
}

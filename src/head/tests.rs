//! Who gets the head, who loses it, and what a lost answer means.

use std::sync::Arc;

use super::test_store::{Fault, MemoryStore};
use super::*;
use crate::clock::{self, Duration, Stopwatch};
use crate::store::ErrorKind;

pub(super) fn holder(id: &str) -> Holder {
    Holder {
        id: id.to_owned(),
        host: format!("host-{id}"),
        pod_uid: None,
        version: "0".to_owned(),
        since: "then".to_owned(),
    }
}

fn in_pod(id: &str, pod: &str) -> Holder {
    Holder { pod_uid: Some(pod.to_owned()), ..holder(id) }
}

const OPTIONS: TakeOptions = TakeOptions { time_to_live: Duration::from_secs(30), fence: true };

/// Takes it without having to wait.
pub(super) async fn take(store: &Arc<MemoryStore>, me: Holder) -> Result<Lease, LeaseError> {
    Lease::take(store.clone(), me, OPTIONS, |other, _| panic!("waits for {other}")).await
}

/// Takes it after waiting.
async fn wait(store: &Arc<MemoryStore>, me: Holder, options: TakeOptions) -> (Result<Lease, LeaseError>, u32) {
    let mut waits = 0;
    let taken = Lease::take(store.clone(), me, options, |_, longest| {
        assert_eq!(longest, options.time_to_live);
        waits += 1;
    });
    (taken.await, waits)
}

pub(super) async fn stored(store: &MemoryStore) -> Head {
    Lease::read(store).await.unwrap().unwrap().0
}

#[tokio::test]
async fn a_first_head_is_created_and_changed_and_given_back() {
    let store = Arc::new(MemoryStore::default());
    assert!(Lease::read(&*store).await.unwrap().is_none());
    let mut lease = take(&store, holder("a")).await.unwrap();
    assert_eq!((lease.generation(), lease.head().run, lease.head().sequence), (1, 1, 0));
    lease.update(|head| head.run = 7).await.unwrap();
    lease.renew().await.unwrap();
    assert!(lease.check().await.unwrap());
    assert_eq!(stored(&store).await, *lease.head());
    lease.release(|head| head.run = 8).await.unwrap();
    let head = stored(&store).await;
    assert_eq!((head.holder, head.run, head.sequence, head.renewals), (None, 8, 2, 1));
    assert_eq!(take(&store, holder("b")).await.unwrap().generation(), 2);
}

#[tokio::test]
async fn the_same_holder_or_pod_takes_it_at_once_and_fences_its_predecessor() {
    let store = Arc::new(MemoryStore::default());
    let mut first = take(&store, in_pod("a", "pod")).await.unwrap();
    let mut second = take(&store, holder("a")).await.unwrap();
    assert_eq!(second.generation(), 2);
    let error = first.update(|_| ()).await.unwrap_err();
    assert!(matches!(&error, LeaseError::Superseded(Some(by)) if by.id == "a"), "{error}");
    assert!(!first.check().await.unwrap());
    second.update(|head| head.holder = Some(in_pod("x", "pod"))).await.unwrap();
    assert_eq!(take(&store, in_pod("b", "pod")).await.unwrap().generation(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_holder_without_a_sign_of_life_is_replaced_after_the_time_to_live() {
    let store = Arc::new(MemoryStore::default());
    let mut dead = take(&store, in_pod("a", "pod-a")).await.unwrap();
    let watch = Stopwatch::start();
    let (taken, waits) = wait(&store, in_pod("b", "pod-b"), OPTIONS).await;
    let waited = watch.elapsed();
    assert_eq!((taken.unwrap().generation(), waits), (2, 1));
    assert!(waited >= OPTIONS.time_to_live && waited < OPTIONS.time_to_live * 2, "{waited:?}");
    let error = dead.renew().await.unwrap_err();
    assert!(matches!(&error, LeaseError::Superseded(Some(by)) if by.id == "b"), "{error}");
    assert!(error.to_string().contains("host-b (pod pod-b) since then"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lives_keeps_it() {
    let store = Arc::new(MemoryStore::default());
    let mut alive = take(&store, holder("a")).await.unwrap();
    let renewals = tokio::spawn(async move {
        for _ in 0..100 {
            clock::sleep(Duration::from_secs(20)).await;
            alive.renew().await.unwrap();
        }
    });
    let watch = Stopwatch::start();
    let (taken, waits) = wait(&store, holder("b"), OPTIONS).await;
    assert!(matches!(taken.err().unwrap(), LeaseError::Owned(by) if by.id == "a"));
    assert!(waits == 1 && watch.elapsed() < OPTIONS.time_to_live);
    renewals.abort();
}

#[tokio::test(start_paused = true)]
async fn of_many_that_wait_for_the_same_holder_one_gets_it() {
    let store = Arc::new(MemoryStore::default());
    let _dead = take(&store, holder("dead")).await.unwrap();
    let takers = (0..5).map(|n| {
        let store = store.clone();
        async move { wait(&store, holder(&format!("taker-{n}")), OPTIONS).await.0 }
    });
    let taken = futures_util::future::join_all(takers).await;
    let winners: Vec<&Lease> = taken.iter().filter_map(|taken| taken.as_ref().ok()).collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(stored(&store).await, *winners[0].head());
    assert!(taken.iter().filter_map(|taken| taken.as_ref().err()).all(|e| matches!(e, LeaseError::Owned(_))));
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_reading() {
    for fault in [Fault::LoseAnswer, Fault::FenceItself, Fault::LoseRequest] {
        let store = Arc::new(MemoryStore::default());
        store.fail_next(fault);
        let mut lease = take(&store, holder("a")).await.unwrap();
        assert_eq!(stored(&store).await, *lease.head());
        store.fail_next(fault);
        let changed = lease.update(|head| head.run = 5).await;
        // What never arrived may be tried again; everything else is found in the bucket.
        assert_eq!(changed.is_ok(), fault != Fault::LoseRequest);
        if let Err(error) = changed {
            assert!(matches!(&error, LeaseError::Store(e) if e.is_retry()), "{error}");
            lease.update(|head| head.run = 5).await.unwrap();
        }
        assert_eq!((stored(&store).await.run, stored(&store).await.sequence), (5, 1));
        store.fail_next(fault);
        if lease.renew().await.is_err() {
            lease.renew().await.unwrap();
        }
        assert_eq!(stored(&store).await.renewals, 1);
    }
}

#[tokio::test]
async fn a_write_that_arrives_late_is_ours() {
    let store = Arc::new(MemoryStore::default());
    let mut lease = take(&store, holder("a")).await.unwrap();
    store.fail_next(Fault::Delay);
    lease.update(|head| head.run = 5).await.unwrap_err();
    store.deliver().unwrap();
    lease.update(|head| head.sequence += 10).await.unwrap();
    let head = stored(&store).await;
    assert_eq!((head.run, head.sequence), (5, 12));
    // And in between: after the next write was prepared.
    store.fail_next(Fault::Delay);
    lease.renew().await.unwrap_err();
    store.before_next_put(|store| drop(store.deliver().unwrap()));
    let error = lease.update(|head| head.run = 6).await.unwrap_err();
    assert!(matches!(&error, LeaseError::Store(e) if e.is_retry()), "{error}");
    lease.update(|head| head.run = 6).await.unwrap();
    let head = stored(&store).await;
    assert_eq!((head.run, head.renewals), (6, 1));
}

#[tokio::test]
async fn a_removed_head_is_not_made_anew_by_its_holder() {
    let store = Arc::new(MemoryStore::default());
    let mut lease = take(&store, holder("a")).await.unwrap();
    store.remove(Head::key().as_str());
    assert!(matches!(lease.update(|_| ()).await.unwrap_err(), LeaseError::Superseded(None)));
    assert!(!lease.check().await.unwrap());
    assert_eq!(store.keys(), [""; 0]);
    store.set(".chiefsync/runs/1/DONE", "");
    store.set(".chiefsync/runs/12/DONE", "");
    store.set(".chiefsync/runs/2/DONE", "");
    store.set(".chiefsync/runs/x/DONE", "");
    assert_eq!(take(&store, holder("a")).await.unwrap().head().run, 13, "behind what earlier heads archived");
}

#[tokio::test]
async fn what_is_no_head_is_left_alone() {
    let garbled = [
        "",
        "{",
        "[]",
        "{\"schema\": 2}",
        "\0\0",
        "{\"schema\":2,\"holder\":null,\"generation\":1,\"sequence\":1,\"run\":1}",
    ];
    for text in garbled {
        let store = Arc::new(MemoryStore::default());
        store.set(Head::key().as_str(), text);
        let error = take(&store, holder("a")).await.err().unwrap();
        assert!(error.to_string().starts_with("memory://test/.chiefsync/head.json can't be read: "), "{error}");
        assert!(error.hint().unwrap().contains("set it aside"));
        assert_eq!(store.text(Head::key().as_str()).unwrap(), text);
    }
    let store = Arc::new(MemoryStore::default());
    store.set(Head::key().as_str(), vec![b' '; usize::try_from(MAX_HEAD_BYTES).unwrap() + 1]);
    let error = Lease::read(&*store).await.unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
}

#[tokio::test]
async fn what_a_later_version_wrote_is_carried_along() {
    let store = Arc::new(MemoryStore::default());
    let text = r#"{"schema":1,"holder":null,"generation":4,"sequence":9,"run":2,"later":{"x":[1,2.5]},"checkpoints":
        [{"id":"step-5","step":5,"sequence":8,"state":"committed","files":1,"bytes":2,"digests":["d"]}]}"#;
    store.set(Head::key().as_str(), text);
    let mut lease = take(&store, holder("a")).await.unwrap();
    lease.update(|head| head.checkpoints[0].state = CheckpointState::Pruned).await.unwrap();
    let text = store.text(Head::key().as_str()).unwrap();
    assert!(text.contains(r#""later":{"x":[1,2.5]}"#) && text.contains(r#""digests":["d"]"#), "{text}");
    assert!(text.contains(r#""state":"pruned""#) && text.contains(r#""generation":5"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn without_fence_a_writer_looks_before_and_after() {
    let mut store = MemoryStore::default();
    store.ignores_conditions = true;
    let store = Arc::new(store);
    let options = TakeOptions { fence: false, ..OPTIONS };
    let (taken, waits) = wait(&store, holder("a"), options).await;
    let mut lease = taken.unwrap();
    assert_eq!(waits, 0);
    lease.update(|head| head.run = 3).await.unwrap();
    // Another one writes over ours between our write and our look.
    let theirs = Head { generation: 1, holder: Some(holder("b")), ..Head::first(1) };
    let json = serde_json::to_vec(&theirs).unwrap();
    store.set(Head::key().as_str(), json.clone());
    let error = lease.update(|head| head.run = 4).await.unwrap_err();
    assert!(matches!(&error, LeaseError::Superseded(Some(by)) if by.id == "b"), "{error}");
    let (taken, waits) = wait(&store, holder("a"), options).await;
    let mut lease = taken.unwrap();
    assert_eq!((waits, lease.generation()), (1, 2));
    lease.renew().await.unwrap();
    lease.release(|_| ()).await.unwrap();
    assert_eq!(stored(&store).await.holder, None);
}

#[tokio::test]
async fn a_store_that_refuses_says_so() {
    let store = Arc::new(MemoryStore::default());
    store.die_after(Some(2));
    let error = take(&store, holder("a")).await.err().unwrap();
    assert!(matches!(&error, LeaseError::Store(e) if e.kind == ErrorKind::Stop), "{error}");
    // One that loses every request is not asked for ever.
    let store = Arc::new(MemoryStore::default());
    (0..100).for_each(|_| store.fail_next(Fault::LoseRequest));
    let error = take(&store, holder("a")).await.err().unwrap();
    assert!(matches!(&error, LeaseError::Store(e) if e.is_retry()), "{error}");
}

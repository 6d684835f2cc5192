//! Patience: what is tried again, for how long, and what wakes it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chiefsync::config::Destination;
use chiefsync::key::Key;
use chiefsync::store::faults::{Fault, Faults, Faulty, When};
use chiefsync::store::retry::{Patience, Retry, Until};
use chiefsync::store::{
    self, Body, ErrorKind, OpenOptions, Operation, RetryReason, Store as _, StoreError, WriteOptions,
};

struct Bench {
    store: Arc<Retry>,
    faults: Faults,
    patience: Patience,
    reasons: Arc<Mutex<Vec<RetryReason>>>,
    retried: tokio::sync::watch::Receiver<u64>,
    _directory: tempfile::TempDir,
}

async fn bench(until: Until) -> Bench {
    let directory = tempfile::tempdir().unwrap();
    let destination = Destination::File { directory: directory.path().to_owned() };
    let faulty = Faulty::new(store::open(&destination, &OpenOptions::default()).await.unwrap());
    let (faults, patience) = (faulty.faults(), Patience::new(until));
    let reasons: Arc<Mutex<Vec<RetryReason>>> = Arc::default();
    let (count, retried) = tokio::sync::watch::channel(0);
    let seen = reasons.clone();
    let on_retry = move |reason, _: &StoreError| {
        seen.lock().unwrap().push(reason);
        count.send_modify(|count| *count += 1);
    };
    let store = Arc::new(Retry::new(Arc::new(faulty), patience.clone(), Arc::new(on_retry)));
    Bench { store, faults, patience, reasons, retried, _directory: directory }
}

fn key() -> Key {
    Key::new("a/b").unwrap()
}

async fn put(bench: &Bench) -> Result<store::Written, StoreError> {
    bench.store.put(&key(), Body::hashed("x"), WriteOptions::default()).await
}

const BUSY: Fault = Fault::Refuse(ErrorKind::Retry(RetryReason::SlowDown));
const DENIED: Fault = Fault::Refuse(ErrorKind::Stop);

/// The preflight's forged put is refused for its digest, perhaps before anybody looks whether the bucket is there.
#[tokio::test]
async fn a_refused_digest_does_not_mean_that_the_operation_worked() {
    let bench = bench(Until::Forever).await;
    bench.faults.add(When::operation(Operation::Put).times(1), Fault::Refuse(ErrorKind::Corrupt));
    assert_eq!(put(&bench).await.unwrap_err().kind, ErrorKind::Corrupt);
    bench.faults.add(When::operation(Operation::Put).times(1), DENIED);
    assert_eq!(put(&bench).await.unwrap_err().kind, ErrorKind::Stop);
}

#[tokio::test]
async fn it_is_tried_again_until_it_works() {
    let bench = bench(Until::Forever).await;
    let rule = bench.faults.add(When::operation(Operation::Put).times(3), BUSY);
    let began = Instant::now();
    put(&bench).await.unwrap();
    assert_eq!(rule.hits(), 3);
    assert_eq!(*bench.reasons.lock().unwrap(), [RetryReason::SlowDown; 3]);
    // 0.2, 0.4 and 0.8 s at most.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn only_what_may_help_is_tried_again() {
    let bench = bench(Until::Forever).await;
    for kind in [ErrorKind::Fenced, ErrorKind::Corrupt, ErrorKind::Missing, ErrorKind::Refused, ErrorKind::Unsupported]
    {
        let rule = bench.faults.add(When::operation(Operation::Put), Fault::Refuse(kind));
        assert_eq!(put(&bench).await.unwrap_err().kind, kind);
        assert_eq!(rule.hits(), 1, "{kind:?}");
        bench.faults.clear();
    }
    assert!(bench.reasons.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_refusal_stops_at_first_and_is_an_outage_later() {
    let bench = bench(Until::Forever).await;
    let rule = bench.faults.add(When::operation(Operation::Put).times(1), DENIED);
    assert_eq!(put(&bench).await.unwrap_err().kind, ErrorKind::Stop);
    put(&bench).await.expect("the script is over");

    bench.faults.add(When::operation(Operation::Put).times(3), DENIED);
    put(&bench).await.expect("what worked before is waited for");
    assert_eq!(*bench.reasons.lock().unwrap(), [RetryReason::Denied; 3]);

    // Another operation never worked: that is a misconfiguration.
    bench.faults.add(When::operation(Operation::Delete), DENIED);
    assert_eq!(bench.store.delete(&key()).await.unwrap_err().kind, ErrorKind::Stop);
    assert_eq!(rule.hits(), 1);
}

#[tokio::test]
async fn without_patience_the_first_error_is_the_answer() {
    let bench = bench(Until::Stop).await;
    let rule = bench.faults.add(When::any(), BUSY);
    assert!(put(&bench).await.unwrap_err().is_retry());
    assert_eq!(rule.hits(), 1);
}

#[tokio::test]
async fn a_deadline_ends_it_with_the_last_error() {
    let wait = Duration::from_millis(500);
    let began = Instant::now();
    let bench = bench(Until::Deadline(began + wait)).await;
    let rule = bench.faults.add(When::any(), BUSY);
    let error = put(&bench).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Retry(RetryReason::SlowDown));
    assert!(rule.hits() > 1);
    assert!(began.elapsed() < wait, "{:?}: it gives up before the deadline, not after", began.elapsed());
}

#[tokio::test]
async fn a_change_of_patience_wakes_who_waits() {
    for (until, works) in [(Until::Stop, false), (Until::Deadline(Instant::now() + Duration::from_secs(60)), true)] {
        let mut bench = bench(Until::Forever).await;
        let allowed = Arc::new(AtomicU64::new(0));
        bench.faults.add(When::operation(Operation::Put).times(12), BUSY);
        let (store, seen) = (bench.store.clone(), allowed.clone());
        let waiting = tokio::spawn(async move {
            let result = store.put(&key(), Body::hashed("x"), WriteOptions::default()).await;
            seen.fetch_add(1, Ordering::SeqCst);
            result
        });
        // By now its pauses are seconds long.
        bench.retried.wait_for(|count| *count >= 5).await.unwrap();
        bench.faults.clear();
        let began = Instant::now();
        bench.patience.set(until);
        let result = waiting.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1), "{until:?}: {:?}", began.elapsed());
        assert_eq!(result.is_ok(), works, "{until:?}");
    }
}

/// One line when the trouble begins and one when it is over, however many requests it held up.
#[tokio::test]
async fn an_outage_is_said_once() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    // With a single subscriber, tracing asks the thread that first meets a log line whether anyone listens, and that
    // may be another test's; with two it asks both.
    let _second = tracing::Dispatch::new(Lines(Arc::default()));
    let guard = tracing::subscriber::set_default(Lines(lines.clone()));
    let bench = bench(Until::Forever).await;
    bench.faults.add(When::any().times(9), BUSY);
    let requests = (0..3).map(|_| put(&bench));
    for result in futures_util::future::join_all(requests).await {
        result.unwrap();
    }
    drop(guard);
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("WARN") && lines[0].contains("trying again"), "{lines:?}");
    assert!(lines[1].starts_with("INFO") && lines[1].contains("back after"), "{lines:?}");
}

/// Collects what is logged at info and above.
struct Lines(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO && metadata.target().starts_with("chiefsync")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

//! The preflight probe finds out what a store really does, and leaves nothing behind.

use chiefsync::config::Destination;
use chiefsync::key::Prefix;
use chiefsync::store::probe::{Capabilities, probe};
use chiefsync::store::{self, ErrorKind, ListFrom, OpenOptions, SharedStore};
use dev_s3::{Operation, Quirks};

use crate::store_conformance::servers::{self, BUCKET, Server};

const ALL: Capabilities =
    Capabilities { verifies_digests: true, if_match: true, if_none_match: true, returns_checksums: true };

async fn open(options: OpenOptions) -> SharedStore {
    let destination = Destination::S3 { bucket: BUCKET.to_owned(), prefix: Prefix::new("probed").unwrap() };
    store::open(&destination, &options).await.unwrap()
}

async fn dev_s3() -> (dev_s3::Server, SharedStore) {
    let server = dev_s3::Server::start(dev_s3::Options::memory().bucket(BUCKET)).await.unwrap();
    let store = open(servers::options(server.endpoint(), server.access_key(), server.secret_key())).await;
    (server, store)
}

#[tokio::test]
async fn a_store_that_does_everything_takes_five_requests() {
    let (server, store) = dev_s3().await;
    assert_eq!(probe(&*store).await.unwrap(), ALL);
    assert_eq!(server.requests().len(), 5);
    assert!(server.objects(BUCKET).is_empty());
    assert!(ALL.can_fence());
    let line = ALL.to_string();
    assert_eq!(line, "wrong digests refused, If-Match held, If-None-Match held, checksums returned");
}

#[tokio::test]
async fn what_a_store_does_not_do_is_found() {
    let (server, store) = dev_s3().await;
    for (quirks, found) in [
        (Quirks { ignore_digests: true, ..Quirks::default() }, Capabilities { verifies_digests: false, ..ALL }),
        (
            Quirks { ignore_conditions: true, ..Quirks::default() },
            Capabilities { if_match: false, if_none_match: false, ..ALL },
        ),
        (Quirks { hide_checksums: true, ..Quirks::default() }, Capabilities { returns_checksums: false, ..ALL }),
    ] {
        server.faults().set_quirks(quirks);
        assert_eq!(probe(&*store).await.unwrap(), found, "{quirks:?}");
        assert!(server.objects(BUCKET).is_empty(), "{quirks:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_the_answer() {
    let (server, store) = dev_s3().await;
    server.faults().deny(Operation::PutObject);
    let error = probe(&*store).await.unwrap_err();
    assert_eq!((error.kind, error.operation), (ErrorKind::Stop, "PutObject"));
    assert!(error.hint.unwrap().contains("s3:PutObject"));
    server.faults().allow(Operation::PutObject);
    // A writer that may not remove is still a writer.
    server.faults().deny(Operation::DeleteObject);
    assert_eq!(probe(&*store).await.unwrap(), ALL);
}

#[tokio::test]
async fn a_directory_does_everything() {
    let directory = tempfile::tempdir().unwrap();
    let destination = Destination::File { directory: directory.path().to_owned() };
    let store = store::open(&destination, &OpenOptions::default()).await.unwrap();
    assert_eq!(probe(&*store).await.unwrap(), ALL);
    assert!(store.list(&ListFrom::default()).await.unwrap().objects.is_empty());
}

#[tokio::test]
async fn a_store_without_metadata_can_not_fence() {
    let server = Server::versitygw_nometa();
    let store = open(server.options()).await;
    let found = probe(&*store).await.unwrap();
    assert!(!found.can_fence(), "{found}");
    assert!(found.verifies_digests, "{found}");
    assert!(store.list(&ListFrom::default()).await.unwrap().objects.is_empty());
}

//! One suite for every store: what the engine relies on holds everywhere, and where a store is known to differ, the table says so.

mod cases;
pub mod servers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use chiefsync::config::Destination;
use chiefsync::key::Prefix;
use chiefsync::store::retry::{Patience, Retry, Until};
use chiefsync::store::{self, ListFrom, OpenOptions, SharedStore, Store as _};

use self::servers::{BUCKET, Server};

/// A store under test, and how it is known to differ from S3 as the engine would like it.
pub struct Subject {
    /// Its name in messages.
    pub name: &'static str,
    /// Opened below a prefix of its own.
    pub store: SharedStore,
    /// The same place, with three names on a page of a listing.
    pub paged: SharedStore,
    /// The differences.
    pub known: Known,
}

/// What is known of a store.
#[derive(Clone, Copy)]
pub struct Known {
    /// Returns the checksum of an object and of its parts.
    pub returns_checksums: bool,
    /// What becomes of an object `a/b` beside an object `a`.
    pub nesting: Nesting,
    /// The longest segment of a name, in bytes: what is on a file system has a limit below S3's.
    pub longest_segment_bytes: usize,
    /// Refuses a key above S3's 1,024 bytes; the engine does not send one.
    pub limits_keys: bool,
    /// Refuses parts below 5 MiB that are not the last.
    pub refuses_small_parts: bool,
    /// Completing twice is an error (NoSuchUpload), not the same answer again.
    pub forgets_completed_uploads: bool,
    /// Checks a condition on the target of a copy.
    pub conditional_copies: bool,
}

/// What a store does with a name below the name of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// Holds and lists both, as S3 does.
    Both,
    /// Takes the second but does not list it.
    Hidden,
    /// Refuses it.
    Refused,
}

async fn run_all(subject: &Subject) {
    cases::objects::run(subject).await;
    cases::names::run(subject).await;
    cases::conditions::run(subject).await;
    cases::multipart::run(subject).await;
    cases::digests::run(subject).await;
    cases::copies::run(subject).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_conforms() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let destination = Destination::File { directory: directory.path().join("made/when/needed") };
    let paged = OpenOptions { page_size: 3, ..OpenOptions::default() };
    let known = Known {
        returns_checksums: true,
        nesting: Nesting::Refused,
        longest_segment_bytes: 255,
        limits_keys: true,
        refuses_small_parts: false,
        forgets_completed_uploads: true,
        conditional_copies: true,
    };
    let subject = Subject {
        name: "directory",
        store: store::open(&destination, &OpenOptions::default()).await.expect("a store"),
        paged: store::open(&destination, &paged).await.expect("a store"),
        known,
    };
    run_all(&subject).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_s3_conforms() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, options) in [
        ("dev-s3 in memory", dev_s3::Options::memory()),
        ("dev-s3 in a directory", dev_s3::Options::directory(directory.path())),
    ] {
        let server = dev_s3::Server::start(options.bucket(BUCKET)).await.expect("a server");
        let known = Known {
            returns_checksums: true,
            nesting: Nesting::Both,
            longest_segment_bytes: usize::MAX,
            limits_keys: true,
            refuses_small_parts: true,
            forgets_completed_uploads: true,
            conditional_copies: true,
        };
        let options = servers::options(server.endpoint(), server.access_key(), server.secret_key());
        run_all(&on_s3(name, options, known).await).await;
    }
}

async fn on_s3(name: &'static str, options: OpenOptions, known: Known) -> Subject {
    let destination = Destination::S3 { bucket: BUCKET.to_owned(), prefix: Prefix::new("team/job").expect("a prefix") };
    let open = async |options: &OpenOptions| store::open(&destination, options).await.expect("a store");
    let store = open(&options).await;
    // A server that listens may still be starting.
    let patience = Patience::new(Until::Deadline(Instant::now() + Duration::from_secs(60)));
    Retry::new(store.clone(), patience, Arc::new(|_, _| ())).list(&ListFrom::default()).await.expect("a server");
    Subject { name, store, paged: open(&OpenOptions { page_size: 3, ..options.clone() }).await, known }
}

#[tokio::test(flavor = "multi_thread")]
async fn minio_conforms() {
    let server = Server::minio();
    let known = Known {
        returns_checksums: true,
        nesting: Nesting::Hidden,
        longest_segment_bytes: 255,
        limits_keys: true,
        refuses_small_parts: true,
        forgets_completed_uploads: true,
        conditional_copies: false,
    };
    run_all(&on_s3("minio", server.options(), known).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versitygw_conforms() {
    let server = Server::versitygw();
    let known = Known {
        returns_checksums: true,
        nesting: Nesting::Refused,
        longest_segment_bytes: 255,
        limits_keys: false,
        refuses_small_parts: true,
        forgets_completed_uploads: true,
        conditional_copies: false,
    };
    run_all(&on_s3("versitygw", server.options(), known).await).await;
}

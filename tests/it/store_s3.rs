//! S3 on the wire, and what its errors say.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chiefsync::config::Destination;
use chiefsync::digest::Sha256;
use chiefsync::disk::ReadFile;
use chiefsync::key::{Key, Prefix};
use chiefsync::store::retry::{Patience, Retry, Until};
use chiefsync::store::{
    self, Body, BodySource, Condition, ErrorKind, ListFrom, OpenOptions, RetryReason, SharedStore, Store as _,
    StoreError, UploadId, WriteOptions,
};
use dev_s3::{Fault, Operation, Server, When};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::store_conformance::servers::{self, BUCKET};

async fn open(options: &OpenOptions) -> SharedStore {
    let destination = Destination::S3 { bucket: BUCKET.to_owned(), prefix: Prefix::new("p").unwrap() };
    store::open(&destination, options).await.unwrap()
}

async fn dev_s3() -> (Server, SharedStore) {
    let server = Server::start(dev_s3::Options::memory().bucket(BUCKET)).await.unwrap();
    let store = open(&servers::options(server.endpoint(), server.access_key(), server.secret_key())).await;
    (server, store)
}

fn key() -> Key {
    Key::new("k").unwrap()
}

/// A request as it came over the wire.
struct Captured {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// Takes one request, answers it with an ETag, and tells what it was.
async fn capture(listener: TcpListener) -> Captured {
    let (mut connection, _) = listener.accept().await.unwrap();
    let mut received = Vec::new();
    let (head, body_start) = loop {
        let mut buffer = [0; 64 * 1024];
        let read = connection.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the connection ended within the head");
        received.extend_from_slice(&buffer[..read]);
        if let Some(at) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            break (String::from_utf8(received[..at].to_vec()).unwrap(), at + 4);
        }
    };
    let mut lines = head.lines();
    let line = lines.next().unwrap().to_owned();
    let headers: HashMap<_, _> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = received.split_off(body_start);
    let len: usize = headers["content-length"].parse().unwrap();
    let mut rest = vec![0; len - body.len()];
    connection.read_exact(&mut rest).await.unwrap();
    body.extend(rest);
    connection.write_all(b"HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    // Were there a trailer, it would come now.
    let mut more = [0; 1];
    let extra = connection.read(&mut more).await.unwrap_or(0);
    assert_eq!(extra, 0, "nothing follows the body");
    Captured { line, headers, body }
}

/// The promise behind "hash once": our digest is checksum header and signed payload hash, and nothing else is computed
/// or sent: no CRC, no chunks, no trailer; a fixed length.
#[tokio::test(flavor = "multi_thread")]
async fn one_digest_is_checksum_and_signature() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let path = directory.path().join("file");
    std::fs::write(&path, &content).unwrap();
    let file = BodySource::File { file: Arc::new(ReadFile::open(&path).unwrap()), offset: 1000 };
    let in_memory = bytes::Bytes::from(content[1000..2_500_000].to_vec());
    let sha256 = Sha256::of(&in_memory);

    for source in [BodySource::Bytes(in_memory.clone()), file] {
        for is_part in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            let capture = tokio::spawn(capture(listener));
            let store = open(&servers::options(endpoint, "key", "secret")).await;
            let body = Body { source: source.clone(), len_bytes: in_memory.len() as u64, sha256 };
            if is_part {
                store.put_part(&key(), &UploadId("u".to_owned()), 7, body).await.unwrap();
            } else {
                store.put(&key(), body, WriteOptions::when(Condition::Absent)).await.unwrap();
            }
            drop(store);
            let captured = capture.await.unwrap();
            let expected = if is_part {
                "PUT /conformance/p/k?x-id=UploadPart&partNumber=7&uploadId=u"
            } else {
                "PUT /conformance/p/k?x-id=PutObject"
            };
            assert!(captured.line.starts_with(expected), "{}", captured.line);
            assert!(captured.body == in_memory, "the body as it is");
            let header = |name: &str| captured.headers.get(name).map(String::as_str);
            assert_eq!(header("x-amz-content-sha256"), Some(&*sha256.to_hex()));
            assert_eq!(header("x-amz-checksum-sha256"), Some(&*sha256.to_base64()));
            assert_eq!(header("content-length"), Some(&*in_memory.len().to_string()));
            for absent in [
                "transfer-encoding",
                "content-encoding",
                "x-amz-trailer",
                "trailer",
                "x-amz-decoded-content-length",
                "expect",
            ] {
                assert_eq!(header(absent), None, "{absent}");
            }
            assert!(!captured.headers.keys().any(|name| name.contains("crc")), "{:?}", captured.headers);
            assert_eq!(header("if-none-match"), (!is_part).then_some("*"));
        }
    }
}

#[tokio::test]
async fn a_skewed_clock_is_corrected_by_the_next_request() {
    let (server, store) = dev_s3().await;
    for hours in [3, -3] {
        server.faults().set_clock_skew(hours * 3600);
        let error = store.list(&ListFrom::default()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Retry(RetryReason::Skew), "{error}");
        assert!(error.hint.unwrap().contains("clock"));
        store.list(&ListFrom::default()).await.expect("signed with the server's time");
        store.put(&key(), Body::hashed("x"), WriteOptions::default()).await.expect("and so is every further one");
    }
}

#[tokio::test]
async fn a_head_says_why_although_it_has_no_body() {
    let (server, store) = dev_s3().await;
    for (fault, kind) in [
        (Fault::ExpiredToken, ErrorKind::Retry(RetryReason::Expired)),
        (Fault::AccessDenied, ErrorKind::Stop),
        (Fault::SlowDown, ErrorKind::Retry(RetryReason::SlowDown)),
    ] {
        let rule = server
            .faults()
            .add(When::operation(Operation::HeadObject).or_operation(Operation::GetObject), fault.clone());
        let error = store.head(&key()).await.unwrap_err();
        assert_eq!((error.kind, error.operation), (kind, "HeadObject"), "{fault:?}: {error}");
        rule.remove();
    }
}

#[tokio::test]
async fn a_late_failure_of_complete_is_seen() {
    let (server, store) = dev_s3().await;
    let id = store.create_upload(&key(), WriteOptions::default()).await.unwrap();
    let parts = [store.put_part(&key(), &id, 1, Body::hashed("x")).await.unwrap()];
    let complete = async || store.complete(&key(), &id, &parts, Condition::None).await;
    let when = || When::operation(Operation::CompleteMultipartUpload).times(1);

    server.faults().add(when(), Fault::Answer { status: 200, code: "InternalError" });
    assert_eq!(complete().await.unwrap_err().kind, ErrorKind::Retry(RetryReason::Server));
    // Carried out, but the answer is lost: the next try finds no upload, and the object tells.
    server.faults().add(when(), Fault::LoseAnswer);
    assert_eq!(complete().await.unwrap_err().kind, ErrorKind::Retry(RetryReason::Connection));
    assert_eq!(complete().await.unwrap_err().kind, ErrorKind::Missing);
    assert_eq!(store.head(&key()).await.unwrap().size_bytes, 1);
}

#[tokio::test]
async fn a_broken_download_is_an_error_in_the_stream() {
    let (server, store) = dev_s3().await;
    let content = vec![7; 1_000_000];
    store.put(&key(), Body::hashed(content), WriteOptions::default()).await.unwrap();
    server.faults().add(When::operation(Operation::GetObject), Fault::ResetAnswer { after_bytes: 500_000 });
    let error = store.get(&key(), None, None).await.unwrap().collect(u64::MAX).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Retry(RetryReason::Connection), "{error}");
    assert!(error.target.ends_with("/p/k"), "{error}");
}

fn hint(error: &StoreError) -> &str {
    error.hint.as_deref().unwrap_or("")
}

#[tokio::test]
async fn errors_name_the_operation_and_help() {
    let (server, store) = dev_s3().await;
    let good = servers::options(server.endpoint(), server.access_key(), server.secret_key());
    let put = async |store: SharedStore| {
        store.put(&key(), Body::hashed("x"), WriteOptions::default()).await.expect_err("an error")
    };

    server.faults().deny(Operation::PutObject);
    let error = put(store.clone()).await;
    assert_eq!((error.kind, error.operation, &*error.target), (ErrorKind::Stop, "PutObject", "s3://conformance/p/k"));
    assert!(hint(&error).contains("s3:PutObject on arn:aws:s3:::conformance/*"), "{error:?}");
    server.faults().clear();

    let error = put(open(&servers::options(server.endpoint(), "nobody", "secret")).await).await;
    assert_eq!(error.kind, ErrorKind::Stop);
    assert!(hint(&error).contains("AWS_ACCESS_KEY_ID"), "{error:?}");

    let error = put(open(&servers::options(server.endpoint(), server.access_key(), "top-secret")).await).await;
    assert_eq!(error.kind, ErrorKind::Stop);
    assert!(hint(&error).contains("AWS_SECRET_ACCESS_KEY"), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("top-secret"));

    let destination = Destination::S3 { bucket: "nowhere".to_owned(), prefix: Prefix::default() };
    let error = put(store::open(&destination, &good).await.unwrap()).await;
    assert_eq!(error.kind, ErrorKind::Stop);
    assert!(hint(&error).contains("aws s3 mb s3://nowhere"), "{error:?}");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = put(open(&OpenOptions { endpoint_url: Some(format!("http://{free}")), ..good.clone() }).await).await;
    assert_eq!(error.kind, ErrorKind::Retry(RetryReason::Connection));
    assert!(error.message.contains("refused") && hint(&error).contains(&free.to_string()), "{error:?}");

    let unknown = "http://no-such-host.invalid:9000".to_owned();
    let error = put(open(&OpenOptions { endpoint_url: Some(unknown), ..good.clone() }).await).await;
    assert_eq!(error.kind, ErrorKind::Retry(RetryReason::Connection));
    assert!(hint(&error).contains("DNS"), "{error:?}");

    let tls = server.endpoint().replace("http:", "https:");
    let error = put(open(&OpenOptions { endpoint_url: Some(tls), ..good }).await).await;
    assert_eq!(error.kind, ErrorKind::Stop, "{error:?}");
    assert!(hint(&error).contains("http://"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_needs_an_authority_that_is_trusted() {
    let (server, authority) = servers::Server::minio_with_tls();
    let options = server.options();
    let error = open(&options).await.list(&ListFrom::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Stop, "{error}");
    assert!(hint(&error).contains("AWS_CA_BUNDLE"), "{error:?}");

    let trusting = open(&OpenOptions { ca_bundle: Some(authority.clone()), ..options.clone() }).await;
    let patience = Patience::new(Until::Deadline(Instant::now() + Duration::from_secs(60)));
    let store = Arc::new(Retry::new(trusting, patience, Arc::new(|_, _| ())));
    let puts = (0..16).map(|i| {
        let store = store.clone();
        let key = Key::new(format!("tls/{i}")).unwrap();
        tokio::spawn(async move { store.put(&key, Body::hashed(vec![i; 300_000]), WriteOptions::default()).await })
    });
    for put in puts.collect::<Vec<_>>() {
        put.await.unwrap().unwrap();
    }
    assert_eq!(store.list(&ListFrom::default()).await.unwrap().objects.len(), 16);

    let plain = options.endpoint_url.clone().map(|url| url.replace("https:", "http:"));
    let error = open(&OpenOptions { endpoint_url: plain, ..options.clone() }).await.list(&ListFrom::default()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Stop, "{error}");
    assert!(hint(&error).contains("https://"), "{error:?}");

    let destination = Destination::S3 { bucket: BUCKET.to_owned(), prefix: Prefix::default() };
    let no_certificate = authority.with_file_name("names");
    let error =
        store::open(&destination, &OpenOptions { ca_bundle: Some(no_certificate), ..options }).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Stop, "{error}");
    assert!(hint(&error).contains("AWS_CA_BUNDLE"), "{error:?}");
}

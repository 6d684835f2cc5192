//! Nothing is stored that isn't what its sender said.

use crate::client::*;
use aws_sdk_s3::presigning::PresigningConfig;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::ChecksumAlgorithm;
use dev_s3::{Options, Quirks};
use std::time::Duration;

#[tokio::test]
async fn a_wrong_digest_is_refused_and_stores_nothing() {
    let (server, client) = start(Options::memory()).await;
    let put = || client.put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(b"content"));
    assert_eq!(code(put().checksum_sha256(sha256(b"other")).send().await), "BadDigest");
    assert_eq!(code(put().checksum_crc32("AAAAAA==").send().await), "BadDigest");
    assert_eq!(code(put().checksum_crc32_c("AAAAAA==").send().await), "BadDigest");
    assert_eq!(code(put().checksum_crc64_nvme("AAAAAAAAAAA=").send().await), "BadDigest");
    assert_eq!(code(put().checksum_sha1("AAAAAAAAAAAAAAAAAAAAAAAAAAA=").send().await), "BadDigest");
    assert_eq!(code(put().content_md5("XUFAKrxLKna5cZ2REBfFkg==").send().await), "BadDigest");
    assert_eq!(code(put().content_md5("XUFA").send().await), "InvalidDigest");
    assert!(server.keys(BUCKET).is_empty());
    put().checksum_sha256(sha256(b"content")).send().await.expect("the right one is taken");
}

#[tokio::test]
async fn every_algorithm_is_computed_as_the_sdk_does() {
    let (server, _) = start(Options::memory()).await;
    let client = connect_eager(&server);
    for algorithm in [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
    ] {
        let key = algorithm.as_str().to_owned();
        let body = ByteStream::from(noise(200_000, 7));
        let put = client.put_object().bucket(BUCKET).key(&key).body(body).checksum_algorithm(algorithm).send().await;
        put.expect("the SDK's own checksum is right");
        let stored = server.objects(BUCKET).into_iter().find(|object| object.key == key).expect("it is there");
        assert_eq!(stored.checksum.map(|checksum| checksum.algorithm.name().to_owned()), Some(key));
    }
}

/// Bytes by hand, because the SDK computes the payload's hash itself.
#[tokio::test]
async fn a_wrong_payload_hash_is_refused() {
    let (server, client) = start(Options::memory()).await;
    let presigned = client
        .put_object()
        .bucket(BUCKET)
        .key("a")
        .presigned(PresigningConfig::expires_in(Duration::from_secs(60)).expect("a valid time"))
        .await
        .expect("a URL");
    let path = presigned.uri().split_once(&server.address().to_string()).expect("our address").1.to_owned();
    let host = server.address();
    let send = |headers: &str, body: &str| {
        format!("PUT {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n{body}").into_bytes()
    };
    let hash = |data: &[u8]| {
        use s3s::crypto::Checksum as _;
        s3s::crypto::Sha256::checksum(data).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };

    let wrong = format!("x-amz-content-sha256: {}\r\nContent-Length: 5\r\n", hash(b"other"));
    let answer = raw(&server, &send(&wrong, "hello")).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("XAmzContentSHA256Mismatch"), "{answer}");
    let endless = raw(&server, &send("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n")).await;
    assert!(endless.starts_with("HTTP/1.1 411"), "{endless}");
    let short = raw(&server, &send("Content-Length: 10\r\n", "hello")).await;
    assert!(!short.contains("200 OK"), "{short}");
    assert!(server.keys(BUCKET).is_empty());

    let right = format!("x-amz-content-sha256: {}\r\nContent-Length: 5\r\n", hash(b"hello"));
    let answer = raw(&server, &send(&right, "hello")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(server.object(BUCKET, "a"), Some(b"hello".to_vec()));
}

#[tokio::test]
async fn an_odd_store_takes_anything() {
    let (server, client) = start(Options::memory()).await;
    let put = || client.put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(b"content"));
    server.faults().set_quirks(Quirks { ignore_digests: true, ..Quirks::default() });
    put().checksum_sha256(sha256(b"other")).send().await.expect("it doesn't look");
    server.faults().set_quirks(Quirks { ignore_conditions: true, ..Quirks::default() });
    put().if_none_match("*").send().await.expect("it doesn't look");
    server.faults().set_quirks(Quirks { hide_checksums: true, ..Quirks::default() });
    let silent = put().checksum_sha256(sha256(b"content")).send().await.expect("the put succeeds");
    assert_eq!(silent.checksum_sha256(), None);
    server.faults().clear();
    assert_eq!(code(put().if_none_match("*").send().await), "PreconditionFailed");
    let loud = put().checksum_sha256(sha256(b"content")).send().await.expect("the put succeeds");
    assert_eq!(loud.checksum_sha256(), Some(sha256(b"content").as_str()));
}

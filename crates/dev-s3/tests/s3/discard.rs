//! The discarding server: sizes stay, bytes don't, and the rest of S3 works on.

use crate::client::*;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use dev_s3::{Medium, Operation, Options};

#[tokio::test]
async fn sizes_stay_and_bytes_are_zeros() {
    let (server, client) = start(Options::discard()).await;
    let body = noise(3_000_000, 1);
    let put = client.put_object().bucket(BUCKET).key("a").body(ByteStream::from(body.clone()));
    let put = put.metadata("nonce", "n").checksum_sha256(sha256(b"not even this is checked")).send().await;
    let put = put.expect("the put succeeds");
    assert_eq!(put.checksum_sha256(), Some(sha256(b"not even this is checked").as_str()), "an echo");
    let head = client.head_object().bucket(BUCKET).key("a").send().await.expect("the head succeeds");
    assert_eq!((head.content_length(), head.e_tag()), (Some(3_000_000), put.e_tag()));
    assert_eq!(head.metadata().and_then(|metadata| metadata.get("nonce")).map(String::as_str), Some("n"));
    assert_eq!(get(&client, "a").await, vec![0; 3_000_000]);
    assert_eq!(server.count(Operation::PutObject).bytes, 3_000_000);
}

#[tokio::test]
async fn conditions_and_uploads_hold() {
    let (server, client) = start(Options::discard().min_part_bytes(10)).await;
    put(&client, "a", "x").await;
    let second = client.put_object().bucket(BUCKET).key("a").if_none_match("*").body(ByteStream::from_static(b"y"));
    assert_eq!(code(second.send().await), "PreconditionFailed");
    let nowhere = client.put_object().bucket("none").key("a").body(ByteStream::from_static(b"y")).send().await;
    assert_eq!(code(nowhere), "NoSuchBucket");

    let created = client.create_multipart_upload().bucket(BUCKET).key("b").send().await.expect("the upload begins");
    let id = created.upload_id().expect("an id");
    let mut parts = Vec::new();
    for number in 1..=3 {
        let part = client.upload_part().bucket(BUCKET).key("b").upload_id(id).part_number(number);
        let part = part.body(ByteStream::from(vec![0; 20])).send().await.expect("the part is taken");
        parts.push(CompletedPart::builder().part_number(number).e_tag(part.e_tag().expect("an ETag")).build());
    }
    let upload = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("b").upload_id(id).multipart_upload(upload);
    let done = complete.send().await.expect("it is complete");
    let object = server.objects(BUCKET).into_iter().find(|object| object.key == "b").expect("it is there");
    assert_eq!((object.size, format!("\"{}\"", object.etag)), (60, done.e_tag().expect("an ETag").to_owned()));
    let lost = client.upload_part().bucket(BUCKET).key("b").upload_id(id).part_number(1);
    assert_eq!(code(lost.body(ByteStream::from_static(b"x")).send().await), "NoSuchUpload");
}

/// A client's own small control objects must read back as they were written, and are checked.
#[tokio::test]
async fn control_objects_are_kept() {
    let (_server, client) = start(Options::discard()).await;
    put(&client, "job/.chiefsync/head.json", "{}").await;
    assert_eq!(get(&client, "job/.chiefsync/head.json").await, b"{}");
    let wrong = client.put_object().bucket(BUCKET).key("job/.chiefsync/x").checksum_sha256(sha256(b"other"));
    assert_eq!(code(wrong.body(ByteStream::from_static(b"{}")).send().await), "BadDigest");

    let (_server, client) = start(Options::new(Medium::Discard { keep: vec!["manifest".into()] })).await;
    put(&client, "a/manifest", "kept").await;
    put(&client, "a/.chiefsync/x", "gone").await;
    assert_eq!(get(&client, "a/manifest").await, b"kept");
    assert_eq!(get(&client, "a/.chiefsync/x").await, [0; 4]);
}

#[tokio::test]
async fn the_log_is_bounded_and_the_counts_are_not() {
    let (server, client) = start(Options::discard().log_limit(3)).await;
    for number in 0..5 {
        put(&client, &number.to_string(), "x").await;
    }
    let keys: Vec<_> = server.requests().into_iter().map(|request| request.key).collect();
    assert_eq!(keys, ["2", "3", "4"]);
    assert_eq!(server.count(Operation::PutObject).requests, 5);
}

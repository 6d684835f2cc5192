//! Uploads in parts: what counts as one, what it becomes, and what is refused.

use crate::client::*;
use aws_sdk_s3::Client;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, ChecksumMode, ChecksumType, CompletedMultipartUpload, CompletedPart};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dev_s3::{Options, Quirks};
use s3s::crypto::{Checksum as _, Md5, Sha256};

/// Small parts, so that tests needn't move megabytes.
fn options() -> Options {
    Options::memory().min_part_bytes(10)
}

async fn create(client: &Client, key: &str) -> String {
    let created = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key(key)
        .checksum_algorithm(ChecksumAlgorithm::Sha256)
        .metadata("nonce", "n-1")
        .send()
        .await
        .expect("the upload begins");
    created.upload_id().expect("an id").to_owned()
}

async fn send(client: &Client, key: &str, id: &str, number: i32, body: &[u8]) -> CompletedPart {
    let part = client
        .upload_part()
        .bucket(BUCKET)
        .key(key)
        .upload_id(id)
        .part_number(number)
        .checksum_sha256(sha256(body))
        .body(ByteStream::from(body.to_vec()))
        .send()
        .await
        .expect("the part is taken");
    assert_eq!(part.checksum_sha256(), Some(sha256(body).as_str()));
    named(number, part.e_tag().expect("an ETag"), Some(sha256(body)))
}

fn named(number: i32, etag: &str, checksum: Option<String>) -> CompletedPart {
    CompletedPart::builder().part_number(number).e_tag(etag).set_checksum_sha256(checksum).build()
}

fn complete(
    client: &Client,
    key: &str,
    id: &str,
    parts: &[CompletedPart],
) -> aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder {
    let upload = CompletedMultipartUpload::builder().set_parts(Some(parts.to_vec())).build();
    client.complete_multipart_upload().bucket(BUCKET).key(key).upload_id(id).multipart_upload(upload)
}

#[tokio::test]
async fn parts_become_one_object_with_a_composite_checksum() {
    let (server, client) = start(options()).await;
    let pieces = [noise(40, 1), noise(40, 2), noise(7, 3)];
    let id = create(&client, "a").await;
    let mut parts = Vec::new();
    for (number, piece) in [1, 2, 3].into_iter().zip(&pieces).rev() {
        parts.insert(0, send(&client, "a", &id, number, piece).await);
    }
    assert_eq!(server.uploads()[0].parts, [(1, 40), (2, 40), (3, 7)].into());
    let done = complete(&client, "a", &id, &parts).mpu_object_size(87).send().await.expect("it is complete");

    let md5s: Vec<u8> = pieces.iter().flat_map(|piece| Md5::checksum(piece)).collect();
    let digests: Vec<u8> = pieces.iter().flat_map(|piece| Sha256::checksum(piece)).collect();
    let etag = format!("\"{}-3\"", md5_hex(&md5s));
    let checksum = format!("{}-3", STANDARD.encode(Sha256::checksum(&digests)));
    assert_eq!((done.e_tag(), done.checksum_sha256()), (Some(etag.as_str()), Some(checksum.as_str())));
    assert_eq!(done.checksum_type(), Some(&ChecksumType::Composite));

    let head = client.head_object().bucket(BUCKET).key("a").checksum_mode(ChecksumMode::Enabled).send().await;
    let head = head.expect("the head succeeds");
    assert_eq!((head.e_tag(), head.checksum_sha256()), (Some(etag.as_str()), Some(checksum.as_str())));
    assert_eq!(head.metadata().and_then(|metadata| metadata.get("nonce")).map(String::as_str), Some("n-1"));
    assert_eq!(get(&client, "a").await, pieces.concat());
    let second = client.get_object().bucket(BUCKET).key("a").part_number(2).send().await.expect("the second part");
    assert_eq!(second.parts_count(), Some(3));
    assert_eq!(second.body.collect().await.expect("the body").to_vec(), pieces[1]);

    assert_eq!(code(complete(&client, "a", &id, &parts).send().await), "NoSuchUpload");
    assert!(server.uploads().is_empty());
}

#[tokio::test]
async fn a_list_of_parts_that_is_wrong_completes_nothing() {
    let (server, client) = start(options()).await;
    let id = create(&client, "a").await;
    let first = send(&client, "a", &id, 1, &noise(20, 1)).await;
    let second = send(&client, "a", &id, 2, &noise(5, 2)).await;
    let third = send(&client, "a", &id, 3, &noise(5, 3)).await;
    let etag = first.e_tag().expect("an ETag").to_owned();
    let attempt = |parts: Vec<CompletedPart>| {
        let request = complete(&client, "a", &id, &parts);
        async move { code(request.send().await) }
    };
    assert_eq!(attempt(vec![]).await, "MalformedXML");
    assert_eq!(attempt(vec![second.clone(), first.clone()]).await, "InvalidPartOrder");
    assert_eq!(attempt(vec![first.clone(), first.clone()]).await, "InvalidPartOrder");
    assert_eq!(attempt(vec![first.clone(), named(4, "\"x\"", None)]).await, "InvalidPart");
    assert_eq!(attempt(vec![named(1, "\"x\"", None)]).await, "InvalidPart");
    assert_eq!(attempt(vec![named(1, &etag, Some(sha256(b"other")))]).await, "InvalidPart");
    assert_eq!(attempt(vec![named(1, &etag, None)]).await, "InvalidRequest");
    assert_eq!(attempt(vec![first.clone(), second.clone(), third]).await, "EntityTooSmall");
    let sized = complete(&client, "a", &id, &[first.clone(), second.clone()]).mpu_object_size(1).send().await;
    assert_eq!(code(sized), "InvalidRequest");
    let claimed = complete(&client, "a", &id, std::slice::from_ref(&first)).checksum_sha256(sha256(b"other"));
    assert_eq!(code(claimed.send().await), "BadDigest");
    assert!(server.keys(BUCKET).is_empty());
    assert_eq!(attempt(vec![first, second]).await, "ok");
}

#[tokio::test]
async fn parts_are_checked_like_objects() {
    let (server, client) = start(options()).await;
    let id = create(&client, "a").await;
    let part = |number| {
        let body = ByteStream::from_static(b"0123456789");
        client.upload_part().bucket(BUCKET).key("a").upload_id(&id).part_number(number).body(body)
    };
    assert_eq!(code(part(1).checksum_sha256(sha256(b"other")).send().await), "BadDigest");
    assert_eq!(code(part(1).checksum_crc32("AAAAAA==").send().await), "BadDigest");
    assert_eq!(code(part(1).send().await), "InvalidRequest", "without the checksum that was promised");
    assert_eq!(code(part(0).send().await), "InvalidArgument");
    assert_eq!(code(part(10_001).send().await), "InvalidArgument");
    let elsewhere = client.upload_part().bucket(BUCKET).key("b").upload_id(&id).part_number(1);
    assert_eq!(code(elsewhere.body(ByteStream::from_static(b"x")).send().await), "NoSuchUpload");
    assert!(server.uploads()[0].parts.is_empty());
}

#[tokio::test]
async fn the_smallest_part_is_five_mebibytes() {
    let (_server, client) = start(Options::memory()).await;
    let id = create(&client, "a").await;
    let small = send(&client, "a", &id, 1, &vec![0; (5 << 20) - 1]).await;
    let last = send(&client, "a", &id, 2, b"x").await;
    assert_eq!(code(complete(&client, "a", &id, &[small, last.clone()]).send().await), "EntityTooSmall");
    let enough = send(&client, "a", &id, 1, &vec![0; 5 << 20]).await;
    assert_eq!(code(complete(&client, "a", &id, &[enough, last]).send().await), "ok");
}

#[tokio::test]
async fn parts_and_uploads_are_listed_in_pages() {
    let (_server, client) = start(options()).await;
    let id = create(&client, "job/a").await;
    for number in [1, 2, 5, 7, 9] {
        send(&client, "job/a", &id, number, &noise(10, number as u32)).await;
    }
    let list = || client.list_parts().bucket(BUCKET).key("job/a").upload_id(&id);
    let mut pages = list().max_parts(2).into_paginator().send();
    let mut numbers = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.expect("a page");
        assert!(page.parts().len() <= 2);
        for part in page.parts() {
            let body = noise(10, part.part_number().expect("a number") as u32);
            assert_eq!((part.size(), part.checksum_sha256()), (Some(10), Some(sha256(&body).as_str())));
            numbers.push(part.part_number().expect("a number"));
        }
    }
    assert_eq!(numbers, [1, 2, 5, 7, 9]);

    let again = create(&client, "job/a").await;
    let other = create(&client, "job-2/a").await;
    let listed = client.list_multipart_uploads().bucket(BUCKET).prefix("job/").send().await.expect("the listing");
    let ids: Vec<_> = listed.uploads().iter().filter_map(|upload| upload.upload_id()).collect();
    assert_eq!(ids, [&id, &again], "by key, then by age");

    let page = |key: Option<String>, id: Option<String>| {
        client.list_multipart_uploads().bucket(BUCKET).max_uploads(1).set_key_marker(key).set_upload_id_marker(id)
    };
    let (mut key, mut marker, mut ids) = (None, None, Vec::new());
    loop {
        let page = page(key, marker).send().await.expect("a page");
        ids.extend(page.uploads().iter().filter_map(|upload| upload.upload_id().map(str::to_owned)));
        (key, marker) = (page.next_key_marker().map(str::to_owned), page.next_upload_id_marker().map(str::to_owned));
        if page.is_truncated() != Some(true) {
            break;
        }
    }
    assert_eq!(ids, [other, id.clone(), again.clone()]);

    client.abort_multipart_upload().bucket(BUCKET).key("job/a").upload_id(&id).send().await.expect("it is gone");
    assert_eq!(code(list().send().await), "NoSuchUpload");
    let twice = client.abort_multipart_upload().bucket(BUCKET).key("job/a").upload_id(&id).send().await;
    assert_eq!(code(twice), "NoSuchUpload");
}

/// Appending: the known beginning is copied by the server, only the tail is sent.
#[tokio::test]
async fn a_part_can_be_a_copy_of_a_range() {
    let (server, client) = start(options()).await;
    let etag = put(&client, "log", "0123456789abcdef").await;
    let id = create(&client, "log").await;
    let copy = || {
        let request = client.upload_part_copy().bucket(BUCKET).key("log").upload_id(&id).part_number(1);
        request.copy_source(format!("{BUCKET}/log"))
    };
    assert_eq!(code(copy().copy_source_if_match("\"other\"").send().await), "PreconditionFailed");
    assert_eq!(code(copy().copy_source_range("bytes=0-16").send().await), "InvalidArgument");
    assert_eq!(code(copy().copy_source_range("bytes=3-").send().await), "InvalidArgument");
    let copied = copy().copy_source_range("bytes=0-9").copy_source_if_match(&etag).send().await.expect("the copy");
    let copied = copied.copy_part_result().expect("a result");
    assert_eq!(copied.checksum_sha256(), Some(sha256(b"0123456789").as_str()));
    let first = named(1, copied.e_tag().expect("an ETag"), copied.checksum_sha256().map(str::to_owned));
    let second = send(&client, "log", &id, 2, b"tail").await;
    complete(&client, "log", &id, &[first, second]).if_match(&etag).send().await.expect("it is complete");
    assert_eq!(server.object(BUCKET, "log"), Some(b"0123456789tail".to_vec()));
}

#[tokio::test]
async fn completing_keeps_its_condition() {
    let (server, client) = start(options()).await;
    let id = create(&client, "a").await;
    let part = send(&client, "a", &id, 1, b"parts").await;
    let attempt = || complete(&client, "a", &id, std::slice::from_ref(&part));
    assert_eq!(code(attempt().if_match("\"x\"").send().await), "NoSuchKey");
    put(&client, "a", "foreign").await;
    assert_eq!(code(attempt().if_none_match("*").send().await), "PreconditionFailed");
    assert_eq!(code(attempt().if_match("\"x\"").send().await), "PreconditionFailed");
    assert_eq!(server.object(BUCKET, "a"), Some(b"foreign".to_vec()));
    assert_eq!(server.uploads().len(), 1, "a refused upload can still be completed");
    let etag = format!("\"{}\"", md5_hex(b"foreign"));
    assert_eq!(code(attempt().if_match(etag).send().await), "ok");
}

#[tokio::test]
async fn a_checksum_of_the_whole_needs_no_parts() {
    let (server, _) = start(options()).await;
    let client = connect_eager(&server);
    let created = client
        .create_multipart_upload()
        .bucket(BUCKET)
        .key("a")
        .checksum_algorithm(ChecksumAlgorithm::Crc64Nvme)
        .checksum_type(ChecksumType::FullObject)
        .send()
        .await
        .expect("the upload begins");
    let id = created.upload_id().expect("an id");
    let mut parts = Vec::new();
    for (number, body) in [(1, "first part"), (2, "second part")] {
        let part = client
            .upload_part()
            .bucket(BUCKET)
            .key("a")
            .upload_id(id)
            .part_number(number)
            .checksum_algorithm(ChecksumAlgorithm::Crc64Nvme)
            .body(ByteStream::from_static(body.as_bytes()))
            .send()
            .await
            .expect("the part is taken");
        parts.push(named(number, part.e_tag().expect("an ETag"), None));
    }
    complete(&client, "a", id, &parts).send().await.expect("it is complete");
    let single = client.put_object().bucket(BUCKET).key("b").checksum_algorithm(ChecksumAlgorithm::Crc64Nvme);
    single.body(ByteStream::from_static(b"first partsecond part")).send().await.expect("the put succeeds");
    let objects = server.objects(BUCKET);
    assert!(objects[0].checksum.is_some());
    assert_eq!(objects[0].checksum, objects[1].checksum);
}

#[tokio::test]
async fn an_odd_store_shows_another_etag_than_it_answered() {
    let (server, client) = start(options()).await;
    server.faults().set_quirks(Quirks { change_multipart_etags: true, ..Quirks::default() });
    let id = create(&client, "a").await;
    let part = send(&client, "a", &id, 1, b"parts").await;
    let done = complete(&client, "a", &id, &[part]).send().await.expect("it is complete");
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.expect("a page");
    assert_ne!(listed.contents()[0].e_tag(), done.e_tag());
}

//! Listings, page by page.

use crate::client::*;
use aws_sdk_s3::types::EncodingType;
use dev_s3::Options;

#[tokio::test]
async fn a_long_listing_comes_in_pages() {
    let (server, client) = start(Options::memory()).await;
    let expected: Vec<_> = (0..2345).map(|number| format!("p/{number:05}")).collect();
    for key in &expected {
        server.put_object_raw(BUCKET, key, key.as_bytes()).expect("the write succeeds");
    }
    server.put_object_raw(BUCKET, "p-2/other", b"").expect("the write succeeds");

    let mut pages = client.list_objects_v2().bucket(BUCKET).prefix("p/").into_paginator().send();
    let mut sizes = Vec::new();
    let mut found = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.expect("a page");
        sizes.push(page.key_count());
        for object in page.contents() {
            assert_eq!(object.size(), Some(7));
            assert!(object.e_tag().is_some());
            found.push(object.key().expect("a key").to_owned());
        }
    }
    assert_eq!(sizes, [Some(1000), Some(1000), Some(345)]);
    assert_eq!(found, expected);

    let later = client.list_objects_v2().bucket(BUCKET).start_after("p/02343").send().await.expect("a page");
    let keys: Vec<_> = later.contents().iter().filter_map(|object| object.key()).collect();
    assert_eq!(keys, ["p/02344"]);
    let few = client.list_objects_v2().bucket(BUCKET).max_keys(2).send().await.expect("a page");
    assert_eq!((few.contents().len(), few.is_truncated()), (2, Some(true)));
    let wrong = client.list_objects_v2().bucket(BUCKET).continuation_token("!").send().await;
    assert_eq!(code(wrong), "InvalidArgument");
}

#[tokio::test]
async fn folders_are_what_a_delimiter_makes_them() {
    let (server, client) = start(Options::memory()).await;
    for key in ["job/a", "job/ckpt-1/x", "job/ckpt-1/y", "job/ckpt-2/x", "job/z", "job-2/a"] {
        server.put_object_raw(BUCKET, key, b"").expect("the write succeeds");
    }
    let mut pages =
        client.list_objects_v2().bucket(BUCKET).prefix("job/").delimiter("/").max_keys(1).into_paginator().send();
    let mut seen = Vec::new();
    while let Some(page) = pages.next().await {
        let page = page.expect("a page");
        seen.extend(page.contents().iter().filter_map(|object| object.key().map(str::to_owned)));
        seen.extend(page.common_prefixes().iter().filter_map(|prefix| prefix.prefix().map(str::to_owned)));
    }
    assert_eq!(seen, ["job/a", "job/ckpt-1/", "job/ckpt-2/", "job/z"]);

    // The first dialect, for the clients that still speak it.
    let mut marker = None;
    let mut old = Vec::new();
    loop {
        let page = client.list_objects().bucket(BUCKET).prefix("job/").delimiter("/").max_keys(1);
        let page = page.set_marker(marker).send().await.expect("a page");
        old.extend(page.contents().iter().filter_map(|object| object.key().map(str::to_owned)));
        old.extend(page.common_prefixes().iter().filter_map(|prefix| prefix.prefix().map(str::to_owned)));
        marker = page.next_marker().map(str::to_owned);
        if page.is_truncated() != Some(true) {
            break;
        }
    }
    assert_eq!(old, seen);
}

#[tokio::test]
async fn names_that_xml_cannot_hold_are_encoded_on_request() {
    let (server, client) = start(Options::memory()).await;
    server.put_object_raw(BUCKET, "a b/\u{1}é&+", b"").expect("the write succeeds");
    let listed = client
        .list_objects_v2()
        .bucket(BUCKET)
        .prefix("a b/")
        .encoding_type(EncodingType::Url)
        .send()
        .await
        .expect("a page");
    assert_eq!(listed.prefix(), Some("a+b/"));
    assert_eq!(listed.contents()[0].key(), Some("a+b/%01%C3%A9%26%2B"));
}

//! Objects: written, read, copied, removed; and who may do so.

use crate::client::*;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumMode, Delete, MetadataDirective, ObjectIdentifier};
use dev_s3::{Operation, Options};

#[tokio::test]
async fn what_was_put_comes_back_whole() {
    let (server, client) = start(Options::memory()).await;
    let body = noise(3_000_000, 1);
    let put = client
        .put_object()
        .bucket(BUCKET)
        .key("dir/a")
        .body(ByteStream::from(body.clone()))
        .content_type("text/x-noise")
        .metadata("nonce", "n-1")
        .checksum_sha256(sha256(&body))
        .send()
        .await
        .expect("the put succeeds");
    let etag = format!("\"{}\"", md5_hex(&body));
    assert_eq!(put.e_tag(), Some(etag.as_str()));
    assert_eq!(put.checksum_sha256(), Some(sha256(&body).as_str()));

    let got = client
        .get_object()
        .bucket(BUCKET)
        .key("dir/a")
        .checksum_mode(ChecksumMode::Enabled)
        .send()
        .await
        .expect("the get succeeds");
    assert_eq!(got.content_length(), Some(3_000_000));
    assert_eq!(got.content_type(), Some("text/x-noise"));
    assert_eq!(got.metadata().and_then(|metadata| metadata.get("nonce")).map(String::as_str), Some("n-1"));
    assert_eq!(got.e_tag(), Some(etag.as_str()));
    assert_eq!(got.checksum_sha256(), Some(sha256(&body).as_str()));
    assert_eq!(got.body.collect().await.expect("the whole body").to_vec(), body);

    let head = client.head_object().bucket(BUCKET).key("dir/a").send().await.expect("the head succeeds");
    assert_eq!(head.checksum_sha256(), None, "only on request");
    assert_eq!(head.last_modified(), got.last_modified.as_ref());
    assert_eq!(server.object(BUCKET, "dir/a"), Some(body));

    client.delete_object().bucket(BUCKET).key("dir/a").send().await.expect("the delete succeeds");
    assert_eq!(code(client.get_object().bucket(BUCKET).key("dir/a").send().await), "NoSuchKey");
    assert_eq!(code(client.head_object().bucket(BUCKET).key("dir/a").send().await), "NotFound");
    client.delete_object().bucket(BUCKET).key("dir/a").send().await.expect("again is no error");
}

#[tokio::test]
async fn requests_are_booked() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", "12345").await;
    put(&client, "b", "").await;
    let _ = client.get_object().bucket(BUCKET).key("c").send().await;
    let booked: Vec<_> = server
        .requests()
        .into_iter()
        .map(|request| (request.operation, request.key, request.bytes, request.status))
        .collect();
    let expected = [
        (Operation::PutObject, "a".to_owned(), 5, 200),
        (Operation::PutObject, "b".to_owned(), 0, 200),
        (Operation::GetObject, "c".to_owned(), 0, 404),
    ];
    assert_eq!(booked, expected);
    assert_eq!((server.count(Operation::PutObject).requests, server.count(Operation::PutObject).bytes), (2, 5));
    server.clear_requests();
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn ranges() {
    let (_server, client) = start(Options::memory()).await;
    put(&client, "a", "0123456789").await;
    for (range, expected, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=7-99", "789", "bytes 7-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
    ] {
        let got = client.get_object().bucket(BUCKET).key("a").range(range).send().await.expect("the get succeeds");
        assert_eq!(got.content_range(), Some(content_range));
        assert_eq!(got.body.collect().await.expect("the body").to_vec(), expected.as_bytes(), "{range}");
    }
    let beyond = client.get_object().bucket(BUCKET).key("a").range("bytes=10-").send().await;
    assert_eq!(code(beyond), "InvalidRange");
}

#[tokio::test]
async fn names_of_every_kind() {
    let (server, client) = start(Options::memory()).await;
    let longest = "x".repeat(1024);
    let names = [
        "with space",
        "ümläut/日本",
        "100%",
        "a+b",
        "new\nline",
        "-dash",
        "a//b",
        "../up",
        "q?x=1&y",
        "#~*'()",
        &longest,
    ];
    for name in names {
        put(&client, name, name).await;
        assert_eq!(get(&client, name).await, name.as_bytes(), "{name:?}");
    }
    let mut expected: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    expected.sort();
    assert_eq!(server.keys(BUCKET), expected);

    let longer = "x".repeat(1025);
    let refused = client.put_object().bucket(BUCKET).key(&longer).body(ByteStream::from_static(b"x")).send().await;
    assert_eq!(code(refused), "KeyTooLongError");
}

#[tokio::test]
async fn copies_keep_or_replace_what_is_known() {
    let (server, client) = start(Options::memory()).await;
    let body = noise(100_000, 2);
    client
        .put_object()
        .bucket(BUCKET)
        .key("from é")
        .body(ByteStream::from(body.clone()))
        .metadata("a", "1")
        .checksum_sha256(sha256(&body))
        .send()
        .await
        .expect("the put succeeds");
    let source = format!("{BUCKET}/from%20%C3%A9");
    let copy = || client.copy_object().bucket(BUCKET).copy_source(&source);

    let copied = copy().key("kept").send().await.expect("the copy succeeds");
    let result = copied.copy_object_result().expect("a result");
    assert_eq!(result.checksum_sha256(), Some(sha256(&body).as_str()));
    copy()
        .key("replaced")
        .metadata_directive(MetadataDirective::Replace)
        .metadata("b", "2")
        .send()
        .await
        .expect("the copy succeeds");
    let objects = server.objects(BUCKET);
    let metadata = |key: &str| {
        let object = objects.iter().find(|object| object.key == key).expect("the object");
        object.metadata.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
    };
    assert_eq!((metadata("kept"), metadata("replaced")), (vec!["a=1".into()], vec!["b=2".into()]));
    assert_eq!(server.object(BUCKET, "replaced"), Some(body));

    assert_eq!(code(copy().key("x").copy_source_if_match("\"other\"").send().await), "PreconditionFailed");
    assert_eq!(code(copy().key("x").copy_source_if_none_match("*").send().await), "PreconditionFailed");
    assert_eq!(code(copy().key("kept").if_none_match("*").send().await), "PreconditionFailed");
    assert_eq!(code(copy().key("from é").send().await), "InvalidRequest", "onto itself, changing nothing");
    assert_eq!(code(client.copy_object().bucket(BUCKET).key("x").copy_source("bucket/none").send().await), "NoSuchKey");
}

#[tokio::test]
async fn many_are_deleted_at_once() {
    let (server, client) = start(Options::memory()).await;
    for key in ["a", "b", "c"] {
        put(&client, key, key).await;
    }
    let named = |key: &str| ObjectIdentifier::builder().key(key).build().expect("an identifier");
    let stale = ObjectIdentifier::builder().key("b").e_tag("\"other\"").build().expect("an identifier");
    let delete = Delete::builder().objects(named("a")).objects(stale).objects(named("none")).build();
    let deleted = client
        .delete_objects()
        .bucket(BUCKET)
        .delete(delete.expect("a list"))
        .send()
        .await
        .expect("the request succeeds");
    let keys: Vec<_> = deleted.deleted().iter().filter_map(|object| object.key()).collect();
    let errors: Vec<_> = deleted.errors().iter().filter_map(|error| error.key().zip(error.code())).collect();
    assert_eq!((keys, errors), (vec!["a", "none"], vec![("b", "PreconditionFailed")]));
    assert_eq!(server.keys(BUCKET), ["b", "c"]);
}

#[tokio::test]
async fn buckets() {
    let (_server, client) = start(Options::memory()).await;
    client.create_bucket().bucket("second").send().await.expect("the bucket is made");
    assert_eq!(code(client.create_bucket().bucket("second").send().await), "BucketAlreadyOwnedByYou");
    client.head_bucket().bucket("second").send().await.expect("it is there");
    assert_eq!(code(client.head_bucket().bucket("third").send().await), "NotFound");
    let listed = client.list_buckets().send().await.expect("the listing succeeds");
    let names: Vec<_> = listed.buckets().iter().filter_map(|bucket| bucket.name()).collect();
    assert_eq!(names, [BUCKET, "second"]);
    let nowhere = client.put_object().bucket("third").key("a").body(ByteStream::from_static(b"x")).send().await;
    assert_eq!(code(nowhere), "NoSuchBucket");
}

#[tokio::test]
async fn only_the_right_keys_open() {
    let (server, client) = start(Options::memory()).await;
    put(&client, "a", "x").await;
    let get =
        |client: aws_sdk_s3::Client| async move { code(client.get_object().bucket(BUCKET).key("a").send().await) };
    assert_eq!(get(connect_as(&server, server.access_key(), "wrong")).await, "SignatureDoesNotMatch");
    assert_eq!(get(connect_as(&server, "nobody", server.secret_key())).await, "InvalidAccessKeyId");
    let unsigned = raw(&server, b"GET /bucket/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(unsigned.starts_with("HTTP/1.1 403") && unsigned.contains("AccessDenied"), "{unsigned}");
    // A body that is refused is read all the same, so that its sender gets to see why.
    let large = connect_as(&server, server.access_key(), "wrong");
    let refused = large.put_object().bucket(BUCKET).key("b").body(ByteStream::from(vec![1; 9_000_000])).send().await;
    assert_eq!(code(refused), "SignatureDoesNotMatch");
}

#[test]
fn a_thread_of_its_own_serves_callers_without_a_runtime() {
    let server = dev_s3::Server::spawn_thread(Options::memory().bucket(BUCKET)).expect("the server starts");
    server.put_object_raw(BUCKET, "a", b"content").expect("the write succeeds");
    let ask = || {
        use std::io::{Read as _, Write as _};
        let mut socket = std::net::TcpStream::connect(server.address())?;
        socket.write_all(b"GET /bucket/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    assert!(ask().expect("an answer").starts_with("HTTP/1.1 403"));
    server.stop();
    assert!(ask().is_err(), "the port is free once stop returns");
    assert!(server.put_object_raw(BUCKET, "a", b"late").is_err(), "a stopped server changes nothing");
}

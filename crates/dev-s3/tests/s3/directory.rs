//! The directory: objects where a person finds them, and all of it there again after a restart.

use crate::client::*;
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{ChecksumAlgorithm, CompletedMultipartUpload, CompletedPart};
use dev_s3::{Options, Server, StoredObject};
use std::fs;
use std::path::Path;

fn options(root: &Path) -> Options {
    Options::directory(root).min_part_bytes(10)
}

async fn restarted(server: Server, root: &Path) -> Server {
    server.stop();
    server.stopped().await;
    Server::start(options(root)).await.expect("the server starts again")
}

/// Everything below a folder, as sorted relative paths of files.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            found.extend(files(&path).into_iter().map(|below| format!("{name}/{below}")));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn objects_lie_at_their_keys() {
    let root = tempfile::tempdir().expect("a folder");
    let (server, client) = start(options(root.path())).await;
    put(&client, "job/ckpt-1/model", "weights").await;
    put(&client, "job/ckpt-1/model", "better weights").await;
    put(&client, "top", "x").await;
    assert_eq!(fs::read(root.path().join("bucket/job/ckpt-1/model")).expect("the file"), b"better weights");
    assert_eq!(get(&client, "job/ckpt-1/model").await, b"better weights");
    assert!(server.delete(BUCKET, "job/ckpt-1/model").expect("the delete succeeds"));
    assert_eq!(files(&root.path().join("bucket")), ["top"]);
    assert!(!root.path().join("bucket/job").exists(), "no empty folders stay");
}

#[tokio::test]
async fn keys_that_are_no_paths_are_kept_aside() {
    let root = tempfile::tempdir().expect("a folder");
    let (server, client) = start(options(root.path())).await;
    let long = "n".repeat(300);
    let keys = ["../escape", "/lead", "a", "a/", "a/b", "a/b/c", "d//e", "f/./g", "h/i", "h", long.as_str()];
    for key in keys {
        put(&client, key, key).await;
    }
    for server in [&server, &restarted(server_of(root.path(), &server).await, root.path()).await] {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        assert_eq!(server.keys(BUCKET), sorted);
        for key in keys {
            assert_eq!(server.object(BUCKET, key).as_deref(), Some(key.as_bytes()), "{key:?}");
        }
    }
    assert_eq!(files(&root.path().join("bucket")), ["a", "h/i"]);
    assert!(!root.path().join("escape").exists());
}

/// A second server on the same folder, after the first has let go of it.
async fn server_of(root: &Path, first: &Server) -> Server {
    first.stop();
    first.stopped().await;
    Server::start(options(root)).await.expect("the server starts")
}

#[tokio::test]
async fn a_restart_loses_nothing() {
    let root = tempfile::tempdir().expect("a folder");
    let (server, client) = start(options(root.path())).await;
    let body = noise(50_000, 1);
    let put = client.put_object().bucket(BUCKET).key("a").body(ByteStream::from(body.clone()));
    put.metadata("nonce", "n").checksum_sha256(sha256(&body)).send().await.expect("the put succeeds");
    server.put_object_raw(BUCKET, "gone", b"x").expect("the write succeeds");
    server.delete(BUCKET, "gone").expect("the delete succeeds");

    let create = client.create_multipart_upload().bucket(BUCKET).key("b").checksum_algorithm(ChecksumAlgorithm::Sha256);
    let created = create.send().await.expect("the upload begins");
    let id = created.upload_id().expect("an id").to_owned();
    let part = |client: &aws_sdk_s3::Client, number: i32, text: &'static str| {
        let request = client.upload_part().bucket(BUCKET).key("b").upload_id(&id).part_number(number);
        request.checksum_sha256(sha256(text.as_bytes())).body(ByteStream::from_static(text.as_bytes())).send()
    };
    part(&client, 1, "to be replaced").await.expect("the part is taken");
    part(&client, 1, "the first part").await.expect("the part is taken");
    let (objects, uploads) = (server.objects(BUCKET), server.uploads());

    let server = restarted(server, root.path()).await;
    let client = connect(&server);
    assert_eq!((server.objects(BUCKET), server.uploads()), (objects, uploads));
    assert_eq!(get(&client, "a").await, body);

    part(&client, 2, "tail").await.expect("the part is taken");
    let listed = client.list_parts().bucket(BUCKET).key("b").upload_id(&id).send().await.expect("the parts");
    let parts = listed.parts().iter().map(|part| {
        let named = CompletedPart::builder().set_part_number(part.part_number());
        named
            .set_e_tag(part.e_tag().map(str::to_owned))
            .set_checksum_sha256(part.checksum_sha256().map(str::to_owned))
            .build()
    });
    let upload = CompletedMultipartUpload::builder().set_parts(Some(parts.collect())).build();
    let complete = client.complete_multipart_upload().bucket(BUCKET).key("b").upload_id(&id).multipart_upload(upload);
    complete.send().await.expect("it is complete");
    assert_eq!(fs::read(root.path().join("bucket/b")).expect("the file"), b"the first parttail");
    assert!(files(&root.path().join(".dev-s3/parts")).is_empty(), "parts go when they have become an object");

    let server = restarted(server, root.path()).await;
    assert_eq!(server.keys(BUCKET), ["a", "b"]);
    assert!(server.uploads().is_empty());
}

/// Stopped between the file and its line, or in the middle of a line: what is there is told as it is.
#[tokio::test]
async fn a_crash_leaves_a_store_that_tells_the_truth() {
    let root = tempfile::tempdir().expect("a folder");
    let (server, client) = start(options(root.path())).await;
    for key in ["kept", "replaced", "removed"] {
        put(&client, key, "before").await;
    }
    server.stop();
    server.stopped().await;
    fs::write(root.path().join("bucket/replaced"), "after the crash").expect("the write succeeds");
    fs::remove_file(root.path().join("bucket/removed")).expect("the file was there");
    fs::write(root.path().join(".dev-s3/tmp/17"), "half a body").expect("the write succeeds");
    fs::write(root.path().join(".dev-s3/parts/orphan"), "a part").expect("the write succeeds");
    let log = root.path().join(".dev-s3/bucket.log");
    let text = fs::read_to_string(&log).expect("the log");
    fs::write(&log, format!("{text}{{\"record\":\"put\",\"key\":\"to")).expect("the write succeeds");

    let server = Server::start(options(root.path())).await.expect("the server starts again");
    let known = |object: &StoredObject| (object.key.clone(), object.size, object.etag.clone());
    let objects: Vec<_> = server.objects(BUCKET).iter().map(known).collect();
    let expected =
        [("kept".to_owned(), 6, md5_hex(b"before")), ("replaced".to_owned(), 15, md5_hex(b"after the crash"))];
    assert_eq!(objects, expected);
    assert!(files(&root.path().join(".dev-s3/tmp")).is_empty());
    assert!(files(&root.path().join(".dev-s3/parts")).is_empty());

    fs::remove_file(root.path().join("bucket/kept")).expect("the file was there");
    assert!(server.delete(BUCKET, "kept").expect("what is gone can be deleted"));
}

#[tokio::test]
async fn a_refused_body_leaves_no_trace() {
    let root = tempfile::tempdir().expect("a folder");
    let (_server, client) = start(options(root.path())).await;
    let put = client.put_object().bucket(BUCKET).key("a").body(ByteStream::from_static(b"content"));
    assert_eq!(code(put.checksum_sha256(sha256(b"other")).send().await), "BadDigest");
    assert_eq!(files(root.path()), [".dev-s3/bucket.log"]);
}

//! The main promise, with everything real: MinIO, a running writer, an independent reader.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chiefsync::digest::{self, Digest, Sha256};

use crate::harness::{Reader, Sandbox, assert_same_tree, content, minio};

/// Exit 0 means that every file that was there at DONE, less what the user excluded, is in the bucket, checked.
/// Order on the way up: at the end manifest, then DONE.
#[test]
fn a_running_writer_is_followed_and_done_comes_last() {
    let (sandbox, place) = (Sandbox::new(), minio());
    sandbox.write("config.json", b"{}");
    let mut watch = sandbox.watch(&place, "job").spawn();

    // A trainer: a log that stays open, checkpoints that are renamed into place and rotated, a model at the end.
    let mut log = sandbox.open_append("logs/events.out");
    for step in 1..=6_u64 {
        log.write_all(format!("step {step}\n").as_bytes()).unwrap();
        let name = format!("checkpoints/step-{step}");
        let (weights, optimizer) = (content(step, 300_000), content(100 + step, 100_000));
        sandbox.place_directory(&name, &[("weights.bin", &weights), ("optimizer.bin", &optimizer)]);
        if step > 3 {
            sandbox.remove(&format!("checkpoints/step-{}", step - 3));
        }
        for file in ["weights.bin", "optimizer.bin"] {
            watch.wait_for_log(&format!("uploaded path={name}/{file}"));
        }
    }
    sandbox.write_large("model.bin", 7, 20 << 20);
    sandbox.write("empty", b"");
    drop(log);
    sandbox.done();
    watch.wait().expect_code(0);
    let verified = sandbox.verify(&place, "job").args(["--deep", "--json"]).run().expect_code(0);
    let verified: serde_json::Value = serde_json::from_str(&verified.stdout).expect("JSON");
    assert_eq!(verified["verdict"], "match");

    let mut reader = Reader::of(&place);
    let mut bucket = reader.tree("job");
    // Rotated checkpoints stay: nothing is deleted because something vanished locally.
    for step in 1..=3 {
        for file in ["weights.bin", "optimizer.bin"] {
            assert!(bucket.remove(&format!("checkpoints/step-{step}/{file}")).is_some(), "step {step} is kept");
        }
    }
    assert_same_tree(&sandbox.tree(), &bucket);

    let listed = reader.list("job/");
    let modified = |key: &str| listed.iter().find(|entry| entry.key == key).expect(key).modified;
    let done = modified("job/DONE");
    for entry in listed.iter().filter(|entry| entry.key != "job/.chiefsync/head.json") {
        assert!(entry.modified <= done, "{} was written after DONE", entry.key);
    }
    assert!(reader.uploads("job/").is_empty(), "an upload is left open");
}

/// Hash once: one SHA-256 is the S3 checksum header and the manifest's digest.
#[test]
fn checksums_as_s3_reports_them_equal_ours() {
    let (sandbox, place) = (Sandbox::new(), minio());
    let small = content(1, 1_000_000);
    let large = content(2, 20_000_000);
    sandbox.write("small", &small);
    sandbox.write("large", &large);
    sandbox.write("empty", b"");
    sandbox.sync(&place, "job").run().expect_code(0);

    let mut reader = Reader::of(&place);
    for (name, bytes) in [("small", &small[..]), ("empty", b"")] {
        let head = reader.head(&format!("job/{name}"));
        assert_eq!(head.size, bytes.len() as u64, "{name}");
        assert_eq!(head.checksum, Some(STANDARD.encode(Sha256::of(bytes).as_bytes())), "{name}");
        assert_eq!(head.checksum_type.as_deref(), Some("FULL_OBJECT"), "{name}");
    }
    let parts: Vec<Sha256> = large.chunks(8 << 20).map(Sha256::of).collect();
    let joined: Vec<u8> = parts.iter().flat_map(|part| part.as_bytes().to_vec()).collect();
    let head = reader.head("job/large");
    assert_eq!(head.checksum, Some(format!("{}-3", STANDARD.encode(Sha256::of(&joined).as_bytes()))));
    assert_eq!(head.checksum_type.as_deref(), Some("COMPOSITE"));
    assert_eq!(reader.sha256("job/large"), Sha256::of(&large).to_string());

    let manifest: serde_json::Value = serde_json::from_slice(&reader.content("job/.chiefsync/manifest.json")).unwrap();
    let text = manifest.to_string();
    assert_eq!(digest::part_count(large.len() as u64), 3);
    for part in Digest::from(parts).parts() {
        assert!(text.contains(&part.to_string()), "the manifest holds {part}");
    }
}

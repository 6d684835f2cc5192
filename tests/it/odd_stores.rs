//! Stores that are not quite S3: what the preflight finds out, and what follows from it.

use dev_s3::{Fault, Operation, Quirks, When};

use crate::harness::{DevS3, Sandbox};

/// A server with these ways, a tree with small and large files, and what `sync` needs.
fn odd(quirks: Quirks) -> (Sandbox, DevS3) {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    s3.faults().set_quirks(quirks);
    sandbox.write("small", b"content");
    sandbox.write("empty", b"");
    sandbox.write_large("large", 1, 17 << 20);
    (sandbox, s3)
}

#[test]
fn where_wrong_digests_are_stored_what_was_sent_is_read_back() {
    let (sandbox, s3) = odd(Quirks { ignore_digests: true, ..Quirks::default() });
    for key in ["job/small", "job/large"] {
        let sent = When::operation(Operation::PutObject).or_operation(Operation::UploadPart);
        s3.faults().add(sent.key(key).times(1), Fault::FlipReceived { at: 3 });
    }
    let ended = sandbox.sync(s3.place(), "job").run().expect_code(0).expect_said("wrong digests not refused");
    assert!(ended.stderr.contains("damaged"), "{}", ended.stderr);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn where_wrong_digests_are_stored_a_checksum_proves_nothing() {
    let (sandbox, s3) = odd(Quirks { ignore_digests: true, ..Quirks::default() });
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    // Without journal and manifest only the objects' own checksums are left, and nobody checked them.
    for entry in std::fs::read_dir(sandbox.control()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    s3.delete("bucket", "job/.chiefsync/manifest.json").unwrap();
    s3.clear_requests();
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert!(s3.writes().iter().any(|write| write.key == "job/small"), "sent again and read back");
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn where_conditions_are_ignored_a_fence_is_impossible_and_must_be_waived() {
    let (sandbox, s3) = odd(Quirks { ignore_conditions: true, ..Quirks::default() });
    let ended = sandbox.sync(s3.place(), "job").run().expect_code(2);
    let words: Vec<_> = ended.stderr.lines().skip_while(|line| !line.starts_with("error: ")).collect();
    assert_eq!(
        words,
        [
            "error: s3://bucket/job/ ignores conditional writes: two writers could not be told apart",
            "hint: with --no-fence, only when nothing else ever writes to this prefix"
        ]
    );
    assert!(s3.tree("job").is_empty());
    sandbox.sync(s3.place(), "job").arg("--no-fence").run().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
    sandbox.done();
    sandbox.watch(s3.place(), "job").arg("--no-fence").run().expect_code(0);
}

#[test]
fn where_no_checksums_come_back_everything_works_the_same() {
    let (sandbox, s3) = odd(Quirks { hide_checksums: true, ..Quirks::default() });
    sandbox.done();
    sandbox.watch(s3.place(), "job").run().expect_code(0).expect_said("checksums not returned");
    assert_eq!(s3.tree("job"), sandbox.tree());
    sandbox.verify(s3.place(), "job").arg("--deep").run().expect_code(0);
}

#[test]
fn where_a_multipart_object_gets_another_tag_than_was_answered_it_is_asked_itself() {
    for hide_checksums in [false, true] {
        let (sandbox, s3) = odd(Quirks { change_multipart_etags: true, hide_checksums, ..Quirks::default() });
        sandbox.sync(s3.place(), "job").run().expect_code(0);
        assert_eq!(s3.count(Operation::CompleteMultipartUpload).requests, 1, "nothing is sent twice");
        assert_eq!(s3.tree("job"), sandbox.tree());
        s3.clear_requests();
        sandbox.sync(s3.place(), "job").run().expect_code(0);
        assert!(s3.writes().is_empty(), "the next time the tag is known");
        sandbox.verify(s3.place(), "job").run().expect_code(0);
        sandbox.write_large("large", 2, 17 << 20);
        sandbox.sync(s3.place(), "job").run().expect_code(0);
        assert_eq!(s3.tree("job"), sandbox.tree());
    }
}

#[test]
fn what_somebody_else_put_in_place_of_ours_is_written_again() {
    let (sandbox, s3) = odd(Quirks::default());
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    s3.put_object_raw("bucket", "job/small", b"CONTENT").unwrap();
    s3.delete("bucket", "job/large").unwrap();
    sandbox.sync(s3.place(), "job").run().expect_code(0).expect_said("sending it again");
    assert_eq!(s3.tree("job"), sandbox.tree());
}

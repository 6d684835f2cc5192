//! Killed at the worst moment, started again: what is in the bucket already is not sent again.

use dev_s3::{Fault, Gate, Hold, Operation, When};

use crate::harness::{DevS3, Sandbox, assert_same_tree, content, eventually};

const PART_BYTES: u64 = 8 << 20;

/// kill -9 in the middle of a multipart upload, then restart: at most the parts in flight are sent again.
fn is_continued_after_a_kill(size_bytes: u64, keep_control: bool) {
    let sandbox = Sandbox::new();
    let server = DevS3::on_disk(&sandbox.outside("store"));
    let parts = size_bytes / PART_BYTES;
    // Half of the parts get through; those that follow hang in the air.
    let gate = Gate::new();
    let half = When::operation(Operation::UploadPart).skip(parts / 2);
    let stall = server.faults().add(half, Fault::Stall(Hold::Until(gate.clone())));
    sandbox.write_large("model.bin", 1, size_bytes);
    let watch = sandbox.watch(server.place(), "job").args(["--pod-uid", "pod"]).spawn();
    gate.arrived_blocking(1);
    let stored = || server.uploads().iter().map(|upload| upload.parts.len() as u64).sum::<u64>();
    eventually("half of the parts are stored", || stored() == parts / 2);
    watch.kill();

    stall.remove();
    gate.open();
    // What was in flight died with the process.
    eventually("the server let go of the parts in flight", || {
        server.count(Operation::UploadPart).requests == parts / 2 + gate.arrivals()
    });
    let stored = stored();
    assert_eq!(server.uploads().len(), 1);
    server.clear_requests();
    if !keep_control {
        std::fs::remove_dir_all(sandbox.control()).unwrap();
    }
    sandbox.done();
    sandbox.watch(server.place(), "job").args(["--pod-uid", "pod"]).run().expect_code(0);

    let sent = server.count(Operation::UploadPart);
    assert_eq!((sent.requests, sent.bytes), (parts - stored, (parts - stored) * PART_BYTES));
    assert_eq!(server.count(Operation::CreateMultipartUpload).requests, 0);
    assert!(server.uploads().is_empty(), "an upload is left open");
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// The journal makes a restart cheap: an interrupted multipart upload continues from its stored parts.
#[test]
fn a_gibibyte_is_continued_after_a_kill() {
    is_continued_after_a_kill(1 << 30, true);
}

/// Deleting the journal never costs correctness: the state is rebuilt from the bucket, by listing and digests.
#[test]
fn an_upload_is_continued_from_the_bucket_alone() {
    is_continued_after_a_kill(128 << 20, false);
}

/// An answer that nobody heard: the upload was completed, and is not sent again.
#[test]
fn a_completed_upload_whose_answer_was_lost_with_the_process_is_known_again() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    let complete = When::operation(Operation::CompleteMultipartUpload).times(1);
    server.faults().add(complete, Fault::StallAnswer(Hold::Until(gate.clone())));
    sandbox.write_large("model.bin", 1, 3 * PART_BYTES);
    let watch = sandbox.watch(server.place(), "job").spawn();
    gate.arrived_blocking(1);
    watch.kill();
    server.clear_requests();
    sandbox.done();
    sandbox.watch(server.place(), "job").run().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    assert_eq!(server.count(Operation::UploadPart).requests, 0, "parts were sent again");
    assert!(server.uploads().is_empty(), "an upload is left open");
}

/// The journal makes a restart cheap: nothing already uploaded is sent again. Without it, the bucket's digests say the same.
#[test]
fn what_is_up_is_not_sent_again_after_a_kill() {
    for keep_control in [true, false] {
        let (sandbox, server) = (Sandbox::new(), DevS3::start());
        for n in 0..50 {
            sandbox.write(&format!("files/{n}"), &content(n, 10_000));
        }
        sandbox.write_large("model.bin", 1, 2 * PART_BYTES);
        let cli = sandbox.watch(server.place(), "job").args(["--pod-uid", "pod"]);
        let mut watch = cli.clone().spawn();
        watch.wait_for_log_times("uploaded path=", 51);
        watch.kill();
        if !keep_control {
            std::fs::remove_dir_all(sandbox.control()).unwrap();
        }
        server.clear_requests();
        sandbox.write("files/new", b"new");
        sandbox.done();
        cli.run().expect_code(0);
        let sent: Vec<_> =
            server.writes().into_iter().map(|w| w.key).filter(|key| !key.contains("/.chiefsync/")).collect();
        assert_eq!(sent, ["job/files/new", "job/DONE"], "control directory kept: {keep_control}");
        assert_same_tree(&sandbox.tree(), &server.tree("job"));
    }
}

/// Own orphaned uploads are aborted: the file is gone when chiefsync comes back, or is another one. (Without the journal a
/// file that is gone can't be asked for: MinIO lists uploads by their full name only.)
#[test]
fn an_orphaned_upload_is_thrown_away() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    let complete = When::operation(Operation::CompleteMultipartUpload);
    let stall = server.faults().add(complete, Fault::Stall(Hold::Until(gate.clone())));
    sandbox.write_large("rotated.bin", 1, 2 * PART_BYTES);
    sandbox.write_large("shrunk.bin", 2, 2 * PART_BYTES);
    sandbox.write_large("changed.bin", 3, 2 * PART_BYTES);
    let watch = sandbox.watch(server.place(), "job").spawn();
    gate.arrived_blocking(3);
    watch.kill();
    stall.remove();
    gate.open();
    assert_eq!(server.uploads().len(), 3);

    sandbox.remove("rotated.bin");
    sandbox.write("shrunk.bin", &content(4, 1000));
    sandbox.overwrite("changed.bin", b"other bytes");
    sandbox.done();
    sandbox.watch(server.place(), "job").run().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    let open: Vec<_> = server.uploads().into_iter().map(|upload| upload.key).collect();
    assert!(open.is_empty(), "still open: {open:?}");
}

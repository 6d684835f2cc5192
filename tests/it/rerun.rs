//! A prefix that saw a run before, a volume that was used before, and the neighbours of both.

use dev_s3::{Fault, Gate, Hold, Operation, When};

use crate::harness::{DevS3, Sandbox, assert_same_tree, content};

/// A DONE that is there at the start is honoured: the trainer may have been faster.
#[test]
fn done_that_is_there_at_the_start_ends_the_run() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    for n in 0..20 {
        sandbox.write(&format!("files/{n}"), &content(n, 1000));
    }
    sandbox.done();
    sandbox.watch(server.place(), "job").run().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    assert!(server.written_at("job/.chiefsync/manifest.json") < server.written_at("job/DONE"));
}

/// A sidecar whose container is restarted after the end proves again, and sends nothing.
#[test]
fn a_restart_after_the_end_proves_again() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("file", b"file");
    sandbox.done();
    let cli = sandbox.watch(server.place(), "job").args(["--pod-uid", "pod"]);
    cli.clone().run().expect_code(0);
    server.clear_requests();
    cli.run().expect_code(0);
    assert!(!server.writes().iter().any(|w| w.key == "job/file"), "the file was sent again");
    assert!(server.keys_below("job").contains(&"DONE".to_owned()));
    assert!(!server.keys_below("job").iter().any(|key| key.starts_with(".chiefsync/runs/")));
}

/// Stale: the last manifest in the bucket, written by another pod, already ended on that very marker. Said, and followed
/// past.
#[test]
fn a_stale_done_is_followed_past() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("file", b"of the first run");
    sandbox.done();
    sandbox.watch(server.place(), "job").args(["--pod-uid", "first"]).run().expect_code(0);

    let mut watch = sandbox.watch(server.place(), "job").args(["--pod-uid", "second"]).spawn();
    watch.wait_for_log("stale end marker");
    sandbox.write("file", b"of the second run");
    watch.wait_for_log("uploaded path=file");
    assert!(!watch.has_ended());
    sandbox.remove("DONE");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// The same when the sidecar is killed after it has archived the verdict that tells so.
#[test]
fn a_stale_done_is_followed_past_after_a_restart_too() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("file", b"of the first run");
    sandbox.done();
    sandbox.watch(server.place(), "job").args(["--pod-uid", "first"]).run().expect_code(0);
    let cli = sandbox.watch(server.place(), "job").args(["--pod-uid", "second"]);
    for _ in 0..2 {
        let mut watch = cli.clone().spawn();
        watch.wait_for_log("stale end marker");
        watch.kill();
    }
    // Nor does it help to die in the middle of archiving.
    let mut watch = cli.spawn();
    watch.wait_for_log("stale end marker");
    sandbox.remove("DONE");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// Archiving that a crash interrupts is finished by the next start, before anything else.
#[test]
fn archiving_that_was_interrupted_is_finished_by_the_next_start() {
    for (operation, key) in [
        (Operation::CopyObject, "runs/1/DONE"),
        (Operation::DeleteObject, "job/DONE"),
        (Operation::CopyObject, "runs/1/manifest.json"),
        (Operation::DeleteObject, "job/.chiefsync/manifest.json"),
    ] {
        let (sandbox, server) = (Sandbox::new(), DevS3::start());
        sandbox.write("file", b"of the first run");
        sandbox.done();
        sandbox.watch(server.place(), "job").args(["--pod-uid", "first"]).run().expect_code(0);
        let gate = Gate::new();
        let stall = server.faults().add(When::operation(operation).key(key), Fault::Stall(Hold::Until(gate.clone())));
        let cli = sandbox.watch(server.place(), "job").args(["--pod-uid", "second"]);
        let watch = cli.clone().spawn();
        gate.arrived_blocking(1);
        watch.kill();
        stall.remove();
        gate.open();
        let mut watch = cli.spawn();
        watch.wait_for_log("stale end marker");
        let keys = server.keys_below("job");
        assert!(!keys.contains(&"DONE".to_owned()), "{key}: {keys:?}");
        for archived in [".chiefsync/runs/1/DONE", ".chiefsync/runs/1/manifest.json"] {
            assert!(keys.contains(&archived.to_owned()), "{key}: {keys:?}");
        }
        sandbox.remove("DONE");
        sandbox.done();
        watch.wait().expect_code(0);
    }
}

/// Stale: its `pod_uid` is another pod's.
#[test]
fn a_done_of_another_pod_is_followed_past() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("DONE", br#"{"schema": 1, "pod_uid": "first", "exit_code": 0}"#);
    sandbox.write("file", b"file");
    let mut watch = sandbox.watch(server.place(), "job").args(["--pod-uid", "second"]).spawn();
    watch.wait_for_log("stale end marker");
    watch.wait_for_log("uploaded path=file");
    sandbox.write("DONE.new", br#"{"schema": 1, "pod_uid": "second", "exit_code": 0}"#);
    sandbox.rename("DONE.new", "DONE");
    watch.wait().expect_code(0);
    assert_eq!(server.content("job", "file").as_deref(), Some(&b"file"[..]));
    let done = server.content("job", "DONE").expect("DONE in the bucket");
    assert!(String::from_utf8(done).unwrap().contains("second"));
}

/// A new run on a prefix moves the old manifest and marker to `runs/<n>/` before it changes anything: nobody may take
/// yesterday's DONE for today's tree.
#[test]
fn a_rerun_archives_the_old_verdict_before_it_changes_anything() {
    let (first, second, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    first.write("model", b"of the first run");
    first.done();
    first.watch(server.place(), "job").args(["--pod-uid", "first"]).run().expect_code(0);
    let manifest = server.content("job", ".chiefsync/manifest.json").expect("a manifest");

    // The first object of the new run is stopped at the server's door: that is how the bucket looks before it changes.
    let gate = Gate::new();
    let data = When::operation(Operation::PutObject).key_where(|key| !key.contains(".chiefsync/"));
    server.faults().add(data, Fault::Stall(Hold::Until(gate.clone())));
    second.write("model", b"of the second run");
    let watch = second.watch(server.place(), "job").args(["--pod-uid", "second"]).spawn();
    gate.arrived_blocking(1);
    let keys = server.keys_below("job");
    assert!(server.content("job", ".chiefsync/runs/1/manifest.json") == Some(manifest), "the old manifest is kept");
    assert!(keys.contains(&".chiefsync/runs/1/DONE".to_owned()), "{keys:?}");
    assert!(!keys.contains(&"DONE".to_owned()) && !keys.contains(&".chiefsync/manifest.json".to_owned()), "{keys:?}");
    assert_eq!(server.content("job", "model").as_deref(), Some(&b"of the first run"[..]));

    gate.open();
    second.done();
    watch.wait().expect_code(0);
    assert_same_tree(&second.tree(), &server.tree("job"));
    let head: serde_json::Value =
        serde_json::from_slice(&server.content("job", ".chiefsync/head.json").unwrap()).unwrap();
    assert_eq!((head["run"].as_u64(), head["ended"]["outcome"].as_str()), (Some(2), Some("succeeded")));
}

/// A prefix always ends in `/` inside: `job` and `job-2` are strangers. `--delete` removes remote objects that aren't local:
/// only under the prefix, only when asked, never control objects.
#[test]
fn delete_stays_below_its_prefix_and_spares_what_is_not_output() {
    let (job, job2, server) = (Sandbox::new(), Sandbox::new(), DevS3::start());
    for sandbox in [&job, &job2] {
        sandbox.write("kept", b"kept");
        sandbox.write("dir/removed", b"removed");
        sandbox.done();
    }
    job.watch(server.place(), "job").run().expect_code(0);
    job2.watch(server.place(), "job-2").run().expect_code(0);
    for foreign in ["job.txt", "jobs/x", "job-2/stranger", "jo", "job/.chiefsync/nodes/1/head.json", "job/stranger"] {
        server.put_object_raw(&server.place().bucket, foreign, b"foreign").unwrap();
    }
    let before = server.keys(&server.place().bucket);
    job.remove("dir");

    // Not asked: nothing goes.
    job.sync(server.place(), "job").run().expect_code(0);
    assert!(server.keys_below("job").contains(&"dir/removed".to_owned()));
    // Only told: nothing goes either.
    let told = job.sync(server.place(), "job").args(["--delete", "--dry-run"]).run().expect_code(0);
    let mut deletions: Vec<_> = told.stdout.lines().filter(|line| line.starts_with("delete")).collect();
    deletions.sort_unstable();
    assert_eq!(deletions.len(), 2, "{deletions:?}");
    assert!(deletions[0].contains("dir/removed") && deletions[1].contains("stranger"), "{deletions:?}");
    assert!(server.keys_below("job").contains(&"dir/removed".to_owned()));

    job.sync(server.place(), "job").arg("--delete").run().expect_code(0);
    let after = server.keys(&server.place().bucket);
    let gone: Vec<_> = before.iter().filter(|key| !after.contains(key)).collect();
    assert_eq!(gone, ["job/dir/removed", "job/stranger"]);
    assert_same_tree(&job.tree(), &server.tree("job"));
}

/// What is excluded is none of chiefsync's business, here and there: `--delete` does not remove it.
#[test]
fn delete_leaves_alone_what_is_excluded_on_disk() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("kept", b"kept");
    sandbox.write("logs/a.log", b"log");
    sandbox.sync(server.place(), "job").run().expect_code(0);
    let delete = sandbox.sync(server.place(), "job").args(["--delete", "--exclude", "*.log"]);
    let told = delete.clone().arg("--dry-run").run().expect_code(0);
    assert!(!told.stdout.contains("a.log"), "{}", told.stdout);
    delete.run().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// A bare file is enough for an end marker, whatever it holds; the object is the file as it is.
#[test]
fn a_marker_that_is_too_large_for_a_document_arrives_whole() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"a");
    let large = content(1, 200_000);
    sandbox.write("DONE", &large);
    sandbox.watch(server.place(), "job").spawn().wait().expect_code(0);
    assert_eq!(server.content("job", "DONE"), Some(large));
}

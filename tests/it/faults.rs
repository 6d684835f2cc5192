//! Everything that goes wrong between here and the bucket, on purpose.

use dev_s3::{Fault, Hold, Operation, When};
use std::time::Duration;

use crate::harness::{Cli, DevS3, Running, Sandbox, assert_same_tree, content, eventually};

const FILES: u64 = 30;

/// A tree with small files, a large one and a link, watched with the numbers at hand.
fn watched() -> (Sandbox, DevS3, Cli) {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    for n in 0..FILES - 2 {
        sandbox.write(&format!("small/{n}"), &content(n, 3000));
    }
    sandbox.write_large("model.bin", 1, 20 << 20);
    sandbox.link("model.bin", "latest.bin");
    let cli = sandbox.watch(server.place(), "job").args(["--metrics-addr", "127.0.0.1:0"]);
    (sandbox, server, cli)
}

/// Everything arrives byte-equal, exit 0; returns how many requests were tried again.
#[track_caller]
fn all_arrives(sandbox: &Sandbox, server: &DevS3, mut watch: Running) -> f64 {
    eventually("every file is up", || watch.metric("chiefsync_uploaded_files_total") >= FILES as f64);
    let retries = watch.metric("chiefsync_retries_total");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    assert!(server.content("job", "DONE").is_some());
    retries
}

/// Whatever a rule strikes is tried again until it is well, and counted.
#[track_caller]
fn arrives_in_spite_of(when: When, fault: Fault) {
    let (sandbox, server, cli) = watched();
    let rule = server.faults().add(when, fault.clone());
    let retries = all_arrives(&sandbox, &server, cli.spawn());
    assert!(rule.hits() > 0, "{fault:?} struck nothing");
    assert!(retries > 0.0, "{fault:?} struck {} times, and no retry was counted", rule.hits());
}

fn writes() -> When {
    When::operation(Operation::PutObject)
        .or_operation(Operation::UploadPart)
        .or_operation(Operation::CompleteMultipartUpload)
        .or_operation(Operation::CreateMultipartUpload)
        .or_operation(Operation::CopyObject)
}

/// A store that is busy or broken for a while is waited for.
#[test]
fn a_store_that_asks_to_slow_down_gets_everything() {
    arrives_in_spite_of(When::any().chance(0.2, 1), Fault::SlowDown);
}

#[test]
fn internal_errors_are_tried_again() {
    arrives_in_spite_of(When::any().chance(0.2, 2), Fault::InternalError);
}

#[test]
fn a_connection_that_is_reset_in_the_middle_of_a_body_is_tried_again() {
    arrives_in_spite_of(writes().chance(0.3, 3), Fault::ResetRequest { after_bytes: 1000 });
}

/// An answer that got lost is settled by looking, never by assuming: the write counts once.
#[test]
fn lost_answers_to_writes_are_settled_by_looking() {
    arrives_in_spite_of(writes().chance(0.3, 4), Fault::LoseAnswer);
}

#[test]
fn the_lost_answer_to_a_completed_upload_costs_no_second_upload() {
    let (sandbox, server, cli) = watched();
    server.faults().add(When::operation(Operation::CompleteMultipartUpload).times(1), Fault::LoseAnswer);
    assert!(all_arrives(&sandbox, &server, cli.spawn()) >= 1.0);
    assert_eq!(server.count(Operation::UploadPart).requests, 3);
    assert!(server.uploads().is_empty(), "an upload is left open");
}

/// The server refuses bytes that don't match their digest; they are sent again, whatever they belong to.
#[test]
fn bytes_that_change_on_their_way_are_refused_and_sent_again() {
    for control in [false, true] {
        let (sandbox, server, cli) = watched();
        let bodies = When::operation(Operation::PutObject).or_operation(Operation::UploadPart);
        // The probe's forged object is refused in any case.
        let keys = move |key: &str| key.contains("/.chiefsync/") == control && !key.ends_with("-digest");
        let rule = server.faults().add(bodies.key_where(keys).chance(0.3, 5).times(3), Fault::FlipReceived { at: 50 });
        all_arrives(&sandbox, &server, cli.spawn());
        assert!(rule.hits() > 0, "of control objects: {control}");
    }
}

/// A completion may fail after it was answered with 200: the error is in the body.
#[test]
fn a_completion_that_fails_late_is_tried_again() {
    let when = When::operation(Operation::CompleteMultipartUpload).times(2);
    arrives_in_spite_of(when, Fault::Answer { status: 200, code: "InternalError" });
}

/// An upload that a lifecycle rule aborted under our hands is begun again.
#[test]
fn an_upload_that_disappears_is_begun_again() {
    let (sandbox, server, cli) = watched();
    let gone = When::operation(Operation::UploadPart).nth(2);
    server.faults().add(gone, Fault::Answer { status: 404, code: "NoSuchUpload" });
    all_arrives(&sandbox, &server, cli.spawn());
}

/// Expired credentials and clock skew: retried with fresh ones.
#[test]
fn an_expired_token_is_tried_again() {
    arrives_in_spite_of(writes().skip(3).times(5), Fault::ExpiredToken);
}

#[test]
fn a_request_that_is_too_late_by_the_servers_clock_is_tried_again() {
    arrives_in_spite_of(writes().skip(3).times(5), Fault::RequestTimeTooSkewed);
}

#[test]
fn a_server_whose_clock_is_an_hour_off_gets_everything() {
    let (sandbox, server, cli) = watched();
    server.faults().set_clock_skew(3600);
    all_arrives(&sandbox, &server, cli.spawn());
}

#[test]
fn a_clock_that_jumps_in_the_middle_is_followed() {
    let (sandbox, server, cli) = watched();
    let mut watch = cli.spawn();
    watch.wait_for_log("uploaded path=small/1");
    server.faults().set_clock_skew(-3600);
    sandbox.write("small/later", b"later");
    watch.wait_for_log("uploaded path=small/later");
    all_arrives(&sandbox, &server, watch);
}

/// AccessDenied stops with 5, unless it had worked before: then it is like an outage.
#[test]
fn a_permission_that_is_lost_for_a_while_is_waited_for() {
    let (sandbox, server, cli) = watched();
    let mut watch = cli.spawn();
    eventually("every file is up", || watch.metric("chiefsync_uploaded_files_total") >= FILES as f64);
    let rule = server.faults().add(writes().times(5), Fault::AccessDenied);
    sandbox.write("small/later", b"later");
    watch.wait_for_log("uploaded path=small/later");
    all_arrives(&sandbox, &server, watch);
    assert!(rule.hits() > 0);
}

/// Outage: try without end while training runs.
#[test]
fn an_outage_in_the_middle_costs_nothing_but_time() {
    let (sandbox, server, cli) = watched();
    // Slow enough that the outage meets uploads under way.
    server.faults().add(writes(), Fault::StallAnswer(Hold::For(Duration::from_millis(30))));
    let mut watch = cli.spawn();
    watch.wait_for_log("uploaded path=small/");
    server.faults().set_outage(true);
    let before = watch.metric("chiefsync_retries_total");
    eventually("it tries again and again", || watch.metric("chiefsync_retries_total") >= before + 20.0);
    // The trainer goes on meanwhile.
    sandbox.write("small/0", b"changed during the outage");
    server.faults().set_outage(false);
    assert!(all_arrives(&sandbox, &server, watch) >= 20.0);
}

/// After DONE an outage is waited for, too.
#[test]
fn an_outage_after_done_is_waited_for() {
    let (sandbox, server, cli) = watched();
    let mut watch = cli.spawn();
    watch.wait_for_log("uploaded path=small/");
    server.faults().set_outage(true);
    sandbox.done();
    watch.wait_for_log("the end marker is there");
    let before = watch.metric("chiefsync_retries_total");
    eventually("it tries again and again", || watch.metric("chiefsync_retries_total") >= before + 5.0);
    server.faults().set_outage(false);
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

/// Somebody else changes or removes an object while the prefix is ours: the proof finds it, and it is written again.
#[test]
fn objects_that_somebody_else_changed_are_found_by_the_proof_and_mended() {
    let (sandbox, server, cli) = watched();
    let mut watch = cli.spawn();
    eventually("every file is up", || watch.metric("chiefsync_uploaded_files_total") >= FILES as f64);
    let bucket = &server.place().bucket;
    server.put_object_raw(bucket, "job/small/3", b"somebody else's").unwrap();
    server.delete(bucket, "job/small/4").unwrap();
    server.delete(bucket, "job/model.bin").unwrap();
    sandbox.done();
    watch.wait().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
}

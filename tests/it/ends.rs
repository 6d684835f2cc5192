//! Ends: how a run ends decides the exit code, the manifest and the marker in the bucket.

use std::time::{Duration, Instant};

use dev_s3::{Fault, Gate, Hold, Operation, When};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{DevS3, Sandbox, eventually};

/// The manifest under the prefix.
fn manifest(s3: &DevS3, prefix: &str) -> Value {
    let bytes = s3.content(prefix, ".chiefsync/manifest.json").expect("a manifest");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// DONE or FAILED in the bucket.
fn markers(s3: &DevS3, prefix: &str) -> Vec<String> {
    s3.keys_below(prefix).into_iter().filter(|key| key == "DONE" || key == "FAILED").collect()
}

/// The real thing, which changes the times of a file that is there.
fn touch(sandbox: &Sandbox, path: &str) {
    assert!(std::process::Command::new("touch").arg(sandbox.path(path)).status().expect("touch").success());
}

#[test]
fn failed_is_7_at_once_where_nobody_restarts_the_trainer() {
    for policy in ["Never", "ExitCode"] {
        let (sandbox, s3) = (Sandbox::new(), DevS3::start());
        sandbox.write("ckpt/a", b"half");
        let started = Instant::now();
        let mut watch = sandbox.watch(s3.place(), "job").args(["--restart-policy", policy]).json_log().spawn();
        watch.wait_for_log("uploaded");
        sandbox.write("log", b"last words");
        sandbox.write("FAILED", b"{\"reason\": \"out of memory\"}");
        let ended = watch.wait().expect_code(7);
        assert!(started.elapsed() < Duration::from_secs(30), "without a wait for a new attempt");
        assert_eq!(ended.ending()["ending"], "trainer failed");
        assert_eq!(s3.tree("job"), sandbox.tree());
        assert_eq!(markers(&s3, "job"), ["FAILED"]);
        assert_eq!(manifest(&s3, "job")["outcome"], "failed");
        assert_eq!(manifest(&s3, "job")["marker"]["document"]["reason"], "out of memory");
    }
}

#[test]
fn a_new_attempt_after_failed_ends_in_0_and_the_failure_is_kept_as_an_earlier_run() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"first attempt");
    sandbox.write("FAILED", b"boom");
    let mut watch = sandbox.watch(s3.place(), "job").args(["--restart-policy", "OnFailure"]).spawn();
    watch.wait_for_log("waiting for a new attempt");
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
    sandbox.remove("FAILED");
    sandbox.write("b", b"second attempt");
    sandbox.done();
    watch.wait().expect_code(0).expect_said("a new attempt began");
    assert_eq!(markers(&s3, "job"), ["DONE"]);
    assert_eq!(s3.content("job", ".chiefsync/runs/1/FAILED").expect("the old verdict"), b"boom");
    let earlier: Value =
        serde_json::from_slice(&s3.content("job", ".chiefsync/runs/1/manifest.json").unwrap()).unwrap();
    assert_eq!((&earlier["outcome"], &manifest(&s3, "job")["outcome"]), (&"failed".into(), &"succeeded".into()));
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn a_done_that_is_touched_beside_failed_ends_the_new_attempt() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.touch("FAILED");
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("waiting for a new attempt");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(markers(&s3, "job"), ["DONE"]);
}

#[test]
fn failed_is_7_when_no_attempt_follows_within_the_wait() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.touch("FAILED");
    sandbox.watch(s3.place(), "job").args(["--restart-wait", "300ms"]).run().expect_code(7);
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
}

#[test]
fn last_words_after_failed_go_up_and_are_no_new_attempt() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.touch("FAILED");
    let mut watch = sandbox.watch(s3.place(), "job").args(["--restart-wait", "1500ms"]).spawn();
    watch.wait_for_log("waiting for a new attempt");
    sandbox.write("stderr.log", b"core dumped");
    watch.wait().expect_code(7).expect_said("files change after FAILED");
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn failed_is_7_also_when_something_is_missing() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.link("/etc/hostname", "outward");
    sandbox.touch("FAILED");
    let ended = sandbox.watch(s3.place(), "job").args(["--restart-policy", "Never"]).run().expect_code(7);
    ended.expect_said("outward: the link's target is outside SRC");
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
}

#[test]
fn a_failure_while_done_is_drained_is_the_last_word() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    s3.faults()
        .add(When::operation(Operation::PutObject).key("job/big").times(1), Fault::Stall(Hold::Until(gate.clone())));
    sandbox.write("big", b"content");
    sandbox.done();
    let mut watch = sandbox.watch(s3.place(), "job").args(["--restart-policy", "Never"]).spawn();
    eventually("the upload hangs", || gate.arrivals() > 0);
    watch.wait_for_log("the end marker is there");
    sandbox.touch("FAILED");
    gate.open();
    watch.wait().expect_code(7);
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
}

#[test]
fn a_done_that_goes_away_while_it_is_drained_ends_nothing() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let gate = Gate::new();
    s3.faults()
        .add(When::operation(Operation::PutObject).key("job/big").times(1), Fault::Stall(Hold::Until(gate.clone())));
    sandbox.write("big", b"content");
    sandbox.done();
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    eventually("the upload hangs", || gate.arrivals() > 0);
    watch.wait_for_log("the end marker is there");
    sandbox.remove("DONE");
    gate.open();
    watch.wait_for_log("following on");
    assert_eq!(markers(&s3, "job"), [""; 0]);
    sandbox.write("more", b"of it");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn a_signal_without_done_is_3_and_what_was_there_is_up() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    let mut watch = sandbox.watch(s3.place(), "job").args(["--grace", "2s"]).json_log().spawn();
    watch.wait_for_log("uploaded");
    // Under that name it would wait for DONE.
    sandbox.write("half.tmp", b"not finished");
    watch.signal(Signal::TERM);
    let ended = watch.wait().expect_code(3);
    assert_eq!(ended.ending()["ending"], "incomplete");
    assert_eq!(s3.tree("job"), sandbox.tree());
    assert_eq!(manifest(&s3, "job")["outcome"], "interrupted");
    assert_eq!(markers(&s3, "job"), [""; 0], "nobody may take this for the end of the run");
}

#[test]
fn done_within_the_grace_is_0() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("uploaded");
    watch.signal(Signal::TERM);
    watch.wait_for_log("signal heard");
    sandbox.write("b", b"the last checkpoint");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
    assert_eq!(markers(&s3, "job"), ["DONE"]);
}

#[test]
fn a_second_signal_ends_at_once() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let (sandbox, s3) = (Sandbox::new(), DevS3::start());
        let mut watch = sandbox.watch(s3.place(), "job").spawn();
        watch.wait_for_log("the prefix is ours");
        watch.signal(Signal::TERM);
        watch.wait_for_log("signal heard");
        watch.signal(signal);
        watch.wait().expect_code(code);
    }
}

#[test]
fn a_signal_while_done_is_drained_leaves_the_grace_and_not_the_deadline() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.faults().add(When::operation(Operation::PutObject).key("job/a"), Fault::SlowDown);
    sandbox.done();
    let mut watch = sandbox.watch(s3.place(), "job").args(["--grace", "2s"]).spawn();
    watch.wait_for_log("trying again");
    watch.signal(Signal::TERM);
    let ended = watch.wait().expect_code(3);
    ended.expect_said("  a: PutObject s3://bucket/job/a: SlowDown").expect_said("\nhint: ");
    assert_eq!(manifest(&s3, "job")["outcome"], "interrupted");
    assert_eq!(markers(&s3, "job"), [""; 0]);
}

#[test]
fn a_signal_before_the_destination_was_reached_ends_within_the_grace() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.faults().set_outage(true);
    let mut watch = sandbox.watch(s3.place(), "job").args(["--grace", "2s"]).spawn();
    watch.wait_for_log("trying again");
    watch.signal(Signal::TERM);
    watch.wait().expect_code(3);

    // Back within the grace: what is there goes up after all.
    let mut watch = sandbox.watch(s3.place(), "job").args(["--grace", "4s"]).spawn();
    watch.wait_for_log("trying again");
    watch.signal(Signal::TERM);
    watch.wait_for_log("signal heard");
    s3.faults().set_outage(false);
    watch.wait().expect_code(3);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn the_deadline_after_done_is_3_and_names_what_is_missing() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    for n in 0..300 {
        sandbox.write(&format!("checkpoints/step-{n:05}/model.safetensors"), b"weights");
    }
    let message = sandbox.outside("termination");
    let mut watch = sandbox
        .watch(s3.place(), "job")
        .args(["--deadline", "1s", "--termination-message"])
        .arg(&message)
        .json_log()
        .spawn();
    watch.wait_for_log_times("uploaded", 300);
    s3.faults().set_outage(true);
    sandbox.write("late", b"content");
    sandbox.done();
    let ended = watch.wait().expect_code(3);
    let ending = ended.ending();
    let details = ending["details"].as_array().expect("a list");
    assert!(details.iter().any(|line| line.as_str().unwrap().starts_with("late: ")), "{details:?}");
    let text = std::fs::read_to_string(message).expect("a termination message");
    assert!(text.starts_with("exit 3 (incomplete): "), "{text}");
    assert!(text.len() <= 4096 && text.lines().any(|line| line.starts_with("hint: ")), "{text}");
    assert_eq!(markers(&s3, "job"), [""; 0]);
}

#[test]
fn watch_without_done_goes_on_and_never_ends_in_0() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    let mut watch = sandbox.watch(s3.place(), "job").args(["--grace", "1s"]).spawn();
    watch.wait_for_log("uploaded");
    sandbox.write("b", b"content");
    watch.wait_for_log_times("uploaded", 2);
    assert!(!watch.has_ended());
    watch.signal(Signal::INT);
    watch.wait().expect_code(3);
}

#[test]
fn a_trainer_that_changes_nothing_until_the_idle_deadline_is_lost() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    let ended = sandbox.watch(s3.place(), "job").args(["--idle-deadline", "1s"]).json_log().run().expect_code(8);
    assert_eq!(ended.ending()["ending"], "trainer lost");
    assert_eq!(manifest(&s3, "job")["outcome"], "lost");
    assert_eq!(s3.tree("job"), sandbox.tree());
    assert_eq!(markers(&s3, "job"), [""; 0]);
}

#[test]
fn a_file_under_a_temporary_name_is_a_sign_of_life() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let mut watch = sandbox.watch(s3.place(), "job").args(["--idle-deadline", "2s"]).spawn();
    watch.wait_for_log("the prefix is ours");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        sandbox.append("model.tmp", b"more and more");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(!watch.has_ended());
    sandbox.rename("model.tmp", "model");
    watch.wait().expect_code(8);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn with_stay_the_sidecar_idles_after_the_proof_until_it_is_told_to_stop() {
    for (marker, code) in [("DONE", 0), ("FAILED", 7)] {
        let (sandbox, s3) = (Sandbox::new(), DevS3::start());
        sandbox.write("a", b"content");
        sandbox.touch(marker);
        let mut watch = sandbox.watch(s3.place(), "job").args(["--stay", "--restart-policy", "Never"]).spawn();
        watch.wait_for_log("staying until SIGTERM");
        assert_eq!(markers(&s3, "job"), [marker]);
        assert!(!watch.has_ended());
        watch.signal(Signal::TERM);
        watch.wait().expect_code(code);
    }
}

#[test]
fn the_last_line_of_a_json_log_is_the_ending() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.done();
    let ending = sandbox.watch(s3.place(), "job").json_log().run().expect_code(0).ending();
    assert_eq!((&ending["code"], &ending["ending"], &ending["stage"]), (&0.into(), &"proven".into(), &"exit".into()));
    assert!(ending["message"].as_str().unwrap().starts_with("succeeded: 1 files, 7 B in s3://bucket/job/"), "{ending}");
}

#[test]
fn the_termination_message_of_a_success_says_so() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.done();
    let message = sandbox.outside("termination");
    sandbox.watch(s3.place(), "job").arg("--termination-message").arg(&message).run().expect_code(0);
    let text = std::fs::read_to_string(message).unwrap();
    assert!(text.starts_with("exit 0 (proven): succeeded: 0 files"), "{text}");
}

#[test]
fn done_counts_where_everything_else_is_excluded() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("keep.ckpt", b"content");
    sandbox.write("drop.log", b"content");
    sandbox.done();
    sandbox.watch(s3.place(), "job").args(["--exclude", "*", "--include", "*.ckpt"]).run().expect_code(0);
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["keep.ckpt"]);
    assert_eq!(markers(&s3, "job"), ["DONE"]);
}

#[test]
fn a_link_that_is_called_done_ends_nothing_and_never_shows_in_the_bucket() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.link("a", "DONE");
    let ended = sandbox.sync(s3.place(), "job").run().expect_code(3);
    ended.expect_said("DONE: a link is no end marker");
    assert_eq!(markers(&s3, "job"), [""; 0]);
}

#[test]
fn yesterdays_done_of_another_pod_is_followed_past() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"yesterday");
    sandbox.done();
    let in_pod = |uid: &str| sandbox.watch(s3.place(), "job").args(["--pod-uid", uid]);
    in_pod("one").run().expect_code(0);
    let mut watch = in_pod("two").spawn();
    watch.wait_for_log("stale end marker");
    sandbox.write("b", b"today");
    watch.wait_for_log("uploaded");
    assert!(!watch.has_ended());
    assert_eq!(markers(&s3, "job"), [""; 0], "yesterday's verdict is archived");
    touch(&sandbox, "DONE");
    watch.wait().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn an_archive_that_a_crash_cut_short_is_finished_before_anything_changes() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"yesterday");
    sandbox.done();
    sandbox.watch(s3.place(), "job").run().expect_code(0);
    sandbox.remove("DONE");
    sandbox.write("a", b"today");
    // The head says that the verdict is being moved, and then nothing more arrives.
    s3.faults().add(When::operation(Operation::CopyObject).key("runs/1"), Fault::SlowDown);
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("trying again");
    watch.kill();
    s3.faults().clear();
    assert_eq!(markers(&s3, "job"), ["DONE"]);
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("uploaded");
    assert_eq!(markers(&s3, "job"), [""; 0]);
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(s3.keys_below("job/.chiefsync/runs/1").len(), 2);
}

#[test]
fn sync_takes_the_marker_that_it_finds_for_the_end_of_the_run() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_eq!((manifest(&s3, "job")["outcome"].clone(), markers(&s3, "job").len()), ("synced".into(), 0));
    sandbox.done();
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_eq!(manifest(&s3, "job")["outcome"], "succeeded");
    assert_eq!(markers(&s3, "job"), ["DONE"]);
    // The same tree with another verdict is not the same.
    sandbox.remove("DONE");
    sandbox.touch("FAILED");
    sandbox.sync(s3.place(), "job").run().expect_code(7);
    assert_eq!(markers(&s3, "job"), ["FAILED"]);
}

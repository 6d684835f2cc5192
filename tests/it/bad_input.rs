//! Bad input: a clear error or a faithful upload, the right exit code, a hint, and nothing lost.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use dev_s3::{Operation, Options};

use crate::harness::{Cli, DevS3, Finished, Place, Sandbox};

/// `sync` with a destination as it is typed.
fn sync_to(sandbox: &Sandbox, place: &Place, destination: &str) -> Cli {
    sandbox.cli(place).arg("sync").arg(sandbox.src()).arg(destination).arg("--control").arg(sandbox.control())
}

/// What a person sees at the end: the error, the details, the hint.
fn last_words(ended: &Finished) -> String {
    let lines: Vec<_> = ended.stderr.lines().skip_while(|line| !line.starts_with("error: ")).collect();
    lines.join("\n")
}

/// Fails unless there is one line of error with these words and one hint with those.
#[track_caller]
fn expect(ended: Finished, code: i32, error: &str, hint: &str) -> Finished {
    let ended = ended.expect_code(code);
    let words = last_words(&ended);
    let count = |start: &str| words.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((count("error: "), count("hint: ")), (1, 1), "{words}\n--\n{}", ended.stderr);
    assert!(words.lines().next().is_some_and(|line| line.contains(error)), "{error:?} is not in\n{words}");
    assert!(words.lines().last().is_some_and(|line| line.contains(hint)), "{hint:?} is not in\n{words}");
    ended
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode that can be set");
}

#[test]
fn a_source_that_is_no_directory_is_a_usage_error() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("file", b"content");
    for (path, error) in [("file", "it is not a directory"), ("nowhere", "No such file")] {
        let cli = sandbox.cli(s3.place()).arg("sync").arg(sandbox.path(path)).arg("s3://bucket/job");
        expect(cli.run(), 2, error, "the directory that the trainer writes into");
    }
    assert!(s3.requests().is_empty());
}

#[test]
fn a_destination_that_can_not_be_meant_is_a_usage_error() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    for (destination, error, hint) in [
        ("bucket/job", "DEST \"bucket/job\" has no scheme", "s3://bucket/job"),
        ("http://bucket/job", "DEST \"http://bucket/job\"", "s3://"),
        ("s3://", "DEST \"s3://\"", "s3://"),
        ("s3://Bucket/job", "Bucket", "lower-case"),
        ("s3://bucket/../job", "DEST", ""),
        ("s3://bucket", "root", "--allow-root"),
        ("s3://bucket/", "root", "--allow-root"),
        ("s3://bucket/{run}/x", "{run}", "CHIEFSYNC_RUN"),
        ("s3://bucket/{nonsense}/x", "{nonsense}", ""),
    ] {
        expect(sync_to(&sandbox, s3.place(), destination).run(), 2, error, hint);
    }
    assert!(s3.requests().is_empty());
}

#[test]
fn a_control_directory_within_the_source_is_a_usage_error() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let cli = |control: &str| {
        sandbox
            .cli(s3.place())
            .arg("sync")
            .arg(sandbox.src())
            .arg("s3://bucket/job")
            .arg("--control")
            .arg(sandbox.path(control))
    };
    expect(cli("state").run(), 2, "lies within SRC", ".chiefsync");
    cli(".chiefsync").run().expect_code(0);
}

#[test]
fn an_unreadable_file_is_3_and_named_and_the_others_are_up() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.write("locked/b", b"content");
    sandbox.write("secret", b"content");
    sandbox.link("secret", "link");
    set_mode(&sandbox.path("secret"), 0);
    set_mode(&sandbox.path("locked"), 0);
    let ended = sandbox.sync(s3.place(), "job").without_powers().run();
    let ended = expect(ended, 3, "3 files are missing", "run it again");
    for line in ["  secret: Permission denied", "  locked: Permission denied", "  link: it is a link to secret"] {
        assert!(ended.stderr.contains(line), "{line}\n{}", ended.stderr);
    }
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["a"]);
    set_mode(&sandbox.path("secret"), 0o600);
    set_mode(&sandbox.path("locked"), 0o700);
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn watch_with_an_unreadable_file_ends_in_3_and_without_done_in_the_bucket() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.write("secret", b"content");
    set_mode(&sandbox.path("secret"), 0);
    sandbox.done();
    let ended = sandbox.watch(s3.place(), "job").without_powers().run();
    expect(ended, 3, "1 file is missing", "run it again");
    assert_eq!(s3.keys_below("job").iter().filter(|key| *key == "DONE").count(), 0);
}

#[test]
fn an_empty_done_of_another_user_counts() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.done();
    set_mode(&sandbox.path("DONE"), 0);
    sandbox.watch(s3.place(), "job").without_powers().run().expect_code(0);
}

#[test]
fn a_bucket_that_is_not_there_is_5() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let ended = sync_to(&sandbox, s3.place(), "s3://no-such-bucket/job").run();
    expect(ended, 5, "NoSuchBucket", "aws s3 mb s3://no-such-bucket --endpoint-url http://");
}

#[test]
fn a_wrong_key_is_5() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let ended = sandbox.sync(s3.place(), "job").env("AWS_ACCESS_KEY_ID", "nobody").run();
    expect(ended, 5, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID");
    let ended = sandbox.sync(s3.place(), "job").env("AWS_SECRET_ACCESS_KEY", "wrong").run();
    let ended = expect(ended, 5, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY");
    assert!(!ended.stderr.contains("wrong"), "a secret in the log");
}

#[test]
fn one_operation_that_is_not_allowed_is_5_and_named() {
    let cases = [
        (Operation::PutObject, "PutObject", "s3:PutObject"),
        (Operation::GetObject, "GetObject", "s3:GetObject"),
        (Operation::ListObjectsV2, "ListObjectsV2", "s3:ListBucket"),
        (Operation::CreateMultipartUpload, "CreateMultipartUpload", "s3:PutObject"),
        (Operation::ListMultipartUploads, "ListMultipartUploads", "s3:ListBucketMultipartUploads"),
    ];
    let sandbox = Sandbox::new();
    sandbox.write("small", b"content");
    sandbox.write_large("large", 1, 9 << 20);
    for (operation, name, permission) in cases {
        let s3 = DevS3::start();
        s3.faults().deny(operation);
        let ended = expect(sandbox.sync(s3.place(), name).run(), 5, name, permission);
        assert!(ended.stderr.contains("AccessDenied"), "{}", ended.stderr);
    }
}

#[test]
fn writers_that_may_not_delete_still_upload() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.faults().deny(Operation::DeleteObject);
    sandbox.sync(s3.place(), "job").run().expect_code(0).expect_said("the probe's object stays");
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn an_endpoint_that_is_down_is_3_for_sync_at_its_deadline_and_waited_for_by_watch() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.faults().set_outage(true);
    let ended = sandbox.sync(s3.place(), "job").args(["--deadline", "1s"]).run();
    expect(ended, 3, "no connection to http://", "AWS_ENDPOINT_URL");

    sandbox.done();
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("trying again");
    s3.faults().set_outage(false);
    watch.wait().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn tls_where_none_is_spoken_is_5() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let https = s3.endpoint().replace("http://", "https://");
    let ended = sandbox.sync(s3.place(), "job").env("AWS_ENDPOINT_URL", https).run();
    expect(ended, 5, "no TLS at https://", "http://");
}

#[test]
fn a_clock_that_is_an_hour_off_changes_nothing() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.faults().set_clock_skew(3600);
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn two_destinations_have_a_journal_each() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    for prefix in ["one", "two", "one", "two"] {
        sandbox.sync(s3.place(), prefix).run().expect_code(0);
        assert_eq!(s3.tree(prefix), sandbox.tree());
    }
    assert_eq!(s3.writes().iter().filter(|write| write.key.ends_with("/a")).count(), 2, "once each");
}

fn journal(sandbox: &Sandbox) -> std::path::PathBuf {
    let entries = std::fs::read_dir(sandbox.control()).expect("a control directory");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "jsonl")).expect("a journal")
}

#[test]
fn a_journal_of_another_destination_is_set_aside_and_nothing_is_sent_again() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.sync(s3.place(), "one").run().expect_code(0);
    let one = journal(&sandbox);
    let foreign = std::fs::read(&one).unwrap();
    std::fs::remove_file(&one).unwrap();
    sandbox.sync(s3.place(), "two").run().expect_code(0);
    std::fs::write(journal(&sandbox), foreign).unwrap();
    s3.clear_requests();
    sandbox.sync(s3.place(), "two").run().expect_code(0).expect_said("it belongs to s3://bucket/one/");
    assert!(s3.writes().iter().all(|write| write.key != "two/a"));
}

#[test]
fn a_torn_or_garbled_journal_is_said_and_nothing_is_sent_again() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    for n in 0..20 {
        sandbox.write(&format!("file-{n}"), format!("content {n}").as_bytes());
    }
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    let path = journal(&sandbox);
    let whole = std::fs::read(&path).unwrap();
    // Cut in the middle of a line; a few bytes in the middle changed; nothing but noise; empty.
    let mut garbled = whole.clone();
    let middle = garbled.len() / 2;
    garbled[middle..middle + 40].fill(b'#');
    let cases: [(&[u8], &str); 4] = [
        (&whole[..whole.len() * 2 / 3], "torn"),
        (&garbled, "garbled"),
        (b"noise\nand more of it\n", "set aside"),
        (b"", ""),
    ];
    for (bytes, said) in cases {
        std::fs::write(&path, bytes).unwrap();
        s3.clear_requests();
        sandbox.sync(s3.place(), "job").run().expect_code(0).expect_said(said);
        let sent: Vec<_> = s3
            .requests()
            .into_iter()
            .filter(|r| r.operation == Operation::PutObject && r.key.contains("file-"))
            .collect();
        assert_eq!(sent.len(), 0, "{said}: {sent:?}");
        assert_eq!(s3.tree("job"), sandbox.tree());
    }
}

#[test]
fn a_garbled_head_is_4_and_left_as_it_is() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    s3.put_object_raw("bucket", "job/.chiefsync/head.json", b"{\"schema\": ").unwrap();
    for command in ["sync", "watch"] {
        let cli = if command == "sync" { sandbox.sync(s3.place(), "job") } else { sandbox.watch(s3.place(), "job") };
        expect(cli.run(), 4, "s3://bucket/job/.chiefsync/head.json can't be read", "set it aside");
    }
    assert_eq!(s3.content("job", ".chiefsync/head.json").unwrap(), b"{\"schema\": ");
    assert!(s3.tree("job").is_empty(), "nothing is written below a head that nobody understands");
}

#[test]
fn a_garbled_manifest_costs_nothing_but_work() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    s3.put_object_raw("bucket", "job/.chiefsync/manifest.json", b"nonsense").unwrap();
    std::fs::remove_file(journal(&sandbox)).unwrap();
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_ne!(s3.content("job", ".chiefsync/manifest.json").unwrap(), b"nonsense");
    sandbox.verify(s3.place(), "job").run().expect_code(0);
}

#[test]
fn a_control_directory_that_can_not_be_written_is_said_once_and_memory_serves() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    set_mode(&sandbox.control(), 0o500);
    sandbox.done();
    let ended = sandbox.watch(s3.place(), "job").without_powers().run().expect_code(0);
    assert_eq!(
        ended.stderr.matches("WARN").count() - ended.stderr.matches("--idle-deadline").count(),
        1,
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("in memory"), "{}", ended.stderr);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn nothing_is_written_into_a_source_whose_control_directory_is_elsewhere() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a/b", b"content");
    sandbox.done();
    set_mode(&sandbox.path("a"), 0o500);
    set_mode(&sandbox.src(), 0o500);
    sandbox.watch(s3.place(), "job").without_powers().run().expect_code(0);
    set_mode(&sandbox.src(), 0o700);
    set_mode(&sandbox.path("a"), 0o700);
    assert!(!sandbox.path(".chiefsync").exists());
}

#[test]
fn a_disk_that_is_full_for_the_journal_is_said_and_memory_serves() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    for n in 0..50 {
        sandbox.write(&format!("file-{n}"), b"content");
    }
    sandbox.done();
    // No file may grow beyond 2 KiB: the journal's next line finds no room.
    let full = ["sh", "-c", "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\""];
    let ended = sandbox.watch(s3.place(), "job").under(full).run().expect_code(0);
    assert_eq!(ended.stderr.matches("in memory").count(), 1, "{}", ended.stderr);
    assert_eq!(s3.tree("job"), sandbox.tree());
    // What is in the file is still of use.
    s3.clear_requests();
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert!(s3.writes().iter().all(|write| !write.key.contains("file-")));
}

#[test]
fn names_of_all_kinds_arrive_as_they_are() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let long = ["x".repeat(255), "y".repeat(255), "z".repeat(255), "w".repeat(251)].join("/");
    assert_eq!("job/".len() + long.len(), 1023);
    let names = [
        "with space",
        " leading and trailing ",
        "ünïcödé/文件/🦀",
        "e\u{301} and \u{e9}",
        "new\nline",
        "tab\there",
        "50%",
        "%20",
        "a+b&c=d;e",
        "-rf",
        "--help",
        "quote\"'`",
        "back\\slash",
        "*?[a]",
        "~",
        "$HOME",
        "#hash",
        "a:b",
        "dots...",
        ".hidden",
        "CON",
        &long,
    ];
    for (n, name) in names.iter().enumerate() {
        sandbox.write(name, format!("content {n}").as_bytes());
    }
    sandbox.write_large("large and späcial\n%", 7, 9 << 20);
    sandbox.link("50%", "link to 50%");
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
    sandbox.verify(s3.place(), "job").arg("--deep").run().expect_code(0);
}

#[test]
fn names_that_no_key_can_have_are_3_and_listed() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    let long = ["x".repeat(255), "y".repeat(255), "z".repeat(255), "w".repeat(255)].join("/");
    sandbox.write(&long, b"content");
    sandbox.link(sandbox.path(&long), "to-long");
    sandbox.write("good", b"content");
    std::fs::write(sandbox.src().join(std::ffi::OsStr::from_bytes(b"bad\xff\n")), b"content").unwrap();
    sandbox.done();
    let ended = expect(sandbox.watch(s3.place(), "job").run(), 3, "3 files are missing", "run it again");
    for line in
        ["the key would be 1027 bytes long", "  bad\u{fffd}\\n: the name is not UTF-8", "  to-long: it is a link to x"]
    {
        assert!(ended.stderr.contains(line), "{line}\n{}", ended.stderr);
    }
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["good"]);
}

#[test]
fn what_is_no_file_is_named_and_skipped() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.fifo("pipe");
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.path("socket")).expect("a socket");
    sandbox.sync(s3.place(), "job").run().expect_code(0).expect_said("a FIFO").expect_said("a socket");
}

#[test]
fn what_waits_and_becomes_something_else_holds_nothing_up() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("pipe", b"content");
    sandbox.write("link", b"content");
    let watch = sandbox.cli(s3.place()).args(["watch", "--settle", "1h"]).arg(sandbox.src()).arg("s3://bucket/job");
    let mut watch = watch.arg("--control").arg(sandbox.control()).spawn();
    watch.wait_for_log("the prefix is ours");
    crate::harness::eventually("a file that is closed goes up: SRC is watched", || {
        sandbox.write("closed", b"content");
        watch.log().contains("uploaded")
    });
    // The others were not closed while anybody looked: they wait to settle.
    std::fs::create_dir(sandbox.outside("made")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    rustix::fs::mknodat(rustix::fs::CWD, sandbox.outside("made/pipe"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::os::unix::fs::symlink("nowhere", sandbox.outside("made/link")).unwrap();
    for name in ["pipe", "link"] {
        std::fs::rename(sandbox.outside("made").join(name), sandbox.path(name)).unwrap();
    }
    // By rename: an open file would have to settle, too.
    std::fs::write(sandbox.outside("made/DONE"), "").unwrap();
    std::fs::rename(sandbox.outside("made/DONE"), sandbox.path("DONE")).unwrap();
    let ended = expect(watch.wait(), 3, "1 file is missing", "run it again");
    assert!(ended.stderr.contains("  link: the link's target is not there"), "{}", ended.stderr);
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["closed"]);
}

#[test]
fn an_empty_source_and_empty_files_are_fine() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.sync(s3.place(), "job").run().expect_code(0);
    sandbox.write("empty", b"");
    sandbox.mkdir("nothing/in/here");
    sandbox.done();
    sandbox.watch(s3.place(), "job").run().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
    sandbox.verify(s3.place(), "job").arg("--deep").run().expect_code(0);
}

#[test]
fn watch_waits_for_a_source_that_appears_later() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.remove("");
    let mut watch = sandbox.watch(s3.place(), "job").spawn();
    watch.wait_for_log("SRC is not there yet");
    sandbox.mkdir("");
    sandbox.write("a", b"content");
    sandbox.done();
    watch.wait().expect_code(0);
    assert_eq!(s3.tree("job"), sandbox.tree());
}

#[test]
fn a_source_that_vanishes_is_no_empty_source() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    sandbox.write("a", b"content");
    let gate = dev_s3::Gate::new();
    let hold = dev_s3::Fault::Stall(dev_s3::Hold::Until(gate.clone()));
    s3.faults().add(dev_s3::When::operation(Operation::PutObject).key("job/.chiefsync").times(1), hold);
    let sync = sandbox.sync(s3.place(), "job").spawn();
    crate::harness::eventually("the preflight hangs", || gate.arrivals() > 0);
    std::fs::rename(sandbox.src(), sandbox.outside("elsewhere")).unwrap();
    gate.open();
    expect(sync.wait(), 3, "1 file is missing", "run it again");
}

#[test]
fn a_store_with_a_limit_on_keys_refuses_one_file_and_takes_the_others() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::with(Options::memory()));
    sandbox.write("refused", b"content");
    sandbox.write("taken", b"content");
    let answer = dev_s3::Fault::Answer { status: 400, code: "InvalidArgument" };
    s3.faults().add(dev_s3::When::operation(Operation::PutObject).key("job/refused"), answer);
    let ended = expect(sandbox.sync(s3.place(), "job").run(), 3, "1 file is missing", "run it again");
    assert!(ended.stderr.contains("  refused: PutObject s3://bucket/job/refused: InvalidArgument"), "{}", ended.stderr);
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["taken"]);
}

#[test]
fn a_directory_that_is_replaced_by_a_link_leads_nobody_outside() {
    let (sandbox, s3) = (Sandbox::new(), DevS3::start());
    std::fs::create_dir(sandbox.outside("private")).unwrap();
    std::fs::write(sandbox.outside("private/key"), "secret").unwrap();
    sandbox.write("checkpoint/key", b"public");
    let watch = sandbox.cli(s3.place()).args(["watch", "--settle", "1h"]).arg(sandbox.src()).arg("s3://bucket/job");
    let watch = watch.arg("--control").arg(sandbox.control()).spawn();
    crate::harness::eventually("a file that is closed goes up: SRC is watched", || {
        sandbox.write("closed", b"content");
        watch.log().contains("uploaded")
    });
    // What was seen as checkpoint/key waits to settle; by then the way there leads elsewhere.
    std::fs::rename(sandbox.path("checkpoint"), sandbox.outside("moved")).unwrap();
    sandbox.link(sandbox.outside("private"), "checkpoint");
    std::fs::write(sandbox.outside("DONE"), "").unwrap();
    std::fs::rename(sandbox.outside("DONE"), sandbox.path("DONE")).unwrap();
    let ended = expect(watch.wait(), 3, "1 file is missing", "run it again");
    assert!(ended.stderr.contains("  checkpoint: the link's target is outside SRC"), "{}", ended.stderr);
    assert_eq!(s3.tree("job").into_keys().collect::<Vec<_>>(), ["closed"]);
}

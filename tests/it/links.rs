//! Links, special files, globs and odd names.

use std::os::unix::net::UnixListener;

use dev_s3::Operation;
use serde_json::Value;

use crate::harness::{DevS3, Reader, Sandbox, assert_same_tree, content, minio};

fn manifest(server: &DevS3) -> Value {
    serde_json::from_slice(&server.content("job", ".chiefsync/manifest.json").expect("a manifest")).expect("JSON")
}

fn paths(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|entry| entry["path"].as_str().expect("a path")).collect()
}

/// To a file inside SRC, a server-side copy; to a directory inside SRC, a link entry that restore recreates.
#[test]
fn links_inside_src_are_copied_on_the_server_or_recorded() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("step-1/weights", &content(1, 100_000));
    sandbox.write_large("step-1/large", 2, 20 << 20);
    sandbox.link("step-1/weights", "last.ckpt");
    sandbox.link("../step-1/large", "links/large");
    sandbox.link("step-1", "latest-step");
    sandbox.done();
    sandbox.watch(server.place(), "job").run().expect_code(0);
    assert_same_tree(&sandbox.tree(), &server.tree("job"));
    assert_eq!(server.count(Operation::CopyObject).requests, 2);
    let manifest = manifest(&server);
    assert_eq!(paths(&manifest["links"]), ["latest-step"]);
    assert_eq!(manifest["links"][0]["target"], "step-1");
    assert!(!server.keys_below("job").iter().any(|key| key.starts_with("latest-step")));
}

/// A link that moves on to another file is another file.
#[test]
fn a_link_that_moves_on_is_followed() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    let mut watch = sandbox.watch(server.place(), "job").spawn();
    for step in 1..=3_u64 {
        sandbox.write(&format!("step-{step}"), &content(step, 5000));
        sandbox.link(format!("step-{step}"), "next");
        sandbox.rename("next", "last");
        watch.wait_for_log_times("copied path=last", usize::try_from(step).unwrap());
        assert!(server.content("job", "last") == Some(content(step, 5000)), "step {step}");
    }
    sandbox.done();
    watch.wait().expect_code(0);
    let mut bucket = server.tree("job");
    // It may have been seen under its first name.
    bucket.remove("next");
    assert_same_tree(&sandbox.tree(), &bucket);
}

/// Dangling or outward links: not followed, count as missing (3) unless excluded.
#[test]
fn links_that_end_nowhere_or_outside_count_as_missing_unless_excluded() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    std::fs::write(sandbox.outside("secret"), "secret").unwrap();
    sandbox.write("file", b"file");
    sandbox.link("nowhere", "dangling");
    sandbox.link(sandbox.outside("secret"), "outward");
    sandbox.link("loop-b", "loop-a");
    sandbox.link("loop-a", "loop-b");
    sandbox.done();
    let ended = sandbox.watch(server.place(), "job").json_log().run().expect_code(3);
    let details = ended.ending()["details"].to_string();
    for link in ["dangling", "outward", "loop-a", "loop-b"] {
        assert!(details.contains(link), "{link}: {details}");
    }
    assert_eq!(server.tree("job").into_keys().collect::<Vec<_>>(), ["file"]);
    assert!(server.content("job", "DONE").is_none());
    let excludes = ["--exclude", "dangling", "--exclude", "outward", "--exclude", "loop-*"];
    sandbox.watch(server.place(), "job").args(excludes).run().expect_code(0);
    assert_eq!(server.tree("job").into_keys().collect::<Vec<_>>(), ["file"]);
}

/// Sockets, FIFOs, devices: named, skipped.
#[test]
fn special_files_are_named_and_skipped() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    sandbox.write("file", b"file");
    sandbox.fifo("fifo");
    // A socket's path is short; a test's directory isn't.
    let short = tempfile::tempdir().unwrap();
    let _socket = UnixListener::bind(short.path().join("s")).unwrap();
    std::fs::rename(short.path().join("s"), sandbox.path("socket"))
        .or_else(|_| std::fs::hard_link(short.path().join("s"), sandbox.path("socket")))
        .unwrap_or_else(|_| sandbox.fifo("socket"));
    sandbox.done();
    let ended = sandbox.watch(server.place(), "job").run().expect_code(0);
    let ended = ended.expect_said("path=fifo").expect_said("path=socket");
    drop(ended);
    assert_eq!(server.tree("job").into_keys().collect::<Vec<_>>(), ["file"]);
    assert_eq!(paths(&manifest(&server)["skipped"]), ["fifo", "socket"]);
}

/// Includes and excludes: globs, the last match wins; the promise is less what the user excluded.
#[test]
fn what_is_excluded_stays_here_and_nothing_else_does() {
    let (sandbox, server) = (Sandbox::new(), DevS3::start());
    for path in
        ["a.log", "keep/a.log", "keep/b.log", "cache/deep/x", "deep/cache/y", "model", "top-only", "deep/top-only"]
    {
        sandbox.write(path, path.as_bytes());
    }
    sandbox.done();
    let rules = ["--exclude", "*.log", "--include", "keep/*.log", "--exclude", "keep/b.log"];
    let more = ["--exclude", "cache/", "--exclude", "./top-only"];
    let watch = sandbox.watch(server.place(), "job").args(rules).args(&more[..2]);
    watch.run().expect_code(0);
    let there: Vec<_> = server.tree("job").into_keys().collect();
    assert_eq!(there, ["deep/top-only", "keep/a.log", "model", "top-only"]);
}

/// Names with spaces, unicode, newline, `%`, leading dash, 1,024 bytes of key: a faithful upload.
#[test]
fn odd_names_arrive_as_they_are_for_an_independent_reader() {
    let (sandbox, place) = (Sandbox::new(), minio());
    let longest = {
        // With "job/" 1,024 bytes, in segments that a file system takes.
        let path = ["a".repeat(250), "b".repeat(250), "ü".repeat(125), "d".repeat(250)].join("/");
        format!("{path}/{}", "e".repeat(1020 - path.len() - 1))
    };
    let names = [
        "with space",
        " leading and trailing ",
        "-dash",
        "--delete",
        "plus+plus",
        "per%cent",
        "%2F",
        "a%20b",
        "new\nline",
        "tab\there",
        "quote'\"quote",
        "back\\slash",
        "star*",
        "quest?ion",
        "ha#sh",
        "amp&er=sand",
        "colon:semi;comma,",
        "<xml>&amp;",
        "tilde~",
        "pipe|",
        "[brackets]{braces}",
        "ünïcödé",
        "日本語/模型",
        "emoji-🚀",
        "e\u{301}-decomposed",
        "é-composed",
        "dots..name",
        "...",
        "deep/.hidden/file",
        "@at!bang$dollar^caret`tick",
        "DONE/but/a/directory-below",
        longest.as_str(),
    ];
    // A directory named DONE is somebody's output: it goes with a marker of the other kind of run, sync.
    for (n, name) in (0..).zip(names) {
        sandbox.write(name, &content(n, 1000));
    }
    sandbox.sync(&place, "job").run().expect_code(0);
    let mut reader = Reader::of(&place);
    assert_same_tree(&sandbox.tree(), &reader.tree("job"));
    // And a second time nothing is to be done: the names are recognised.
    sandbox.sync(&place, "job").run().expect_code(0);
    std::fs::remove_dir_all(sandbox.control()).unwrap();
    let again = sandbox.sync(&place, "job").args(["--lease", "5s"]).run().expect_code(0);
    assert!(!again.stderr.contains("uploaded path="), "sent again without a journal:\n{}", again.stderr);
}

//! What is a marker, which of two counts, and when it is yesterday's.
#![allow(clippy::disallowed_methods)]

use std::fs;

use super::*;
use crate::head::Outcome;
use crate::store::ETag;

#[test]
fn a_bare_touch_is_enough() {
    let source = tempfile::tempdir().unwrap();
    assert_eq!(read(source.path()).unwrap(), None);
    assert_eq!(read(&source.path().join("not there")).unwrap(), None);
    fs::write(source.path().join("DONE"), "").unwrap();
    let marker = read(source.path()).unwrap().unwrap();
    assert_eq!((marker.kind, &marker.document, marker.bytes.len()), (MarkerKind::Done, &None, 0));
    assert_eq!(marker.identity.sha256, Sha256::of(b""));
    assert_eq!(read(source.path()).unwrap().unwrap(), marker);
    fs::write(source.path().join("DONE"), "again").unwrap();
    assert_ne!(read(source.path()).unwrap().unwrap().identity, marker.identity);
}

#[test]
fn a_document_is_read_field_by_field() {
    let source = tempfile::tempdir().unwrap();
    let document = |text: &str| {
        fs::write(source.path().join("FAILED"), text).unwrap();
        let marker = read(source.path()).unwrap().unwrap();
        assert_eq!((marker.kind, &marker.bytes[..], marker.is_whole()), (MarkerKind::Failed, text.as_bytes(), true));
        marker.document
    };
    let full = r#"{"schema":1,"run":"r7","attempt":2,"pod_uid":"p","exit_code":-9,"reason":"OOM","step":12,"at":"now","x":[]}"#;
    let expected = MarkerDocument {
        schema: Some(1),
        run: Some("r7".to_owned()),
        attempt: Some(2),
        pod_uid: Some("p".to_owned()),
        exit_code: Some(-9),
        reason: Some("OOM".to_owned()),
        step: Some(12),
        at: Some("now".to_owned()),
    };
    assert_eq!(document(full), Some(expected));
    let odd = document(r#" {"schema":-1,"run":7,"attempt":null,"pod_uid":"p","exit_code":"x","step":1.5} "#).unwrap();
    let expected =
        MarkerDocument { run: Some("7".to_owned()), pod_uid: Some("p".to_owned()), ..MarkerDocument::default() };
    assert_eq!(odd, expected);
    assert_eq!(document("{}"), Some(MarkerDocument::default()));
    for text in ["", "done at last", "{\"schema\":", "[1]", "null", "\u{1}", "{} {}"] {
        assert_eq!(document(text), None, "{text:?}");
    }
}

#[test]
fn a_large_one_is_a_marker_and_no_document() {
    let source = tempfile::tempdir().unwrap();
    let text = format!("{{\"reason\":\"{}\"}}", "x".repeat(100_000));
    fs::write(source.path().join("DONE"), &text).unwrap();
    let marker = read(source.path()).unwrap().unwrap();
    assert_eq!((marker.document.as_ref(), marker.is_whole(), marker.bytes.len()), (None, false, 64 * 1024));
    assert_eq!(marker.identity.size, text.len() as u64);
}

#[test]
fn the_last_word_counts_and_doubt_is_failure() {
    let source = tempfile::tempdir().unwrap();
    let (done, failed) = (source.path().join("DONE"), source.path().join("FAILED"));
    // File times move in steps: write until they differ.
    let write_after = |path: &Path, other: &Path| {
        loop {
            fs::write(path, "x").unwrap();
            let ctime = |path: &Path| Stat::of(&fs::metadata(path).unwrap()).ctime_ns;
            if ctime(path) > ctime(other) {
                return;
            }
        }
    };
    fs::write(&failed, "").unwrap();
    write_after(&done, &failed);
    assert_eq!(read(source.path()).unwrap().unwrap().kind, MarkerKind::Done);
    write_after(&failed, &done);
    assert_eq!(read(source.path()).unwrap().unwrap().kind, MarkerKind::Failed);
    // Two names of one file are a tie.
    fs::remove_file(&done).unwrap();
    fs::hard_link(&failed, &done).unwrap();
    assert_eq!(read(source.path()).unwrap().unwrap().kind, MarkerKind::Failed);
}

#[test]
fn directories_and_links_are_no_markers() {
    let source = tempfile::tempdir().unwrap();
    fs::create_dir(source.path().join("DONE")).unwrap();
    fs::write(source.path().join("target"), "").unwrap();
    std::os::unix::fs::symlink("target", source.path().join("FAILED")).unwrap();
    assert_eq!(read(source.path()).unwrap(), None);
}

#[test]
fn names_are_the_roots() {
    assert_eq!(MarkerKind::of("DONE"), Some(MarkerKind::Done));
    assert_eq!(MarkerKind::of("FAILED"), Some(MarkerKind::Failed));
    assert_eq!((MarkerKind::of("a/DONE"), MarkerKind::of("done")), (None, None));
    assert_eq!(serde_json::to_string(&MarkerKind::Failed).unwrap(), "\"FAILED\"");
}

/// The truth table of [`is_stale`]: what the document says, whether the bucket's last end is of this very marker, the pod
/// that wrote that end, our pod.
#[test]
fn stale_is_what_another_pod_left() {
    #[derive(Clone, Copy, PartialEq)]
    enum End {
        None,
        Other,
        Same,
    }
    use End::{Other, Same};
    let (p, q) = (Some("p"), Some("q"));
    let table = [
        // document, end, its pod, ours, stale
        (None, End::None, None, None, false),
        (None, End::None, None, p, false),
        (None, Other, q, p, false),
        (None, Other, None, None, false),
        (None, Same, p, p, false),
        (None, Same, q, p, true),
        (None, Same, None, p, true),
        (None, Same, p, None, true),
        (None, Same, None, None, false),
        (p, End::None, None, p, false),
        (p, Same, p, p, false),
        (p, Same, q, p, false),
        (q, End::None, None, p, true),
        (q, Other, q, p, true),
        (q, Same, q, p, true),
        (q, Same, p, p, true),
        (q, End::None, None, None, false),
        (q, Same, None, None, false),
        (q, Same, q, None, true),
        (q, Other, q, None, false),
    ];
    let identity = MarkerIdentity { ino: 1, ctime_ns: 2, size: 3, sha256: Sha256::of(b"x") };
    for (row, (document, end, end_pod, ours, stale)) in table.into_iter().enumerate() {
        let marker = Marker {
            kind: MarkerKind::Done,
            identity,
            document: document.map(|pod| MarkerDocument { pod_uid: Some(pod.to_owned()), ..MarkerDocument::default() }),
            bytes: Bytes::new(),
            stat: Stat::default(),
        };
        let marker_of_end = if end == Same { identity } else { MarkerIdentity { ctime_ns: 1, ..identity } };
        let ended = (end != End::None).then(|| RunEnd {
            outcome: Outcome::Succeeded,
            manifest: ETag::new("m"),
            marker: Some(marker_of_end),
            pod_uid: end_pod.map(str::to_owned),
            at: "then".to_owned(),
        });
        assert_eq!(is_stale(&marker, ended.as_ref(), ours).is_some(), stale, "row {row}");
    }
}

//! A manifest comes back as it was written, and a hostile one does not come in.

use proptest::prelude::*;

use super::*;

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn facts() -> Facts {
    let identity = MarkerIdentity { ino: u64::MAX, ctime_ns: i64::MIN, size: 0, sha256: Sha256::of(b"") };
    let document = MarkerDocument { reason: Some("\"quoted\"\n".to_owned()), ..MarkerDocument::default() };
    Facts {
        schema: SCHEMA,
        run: 3,
        generation: 7,
        outcome: Outcome::Succeeded,
        holder: Holder {
            id: "id".to_owned(),
            host: "host".to_owned(),
            pod_uid: Some("pod".to_owned()),
            version: "0.1.0".to_owned(),
            since: "then".to_owned(),
        },
        marker: Some(MarkerFacts { kind: MarkerKind::Done, identity, document: Some(document) }),
        started_at: "2025-01-01T00:00:00.000Z".to_owned(),
        ended_at: "2025-01-01T00:01:00.000Z".to_owned(),
        figures: BTreeMap::from([("hash_s".to_owned(), 0.25)]),
    }
}

fn digest(parts: u32) -> Digest {
    Digest::from((0..parts).map(|part| Sha256::of(&part.to_le_bytes())).collect::<Vec<_>>())
}

fn absent(path: &str, why: &str) -> Absent {
    Absent { path: path.to_owned(), why: why.to_owned() }
}

fn sample() -> Finished {
    let mut writer = ManifestWriter::new(&facts(), 3);
    writer.file(&key("a"), 0, &digest(1), &ETag::new("e1"), None);
    writer.file(&key("b \"x\"\n/ü"), 9 << 20, &digest(2), &ETag::new("e2-2"), None);
    writer.file(&key("last"), 0, &digest(1), &ETag::new("e1"), Some(&key("a")));
    writer.link(&key("latest"), &key("ckpt/5"));
    writer.skipped(&absent("socket", "is a socket"));
    writer.missing(&absent("caf\u{fffd}", "the name is not UTF-8"));
    writer.missing(&absent("x", "unreadable"));
    writer.finish(2, 9 << 20)
}

#[test]
fn what_is_written_is_read() {
    let Finished { bytes, tree, counts } = sample();
    let manifest = Manifest::parse(&bytes).unwrap();
    assert_eq!((&manifest.facts, manifest.tree, manifest.counts), (&facts(), tree, counts));
    assert_eq!(manifest.files[1].digest.parts().len(), 2);
    assert_eq!(manifest.files[2].link, Some(key("a")));
    assert_eq!(manifest.links, [LinkEntry { path: key("latest"), target: key("ckpt/5") }]);
    assert_eq!((manifest.skipped.len(), manifest.missing.len()), (1, 2));
    assert_eq!((counts.files, counts.bytes, counts.links, counts.uploaded_files), (3, 9 << 20, 1, 2));
    let text = std::str::from_utf8(&bytes).unwrap();
    let line = text.lines().find(|line| line.contains("\"a\"")).unwrap();
    let hex = Sha256::of(&0_u32.to_le_bytes());
    assert_eq!(line, format!(r#"{{"path":"a","size":0,"digest":["{hex}"],"etag":"e1"}},"#));
    let mut with_links = TreeDigest::default();
    manifest.files.iter().for_each(|file| with_links.file(&file.path, file.size_bytes, &file.digest));
    assert_ne!(with_links.finish(), tree, "a link to a directory counts");
}

#[test]
fn an_empty_tree_has_a_manifest() {
    let mut facts = facts();
    facts.marker = None;
    facts.figures.insert("rate".to_owned(), f64::NAN);
    let Finished { bytes, tree, .. } = ManifestWriter::new(&facts, 0).finish(0, 0);
    let manifest = Manifest::parse(&bytes).unwrap();
    assert!(manifest.files.is_empty() && manifest.facts.marker.is_none());
    assert_eq!(tree, tree_digest([]));
    assert_eq!(manifest.facts.figures.len(), 1, "what is no number is left out");
}

#[test]
fn a_hostile_manifest_is_refused_with_its_line() {
    let text = String::from_utf8(sample().bytes.to_vec()).unwrap();
    let swapped = {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(2, 3);
        lines.join("\n")
    };
    let doubled =
        text.replacen("{\"path\":\"b ", "{\"path\":\"a\",\"size\":0,\"digest\":[],\"etag\":\"\"},\n{\"path\":\"b ", 1);
    for (garbled, expected) in [
        (text.replace("\"path\":\"last\"", "\"path\":\"../last\""), "line 5"),
        (text.replace("\"path\":\"last\"", "\"path\":\"/etc/passwd\""), "plain relative path"),
        (text.replace("\"path\":\"last\"", "\"path\":\".chiefsync/head.json\""), "belongs to chiefsync"),
        (text.replace("\"path\":\"last\"", &format!("\"path\":\"l{}\"", "x".repeat(1024))), "1025 bytes long"),
        (text.replace("\"target\":\"ckpt/5\"", "\"target\":\"../..\""), "line 8"),
        (text.replace("\"size\":9437184", "\"size\":1"), "has 1 parts, and 2 digests stand here at line 4"),
        (text.replace("\"path\":\"last\"", "\"path\":\"a\""), "\"a\" is out of order at line 5"),
        (doubled, "has 1 parts, and 0 digests"),
        (text.replacen("{\"path\":\"b", "{\"path\":\"a\",\"path\":\"b", 1), "duplicate field"),
        (swapped, "out of order"),
        (text.replace("\"files\":3", "\"files\":4"), "holds"),
        (text.replace("\"a\",\"size\":0", "\"a\",\"size\":1"), "holds"),
        (text.replace("\"schema\":1", "\"schema\":2"), "its schema is 2"),
        (text.replace("\"path\":\"latest\"", "\"path\":\"lasting\""), "tree digest"),
        (text[..text.len() / 2].to_owned(), "EOF"),
        (text.clone() + "{}", "trailing"),
        (String::new(), "EOF"),
    ] {
        let error = Manifest::parse(garbled.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let later = text.replacen("{\"schema\":1", "{\"later\":{\"x\":1},\"schema\":1", 1);
    assert!(Manifest::parse(later.as_bytes()).is_ok());
}

#[test]
#[should_panic(expected = "out of order")]
fn a_writer_refuses_what_its_reader_would() {
    let mut writer = ManifestWriter::new(&facts(), 1);
    writer.file(&key("b"), 0, &digest(1), &ETag::new("e"), None);
    writer.file(&key("a"), 0, &digest(1), &ETag::new("e"), None);
}

#[tokio::test]
async fn it_is_read_from_a_store() {
    let store = crate::head::test_store::MemoryStore::default();
    assert!(Manifest::read(&store, &key("x")).await.unwrap().is_none());
    store.set("x", sample().bytes);
    let (manifest, etag) = Manifest::read(&store, &key("x")).await.unwrap().unwrap();
    assert_eq!((manifest.files.len(), etag), (3, store.head(&key("x")).await.unwrap().etag));
    store.set("x", "{}");
    let error = Manifest::read(&store, &key("x")).await.unwrap_err();
    assert!(error.to_string().starts_with("memory://test/x can't be believed: "), "{error}");
    assert!(error.hint().is_some());
}

proptest! {
    #[test]
    fn any_tree_comes_back(
        paths in proptest::collection::btree_set("[a-c \"\\\\\n\u{1}ü%-]{1,4}(/[a-c]{1,2}){0,2}", 0..12),
        sizes in proptest::collection::vec(0_u64..(40 << 20), 12),
    ) {
        let files: Vec<FileEntry> = paths.iter().zip(&sizes).map(|(path, &size_bytes)| FileEntry {
            path: key(path),
            size_bytes,
            digest: digest(part_count(size_bytes)),
            etag: ETag::new(&format!("etag-{size_bytes}")),
            link: size_bytes.is_multiple_of(3).then(|| key("the/target")),
        }).collect();
        let mut writer = ManifestWriter::new(&facts(), files.len());
        for file in &files {
            writer.file(&file.path, file.size_bytes, &file.digest, &file.etag, file.link.as_ref());
        }
        let finished = writer.finish(1, 2);
        let manifest = Manifest::parse(&finished.bytes).unwrap();
        prop_assert_eq!(tree_digest(files.iter().map(|file| (&file.path, file.size_bytes, &file.digest))), finished.tree);
        prop_assert_eq!(manifest.files, files);
    }

    #[test]
    fn garbage_is_refused_or_means_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..8), at in 0_usize..2000) {
        let original = sample();
        let mut json = original.bytes.to_vec();
        let at = at.min(json.len());
        let end = (at + bytes.len()).min(json.len());
        json.splice(at..end, bytes);
        if let Ok(manifest) = Manifest::parse(&json) {
            prop_assert_eq!(manifest.tree, original.tree);
        }
    }
}

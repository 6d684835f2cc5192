//! A reader of buckets that shares nothing with chiefsync: Python's boto3.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::dev_s3::is_output;
use super::{Place, Tree, tool};

/// A running interpreter.
pub struct Reader {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    bucket: String,
}

/// An object in a listing.
#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    /// Its key, prefix and all.
    pub key: String,
    /// Seconds since 1970, as the server says.
    pub modified: f64,
}

/// What HEAD says.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// Its length in bytes.
    pub size: u64,
    /// `ChecksumSHA256`: base64, of a composite one with the count of parts behind a dash.
    pub checksum: Option<String>,
    /// `FULL_OBJECT` or `COMPOSITE`, where the server says so.
    pub checksum_type: Option<String>,
}

#[derive(Deserialize)]
struct Got {
    sha256: String,
    content: Option<String>,
}

impl Reader {
    /// Reads this bucket.
    pub fn of(place: &Place) -> Reader {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/harness/reader.py");
        let mut child = Command::new(tool("boto3"))
            .arg(script)
            .envs(place.environment())
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an interpreter");
        let requests = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Reader { child, requests, answers, bucket: place.bucket.clone() }
    }

    /// The objects whose key begins like this.
    pub fn list(&mut self, prefix: &str) -> Vec<Listed> {
        self.ask("list", "prefix", prefix)
    }

    /// What HEAD says about an object.
    pub fn head(&mut self, key: &str) -> Head {
        self.ask("head", "key", key)
    }

    /// The SHA-256 of an object's content, in hex.
    pub fn sha256(&mut self, key: &str) -> String {
        self.ask::<Got>("get", "key", key).sha256
    }

    /// The content of an object of at most 1 MiB.
    pub fn content(&mut self, key: &str) -> Vec<u8> {
        let content = self.ask::<Got>("get", "key", key).content.expect("a small object");
        STANDARD.decode(content).expect("base64")
    }

    /// The keys of the uploads under way.
    pub fn uploads(&mut self, prefix: &str) -> Vec<String> {
        self.ask("uploads", "prefix", prefix)
    }

    /// What the objects below `prefix/` hold, without chiefsync's own and the markers.
    pub fn tree(&mut self, prefix: &str) -> Tree {
        let prefix = format!("{prefix}/");
        let keys: Vec<String> = self.list(&prefix).into_iter().map(|listed| listed.key).collect();
        let mut tree = Tree::new();
        for key in keys {
            let path = key.strip_prefix(&prefix).expect("below the prefix").to_owned();
            if is_output(&path) {
                tree.insert(path, self.sha256(&key));
            }
        }
        tree
    }

    fn ask<T: DeserializeOwned>(&mut self, operation: &str, argument: &str, value: &str) -> T {
        let request = json!({ "operation": operation, "bucket": self.bucket, argument: value });
        writeln!(self.requests, "{request}").expect("a reader that listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a reader that answers");
        let mut answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("boto3 said {line:?}: {e}"));
        match answer.get_mut("ok") {
            Some(ok) => serde_json::from_value(ok.take()).expect("the answer that reader.py makes"),
            None => panic!("boto3, asked for {request}: {answer}"),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

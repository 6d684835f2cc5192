//! An S3 server in process, one a test: counts what it is asked, and goes wrong when told to.

use std::ops::Deref;
use std::path::Path;

use dev_s3::{Operation, Options, Request, Server};

use chiefsync::digest::Sha256;

use super::{Place, Tree};

const BUCKET: &str = "bucket";

/// A running server; everything that [`Server`] can do can be asked of it.
pub struct DevS3 {
    server: Server,
    place: Place,
}

impl DevS3 {
    /// What is stored stays in memory.
    pub fn start() -> DevS3 {
        DevS3::with(Options::memory())
    }

    /// What is stored goes to a directory: for what is large.
    pub fn on_disk(directory: &Path) -> DevS3 {
        DevS3::with(Options::directory(directory))
    }

    /// With settings of its own.
    pub fn with(options: Options) -> DevS3 {
        // A thread of its own: a test has no runtime, and must not need one.
        let server = Server::spawn_thread(options.bucket(BUCKET)).expect("a server in process");
        let place = Place {
            endpoint: server.endpoint(),
            access_key: server.access_key().to_owned(),
            secret_key: server.secret_key().to_owned(),
            bucket: BUCKET.to_owned(),
        };
        DevS3 { server, place }
    }

    /// Where to write.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The keys below `prefix/`, without it.
    pub fn keys_below(&self, prefix: &str) -> Vec<String> {
        let prefix = format!("{prefix}/");
        self.server.keys(BUCKET).iter().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
    }

    /// What the objects below `prefix/` hold, without chiefsync's own and the markers.
    pub fn tree(&self, prefix: &str) -> Tree {
        let output = self.keys_below(prefix).into_iter().filter(|key| is_output(key));
        output
            .map(|key| {
                let bytes = self.content(prefix, &key).expect("listed a moment ago");
                (key, Sha256::of(&bytes).to_string())
            })
            .collect()
    }

    /// One object's bytes.
    pub fn content(&self, prefix: &str, key: &str) -> Option<Vec<u8>> {
        self.server.object(BUCKET, &format!("{prefix}/{key}"))
    }

    /// The requests that changed an object or an upload and were answered well, oldest first.
    pub fn writes(&self) -> Vec<Request> {
        let changes = |operation| {
            matches!(
                operation,
                Operation::PutObject
                    | Operation::CopyObject
                    | Operation::DeleteObject
                    | Operation::DeleteObjects
                    | Operation::CreateMultipartUpload
                    | Operation::UploadPart
                    | Operation::UploadPartCopy
                    | Operation::CompleteMultipartUpload
                    | Operation::AbortMultipartUpload
            )
        };
        let all = self.server.requests().into_iter();
        all.filter(|request| changes(request.operation) && (200..300).contains(&request.status)).collect()
    }

    /// Where in [`DevS3::writes`] the object got this name last.
    #[track_caller]
    pub fn written_at(&self, key: &str) -> usize {
        let names = |operation| {
            matches!(operation, Operation::PutObject | Operation::CopyObject | Operation::CompleteMultipartUpload)
        };
        let writes = self.writes();
        let at = writes.iter().rposition(|request| request.key == key && names(request.operation));
        at.unwrap_or_else(|| panic!("{key} was never written"))
    }
}

impl Deref for DevS3 {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Whether a key below the prefix is a file of SRC, and not a marker or one of chiefsync's own.
pub fn is_output(key: &str) -> bool {
    !key.starts_with(".chiefsync/") && key != "DONE" && key != "FAILED"
}

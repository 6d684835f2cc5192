//! How a server is to be: the settings, with defaults that suit a test.

use crate::store::Medium;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// The settings of a server. Start from one of the three media and change what differs.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) address: SocketAddr,
    pub(crate) medium: Medium,
    pub(crate) buckets: Vec<String>,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) min_part_bytes: u64,
    pub(crate) log_limit: usize,
}

impl Options {
    /// The access key of a server that was given none.
    pub const ACCESS_KEY: &'static str = "dev-s3";
    /// The secret key of a server that was given none.
    pub const SECRET_KEY: &'static str = "dev-s3-secret";
    /// The least that a part other than the last may hold, as in S3.
    pub const MIN_PART_BYTES: u64 = 5 << 20;

    /// A server on a free port of this machine, with its keys the default ones and no bucket yet.
    pub fn new(medium: Medium) -> Options {
        // A measurement sends requests without end, and nobody reads them one by one.
        let log_limit = if matches!(medium, Medium::Discard { .. }) { 1000 } else { usize::MAX };
        Options {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            medium,
            buckets: Vec::new(),
            access_key: Self::ACCESS_KEY.into(),
            secret_key: Self::SECRET_KEY.into(),
            min_part_bytes: Self::MIN_PART_BYTES,
            log_limit,
        }
    }

    /// Content lives in memory.
    pub fn memory() -> Options {
        Options::new(Medium::Memory)
    }

    /// Content lives in this directory and survives the server.
    pub fn directory(root: impl Into<PathBuf>) -> Options {
        Options::new(Medium::Directory(root.into()))
    }

    /// Content is counted and thrown away.
    pub fn discard() -> Options {
        Options::new(Medium::discard())
    }

    /// Makes this bucket at start, if it isn't there.
    pub fn bucket(mut self, name: impl Into<String>) -> Options {
        self.buckets.push(name.into());
        self
    }

    /// Listens here; port 0 takes a free one.
    pub fn address(mut self, address: SocketAddr) -> Options {
        self.address = address;
        self
    }

    /// The one pair of keys that is accepted.
    pub fn keys(mut self, access_key: impl Into<String>, secret_key: impl Into<String>) -> Options {
        self.access_key = access_key.into();
        self.secret_key = secret_key.into();
        self
    }

    /// Lets uploads have smaller parts than S3 does, so that a test needn't move megabytes.
    pub fn min_part_bytes(mut self, bytes: u64) -> Options {
        self.min_part_bytes = bytes;
        self
    }

    /// Keeps only so many of the latest requests in the log. Counts are kept for all.
    pub fn log_limit(mut self, requests: usize) -> Options {
        self.log_limit = requests;
        self
    }
}

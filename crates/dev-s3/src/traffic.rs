//! What came in: a log of requests and counts by operation, for tests and benches to read.

use crate::operation::{Operation, Target};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One request that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asked for.
    pub operation: Operation,
    /// The bucket, or nothing.
    pub bucket: String,
    /// The key, or nothing.
    pub key: String,
    /// The part's number, for the operations on parts.
    pub part: Option<i32>,
    /// Bytes of its body that were received.
    pub bytes: u64,
    /// The status that was answered; 0 if the connection ended without an answer.
    pub status: u16,
}

/// The sum over the requests for one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many there were, whatever came of them.
    pub requests: u64,
    /// Bytes of bodies received.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct Books {
    log: VecDeque<Request>,
    counts: BTreeMap<Operation, Count>,
}

/// The books of one server.
#[derive(Debug)]
pub(crate) struct Traffic {
    books: Mutex<Books>,
    log_limit: usize,
}

impl Traffic {
    pub fn new(log_limit: usize) -> Traffic {
        Traffic { books: Mutex::default(), log_limit }
    }

    /// Opens an entry; it is written when it is dropped, whether the request got its answer or broke off.
    pub fn begin(self: &Arc<Self>, target: Target) -> Entry {
        Entry { traffic: Arc::clone(self), target, bytes: Arc::default(), status: 0 }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.books().log.iter().cloned().collect()
    }

    pub fn counts(&self) -> BTreeMap<Operation, Count> {
        self.books().counts.clone()
    }

    pub fn clear(&self) {
        *self.books() = Books::default();
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Entry {
    traffic: Arc<Traffic>,
    pub target: Target,
    /// Shared with whoever reads the body.
    pub bytes: Arc<AtomicU64>,
    /// 0 until there is an answer.
    pub status: u16,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let mut books = self.traffic.books();
        let count = books.counts.entry(self.target.operation).or_default();
        count.requests += 1;
        count.bytes += bytes;
        if books.log.len() >= self.traffic.log_limit {
            books.log.pop_front();
        }
        books.log.push_back(Request {
            operation: self.target.operation,
            bucket: std::mem::take(&mut self.target.bucket),
            key: std::mem::take(&mut self.target.key),
            part: self.target.part,
            bytes,
            status: self.status,
        });
    }
}

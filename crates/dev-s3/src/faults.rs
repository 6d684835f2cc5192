//! Faults on request: a script that a test writes and the server follows.
//!
//! A rule pairs [`When`] (which requests) with a [`Fault`] (what goes wrong). Each request meets the rules in the
//! order in which they were added; the first that fires decides, and only rules that come before it (and itself)
//! count the request. Nothing is random unless a rule asks for it, and then it follows from the rule's seed.
//!
//! Beside the rules stand switches that hold for every request: an outage, a skewed clock, a deny-list, and the
//! [`Quirks`] of stores that are not quite S3.

use crate::gate::Hold;
use crate::operation::{Operation, Target};
use http::StatusCode;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Fault {
    /// 503 `SlowDown`; nothing is done.
    SlowDown,
    /// 500 `InternalError`; nothing is done.
    InternalError,
    /// 400 `ExpiredToken`; nothing is done.
    ExpiredToken,
    /// 403 `RequestTimeTooSkewed`; nothing is done. For a clock that is really off see [`Faults::set_clock_skew`].
    RequestTimeTooSkewed,
    /// 403 `AccessDenied`; nothing is done.
    AccessDenied,
    /// 404 `NoSuchBucket`; nothing is done.
    NoSuchBucket,
    /// Any other answer with an error in its body; nothing is done. A status of 200 makes the answer that
    /// `CompleteMultipartUpload` gives when it fails late.
    Answer {
        /// The status line's code.
        status: u16,
        /// The `Code` in the body.
        code: &'static str,
    },
    /// The connection is reset once this many bytes of the body have been received; nothing is done.
    ResetRequest {
        /// More than the body holds means: after all of it.
        after_bytes: u64,
    },
    /// The operation is carried out; the connection is reset once this many bytes of the answer's body are out.
    ResetAnswer {
        /// More than the body holds means: no reset.
        after_bytes: u64,
    },
    /// Nothing happens, and nothing of the body is read, until the hold ends; then all goes its way.
    Stall(Hold),
    /// The operation is carried out at once, and its answer held back.
    StallAnswer(Hold),
    /// The answer begins, stops after this many bytes of its body, and goes on when the hold ends.
    StallBody {
        /// How far the body gets before it stops.
        after_bytes: u64,
        /// For how long.
        hold: Hold,
    },
    /// The operation is carried out, then the connection is reset instead of an answer.
    LoseAnswer,
    /// One bit of this byte of the body is turned over on its way in, before anything is checked. Without effect
    /// on content that is discarded unread.
    FlipReceived {
        /// Which byte, from 0; beyond the body's end: the last one.
        at: u64,
    },
    /// One bit of this byte of the answer's body is turned over on its way out.
    FlipServed {
        /// Which byte, from 0; beyond the body's end: none.
        at: u64,
    },
}

impl Fault {
    /// The error that is answered instead of carrying the operation out, for the faults that are just that.
    pub(crate) fn answer(&self) -> Option<(StatusCode, &'static str)> {
        match self {
            Fault::SlowDown => Some((StatusCode::SERVICE_UNAVAILABLE, "SlowDown")),
            Fault::InternalError => Some((StatusCode::INTERNAL_SERVER_ERROR, "InternalError")),
            Fault::ExpiredToken => Some((StatusCode::BAD_REQUEST, "ExpiredToken")),
            Fault::RequestTimeTooSkewed => Some((StatusCode::FORBIDDEN, "RequestTimeTooSkewed")),
            Fault::AccessDenied => Some((StatusCode::FORBIDDEN, "AccessDenied")),
            Fault::NoSuchBucket => Some((StatusCode::NOT_FOUND, "NoSuchBucket")),
            Fault::Answer { status, code } => {
                Some((StatusCode::from_u16(*status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), code))
            }
            _ => None,
        }
    }
}

type KeyTest = dyn Fn(&str) -> bool + Send + Sync;

/// Which requests a rule is for. Starts out as all of them; each method narrows it.
#[derive(Clone, Default)]
pub struct When {
    operations: Vec<Operation>,
    key: Option<Arc<KeyTest>>,
    skip: u64,
    times: Option<u64>,
    chance: Option<(f64, u64)>,
}

impl When {
    /// Every request.
    pub fn any() -> When {
        When::default()
    }

    /// Requests for this operation. Called again, it adds one.
    pub fn operation(operation: Operation) -> When {
        When::any().or_operation(operation)
    }

    /// Adds an operation.
    pub fn or_operation(mut self, operation: Operation) -> When {
        self.operations.push(operation);
        self
    }

    /// Requests whose key contains this text.
    pub fn key(self, part: impl Into<String>) -> When {
        let part = part.into();
        self.key_where(move |key| key.contains(&part))
    }

    /// Requests whose key passes this test.
    pub fn key_where(mut self, test: impl Fn(&str) -> bool + Send + Sync + 'static) -> When {
        self.key = Some(Arc::new(test));
        self
    }

    /// Lets the first `count` of them pass.
    pub fn skip(mut self, count: u64) -> When {
        self.skip = count;
        self
    }

    /// The nth of them (from 1) and no other.
    pub fn nth(self, nth: u64) -> When {
        self.skip(nth.saturating_sub(1)).times(1)
    }

    /// At most this many of them; without it every one.
    pub fn times(mut self, count: u64) -> When {
        self.times = Some(count);
        self
    }

    /// Each of them with this probability, decided by a generator that starts from `seed`.
    pub fn chance(mut self, probability: f64, seed: u64) -> When {
        self.chance = Some((probability, seed));
        self
    }

    fn fits(&self, target: &Target) -> bool {
        (self.operations.is_empty() || self.operations.contains(&target.operation))
            && self.key.as_ref().is_none_or(|test| test(&target.key))
    }
}

impl fmt::Debug for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("When")
            .field("operations", &self.operations)
            .field("skip", &self.skip)
            .field("times", &self.times)
            .field("chance", &self.chance)
            .finish_non_exhaustive()
    }
}

/// A rule that has been added: how often it fired, and the way to take it back.
#[derive(Clone, Debug)]
pub struct Rule {
    id: u64,
    hits: Arc<AtomicU64>,
    faults: Faults,
}

impl Rule {
    /// How many requests it has struck.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::SeqCst)
    }

    /// Takes the rule back. Requests that it has struck already stay struck.
    pub fn remove(&self) {
        self.faults.rules().retain(|rule| rule.id != self.id);
    }
}

#[derive(Debug)]
struct ActiveRule {
    id: u64,
    when: When,
    fault: Fault,
    seen: u64,
    random: u64,
    hits: Arc<AtomicU64>,
}

impl ActiveRule {
    fn fires(&mut self, target: &Target) -> bool {
        if !self.when.fits(target) {
            return false;
        }
        self.seen += 1;
        let spent = self.when.times.is_some_and(|times| self.hits.load(Ordering::SeqCst) >= times);
        if self.seen <= self.when.skip || spent {
            return false;
        }
        if let Some((probability, _)) = self.when.chance
            && next_unit(&mut self.random) >= probability
        {
            return false;
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// SplitMix64: small, and good enough to throw dice.
fn next_unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// The ways of a store that is not quite S3, for what a preflight probe must find out. All off at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// Bodies are stored whatever digests came with them.
    pub ignore_digests: bool,
    /// `If-Match` and `If-None-Match` on writes and deletes change nothing.
    pub ignore_conditions: bool,
    /// No answer carries a checksum.
    pub hide_checksums: bool,
    /// A multipart object's ETag in a listing (and on HEAD and GET) differs from the one that Complete answered.
    pub change_multipart_etags: bool,
}

#[derive(Debug)]
struct State {
    rules: Mutex<Vec<ActiveRule>>,
    /// Spares the lock in the usual case: no rules at all.
    armed: AtomicBool,
    next_id: AtomicU64,
    denied: Mutex<BTreeSet<Operation>>,
    quirks: Mutex<Quirks>,
    skew_secs: AtomicI64,
    outage: watch::Sender<bool>,
}

/// The handle to all of it; clones share one state.
#[derive(Clone, Debug)]
pub struct Faults(Arc<State>);

impl Default for Faults {
    fn default() -> Faults {
        Faults(Arc::new(State {
            rules: Mutex::default(),
            armed: AtomicBool::new(false),
            next_id: AtomicU64::new(0),
            denied: Mutex::default(),
            quirks: Mutex::default(),
            skew_secs: AtomicI64::new(0),
            outage: watch::Sender::new(false),
        }))
    }
}

impl Faults {
    /// Adds a rule behind those that are there.
    pub fn add(&self, when: When, fault: Fault) -> Rule {
        let id = self.0.next_id.fetch_add(1, Ordering::SeqCst);
        let hits = Arc::new(AtomicU64::new(0));
        let random = when.chance.map_or(0, |(_, seed)| seed);
        self.rules().push(ActiveRule { id, when, fault, seen: 0, random, hits: Arc::clone(&hits) });
        self.0.armed.store(true, Ordering::SeqCst);
        Rule { id, hits, faults: self.clone() }
    }

    /// Takes back every rule, the deny-list, the quirks, the skew and the outage.
    pub fn clear(&self) {
        self.0.armed.store(false, Ordering::SeqCst);
        self.rules().clear();
        lock(&self.0.denied).clear();
        self.set_quirks(Quirks::default());
        self.set_clock_skew(0);
        self.set_outage(false);
    }

    /// Answers `AccessDenied` to this operation until it is allowed again.
    pub fn deny(&self, operation: Operation) {
        lock(&self.0.denied).insert(operation);
        self.0.armed.store(true, Ordering::SeqCst);
    }

    /// Takes an operation off the deny-list.
    pub fn allow(&self, operation: Operation) {
        lock(&self.0.denied).remove(&operation);
    }

    /// Sets the server's clock off by so many seconds: its `Date` says so, and requests that are signed more than
    /// 15 minutes from it are refused with `RequestTimeTooSkewed`.
    pub fn set_clock_skew(&self, seconds: i64) {
        self.0.skew_secs.store(seconds, Ordering::SeqCst);
    }

    /// While this is on, open connections are reset and new ones are reset as soon as they come.
    pub fn set_outage(&self, on: bool) {
        self.0.outage.send_replace(on);
    }

    /// Sets the quirks, all at once.
    pub fn set_quirks(&self, quirks: Quirks) {
        *lock(&self.0.quirks) = quirks;
    }

    /// The quirks of the moment.
    pub fn quirks(&self) -> Quirks {
        *lock(&self.0.quirks)
    }

    pub(crate) fn clock_skew_secs(&self) -> i64 {
        self.0.skew_secs.load(Ordering::SeqCst)
    }

    pub(crate) fn watch_outage(&self) -> watch::Receiver<bool> {
        self.0.outage.subscribe()
    }

    /// Decides about one request.
    pub(crate) fn strike(&self, target: &Target) -> Option<Fault> {
        if !self.0.armed.load(Ordering::SeqCst) {
            return None;
        }
        if lock(&self.0.denied).contains(&target.operation) {
            return Some(Fault::AccessDenied);
        }
        self.rules().iter_mut().find_map(|rule| rule.fires(target).then(|| rule.fault.clone()))
    }

    fn rules(&self) -> MutexGuard<'_, Vec<ActiveRule>> {
        lock(&self.0.rules)
    }
}

/// A test that panics while it holds a lock must not take the server with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(operation: Operation, key: &str) -> Target {
        Target { operation, bucket: "b".into(), key: key.into(), upload: None, part: None }
    }

    fn struck(faults: &Faults, keys: &[&str]) -> Vec<bool> {
        keys.iter().map(|key| faults.strike(&target(Operation::PutObject, key)).is_some()).collect()
    }

    #[test]
    fn rules_count_what_fits_them() {
        let faults = Faults::default();
        let rule = faults.add(When::operation(Operation::PutObject).key("ckpt").skip(1).times(2), Fault::SlowDown);
        assert!(faults.strike(&target(Operation::GetObject, "ckpt")).is_none());
        assert_eq!(
            struck(&faults, &["ckpt-1", "log", "ckpt-2", "ckpt-3", "ckpt-4"]),
            [false, false, true, true, false]
        );
        assert_eq!(rule.hits(), 2);
    }

    #[test]
    fn a_removed_rule_is_gone() {
        let faults = Faults::default();
        let rule = faults.add(When::any(), Fault::SlowDown);
        assert_eq!(struck(&faults, &["a"]), [true]);
        rule.remove();
        assert_eq!(struck(&faults, &["a"]), [false]);
    }

    #[test]
    fn dice_follow_the_seed() {
        let throws = |seed| {
            let faults = Faults::default();
            faults.add(When::any().chance(0.25, seed), Fault::SlowDown);
            struck(&faults, &["a"; 1000])
        };
        assert_eq!(throws(7), throws(7));
        assert_ne!(throws(7), throws(8));
        let hits = throws(7).into_iter().filter(|hit| *hit).count();
        assert!((200..300).contains(&hits), "{hits} of 1000 at a chance of a quarter");
    }

    #[test]
    fn denied_operations_are_refused_until_allowed() {
        let faults = Faults::default();
        faults.deny(Operation::PutObject);
        assert_eq!(struck(&faults, &["a"]), [true]);
        assert!(faults.strike(&target(Operation::GetObject, "a")).is_none());
        faults.allow(Operation::PutObject);
        assert_eq!(struck(&faults, &["a"]), [false]);
    }
}

//! The preflight probe: what a store really does, whatever it says it is.
//!
//! Five small requests in three rounds on names of their own below `.chiefsync/`, which are removed again. One more is
//! needed where a store accepts what it should refuse.

use std::fmt;

use super::{Body, Condition, ETag, ErrorKind, RetryReason, Store, StoreError, WriteOptions, Written, put_intact};
use crate::digest::Sha256;
use crate::key::Key;

/// What a store was found to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Refuses bytes that don't match their digest. Otherwise what was sent has to be read back.
    pub verifies_digests: bool,
    /// Refuses a write whose `If-Match` fails. Otherwise nothing keeps two writers apart.
    pub if_match: bool,
    /// Refuses a write with `If-None-Match: *` on an object that is there.
    pub if_none_match: bool,
    /// Returns the checksum of what it stored.
    pub returns_checksums: bool,
}

impl Capabilities {
    /// Whether the head can be swapped safely.
    pub fn can_fence(self) -> bool {
        self.if_match && self.if_none_match
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = |yes: bool| if yes { "" } else { "not " };
        write!(
            f,
            "wrong digests {}refused, If-Match {}held, If-None-Match {}held, checksums {}returned",
            found(self.verifies_digests),
            found(self.if_match),
            found(self.if_none_match),
            found(self.returns_checksums)
        )
    }
}

/// Asks the store.
///
/// # Errors
/// What the store refuses for good (credentials, permission, no such bucket), or can't answer now. What was written is
/// removed in either case, as far as the store allows it.
pub async fn probe(store: &dyn Store) -> Result<Capabilities, StoreError> {
    let nonce = getrandom::u64().unwrap_or_default();
    let plain = Key::control(&format!("probe-{nonce:016x}"));
    let forged = Key::control(&format!("probe-{nonce:016x}-digest"));
    let found = ask(store, &plain, &forged).await;
    // After an error nobody knows what was stored.
    let forged_may_be_there = !found.as_ref().is_ok_and(|found| found.verifies_digests);
    let removed = if forged_may_be_there {
        let (one, other) = tokio::join!(store.delete(&plain), store.delete(&forged));
        one.and(other)
    } else {
        store.delete(&plain).await
    };
    match (found, removed) {
        (Err(error), _) => Err(error),
        (Ok(found), Err(error)) if error.kind == ErrorKind::Stop => {
            // Some places let their writers add but not remove: uploads work all the same.
            tracing::warn!(hint = error.hint.as_deref(), "{error}; the probe's object stays");
            Ok(found)
        }
        (Ok(_), Err(error)) => Err(error),
        (Ok(found), Ok(())) => Ok(found),
    }
}

async fn ask(store: &dyn Store, plain: &Key, forged: &Key) -> Result<Capabilities, StoreError> {
    let put = |key, body, condition| put_intact(store, key, body, WriteOptions::when(condition));
    let wrong_digest = Body::bytes("probe".into(), Sha256::of(b"something else"));
    let (first, unverified) = tokio::join!(
        put(plain, Body::hashed("first"), Condition::None),
        store.put(forged, wrong_digest, WriteOptions::default())
    );
    let first = first?;
    let (mismatched, present) = tokio::join!(
        put(plain, Body::hashed("second"), Condition::Matches(ETag::new("0123456789abcdef0123456789abcdef"))),
        put(plain, Body::hashed("third"), Condition::Absent)
    );
    Ok(Capabilities {
        verifies_digests: is_refused(unverified, &[ErrorKind::Corrupt, ErrorKind::Refused])?,
        if_match: holds(mismatched)?,
        if_none_match: holds(present)?,
        returns_checksums: first.checksum.is_some(),
    })
}

/// Whether a condition that fails was seen to fail. A store that doesn't take the header at all can't hold it.
fn holds(answer: Result<Written, StoreError>) -> Result<bool, StoreError> {
    match answer {
        Err(error) if matches!(error.kind, ErrorKind::Unsupported | ErrorKind::Refused) => Ok(false),
        // Two conditional writes at once: one of them was told to look again.
        other => is_refused(other, &[ErrorKind::Fenced, ErrorKind::Retry(RetryReason::Conflict)]),
    }
}

/// Whether the answer is a refusal of one of these kinds; any other error is the probe's own.
fn is_refused(answer: Result<Written, StoreError>, kinds: &[ErrorKind]) -> Result<bool, StoreError> {
    match answer {
        Ok(_) => Ok(false),
        Err(error) if kinds.contains(&error.kind) => Ok(true),
        Err(error) => Err(error),
    }
}

//! The manifest against the bucket: what the listing shows, and under `--deep` every byte.

use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use super::{Findings, Verdict, Verification, promised_marker, verdict_of};
use crate::digest::{Digest, Sha256, part_count, part_range};
use crate::key::Key;
use crate::manifest::Manifest;
use crate::marker::{MAX_MARKER_BYTES, MarkerKind};
use crate::store::hashing::sha256_of_range;
use crate::store::inventory::{Difference, compare_listing};
use crate::store::{ETag, ErrorKind, Listed, SharedStore, StoreError};
use crate::sync::buffers::Buffers;

/// What a download may hold in memory on its way through the sockets, in bytes.
const STREAM_BYTES: u64 = 2 * 1024 * 1024;

/// More downloads at a time than this bring nothing.
const MOST_STREAMS: u64 = 16;

/// What a listing holds beside the manifest's files.
#[derive(Default)]
pub(super) struct Beside {
    /// DONE and FAILED.
    pub markers: Vec<Listed>,
    /// Objects that nothing names.
    pub extra: Vec<String>,
}

impl Beside {
    fn take(&mut self, listed: Listed) {
        if MarkerKind::of(listed.key.as_str()).is_some() {
            self.markers.push(listed);
        } else if !listed.key.is_control() {
            self.extra.push(listed.key.to_string());
        }
    }
}

/// Lists the prefix against `names` (sorted). What differs does so in a listing from front to back, too.
pub(super) async fn list(
    of: &Verification,
    names: &[&str],
    is_same: impl Fn(usize, &Listed) -> bool,
) -> Result<(Vec<Difference>, Beside), StoreError> {
    for in_ranges in [true, false] {
        let mut beside = Beside::default();
        let same = |index: usize, listed: &Listed| {
            of.alive.beat();
            is_same(index, listed)
        };
        let (differences, foreign) =
            compare_listing(&of.store, names, in_ranges, same, |listed| beside.take(listed)).await?;
        if differences.is_empty() || !in_ranges {
            beside.extra.extend(foreign);
            return Ok((differences, beside));
        }
    }
    unreachable!("the second listing is the last")
}

/// Compares the bucket with the manifest.
pub(super) async fn compare(of: &Verification, manifest: &Manifest, findings: &mut Findings) -> Result<(), StoreError> {
    let names: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    let (differences, beside) = list(of, &names, |index, listed| {
        let file = &manifest.files[index];
        file.size_bytes == listed.size_bytes && file.etag == listed.etag
    })
    .await?;
    for Difference { index, listed } in differences {
        let file = &manifest.files[index];
        let (verdict, why) = match listed {
            None => (Verdict::MissingRemotely, "it is not there".to_owned()),
            Some(listed) => {
                let what = format!("another version is there ({} bytes, ETag {})", listed.size_bytes, listed.etag);
                (Verdict::Differs, what)
            }
        };
        findings.note(file.path.as_str(), verdict, file.size_bytes, why);
    }
    findings.extra = beside.extra;
    compare_markers(of, manifest, &beside.markers, findings).await?;
    if of.config.deep {
        let files = manifest.files.iter().filter(|file| !findings.has(file.path.as_str()));
        let wanted: Vec<Wanted> = files
            .map(|file| Wanted {
                key: file.path.clone(),
                etag: file.etag.clone(),
                size_bytes: file.size_bytes,
                digest: file.digest.clone(),
            })
            .collect();
        for (key, size_bytes, verdict, why) in read_back(of, wanted).await? {
            findings.note(key.as_str(), verdict, size_bytes, why);
        }
    }
    Ok(())
}

/// DONE and FAILED must be what the outcome promises.
async fn compare_markers(
    of: &Verification,
    manifest: &Manifest,
    there: &[Listed],
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let promised = promised_marker(manifest.facts.outcome);
    for kind in MarkerKind::ALL {
        let name = kind.file_name();
        let listed = there.iter().find(|listed| listed.key.as_str() == name);
        let outcome = manifest.facts.outcome.name();
        match (promised == Some(kind), listed) {
            (false, None) => {}
            (false, Some(listed)) => {
                let why = format!("it is there, and the run ended as {outcome}");
                findings.note(name, Verdict::Differs, listed.size_bytes, why);
            }
            (true, None) => {
                let why = format!("it is not there, and the run ended as {outcome}");
                findings.note(name, Verdict::MissingRemotely, 0, why);
            }
            (true, Some(listed)) => {
                findings.compared(name, listed.size_bytes);
                let Some(facts) = manifest.facts.marker.as_ref().filter(|facts| facts.kind == kind) else { continue };
                let identity = facts.identity;
                // Of a larger one the manifest knows only how it begins.
                if identity.size > MAX_MARKER_BYTES {
                    continue;
                }
                if listed.size_bytes != identity.size {
                    let why = format!("it has {} bytes, and the marker had {}", listed.size_bytes, identity.size);
                    findings.note(name, Verdict::Differs, identity.size, why);
                } else if of.config.deep {
                    let digest = Digest::One(identity.sha256);
                    let (etag, size_bytes) = (listed.etag.clone(), identity.size);
                    let wanted = Wanted { key: listed.key.clone(), etag, size_bytes, digest };
                    for (_, _, verdict, why) in read_back(of, vec![wanted]).await? {
                        findings.note(name, verdict, identity.size, why);
                    }
                }
            }
        }
    }
    Ok(())
}

/// An object that should have these bytes.
pub(super) struct Wanted {
    pub key: Key,
    pub etag: ETag,
    pub size_bytes: u64,
    pub digest: Digest,
}

/// What is wrong with which object.
type Wrong = (Key, u64, Verdict, String);

/// Downloads objects part by part, several at a time within the memory budget, and names those with other bytes.
async fn read_back(of: &Verification, wanted: Vec<Wanted>) -> Result<Vec<Wrong>, StoreError> {
    let streams = streams(of.config.memory_bytes);
    of.alive.expect(wanted.len() as u64, wanted.iter().map(|one| one.size_bytes).sum());
    let mut wrong = Vec::new();
    let mut left: Vec<u32> = wanted.iter().map(part_count_of).collect();
    let mut is_wrong = vec![false; wanted.len()];
    let mut reading = JoinSet::new();
    let parts_of = |(at, one)| (0..part_count_of(one)).map(move |part| (at, one, part));
    let mut parts = wanted.iter().enumerate().flat_map(parts_of);
    loop {
        while reading.len() < streams {
            let Some((at, one, part)) = parts.next() else { break };
            if is_wrong[at] {
                continue;
            }
            let (store, key, etag) = (Arc::clone(&of.store), one.key.clone(), one.etag.clone());
            let (range, expected) = (part_range(one.size_bytes, part), one.digest.parts()[part as usize]);
            reading.spawn(async move { (at, range.1, part_is(&store, &key, &etag, range, expected).await) });
        }
        let Some(done) = reading.join_next().await else { return Ok(wrong) };
        let (at, bytes, is_right) = done.map_err(|error| ended_early(&error))?;
        let one = &wanted[at];
        of.alive.read(bytes);
        left[at] -= 1;
        let problem = match is_right {
            Ok(true) => None,
            Ok(false) => Some((Verdict::Differs, "its bytes are not those that the digest is of".to_owned())),
            Err(error) => Some(verdict_of(error)?),
        };
        if let Some((verdict, why)) = problem
            && !is_wrong[at]
        {
            is_wrong[at] = true;
            wrong.push((one.key.clone(), one.size_bytes, verdict, why));
        }
        if left[at] == 0 {
            of.alive.file();
        }
    }
}

fn part_count_of(one: &Wanted) -> u32 {
    part_count(one.size_bytes)
}

/// Whether a part of an object has this digest. Bytes may be damaged on their way: only what reads back wrong twice is wrong.
async fn part_is(
    store: &SharedStore,
    key: &Key,
    etag: &ETag,
    range: (u64, u64),
    expected: Sha256,
) -> Result<bool, StoreError> {
    if sha256_of_range(store.as_ref(), key, range, etag).await? == expected {
        return Ok(true);
    }
    if sha256_of_range(store.as_ref(), key, range, etag).await? != expected {
        return Ok(false);
    }
    tracing::warn!(path = %key, offset = range.0, "bytes came damaged once, and right the second time");
    Ok(true)
}

/// Whether an object has these bytes: part by part, until one differs.
pub(super) async fn object_is(store: &SharedStore, wanted: &Wanted) -> Result<bool, StoreError> {
    for (index, expected) in (0..).zip(wanted.digest.parts()) {
        let range = part_range(wanted.size_bytes, index);
        if !part_is(store, &wanted.key, &wanted.etag, range, *expected).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many downloads the memory is enough for.
pub(super) fn streams(memory_bytes: u64) -> usize {
    usize::try_from((Buffers::budget_bytes(memory_bytes) / STREAM_BYTES).clamp(1, MOST_STREAMS)).unwrap_or(1)
}

/// A task that panicked.
pub(super) fn ended_early(error: &JoinError) -> StoreError {
    StoreError::new(ErrorKind::Refused, "GetObject", "", format!("reading ended early: {error}"))
}

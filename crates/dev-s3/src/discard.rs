//! The shortcut of the discarding server: bodies are counted and forgotten.
//!
//! Measuring a client needs a server that costs next to nothing. Signatures, digests and s3s are all passed by
//! here; the body's blocks are dropped as they come from the socket. What remains true: sizes, conditions, the
//! upload that a part belongs to, and checksums echoed as they were claimed.

use crate::checksum::{Checksum, Claims, hex};
use crate::conditions::Conditions;
use crate::ingest::drain;
use crate::operation::{Operation, Target};
use crate::store::{Draft, Headers, NewObject, NewPart, Store};
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::Incoming;
use s3s::{Body, S3ErrorCode, S3Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Takes a `PutObject` or `UploadPart` and keeps its size.
pub(crate) async fn receive(
    store: &Store,
    target: &Target,
    head: &http::request::Parts,
    body: Incoming,
    bytes: &AtomicU64,
    ignore_conditions: bool,
) -> S3Result<Response<Body>> {
    drain(body, bytes, u64::MAX).await;
    let received = bytes.load(Ordering::Relaxed);
    let number = |name: &str| head.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    if number("content-length").is_some_and(|announced| announced != received) {
        return Err(S3ErrorCode::IncompleteBody.into());
    }
    let size = number("x-amz-decoded-content-length").unwrap_or(received);
    let claims = Claims::of(&head.headers)?;
    let checksum = claims.unverified();
    let etag = make_up_etag(&target.key, size, &claims);
    let (bucket, key) = (&target.bucket, &target.key);
    match (target.operation, &target.upload, target.part) {
        (Operation::UploadPart, Some(id), Some(number)) => {
            let part = NewPart { draft: Draft::Discarded, size, etag: etag.clone(), checksum: checksum.clone() };
            store.put_part(bucket, key, id, number, part)?;
        }
        _ => {
            let conditions = if ignore_conditions { Conditions::default() } else { Conditions::of(&head.headers)? };
            let object = NewObject {
                draft: Draft::Discarded,
                size,
                etag: etag.clone(),
                checksum: checksum.clone(),
                headers: user_headers(&head.headers),
                parts: Vec::new(),
            };
            store.put(bucket, key, object, &conditions)?;
        }
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = Checksum::headers(checksum.as_ref());
    if let Ok(etag) = HeaderValue::try_from(format!("\"{etag}\"")) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// The MD5 where the client sent it; otherwise a number that depends on name and size alone. The suffix keeps
/// clients from taking it for the MD5 of what they sent.
fn make_up_etag(key: &str, size: u64, claims: &Claims) -> String {
    if let Some(md5) = claims.md5() {
        return hex(md5);
    }
    let fnv = |seed: u64| {
        let bytes = key.bytes().chain(size.to_le_bytes());
        bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    format!("{:016x}{:016x}-1", fnv(0xcbf2_9ce4_8422_2325), fnv(size))
}

/// Metadata is small, and clients read their own back.
fn user_headers(headers: &http::HeaderMap) -> Headers {
    let mut kept = Headers::default();
    for (name, value) in headers {
        if let (Some(name), Ok(value)) = (name.as_str().strip_prefix("x-amz-meta-"), value.to_str()) {
            kept.user.insert(name.into(), value.into());
        }
    }
    kept
}

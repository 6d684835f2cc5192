//! Bodies on their way in: read once, hashed once, checked against every claim, and only then handed on.
//!
//! s3s would wrap a body into its own SHA-256 check, and the checksum header asks for the same digest a second
//! time. So the server keeps the body back (see [`Exchange`]) and s3s sees only the head, whose signature it
//! verifies; the payload's hash is verified here, together with all else.

use crate::checksum::{Claims, Digests};
use crate::faults::Quirks;
use crate::store::{Draft, Store, io_error};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use s3s::dto::StreamingBlob;
use s3s::{S3ErrorCode, S3Request, S3Result, TrailingHeaders, s3_error};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The largest body that S3 takes in one request.
const MAX_BODY_BYTES: u64 = 5 << 30;

/// What the connection's side tells the operation's side about a request, and gets back.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    body: Mutex<Option<Incoming>>,
    /// Bytes of the body received so far.
    bytes: Arc<AtomicU64>,
    /// Which byte to turn over.
    flip: Option<u64>,
}

impl Exchange {
    pub fn new(body: Option<Incoming>, bytes: Arc<AtomicU64>, flip: Option<u64>) -> Exchange {
        Exchange { body: Mutex::new(body), bytes, flip }
    }

    fn take_body(&self) -> Option<Incoming> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads away a body that nobody wanted, so that the client gets to read the answer.
    pub async fn drain(&self) {
        if let Some(body) = self.take_body() {
            drain(body, &self.bytes, u64::MAX).await;
        }
    }
}

/// Reads a body until its end, or until `limit` bytes of it have come; counts what came.
pub(crate) async fn drain(mut body: Incoming, bytes: &AtomicU64, limit: u64) {
    let mut received = 0;
    while received < limit
        && let Some(Ok(frame)) = body.frame().await
    {
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        received += length;
        bytes.fetch_add(length, Ordering::Relaxed);
    }
}

/// A body that has been received and is what it claimed to be.
pub(crate) struct Received {
    pub draft: Draft,
    pub size: u64,
    pub digests: Digests,
    pub claims: Claims,
}

/// What to read, taken out of a request of s3s.
pub(crate) struct Source {
    exchange: Arc<Exchange>,
    headers: HeaderMap,
    body: Option<StreamingBlob>,
    trailers: Option<TrailingHeaders>,
}

impl Source {
    pub fn of<T>(request: &mut S3Request<T>, body: Option<StreamingBlob>) -> Source {
        Source {
            exchange: request.extensions.get().cloned().unwrap_or_default(),
            headers: std::mem::take(&mut request.headers),
            body,
            trailers: request.trailing_headers.take(),
        }
    }

    /// Receives the body as content for `key`.
    pub async fn receive(self, store: &Store, key: &str, quirks: Quirks) -> S3Result<Received> {
        let claims = Claims::of(&self.headers)?;
        let expected = self.expected_bytes()?;
        let flip = self.exchange.flip.filter(|_| expected > 0).map(|at| at.min(expected - 1));
        let mut sink = store.sink(key, expected)?;
        let mut digester = claims.digester();
        let mut size = 0;
        let mut take = |block: Bytes| -> S3Result<()> {
            let block = flipped(block, size, flip);
            size += block.len() as u64;
            digester.update(&block);
            sink.write(&block).map_err(io_error)
        };
        if let Some(mut body) = self.exchange.take_body() {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| s3_error!(IncompleteBody, "{}", error))?;
                let Ok(block) = frame.into_data() else {
                    continue;
                };
                self.exchange.bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
                take(block)?;
            }
        } else if let Some(mut body) = self.body {
            while let Some(block) = body.next().await {
                let block = block.map_err(|error| s3_error!(IncompleteBody, "{}", error))?;
                self.exchange.bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
                take(block)?;
            }
        }
        if size != expected {
            return Err(s3_error!(IncompleteBody, "{} bytes came where {} were announced", size, expected));
        }
        let digests = digester.finish();
        if !quirks.ignore_digests {
            let trailers = self.trailers.and_then(|trailers| trailers.take());
            claims.check(&digests, trailers.as_ref())?;
        }
        Ok(Received { draft: sink.finish().map_err(io_error)?, size, digests, claims })
    }

    fn expected_bytes(&self) -> S3Result<u64> {
        let number = |name: &str| self.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
        let expected = number("x-amz-decoded-content-length").or_else(|| number("content-length"));
        match expected {
            None => Err(S3ErrorCode::MissingContentLength.into()),
            Some(bytes) if bytes > MAX_BODY_BYTES => Err(S3ErrorCode::EntityTooLarge.into()),
            Some(bytes) => Ok(bytes),
        }
    }
}

/// The block that starts at `position`, with one bit turned over if the byte to flip lies in it.
pub(crate) fn flipped(block: Bytes, position: u64, flip: Option<u64>) -> Bytes {
    match flip.and_then(|at| usize::try_from(at.checked_sub(position)?).ok()) {
        Some(index) if index < block.len() => {
            let mut copy = block.to_vec();
            copy[index] ^= 1;
            copy.into()
        }
        _ => block,
    }
}

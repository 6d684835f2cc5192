//! What goes over the wire: bytes that are already in memory, or a range of an open file in small reads.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use aws_sdk_s3::primitives::{ByteStream, SdkBody};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::task::JoinHandle;

use crate::clock::Duration;
use crate::disk::ReadFile;
use crate::store::{Body, BodySource, ErrorKind};

/// How much of a file is read at once, and held twice: one piece on its way out, one being read.
const READ_BYTES: u64 = 256 * 1024;

/// How much of a body in memory is handed over at once.
const SLICE_BYTES: usize = 1024 * 1024;

/// The slowest connection that still counts as working, in bytes a second for one request.
const SLOWEST_BYTES_PER_S: u64 = 32 * 1024;

/// How long a request with a body of `len_bytes` may take.
pub(super) fn time_limit(len_bytes: u64) -> Duration {
    Duration::from_secs(60 + len_bytes / SLOWEST_BYTES_PER_S)
}

/// What went wrong on our side while the body was read; the SDK would only say that the connection broke.
#[derive(Clone, Default)]
pub(super) struct ReadFault(Arc<OnceLock<(ErrorKind, String)>>);

impl ReadFault {
    pub(super) fn get(&self) -> Option<(ErrorKind, String)> {
        self.0.get().cloned()
    }
}

/// The body as the SDK takes it, and where a fault of the local file will show.
pub(super) fn to_stream(body: Body) -> (ByteStream, ReadFault) {
    let fault = ReadFault::default();
    let stream = match body.source {
        BodySource::Bytes(bytes) if bytes.len() <= SLICE_BYTES => ByteStream::from(bytes),
        BodySource::Bytes(bytes) => ByteStream::new(SdkBody::from_body_1_x(Slices(bytes))),
        BodySource::File { file, offset } => ByteStream::new(SdkBody::from_body_1_x(FileRange {
            file,
            offset,
            left: body.len_bytes,
            reading: None,
            fault: fault.clone(),
        })),
    };
    (stream, fault)
}

/// Bytes in memory, handed over slice by slice.
///
/// Given as a whole they would count as sent at once, and a connection that has gone silent would only be noticed at the
/// request's time limit; so it is noticed when no further slice is taken for the grace of the stalled-stream protection.
struct Slices(Bytes);

impl http_body::Body for Slices {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let len = self.0.len().min(SLICE_BYTES);
        Poll::Ready((len > 0).then(|| Ok(Frame::data(self.0.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// A range of an open file as an HTTP body of known length.
struct FileRange {
    file: Arc<ReadFile>,
    offset: u64,
    left: u64,
    reading: Option<JoinHandle<std::io::Result<Bytes>>>,
    fault: ReadFault,
}

impl FileRange {
    /// Starts to read the next piece on a blocking thread, if there is one.
    fn read_ahead(&mut self) {
        let want = self.left.min(READ_BYTES);
        if want == 0 {
            return;
        }
        let (file, offset) = (self.file.clone(), self.offset);
        self.offset += want;
        self.reading = Some(tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; usize::try_from(want).unwrap_or(0)];
            let filled = file.read_at(&mut buffer, offset)?;
            buffer.truncate(filled);
            Ok(Bytes::from(buffer))
        }));
    }

    fn fail(&mut self, kind: ErrorKind, why: String) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.left = 0;
        let why = format!("{}: {why}", self.file.path().display());
        let _ = self.fault.0.set((kind, why.clone()));
        Poll::Ready(Some(Err(std::io::Error::other(why))))
    }
}

impl http_body::Body for FileRange {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.reading.is_none() {
            self.read_ahead();
        }
        let Some(reading) = self.reading.as_mut() else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let wanted = self.left.min(READ_BYTES);
        match read {
            Ok(Ok(bytes)) if bytes.len() as u64 == wanted => {
                self.left -= wanted;
                self.read_ahead();
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Ok(Ok(_)) => self.fail(ErrorKind::Corrupt, "got shorter while it was sent".to_owned()),
            Ok(Err(e)) => self.fail(ErrorKind::Refused, e.to_string()),
            Err(e) => self.fail(ErrorKind::Refused, e.to_string()),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

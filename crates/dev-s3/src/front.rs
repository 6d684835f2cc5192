//! The service that hyper calls: everything about a request that is not S3.
//!
//! Here a request is named and booked, its fault decided, the clock compared and the body kept back; s3s (or the
//! discarding shortcut) does the rest. A connection is reset by returning [`Reset`].

use crate::clock;
use crate::discard;
use crate::faults::{Fault, Faults};
use crate::ingest::{Exchange, drain, flipped};
use crate::operation::{Operation, Target};
use crate::store::Store;
use crate::traffic::{Entry, Traffic};
use bytes::Bytes;
use futures_util::stream;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use s3s::service::S3Service;
use s3s::{Body, S3Error};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module's documentation.
pub(crate) struct Front {
    pub service: S3Service,
    pub store: Arc<Store>,
    pub faults: Faults,
    pub traffic: Arc<Traffic>,
}

/// The connection is to end at once, with a TCP reset.
#[derive(Debug)]
pub(crate) struct Reset;

impl fmt::Display for Reset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is reset on purpose")
    }
}

impl std::error::Error for Reset {}

/// How a connection learns that it is to be reset rather than closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetFlag(Arc<AtomicBool>);

impl ResetFlag {
    pub fn raise(&self) -> Reset {
        self.0.store(true, Ordering::SeqCst);
        Reset
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Front {
    pub async fn answer(&self, request: Request<Incoming>, connection: &ResetFlag) -> Result<Response<Body>, Reset> {
        let (head, body) = request.into_parts();
        let target = Target::of(&head);
        let fault = self.faults.strike(&target);
        let mut entry = self.traffic.begin(target);

        match &fault {
            Some(Fault::Stall(hold)) => hold.wait().await,
            Some(Fault::ResetRequest { after_bytes }) => {
                drain(body, &entry.bytes, *after_bytes).await;
                return Err(connection.raise());
            }
            _ => {}
        }
        let refusal = fault.as_ref().and_then(Fault::answer).or_else(|| self.clock_refusal(&head));
        let mut response = match refusal {
            Some((status, code)) => {
                // Read first: a client that is cut off while it sends sees a broken pipe, not the answer.
                drain(body, &entry.bytes, u64::MAX).await;
                error_response(status, code)
            }
            None => self.carry_out(head, body, &entry, &fault).await.ok_or_else(|| connection.raise())?,
        };
        match fault {
            Some(Fault::LoseAnswer) => return Err(connection.raise()),
            Some(Fault::StallAnswer(hold)) => hold.wait().await,
            Some(fault) => response = response.map(|body| altered(body, fault, connection.clone())),
            None => {}
        }

        let skew = self.faults.clock_skew_secs();
        if skew != 0
            && let Ok(date) = HeaderValue::try_from(clock::http_date(clock::skewed(skew)))
        {
            response.headers_mut().insert(header::DATE, date);
        }
        entry.status = response.status().as_u16();
        Ok(response)
    }

    /// Lets the operation happen. `None` where even s3s has no answer.
    async fn carry_out(
        &self,
        mut head: Parts,
        body: Incoming,
        entry: &Entry,
        fault: &Option<Fault>,
    ) -> Option<Response<Body>> {
        let target = &entry.target;
        let carries_content = matches!(target.operation, Operation::PutObject | Operation::UploadPart);
        if carries_content && self.store.discards(&target.key) {
            let ignore = self.faults.quirks().ignore_conditions;
            let result = discard::receive(&self.store, target, &head, body, &entry.bytes, ignore).await;
            return result.or_else(S3Error::to_http_response).ok();
        }
        let flip = match fault {
            Some(Fault::FlipReceived { at }) => Some(*at),
            _ => None,
        };
        let framed =
            head.headers.get("x-amz-content-sha256").is_some_and(|hash| hash.as_bytes().starts_with(b"STREAMING-"));
        // A framed body (aws-chunked) is s3s's to take apart; any other is kept back.
        let (kept, passed) = if carries_content && !framed { (Some(body), Body::empty()) } else { (None, body.into()) };
        if !carries_content {
            let length = head.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
            entry.bytes.fetch_add(length.unwrap_or(0), Ordering::Relaxed);
        }
        let exchange = Arc::new(Exchange::new(kept, Arc::clone(&entry.bytes), flip));
        head.extensions.insert(Arc::clone(&exchange));
        let response = self.service.call(Request::from_parts(head, passed)).await;
        exchange.drain().await;
        response.ok()
    }

    fn clock_refusal(&self, head: &Parts) -> Option<(StatusCode, &'static str)> {
        let signed = head.headers.get("x-amz-date")?.to_str().ok()?;
        let server_time = clock::skewed(self.faults.clock_skew_secs());
        clock::is_too_far(signed, server_time).then_some((StatusCode::FORBIDDEN, "RequestTimeTooSkewed"))
    }
}

fn error_response(status: StatusCode, code: &str) -> Response<Body> {
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <Error><Code>{code}</Code><Message>A fault on request: {code}</Message></Error>"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// The body of an answer with a fault in it, for the faults that strike there.
fn altered(body: Body, fault: Fault, connection: ResetFlag) -> Body {
    let (flip, stop_at) = match &fault {
        Fault::FlipServed { at } => (Some(*at), None),
        Fault::ResetAnswer { after_bytes } | Fault::StallBody { after_bytes, .. } => (None, Some(*after_bytes)),
        _ => return body,
    };
    let state = Altered { body, position: 0, flip, stop_at, fault, connection, queue: VecDeque::new() };
    let frames = stream::unfold(state, |mut state| async move {
        let item = state.next().await?;
        Some((item.map(Frame::data), state))
    });
    Body::http_body_unsync(StreamBody::new(frames))
}

struct Altered {
    body: Body,
    position: u64,
    flip: Option<u64>,
    /// Where to stop; taken once that has happened.
    stop_at: Option<u64>,
    fault: Fault,
    connection: ResetFlag,
    queue: VecDeque<Bytes>,
}

impl Altered {
    async fn next(&mut self) -> Option<Result<Bytes, s3s::StdError>> {
        if self.stop_at == Some(self.position) {
            self.stop_at = None;
            match &self.fault {
                Fault::StallBody { hold, .. } => hold.wait().await,
                _ => {
                    // Gives hyper a turn to send what it has.
                    tokio::task::yield_now().await;
                    return Some(Err(self.connection.raise().into()));
                }
            }
        }
        let mut block = match self.queue.pop_front() {
            Some(block) => block,
            None => loop {
                match self.body.frame().await? {
                    Ok(frame) => match frame.into_data() {
                        Ok(block) if !block.is_empty() => break block,
                        _ => {}
                    },
                    Err(error) => return Some(Err(error)),
                }
            },
        };
        if let Some(until) = self.stop_at.and_then(|at| usize::try_from(at - self.position).ok())
            && until < block.len()
        {
            self.queue.push_back(block.split_off(until));
        }
        let block = flipped(block, self.position, self.flip);
        self.position += block.len() as u64;
        Some(Ok(block))
    }
}

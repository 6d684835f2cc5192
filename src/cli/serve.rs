//! `--metrics-addr`: `/metrics` for Prometheus, `/healthz` for the kubelet.
//!
//! Invariants: it is bounded in connections, time and bytes, whoever connects; a bad request ends its connection and
//! nothing else.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use chiefsync::clock::Duration;
use chiefsync::config::show_duration;
use chiefsync::exit::UsageError;
use chiefsync::metrics::{self, Metrics};

/// Connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS: usize = 16;

/// The longest a connection may last: a scraper comes again.
const CONNECTION_TAKES: Duration = Duration::from_secs(60);

/// The longest a request's head may take.
const HEAD_TAKES: Duration = Duration::from_secs(5);

/// The longest request's head, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// Takes the address.
///
/// # Errors
/// Why it can't be had.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, UsageError> {
    let mut bound = TcpListener::bind(address).await;
    // ":9400" means every address; a node without IPv6 has only the others.
    if bound.is_err() && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    let listener = bound.map_err(|error| {
        UsageError::new(
            format!("--metrics-addr {address}: {error}"),
            "choose a port that nobody else in the pod listens on, above 1024",
        )
    })?;
    if let Ok(bound) = listener.local_addr() {
        tracing::info!(url = format!("http://{bound}/metrics"), "metrics are served");
    }
    Ok(listener)
}

/// Answers until it is dropped.
pub async fn serve(listener: TcpListener, metrics: Arc<Metrics>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = Arc::clone(&metrics);
                tokio::spawn(async move {
                    let _place = place;
                    // A peer that is too slow or talks nonsense loses its connection; that is all there is to it.
                    let _ = tokio::time::timeout(CONNECTION_TAKES, connection(stream, metrics)).await;
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: others will be closed meanwhile.
                tracing::debug!(%error, "a connection for metrics can't be accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, metrics: Arc<Metrics>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let metrics = Arc::clone(&metrics);
        async move { Ok::<_, Infallible>(answer(&request, &metrics)) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TAKES)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, metrics: &Arc<Metrics>) -> Response<Full<Bytes>> {
    let (status, media_type, text) = match (request.uri().path(), request.method()) {
        ("/metrics" | "/healthz", method) if !matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned())
        }
        ("/metrics", _) => (StatusCode::OK, metrics::CONTENT_TYPE, metrics.exposition()),
        ("/healthz", _) => match metrics.stuck_for() {
            None => (StatusCode::OK, "text/plain", format!("ok {}\n", metrics.current_stage().name())),
            Some(silent) => {
                let text =
                    format!("no sign of life for {} in {}\n", show_duration(silent), metrics.current_stage().name());
                (StatusCode::SERVICE_UNAVAILABLE, "text/plain", text)
            }
        },
        _ => (StatusCode::NOT_FOUND, "text/plain", "here are /metrics and /healthz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// What the server answers to these bytes, until it closes the connection.
    async fn asked(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        asked(address, format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await
    }

    async fn server() -> SocketAddr {
        let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, Metrics::new()));
        address
    }

    #[tokio::test]
    async fn it_answers_what_it_knows() {
        let address = server().await;
        let text = get(address, "/metrics").await;
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(metrics::CONTENT_TYPE), "{text}");
        assert!(text.ends_with("# EOF\n") && text.contains("chiefsync_build_info{version="), "{text}");
        assert!(get(address, "/healthz").await.ends_with("\r\n\r\nok preflight\n"));
        assert!(get(address, "/metrics/x").await.starts_with("HTTP/1.1 404"));
        let post = b"POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        assert!(asked(address, post).await.starts_with("HTTP/1.1 405"));
    }

    #[tokio::test]
    async fn nonsense_ends_its_connection_and_nothing_else() {
        let address = server().await;
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_BYTES * 2));
        for nonsense in
            [&b"\0\xff\r\n\r\n"[..], b"GET /metrics HTTP/9.9\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", long.as_bytes()]
        {
            let answer = asked(address, nonsense).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        }
        assert!(get(address, "/healthz").await.contains("200 OK"));
    }

    #[tokio::test]
    async fn an_address_in_use_is_said() {
        let address = server().await;
        let error = bind(address).await.unwrap_err();
        assert!(error.message.contains(&address.to_string()) && error.hint.unwrap().contains("port"));
    }
}

//! Connections: accepted, served, and ended one way or the other.

use crate::front::{Front, ResetFlag};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Serves until `stop` says so; when this returns, the port is free and every connection gone.
pub(crate) async fn listen(listener: TcpListener, front: Arc<Front>, mut stop: watch::Receiver<bool>) {
    let outage = front.faults.watch_outage();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = is_on(&mut stop) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, Arc::clone(&front), outage.clone()));
                }
                // Out of descriptors, most likely: what is open may end meanwhile.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    connections.shutdown().await;
}

async fn serve(stream: TcpStream, front: Arc<Front>, mut outage: watch::Receiver<bool>) {
    // Answers are small and complete: waiting for more to send with them would only be a delay.
    let _ = stream.set_nodelay(true);
    let reset = ResetFlag::default();
    let socket = TokioIo::new(Socket { stream, reset: reset.clone() });
    let service = service_fn(|request| {
        let (front, reset) = (Arc::clone(&front), reset.clone());
        async move { front.answer(request, &reset).await }
    });
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(socket, service);
    tokio::select! {
        // In this order, so that a connection that comes during an outage is not read from at all.
        biased;
        () = is_on(&mut outage) => {
            reset.raise();
        }
        // A client that goes away is no news.
        _ = connection => {}
    }
}

async fn is_on(switch: &mut watch::Receiver<bool>) {
    if switch.wait_for(|on| *on).await.is_err() {
        // Nobody is left to throw the switch.
        std::future::pending::<()>().await;
    }
}

/// A connection that can end in a reset instead of a close.
struct Socket {
    stream: TcpStream,
    reset: ResetFlag,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.is_raised() {
            // Fails only for a socket that is gone already.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.is_raised() {
            // An orderly goodbye would take the sting out of the reset that follows.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

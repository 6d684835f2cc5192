//! An S3 server in process: for chiefsync's demo, its tests, and whatever must go wrong on purpose.
//!
//! ```text
//! connection ─ listener ─ front ──────────────── s3s ───────────── s3 ─────────── store
//!              reset,     named, booked, fault    signature, XML    the operation   index + medium
//!              outage     decided, clock, body                      ingest checks   (memory, directory,
//!                         kept back               (discard: past    the body first   nothing)
//!                                                  all of it)
//! ```
//!
//! A request is named by [`Operation`] from its head alone, and its [`Fault`] is decided. s3s verifies the
//! signature and parses; the body waits aside, is then read and hashed once, and compared with every digest that
//! came with it. Only what holds gets its name in the store, together with its condition, under one lock.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use dev_s3::{Fault, Operation, Options, Server, When};
//!
//! let server = Server::start(Options::memory().bucket("bucket")).await?;
//! server.faults().add(When::operation(Operation::PutObject).key("ckpt").times(2), Fault::SlowDown);
//! // ... point a client at server.endpoint() with server.access_key() and server.secret_key() ...
//! assert_eq!(server.count(Operation::PutObject).requests, 3);
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

// To start one, and to look into it.
mod options;
mod server;

// Around S3: connections, faults, books.
mod clock;
mod faults;
mod front;
mod gate;
mod listener;
mod operation;
mod traffic;

// S3: what is asked, what is checked, what is answered.
mod checksum;
mod conditions;
mod discard;
mod ingest;
mod listing;
mod s3;

// What is kept.
mod store;

pub use checksum::{Algorithm, Checksum};
pub use faults::{Fault, Faults, Quirks, Rule, When};
pub use gate::{Gate, Hold};
pub use operation::Operation;
pub use options::Options;
pub use server::{Server, StoredObject, StoredUpload};
pub use store::Medium;
pub use traffic::{Count, Request};

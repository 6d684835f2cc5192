//! The integration tests, one binary: a sandbox, a server, the real thing.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod harness;

mod bad_input;
mod carry;
mod ends;
mod odd_stores;

mod bursts;
mod faults;
mod links;
mod model;
mod order;
mod rerun;
mod resume;
mod watching;
mod writers;

mod store_conformance;
mod store_local;
mod store_probe;
mod store_retry;
mod store_s3;

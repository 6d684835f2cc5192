//! chiefsync: carries what a distributed training job produces from the chief's volume to S3-compatible storage.
#![deny(missing_docs)]

pub mod checkpoint;
pub mod clock;
pub mod config;
pub mod digest;
pub mod disk;
pub mod exit;
pub mod head;
pub mod journal;
pub mod key;
pub mod manifest;
pub mod marker;
pub mod metrics;
pub mod stage;
pub mod store;
pub mod sync;

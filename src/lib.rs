//! chiefsync: carries what a distributed training job produces from the chief's volume to S3-compatible storage while it
//! trains, loses nothing, and proves it.
//!
//! ```text
//!   SRC ─▶ sync::inotify ─▶ sync::look ─▶ sync::plan ─▶ sync::settle ─▶ sync::upload ─▶ store
//!            (hints)         (truth)       (what)       sync::order       (how)           │
//!                                                       (when)                            ▼
//!   end marker ─▶ sync::drain ─▶ sync::prove ─▶ manifest ─▶ head ─▶ DONE          bucket: the truth
//! ```
//!
//! Modules in reading order: what is said (`config`, `exit`, `stage`), what is sent (`key`, `digest`, `checkpoint`), the
//! engine (`sync`), what it remembers and promises (`journal`, `head`, `marker`, `manifest`), where it goes (`store`), and
//! the doors to the world (`disk`, `clock`, `metrics`).
#![deny(missing_docs)]

pub mod config;
pub mod exit;
pub mod stage;

pub mod checkpoint;
pub mod digest;
pub mod key;

pub mod sync;
pub mod verify;

pub mod head;
pub mod journal;
pub mod manifest;
pub mod marker;

pub mod store;

pub mod clock;
pub mod disk;
pub mod metrics;

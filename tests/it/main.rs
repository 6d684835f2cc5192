//! The integration tests, one binary: a sandbox, a server, the real thing.

mod store_conformance;

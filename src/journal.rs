//! The journal: what was uploaded, so that a restart does not do it again.

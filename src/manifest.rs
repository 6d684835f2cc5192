//! The manifest: the end of a run, every file with its digest.

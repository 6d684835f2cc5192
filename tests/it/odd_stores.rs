//! Stores that are not quite S3.

//! dev-s3

//! Buckets.

use super::Api;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Response, S3Result};

impl Api {
    pub(super) fn create_bucket_now(&self, input: CreateBucketInput) -> S3Result<S3Response<CreateBucketOutput>> {
        if !self.store.create_bucket(&input.bucket)? {
            return Err(S3ErrorCode::BucketAlreadyOwnedByYou.into());
        }
        let location = Some(format!("/{}", input.bucket));
        Ok(S3Response::new(CreateBucketOutput { location }))
    }

    pub(super) fn list_buckets_now(&self) -> S3Result<S3Response<ListBucketsOutput>> {
        let buckets = self.store.buckets().into_iter().map(|(name, created)| Bucket {
            name: Some(name),
            creation_date: Some(created.into()),
            bucket_region: None,
        });
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets.collect()), ..Default::default() }))
    }
}

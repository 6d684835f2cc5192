//! The operations of S3, as s3s calls them: one line each here, the work by what it is about below.

mod buckets;
mod copies;
mod listings;
mod multipart;
mod objects;

use crate::checksum::Checksum;
use crate::conditions::Conditions;
use crate::faults::Faults;
use crate::store::{Headers, ObjectInfo, Store};
use http::HeaderMap;
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::*;
use s3s::{S3, S3ErrorCode, S3Request, S3Response, S3Result};
use std::sync::Arc;

/// The server behind s3s: the store, and the quirks that bend it.
pub(crate) struct Api {
    pub store: Arc<Store>,
    pub faults: Faults,
}

impl Api {
    /// The conditions of a write, unless this store is one that ignores them.
    fn write_conditions(&self, headers: &HeaderMap) -> S3Result<Conditions> {
        if self.faults.quirks().ignore_conditions { Ok(Conditions::default()) } else { Conditions::of(headers) }
    }

    /// A checksum for an answer, unless this store is one that hides them.
    fn shown<'a>(&self, checksum: &'a Option<Checksum>) -> Option<&'a Checksum> {
        checksum.as_ref().filter(|_| !self.faults.quirks().hide_checksums)
    }

    /// An object's ETag as everything but the answer to Complete says it.
    fn shown_etag(&self, object: &ObjectInfo) -> ETag {
        if self.faults.quirks().change_multipart_etags && !object.parts.is_empty() {
            ETag::Strong(object.etag.chars().rev().collect())
        } else {
            ETag::Strong(object.etag.clone())
        }
    }
}

/// The one pair of keys that the server knows.
pub(crate) struct Keys {
    pub access_key: String,
    pub secret_key: String,
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key {
            Ok(self.secret_key.clone().into())
        } else {
            Err(S3ErrorCode::InvalidAccessKeyId.into())
        }
    }
}

fn size(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// User metadata under the names that HTTP gives them: lower case.
fn user_metadata(metadata: Option<Metadata>) -> std::collections::BTreeMap<String, String> {
    metadata.unwrap_or_default().into_iter().collect()
}

fn shown_metadata(headers: &Headers) -> Option<Metadata> {
    let user = &headers.user;
    (!user.is_empty()).then(|| user.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

#[async_trait::async_trait]
impl S3 for Api {
    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        self.create_bucket_now(request.input)
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.store.has_bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.store.has_bucket(&request.input.bucket)?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        self.list_buckets_now()
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put_object_now(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.get_object_now(request)
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head_object_now(request)
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete_object_now(request)
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_objects_now(request.input)
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        self.copy_object_now(request)
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.upload_part_copy_now(request)
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        self.list_objects_v1(request.input)
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.list_objects_v2_now(request.input)
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.create_upload_now(request)
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.upload_part_now(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload_now(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let input = request.input;
        self.store.abort(&input.bucket, &input.key, &input.upload_id)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.list_parts_now(request.input)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.list_uploads_now(request.input)
    }
}

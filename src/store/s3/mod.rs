//! S3 and what speaks its protocol, over the AWS SDK: the only room that knows it.
//!
//! Invariants: one SHA-256 a body, given by the caller, is checksum header and signed payload hash at once; every body has
//! a fixed length and no trailer; a request is tried once (the `retry` wrapper does the rest), within a time that grows with its body.
//!
//! `mod` (this file) connects, `operations` is the [`Store`](super::Store), `errors` turns answers into kinds and hints,
//! `body`, `names`, `signing` are what goes over the wire, `identity` and `transport` what stands behind the SDK.

mod body;
mod errors;
mod identity;
mod names;
mod operations;
mod signing;
mod transport;

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};

use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::config::{
    AppName, BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    SharedHttpClient, StalledStreamProtectionConfig, retry::RetryConfig,
};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use self::errors::{Failure, Place};
use self::identity::ForgettingCache;
use super::{ErrorKind, OpenOptions, RetryReason, StoreError};
use crate::clock::Duration;
use crate::key::{Key, Prefix};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream that moves less than a byte a second for this long has stalled. The SDK's 5 s are too few for a busy store.
const STALL_GRACE: Duration = Duration::from_secs(60);

/// The region that S3-compatible stores expect when nobody told one.
const REGION_OF_CUSTOM_ENDPOINTS: &str = "us-east-1";

/// Objects below one prefix of one bucket.
#[derive(Debug)]
pub struct S3Store {
    client: Client,
    prefix: Prefix,
    place: Place,
    credentials: Arc<ForgettingCache>,
    page_size: i32,
    /// See [`super::WriteOptions::for_copies`].
    undeclared: Mutex<HashSet<String>>,
}

impl S3Store {
    /// Prepares a client for `bucket`; no request is made (but for the region on EC2, where nobody told one).
    ///
    /// Endpoint, region and credentials are the SDK's own settings (`AWS_ENDPOINT_URL`, `AWS_REGION`, profiles, IRSA, Pod
    /// Identity, instance metadata) unless `options` hold them. A custom endpoint means path style.
    ///
    /// # Errors
    /// [`ErrorKind::Stop`] when no region is known for AWS, or `AWS_CA_BUNDLE` can't be used.
    pub async fn connect(bucket: &str, prefix: &Prefix, options: &OpenOptions) -> Result<S3Store, StoreError> {
        let http_client = SharedHttpClient::new(transport::Transport::from_environment()?);
        let behavior = BehaviorVersion::v2026_01_12();

        let endpoint_told = options.endpoint_url.clone().or_else(endpoint_from_environment);
        let mut loader = aws_config::defaults(behavior)
            .http_client(http_client)
            .region(region_chain(options, endpoint_told.is_some()))
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
        if let Ok(name) = AppName::new("chiefsync") {
            loader = loader.app_name(name);
        }
        if let Some(url) = &options.endpoint_url {
            loader = loader.endpoint_url(url);
        }
        if let Some(fixed) = &options.credentials {
            loader = loader.credentials_provider(Credentials::new(
                &fixed.access_key_id,
                &fixed.secret_access_key,
                fixed.session_token.clone(),
                None,
                "given",
            ));
        }
        let shared = loader.load().await;

        let endpoint = endpoint_told.or_else(|| shared.endpoint_url().map(str::to_owned));
        let region = match (shared.region(), &endpoint) {
            (Some(region), _) => region.clone(),
            (None, Some(_)) => Region::from_static(REGION_OF_CUSTOM_ENDPOINTS),
            (None, None) => {
                return Err(StoreError::new(ErrorKind::Stop, "Connect", format!("s3://{bucket}/"), "no region is set")
                    .with_hint("set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL for another store"));
            }
        };
        let credentials = Arc::new(ForgettingCache::new());
        let config = aws_sdk_s3::config::Builder::from(&shared)
            .region(region.clone())
            .force_path_style(endpoint.is_some())
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().grace_period(STALL_GRACE).build())
            .identity_cache(identity::Handle(credentials.clone()))
            .interceptor(signing::SignWithHeader)
            .build();
        Ok(S3Store {
            client: Client::from_conf(config),
            prefix: prefix.clone(),
            place: Place { bucket: bucket.to_owned(), endpoint, region: region.to_string() },
            credentials,
            page_size: i32::from(options.page_size.clamp(1, 1000)),
            undeclared: Mutex::default(),
        })
    }

    fn target(&self, key: Option<&Key>) -> String {
        format!("s3://{}/{}{}", self.place.bucket, self.prefix, key.map_or("", Key::as_str))
    }

    /// Waits for one request, at most `limit`, and says what went wrong in the store's words.
    ///
    /// Credentials that the server calls expired are forgotten, so that the next try is signed with fresh ones. A clock
    /// that differs needs nothing here: the SDK takes the server's time from every answer and signs the next request with it.
    async fn answer<T, E>(
        &self,
        operation: &'static str,
        key: Option<&Key>,
        limit: Duration,
        request: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, StoreError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let generation = self.credentials.generation();
        match tokio::time::timeout(limit, request).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => {
                let failure = Failure::of(error);
                let forget = failure.code.as_deref() == Some("InvalidToken");
                let error = errors::to_store_error(failure, operation, self.target(key), &self.place);
                if forget || error.kind == ErrorKind::Retry(RetryReason::Expired) {
                    self.credentials.forget(generation);
                }
                Err(error)
            }
            Err(_) => Err(StoreError::new(
                ErrorKind::Retry(RetryReason::Timeout),
                operation,
                self.target(key),
                format!("no answer within {} s", limit.as_secs()),
            )),
        }
    }
}

fn endpoint_from_environment() -> Option<String> {
    let ignored = std::env::var("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").is_ok_and(|v| v.eq_ignore_ascii_case("true"));
    if ignored {
        return None;
    }
    ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|url| !url.is_empty())
}

/// The region as told, then the environment's, then the profile's. Only where AWS itself is meant the instance's metadata
/// are asked: elsewhere that costs a second of silence.
fn region_chain(options: &OpenOptions, custom_endpoint: bool) -> RegionProviderChain {
    let told = options.region.clone().map(Region::new);
    let chain = RegionProviderChain::first_try(told)
        .or_else(EnvironmentVariableRegionProvider::new())
        .or_else(ProfileFileRegionProvider::new());
    if custom_endpoint {
        chain.or_else(Region::from_static(REGION_OF_CUSTOM_ENDPOINTS))
    } else {
        chain.or_default_provider()
    }
}

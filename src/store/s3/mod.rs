//! S3 and what speaks its protocol, over the AWS SDK: the only room that knows it.
//!
//! Invariants: one SHA-256 a body, given by the caller, is checksum header and signed payload hash at once; every body has
//! a fixed length and no trailer; a request is tried once (the `retry` wrapper does the rest), within a time that grows with its body.
//!
//! `mod` (this file) connects, `operations` is the [`Store`](super::Store), `errors` turns answers into kinds and hints,
//! `body`, `names`, `signing` are what goes over the wire, `identity` and `transport` what stands behind the SDK.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

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

use aws_config::SdkConfig;
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
        let transport = transport::Transport::new(options.ca_bundle.as_deref())?;
        let endpoint_told = options.endpoint_url.clone().or_else(endpoint_from_environment);
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(SharedHttpClient::new(transport))
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
            (Some(region), _) => region.to_string(),
            (None, Some(_)) => REGION_OF_CUSTOM_ENDPOINTS.to_owned(),
            (None, None) => {
                return Err(StoreError::new(ErrorKind::Stop, "Connect", format!("s3://{bucket}/"), "no region is set")
                    .with_hint("set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL for another store"));
            }
        };
        let place = Place { bucket: bucket.to_owned(), endpoint, region };
        Ok(S3Store::over(&shared, place, prefix, options.page_size))
    }

    /// A client over what the environment or a test settled.
    fn over(shared: &SdkConfig, place: Place, prefix: &Prefix, page_size: u16) -> S3Store {
        let credentials = Arc::new(ForgettingCache::new());
        let config = aws_sdk_s3::config::Builder::from(shared)
            .region(Region::new(place.region.clone()))
            .force_path_style(place.endpoint.is_some())
            // The `retry` wrapper tries again, with patience and fresh credentials; here once is once.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT_TIMEOUT).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().grace_period(STALL_GRACE).build())
            .identity_cache(identity::Handle(credentials.clone()))
            .interceptor(signing::SignWithHeader)
            .build();
        S3Store {
            client: Client::from_conf(config),
            prefix: prefix.clone(),
            place,
            credentials,
            page_size: i32::from(page_size.clamp(1, 1000)),
            undeclared: Mutex::default(),
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use aws_credential_types::provider::error::CredentialsError;
    use aws_credential_types::provider::{self, future};
    use aws_sdk_s3::config::{ProvideCredentials, SharedCredentialsProvider};
    use dev_s3::{Fault, Operation, Options, Server, When};

    use super::*;
    use crate::store::{ListFrom, Store as _};

    /// Gives what a closure gives, and counts how often it was asked.
    struct Scripted<F> {
        answer: F,
        asked: Arc<AtomicU64>,
    }

    impl<F> std::fmt::Debug for Scripted<F> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Scripted")
        }
    }

    impl<F: Fn() -> provider::Result + Send + Sync> ProvideCredentials for Scripted<F> {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            self.asked.fetch_add(1, Ordering::SeqCst);
            future::ProvideCredentials::ready((self.answer)())
        }
    }

    /// A store on `server` whose credentials come from `answer`, and how often they were asked for.
    async fn with_credentials(
        server: &Server,
        answer: impl Fn() -> provider::Result + Send + Sync + 'static,
    ) -> (S3Store, Arc<AtomicU64>) {
        let asked = Arc::new(AtomicU64::new(0));
        let provider = Scripted { answer, asked: asked.clone() };
        let shared = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .endpoint_url(server.endpoint())
            .region(Region::from_static(REGION_OF_CUSTOM_ENDPOINTS))
            .credentials_provider(SharedCredentialsProvider::new(provider))
            .load()
            .await;
        let place = Place {
            bucket: "bucket".to_owned(),
            endpoint: Some(server.endpoint()),
            region: REGION_OF_CUSTOM_ENDPOINTS.to_owned(),
        };
        (S3Store::over(&shared, place, &Prefix::default(), 1000), asked)
    }

    #[tokio::test]
    async fn a_refused_token_is_fetched_anew_once() {
        let server = Server::start(Options::memory().bucket("bucket")).await.unwrap();
        let keys = Credentials::new(server.access_key(), server.secret_key(), None, None, "test");
        let (store, asked) = with_credentials(&server, move || Ok(keys.clone())).await;
        let list = async || store.list(&ListFrom::default()).await;

        list().await.unwrap();
        list().await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1, "cached");
        // A burst of refusals of the same token: one fetch, not one each.
        server.faults().add(When::operation(Operation::ListObjectsV2).times(3), Fault::ExpiredToken);
        let refused = tokio::join!(list(), list(), list());
        for refused in [refused.0, refused.1, refused.2] {
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Retry(RetryReason::Expired));
        }
        let fine = tokio::join!(list(), list());
        assert!(fine.0.is_ok() && fine.1.is_ok());
        assert_eq!(asked.load(Ordering::SeqCst), 2, "fetched anew, once");
    }

    #[tokio::test]
    async fn missing_credentials_stop_and_late_ones_are_waited_for() {
        let server = Server::start(Options::memory().bucket("bucket")).await.unwrap();
        let list = async |store: S3Store| store.list(&ListFrom::default()).await.unwrap_err();

        let (store, _) = with_credentials(&server, || Err(CredentialsError::not_loaded("nothing here"))).await;
        let error = list(store).await;
        assert_eq!((error.kind, &*error.message), (ErrorKind::Stop, "no credentials found"));
        let hint = error.hint.unwrap();
        for place in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS"] {
            assert!(hint.contains(place), "{hint}");
        }

        let (store, _) = with_credentials(&server, || Err(CredentialsError::provider_error("STS is busy"))).await;
        let error = list(store).await;
        assert_eq!(error.kind, ErrorKind::Retry(RetryReason::Expired));
        assert!(error.message.contains("STS is busy"), "{error}");

        let (store, _) =
            with_credentials(&server, || Err(CredentialsError::invalid_configuration("profile loops"))).await;
        let error = list(store).await;
        assert_eq!(error.kind, ErrorKind::Stop);
        assert!(error.message.contains("profile loops"), "{error}");
    }
}

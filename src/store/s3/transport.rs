//! The HTTP client below the SDK: one for the store and for the credential providers.
//!
//! TLS is built when the first `https://` request comes, not before: a store on a plain endpoint never loads the system's
//! certificates. Over TLS a server may offer HTTP/2, which would put every part into one connection; several pools side by
//! side keep parts on connections of their own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{self, TlsContext, TrustStore};
use aws_smithy_http_client::{Connector, ConnectorBuilder};
use aws_smithy_runtime_api::client::connector_metadata::ConnectorMetadata;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use base64::Engine as _;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::clock::Duration;
use crate::disk;
use crate::store::{ErrorKind, StoreError};

/// How long an idle connection is kept: shorter than the idle limits of common servers and load balancers, so that a
/// request rarely meets a connection that is being closed under it.
const POOL_IDLE: Duration = Duration::from_secs(20);

/// Pools that share the `https://` requests (see the module's text).
const TLS_POOLS: usize = 4;

/// The largest certificate bundle that is read.
const CA_BUNDLE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// Where extra certificates come from; the SDK for Rust does not read this variable itself.
pub(super) const CA_BUNDLE_VARIABLE: &str = "AWS_CA_BUNDLE";

/// For connecting and for reading.
type Timeouts = (Option<Duration>, Option<Duration>);

/// Hands the SDK a connector for each pair of timeouts that it asks for.
#[derive(Debug)]
pub(super) struct Transport {
    trust: TlsContext,
    connectors: Mutex<HashMap<Timeouts, SharedHttpConnector>>,
}

impl Transport {
    /// A client that trusts the certificates in `ca_bundle`, else in the file that `AWS_CA_BUNDLE` names, else the system's.
    ///
    /// # Errors
    /// [`ErrorKind::Stop`] when that file can't be read or holds no certificate.
    pub(super) fn new(ca_bundle: Option<&Path>) -> Result<Transport, StoreError> {
        let from_environment =
            || std::env::var_os(CA_BUNDLE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let trust = match ca_bundle.map(Path::to_owned).or_else(from_environment) {
            Some(path) => trust_only(&path)?,
            None => TlsContext::default(),
        };
        Ok(Transport { trust, connectors: Mutex::default() })
    }
}

fn trust_only(path: &Path) -> Result<TlsContext, StoreError> {
    let refuse = |why: String| {
        StoreError::new(ErrorKind::Stop, "Connect", path.display().to_string(), why)
            .with_hint(format!("{CA_BUNDLE_VARIABLE} must name a readable PEM file with at least one certificate"))
    };
    let pem = disk::read_small_following_links(path, CA_BUNDLE_LIMIT_BYTES).map_err(|e| refuse(e.to_string()))?;
    let usable = usable_certificates(&pem);
    if usable.is_empty() {
        return Err(refuse("holds no PEM certificate that can be used".to_owned()));
    }
    let store = TrustStore::empty().with_pem_certificate(usable);
    TlsContext::builder().with_trust_store(store).build().map_err(|e| refuse(e.to_string()))
}

/// The certificates that rustls can take, as PEM again: the SDK's client panics over one that it can't, and a system's
/// bundle may well hold such a one.
fn usable_certificates(pem: &[u8]) -> String {
    let mut roots = RootCertStore::empty();
    let mut usable = String::new();
    for certificate in CertificateDer::pem_slice_iter(pem).flatten() {
        if roots.add(certificate.clone()).is_ok() {
            let text = base64::engine::general_purpose::STANDARD.encode(&certificate);
            usable.push_str("-----BEGIN CERTIFICATE-----\n");
            for line in text.as_bytes().chunks(64) {
                usable.push_str(&String::from_utf8_lossy(line));
                usable.push('\n');
            }
            usable.push_str("-----END CERTIFICATE-----\n");
        }
    }
    usable
}

impl HttpClient for Transport {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let timeouts = (settings.connect_timeout(), settings.read_timeout());
        let mut connectors = self.connectors.lock().unwrap_or_else(PoisonError::into_inner);
        connectors
            .entry(timeouts)
            .or_insert_with(|| {
                SharedHttpConnector::new(ByScheme {
                    settings: settings.clone(),
                    trust: self.trust.clone(),
                    plain: OnceLock::new(),
                    tls: Arc::default(),
                    turn: AtomicUsize::new(0),
                })
            })
            .clone()
    }

    fn connector_metadata(&self) -> Option<ConnectorMetadata> {
        Some(ConnectorMetadata::new("hyper", Some("1.x".into())))
    }
}

/// Sends a request through a plain or a TLS pool, building each when it is first needed.
#[derive(Debug)]
struct ByScheme {
    settings: HttpConnectorSettings,
    trust: TlsContext,
    plain: OnceLock<Connector>,
    tls: Arc<[OnceLock<Connector>; TLS_POOLS]>,
    turn: AtomicUsize,
}

impl ByScheme {
    fn builder(&self) -> ConnectorBuilder {
        Connector::builder()
            .connector_settings(self.settings.clone())
            .sleep_impl(TokioSleep::new())
            .pool_idle_timeout(POOL_IDLE)
            .proxy_config(ProxyConfig::from_env())
    }
}

impl HttpConnector for ByScheme {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let is_tls = request.uri().get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if is_tls {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % TLS_POOLS;
            let provider = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc);
            self.tls[turn]
                .get_or_init(|| self.builder().tls_provider(provider).tls_context(self.trust.clone()).build())
                .call(request)
        } else {
            self.plain.get_or_init(|| self.builder().build_http()).call(request)
        }
    }
}

//! One SHA-256 for everything: the digest that stands in our checksum header is also the payload hash that is signed.
//!
//! Left alone, the signer would hash a body in memory a second time and would not sign a streamed one at all.

use aws_runtime::auth::PayloadSigningOverride;
use aws_sdk_s3::config::interceptors::BeforeTransmitInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;

use crate::digest::Sha256;

const CHECKSUM_HEADER: &str = "x-amz-checksum-sha256";

/// Gives the signer the digest that the request's checksum header already carries.
#[derive(Debug)]
pub(super) struct SignWithHeader;

#[dyn_dispatch_hint]
impl Intercept for SignWithHeader {
    fn name(&self) -> &'static str {
        "SignWithHeader"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(digest) = context.request().headers().get(CHECKSUM_HEADER).and_then(Sha256::from_base64) {
            config.interceptor_state().store_put(PayloadSigningOverride::Precomputed(digest.to_hex()));
        }
        Ok(())
    }
}

/// The same for a request that carries no checksum header: the digest is given for this one.
#[derive(Debug)]
pub(super) struct SignWithDigest(pub(super) Sha256);

#[dyn_dispatch_hint]
impl Intercept for SignWithDigest {
    fn name(&self) -> &'static str {
        "SignWithDigest"
    }

    fn modify_before_signing(
        &self,
        _: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(PayloadSigningOverride::Precomputed(self.0.to_hex()));
        Ok(())
    }
}

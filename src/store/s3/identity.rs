//! The credential cache: the SDK's own, which can be told to forget.
//!
//! The SDK fetches fresh credentials when the old ones reach the end that they were given. A server may refuse them
//! earlier (a revoked session, a clock that runs ahead); then what is cached has to go, or every further request fails too.

use std::sync::{PoisonError, RwLock};

use aws_config::identity::IdentityCache;
use aws_sdk_s3::config::{ConfigBag, ResolveCachedIdentity, RuntimeComponents, SharedIdentityCache};
use aws_smithy_runtime_api::client::identity::{IdentityFuture, SharedIdentityResolver};

/// A cache that is replaced as a whole. The generation tells a request that was signed with the old credentials from one
/// that was signed with the new, so that a burst of refusals fetches credentials once.
#[derive(Debug)]
pub(super) struct ForgettingCache {
    current: RwLock<(u64, SharedIdentityCache)>,
}

impl ForgettingCache {
    pub(super) fn new() -> ForgettingCache {
        ForgettingCache { current: RwLock::new((0, IdentityCache::lazy().build())) }
    }

    /// Which credentials a request that starts now is signed with.
    pub(super) fn generation(&self) -> u64 {
        self.current.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Forgets the credentials of `generation`; later ones are kept.
    pub(super) fn forget(&self, generation: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.0 == generation {
            *current = (generation + 1, IdentityCache::lazy().build());
        }
    }
}

/// The handle that the SDK holds.
#[derive(Debug)]
pub(super) struct Handle(pub(super) std::sync::Arc<ForgettingCache>);

impl ResolveCachedIdentity for Handle {
    fn resolve_cached_identity<'a>(
        &'a self,
        resolver: SharedIdentityResolver,
        components: &'a RuntimeComponents,
        config: &'a ConfigBag,
    ) -> IdentityFuture<'a> {
        let cache = self.0.current.read().unwrap_or_else(PoisonError::into_inner).1.clone();
        IdentityFuture::new(async move { cache.resolve_cached_identity(resolver, components, config).await })
    }
}

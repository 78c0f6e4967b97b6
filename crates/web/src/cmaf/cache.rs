//! Plans and segments in memory.

use std::sync::Arc;

use hyper::body::Bytes;
use millrace_core::ids::TitleId;
use millrace_core::limits::web::SEGMENTS_MADE_AT_ONCE;
use tokio::sync::Semaphore;

use super::plan::{CmafPlan, PlanError};
use crate::recent::Recent;
use crate::site::SiteError;

/// A segment of every track.
pub(crate) type CmafSegments = Arc<[Bytes]>;

/// The plan of a title, or why it has none. Errors of the store are not cached.
#[derive(Clone, Debug)]
pub(crate) enum CachedPlan {
    Suitable(Arc<CmafPlan>),
    Unsuitable(&'static str),
}

impl CachedPlan {
    pub(crate) fn new(plan: Result<CmafPlan, PlanError>) -> Result<Self, SiteError> {
        match plan {
            Ok(plan) => Ok(Self::Suitable(Arc::new(plan))),
            Err(PlanError::Unsuitable(why)) => Ok(Self::Unsuitable(why)),
            Err(PlanError::Site(error)) => Err(error),
        }
    }

    pub(crate) fn into_result(self) -> Result<Arc<CmafPlan>, PlanError> {
        match self {
            Self::Suitable(plan) => Ok(plan),
            Self::Unsuitable(why) => Err(PlanError::Unsuitable(why)),
        }
    }
}

/// Cached plans and segments.
#[derive(Debug)]
pub(crate) struct CmafCache {
    pub(crate) plans: Recent<TitleId, CachedPlan>,
    pub(crate) segments: Recent<(TitleId, u32), CmafSegments>,
    /// Limits how many segments are made at once.
    pub(crate) makers: Arc<Semaphore>,
}

impl Default for CmafCache {
    fn default() -> Self {
        Self {
            plans: Recent::default(),
            segments: Recent::default(),
            makers: Arc::new(Semaphore::new(SEGMENTS_MADE_AT_ONCE)),
        }
    }
}

impl CmafCache {
    pub(crate) fn forget_segments(&self) {
        self.segments.forget_all();
    }
}

//! Work that reads much of a title: where blocking is allowed, in bounded memory, a few at a time.

use std::sync::Arc;

use crate::context::ServerContext;
use crate::memory::{Exhausted, Hold};
use crate::site::SiteError;

/// Why a result that is made on request is unavailable.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// Too much is in memory.
    Full,
    Site(SiteError),
}

impl From<SiteError> for NotMade {
    fn from(error: SiteError) -> Self {
        Self::Site(error)
    }
}

/// Runs work that reads much of a title where blocking is allowed, with limited concurrency. It
/// reserves `bytes` of memory, the most that the work needs.
pub(crate) async fn making<T: Send + 'static>(
    shared: &Arc<ServerContext>,
    bytes: u64,
    work: impl FnOnce(&ServerContext, Hold) -> Result<T, SiteError> + Send + 'static,
) -> Result<T, NotMade> {
    let permit = Arc::clone(&shared.made.makers).acquire_owned().await;
    let room =
        shared.room(usize::try_from(bytes).unwrap_or(usize::MAX)).map_err(|Exhausted| NotMade::Full)?;
    let work = move |shared: &ServerContext| {
        // Released by the worker, even if no request waits for it any more.
        let _permit = permit;
        work(shared, room)
    };
    Ok(shared.reading(work).await?)
}

//! Plans and segments of titles: from the cache, or made once for all requests that wait for them.

use std::sync::Arc;

use hyper::body::Bytes;
use millrace_core::ids::TitleId;
use millrace_core::limits::web::MEMORY_SEGMENTS_PART;

use crate::cmaf::{CachedPlan, CmafPlan, CmafSegments, PlanError, make, plan};
use crate::context::ServerContext;
use crate::limits::MAX_PLANS;
use crate::making::{NotMade, making};
use crate::memory::Hold;
use crate::site::SiteError;

/// The plan of a title; looks at the title if there is none yet.
pub(crate) async fn planned(
    shared: &Arc<ServerContext>,
    id: TitleId,
    name: &str,
) -> Result<Arc<CmafPlan>, PlanError> {
    let kept = &shared.made.plans;
    let cell = kept.cell(id);
    let name = name.to_owned();
    let work = move |shared: &ServerContext| {
        let site = &*shared.site;
        let title = site.title(&name).filter(|title| title.id == id).ok_or(SiteError::NoTitle)?;
        let index = site.index(&name)?;
        let mut bytes = site.open(&name)?;
        CachedPlan::new(plan::plan(&title, index, &mut *bytes))
    };
    let found = cell.get_or_try_init(|| shared.reading(work)).await.cloned();
    drop(cell);
    kept.trim(MAX_PLANS, |_| 1);
    found?.into_result()
}

/// Memory needed to make a segment: the bytes that it reads, and about the same again for its
/// output.
fn bytes_to_make(plan: &CmafPlan, number: u32) -> u64 {
    plan.segments.get(number as usize).map_or(0, |segment| 2 * (segment.bytes.end - segment.bytes.start))
}

/// The segments of this number; makes them if they are not kept.
pub(crate) async fn segments(
    shared: &Arc<ServerContext>,
    id: TitleId,
    name: &str,
    plan: &Arc<CmafPlan>,
    number: u32,
) -> Result<CmafSegments, NotMade> {
    let kept = &shared.made.segments;
    let cell = kept.cell((id, number));
    let bytes = bytes_to_make(plan, number);
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &ServerContext, mut room: Hold| {
        let made = make::make(&plan, &mut *shared.site.open(&name)?, number as usize)?;
        Ok(made.into_iter().map(|bytes| room.split(bytes.len()).over(bytes)).collect())
    };
    let found = cell.get_or_try_init(|| making(shared, bytes, work)).await.cloned();
    drop(cell);
    let most = shared.memory.most() / MEMORY_SEGMENTS_PART;
    kept.trim(most, |made| made.iter().map(Bytes::len).sum());
    found
}

/// The first picture of a segment alone; not kept.
pub(crate) async fn still(
    shared: &Arc<ServerContext>,
    name: &str,
    plan: &Arc<CmafPlan>,
    number: u32,
) -> Result<Option<Bytes>, NotMade> {
    let bytes = bytes_to_make(plan, number);
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &ServerContext, _room: Hold| {
        let made = make::first_picture(&plan, &mut *shared.site.open(&name)?, number as usize)?;
        Ok(made.map(Bytes::from))
    };
    making(shared, bytes, work).await
}

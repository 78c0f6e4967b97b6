//! Keeps results for later requests, and makes each once for all requests that wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Bytes;
use millrace_core::ids::TitleId;
use millrace_core::limits::web::{MEMORY_SEGMENTS_PART, SEGMENTS_MADE_AT_ONCE};
use tokio::sync::{OnceCell, Semaphore};

use super::make;
use super::plan::{self, CmafPlan, Unsuitable};
use crate::limits::MAX_PLANS;
use crate::memory::{Exhausted, Hold};
use crate::shared::ServerContext;
use crate::site::SiteError;

/// The plan of a title, or why it has none.
pub(crate) type Planned = Arc<Result<CmafPlan, Unsuitable>>;
/// A segment of every track.
type Segments = Arc<[Bytes]>;

/// Values by key, the last one requested in front. A request that arrives while a value is made
/// waits for it.
#[derive(Debug)]
pub(crate) struct Recent<K, V>(Mutex<VecDeque<(K, Arc<OnceCell<V>>)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V> Recent<K, V> {
    pub(crate) fn cell(&self, key: K) -> Arc<OnceCell<V>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|(other, _)| *other == key);
        let cell = at.and_then(|at| list.remove(at)).map_or_else(Arc::default, |(_, cell)| cell);
        list.push_front((key, Arc::clone(&cell)));
        cell
    }

    /// Removes the least recently used entries until the sum of `weight` is at most `most`. Entries
    /// that are still being made stay, and so does the most recent finished one.
    pub(crate) fn trim(&self, most: usize, weight: impl Fn(&V) -> usize) {
        let mut sum = 0;
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(_, cell)| match cell.get() {
            // It is no longer being made: it could not be made.
            None => Arc::strong_count(cell) > 1,
            Some(value) => {
                let is_last = sum == 0;
                sum += weight(value);
                sum <= most || is_last
            }
        });
    }

    /// Removes all entries except those that are still being made.
    pub(crate) fn forget_all(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(_, cell)| !cell.initialized() && Arc::strong_count(cell) > 1);
    }
}

/// Plans and segments.
#[derive(Debug)]
pub(crate) struct CmafCache {
    plans: Recent<TitleId, Planned>,
    segments: Recent<(TitleId, u32), Segments>,
    makers: Arc<Semaphore>,
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

/// Why there is no segment.
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

/// The plan of a title; looks at the title if there is none yet.
pub(crate) async fn planned(
    shared: &Arc<ServerContext>,
    id: TitleId,
    name: &str,
) -> Result<Planned, SiteError> {
    let kept = &shared.made.plans;
    let cell = kept.cell(id);
    let name = name.to_owned();
    let work = move |shared: &ServerContext| {
        let site = &*shared.site;
        let title = site.title(&name).filter(|title| title.id == id).ok_or(SiteError::NoTitle)?;
        let index = site.index(&name)?;
        let mut bytes = site.open(&name)?;
        Ok(Arc::new(plan::plan(&title, index, &mut *bytes)?))
    };
    let found = cell.get_or_try_init(|| shared.reading(work)).await.cloned();
    drop(cell);
    kept.trim(MAX_PLANS, |_| 1);
    found
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

/// Memory needed to make a segment: the bytes that it reads, and about the same again for its
/// output.
fn bytes_to_make(plan: &Planned, number: u32) -> u64 {
    let segment = (**plan).as_ref().ok().and_then(|plan| plan.segments.get(number as usize));
    segment.map_or(0, |segment| 2 * (segment.bytes.end - segment.bytes.start))
}

/// The segments of this number; makes them if they are not kept.
pub(crate) async fn segments(
    shared: &Arc<ServerContext>,
    (id, name): (TitleId, &str),
    plan: &Planned,
    number: u32,
) -> Result<Segments, NotMade> {
    let kept = &shared.made.segments;
    let cell = kept.cell((id, number));
    let bytes = bytes_to_make(plan, number);
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &ServerContext, mut room: Hold| {
        let Ok(plan) = &*plan else { return Err(SiteError::NoTitle) };
        let made = make::make(plan, &mut *shared.site.open(&name)?, number as usize)?;
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
    plan: &Planned,
    number: u32,
) -> Result<Option<Bytes>, NotMade> {
    let bytes = bytes_to_make(plan, number);
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &ServerContext, _room: Hold| {
        let Ok(plan) = &*plan else { return Err(SiteError::NoTitle) };
        let made = make::first_picture(plan, &mut *shared.site.open(&name)?, number as usize)?;
        Ok(made.map(Bytes::from))
    };
    making(shared, bytes, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_trim_removes_oldest_unused_values() {
        let recent = Recent::<u32, usize>::default();
        for key in 0..4 {
            recent.cell(key).set(10).unwrap();
        }
        recent.cell(1);
        let being_made = recent.cell(9);
        recent.cell(8);
        recent.trim(20, |&weight| weight);
        let keys: Vec<_> = recent.0.lock().unwrap().iter().map(|(key, _)| *key).collect();
        // 8 was given up, 9 is being made; 1 and 3 were asked for last.
        assert_eq!(keys, [9, 1, 3]);
        // An entry that exceeds the limit stays while it is the most recent one.
        recent.cell(7).set(100).unwrap();
        recent.trim(20, |&weight| weight);
        let keys = || recent.0.lock().unwrap().iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(), [7, 9]);
        recent.forget_all();
        assert_eq!(keys(), [9]);
        drop(being_made);
    }
}

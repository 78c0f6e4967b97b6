//! What was made is kept for those who ask for it next, and made once for all who ask meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Bytes;
use millrace_core::ids::TitleId;
use millrace_core::limits::web::{MADE_CACHE_BYTES, MAX_MADE_BYTES, MAX_PLANS, SEGMENTS_MADE_AT_ONCE};
use millrace_core::memory::scaled;
use tokio::sync::{OnceCell, Semaphore};

use super::make;
use super::plan::{self, Plan, Unsuitable};
use crate::shared::Shared;
use crate::site::SiteError;

/// What is known of a title.
pub(crate) type Planned = Arc<Result<Plan, Unsuitable>>;
/// A segment of every track.
type Segments = Arc<[Bytes]>;

/// Values by key, the last one that was asked for in front. One who comes while a value is made waits for it.
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

    /// Forgets those that were asked for longest ago, beyond a sum of `weight`s. What is being made stays.
    pub(crate) fn trim(&self, most: usize, weight: impl Fn(&V) -> usize) {
        let mut sum = 0;
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(_, cell)| match cell.get() {
            // Nobody is making it any more: it could not be made.
            None => Arc::strong_count(cell) > 1,
            Some(value) => {
                sum += weight(value);
                sum <= most
            }
        });
    }
}

/// Plans and segments.
#[derive(Debug)]
pub(crate) struct Kept {
    plans: Recent<TitleId, Planned>,
    segments: Recent<(TitleId, u32), Segments>,
    /// Bytes of segments in memory: kept, and on their way to viewers.
    bytes: Arc<AtomicUsize>,
    makers: Arc<Semaphore>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            plans: Recent::default(),
            segments: Recent::default(),
            bytes: Arc::default(),
            makers: Arc::new(Semaphore::new(SEGMENTS_MADE_AT_ONCE)),
        }
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

/// Bytes that are counted as long as anybody has them.
struct Counted {
    bytes: Vec<u8>,
    sum: Arc<AtomicUsize>,
}

impl Counted {
    fn bytes(bytes: Vec<u8>, sum: &Arc<AtomicUsize>) -> Bytes {
        sum.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Self { bytes, sum: Arc::clone(sum) })
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.sum.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// The plan of a title; looks at the title if there is none yet.
pub(crate) async fn planned(shared: &Arc<Shared>, id: TitleId, name: &str) -> Result<Planned, SiteError> {
    let kept = &shared.made.plans;
    let cell = kept.cell(id);
    let name = name.to_owned();
    let work = move |shared: &Shared| {
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

/// Does something that reads much of a title, where waiting is allowed, a few at a time.
pub(crate) async fn making<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<T, SiteError> + Send + 'static,
) -> Result<T, NotMade> {
    let permit = Arc::clone(&shared.made.makers).acquire_owned().await;
    if shared.made.bytes.load(Ordering::Relaxed) >= scaled(MAX_MADE_BYTES) {
        return Err(NotMade::Full);
    }
    let work = move |shared: &Shared| {
        // Given back by whoever works, also if nobody waits for it any more.
        let _permit = permit;
        work(shared)
    };
    Ok(shared.reading(work).await?)
}

/// The segments of this number; makes them if they are not kept.
pub(crate) async fn segments(
    shared: &Arc<Shared>,
    (id, name): (TitleId, &str),
    plan: &Planned,
    number: u32,
) -> Result<Segments, NotMade> {
    let kept = &shared.made.segments;
    let cell = kept.cell((id, number));
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &Shared| {
        let Ok(plan) = &*plan else { return Err(SiteError::NoTitle) };
        let made = make::make(plan, &mut *shared.site.open(&name)?, number as usize)?;
        Ok(made.into_iter().map(|bytes| Counted::bytes(bytes, &shared.made.bytes)).collect())
    };
    let found = cell.get_or_try_init(|| making(shared, work)).await.cloned();
    drop(cell);
    kept.trim(scaled(MADE_CACHE_BYTES), |made| made.iter().map(Bytes::len).sum());
    found
}

/// The first picture of a segment alone; not kept.
pub(crate) async fn still(
    shared: &Arc<Shared>,
    name: &str,
    plan: &Planned,
    number: u32,
) -> Result<Option<Bytes>, NotMade> {
    let (plan, name) = (Arc::clone(plan), name.to_owned());
    let work = move |shared: &Shared| {
        let Ok(plan) = &*plan else { return Err(SiteError::NoTitle) };
        let made = make::first_picture(plan, &mut *shared.site.open(&name)?, number as usize)?;
        Ok(made.map(|bytes| Counted::bytes(bytes, &shared.made.bytes)))
    };
    making(shared, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_values_go_first() {
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
        drop(being_made);
    }

    #[test]
    fn bytes_are_counted_while_somebody_has_them() {
        let sum = Arc::default();
        let bytes = Counted::bytes(vec![7; 100], &sum);
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!((sum.load(Ordering::Relaxed), &part[..]), (100, &[7; 10][..]));
        drop(part);
        assert_eq!(sum.load(Ordering::Relaxed), 0);
    }
}

//! Which titles that were made on use go when others need their space.

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;

/// A title that was made on use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeTitle {
    /// Which.
    pub id: TitleId,
    /// Its size on all members together.
    pub bytes: u64,
    /// When it was used last, or made; since 1970.
    pub last_use: Instant,
    /// It has viewers: it stays.
    pub is_in_use: bool,
}

/// Why there is no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSpace {
    /// It is larger than all the space there is.
    TooLarge,
    /// What could go is being watched.
    InUse,
}

/// Returns the titles that have to go so that `needed` more bytes fit into `space`: those unused
/// for the longest time, and as few as will do.
///
/// # Errors
/// [`NoSpace`]; then nothing should go.
pub fn to_evict(kept: &[MadeTitle], space: u64, needed: u64) -> Result<Vec<TitleId>, NoSpace> {
    if needed > space {
        return Err(NoSpace::TooLarge);
    }
    let mut held = kept.iter().fold(0u64, |sum, title| sum.saturating_add(title.bytes));
    let mut idle: Vec<&MadeTitle> = kept.iter().filter(|title| !title.is_in_use).collect();
    idle.sort_by_key(|title| (title.last_use, title.id.0));
    let (mut idle, mut gone) = (idle.into_iter(), Vec::new());
    while held > space - needed {
        let oldest = idle.next().ok_or(NoSpace::InUse)?;
        held = held.saturating_sub(oldest.bytes);
        gone.push(oldest.id);
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(id: u8, bytes: u64, last_use: u64, is_in_use: bool) -> MadeTitle {
        MadeTitle { id: TitleId([id; 16]), bytes, last_use: Instant(last_use), is_in_use }
    }

    fn evicted(kept: &[MadeTitle], space: u64, needed: u64) -> Result<Vec<u8>, NoSpace> {
        to_evict(kept, space, needed).map(|ids| ids.iter().map(|id| id.0[0]).collect())
    }

    #[test]
    fn to_evict_returns_least_recently_used_until_request_fits() {
        let titles =
            [kept(1, 10, 3, false), kept(2, 10, 1, false), kept(3, 10, 2, true), kept(4, 10, 4, false)];
        assert_eq!(evicted(&titles, 50, 10), Ok(vec![]));
        assert_eq!(evicted(&titles, 50, 11), Ok(vec![2]));
        assert_eq!(evicted(&titles, 50, 40), Ok(vec![2, 1, 4]));
        assert_eq!(evicted(&titles, 50, 41), Err(NoSpace::InUse));
        assert_eq!(evicted(&titles, 50, 51), Err(NoSpace::TooLarge));
        // The bound was lowered.
        assert_eq!(evicted(&titles, 25, 0), Ok(vec![2, 1]));
    }

    proptest! {
        #[test]
        fn to_evict_for_any_titles_frees_no_more_than_needed(
            titles in prop::collection::vec((0u64..1000, 0u64..50, prop::bool::weighted(0.2)), 0..30),
            space in 0u64..8000,
            needed in 0u64..4000,
        ) {
            let titles: Vec<MadeTitle> = (0u8..).zip(titles).map(|(id, (bytes, last, used))| kept(id, bytes, last, used)).collect();
            let sum = |keep: &dyn Fn(&MadeTitle) -> bool| titles.iter().filter(|title| keep(title)).map(|title| title.bytes).sum::<u64>();
            match to_evict(&titles, space, needed) {
                Ok(gone) => {
                    let stays = |title: &MadeTitle| !gone.contains(&title.id);
                    prop_assert!(sum(&stays) + needed <= space);
                    prop_assert!(titles.iter().all(|title| stays(title) || !title.is_in_use));
                    if let Some(last) = gone.last() {
                        prop_assert!(sum(&|title| stays(title) || title.id == *last) + needed > space);
                        let newest_gone = titles.iter().filter(|title| !stays(title)).map(|title| title.last_use).max();
                        let oldest_idle = titles.iter().filter(|title| stays(title) && !title.is_in_use).map(|title| title.last_use).min();
                        prop_assert!(oldest_idle.is_none_or(|oldest| Some(oldest) >= newest_gone));
                    }
                }
                Err(NoSpace::TooLarge) => prop_assert!(needed > space),
                Err(NoSpace::InUse) => prop_assert!(sum(&|title| title.is_in_use) + needed > space),
            }
        }
    }
}

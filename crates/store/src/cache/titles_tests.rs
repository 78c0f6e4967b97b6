use millrace_core::ids::TitleId;

use super::super::sample::SampleFiles;
use super::*;

fn open(sample: &SampleFiles, id: u64) -> OpenTitle {
    let mut renamed = [0; 16];
    renamed[..8].copy_from_slice(&id.to_le_bytes());
    let mut source = sample.open();
    source.rename(TitleId(renamed));
    OpenTitle::new(Box::new(source))
}

#[test]
fn titles_get_of_closed_reference_returns_none_after_reuse() {
    let sample = SampleFiles::new(1316, 5000);
    let mut titles = TitleTable::default();
    let first = titles.add(open(&sample, 1)).unwrap();
    assert!(titles.remove(first).is_some());
    assert_eq!(titles.len(), 0);
    for round in 0..100 {
        let next = titles.add(open(&sample, 2)).unwrap();
        assert_ne!(next, first);
        assert!(
            titles.get(first).is_none() && titles.get_mut(first).is_none() && titles.remove(first).is_none()
        );
        assert!(titles.get(next).is_some(), "round {round}");
        assert!(titles.remove(next).is_some());
    }
    assert_eq!(titles.places.len(), 1, "places are used again");
}

#[test]
fn titles_add_of_same_title_shares_entry_until_last_remove() {
    let sample = SampleFiles::new(1316, 5000);
    let other_layout = SampleFiles::new(188, 5000);
    let mut titles = TitleTable::default();
    let first = titles.add(open(&sample, 1)).unwrap();
    assert_eq!(titles.add(open(&sample, 1)), Some(first));
    assert_ne!(titles.add(open(&other_layout, 1)), Some(first));
    assert_ne!(titles.add(open(&sample, 2)), Some(first));
    assert_eq!(titles.len(), 3);
    assert!(titles.remove(first).is_none() && titles.get(first).is_some());
    assert!(titles.remove(first).is_some() && titles.get(first).is_none());
}

#[test]
fn titles_place_with_used_up_generations_is_retired() {
    let sample = SampleFiles::new(1316, 5000);
    let mut titles = TitleTable::default();
    let first = titles.add(open(&sample, 1)).unwrap();
    titles.remove(first).unwrap();
    titles.places[0].generation = LAST_GENERATION;
    let last = titles.add(open(&sample, 1)).unwrap();
    assert_eq!(last, TitleRef(LAST_GENERATION << PLACE_BITS));
    titles.remove(last).unwrap();
    let next = titles.add(open(&sample, 1)).unwrap();
    assert_eq!(next, TitleRef(1));
}

#[test]
fn titles_add_at_limit_returns_none() {
    let sample = SampleFiles::new(1316, 5000);
    let mut titles = TitleTable::default();
    // The process does not have enough descriptors for the files of all these titles, so fill the
    // table with free places.
    titles.places.resize_with(MAX_OPEN_TITLES, TitleSlot::default);
    assert_eq!(titles.add(open(&sample, 1)), None);
    titles.free.push_back(4095);
    assert_eq!(titles.add(open(&sample, 1)), Some(TitleRef(4095)));
}

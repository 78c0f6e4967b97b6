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
fn a_reference_to_a_closed_title_leads_nowhere_for_ever() {
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
fn the_same_title_is_there_once_until_closed_as_often_as_opened() {
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
fn a_place_whose_generations_are_used_up_is_not_used_again() {
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
fn the_table_is_full_at_its_limit() {
    let sample = SampleFiles::new(1316, 5000);
    let mut titles = TitleTable::default();
    // The process does not have enough descriptors for the files of all these titles, so fill the
    // table with free places.
    titles.places.resize_with(MAX_OPEN_TITLES, TitleSlot::default);
    assert_eq!(titles.add(open(&sample, 1)), None);
    titles.free.push_back(4095);
    assert_eq!(titles.add(open(&sample, 1)), Some(TitleRef(4095)));
}

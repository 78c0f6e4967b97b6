use std::sync::atomic::Ordering;

use super::*;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: BPF needs root");
    }
    root
}

#[test]
fn processor_lists() {
    assert_eq!(count_in_ranges("0\n"), Some(1));
    assert_eq!(count_in_ranges("0-3,8,10-11\n"), Some(7));
    assert_eq!(count_in_ranges("3-1"), None);
    assert_eq!(count_in_ranges(""), None);
}

#[test]
fn hash_map_update_lookup_and_delete_work() {
    if !is_root() {
        return;
    }
    let map = Map::hash("test_hash", 6, 4, 2).unwrap();
    assert_eq!(map.lookup(b"abcdef").unwrap(), None);
    map.update(b"abcdef", &[1, 2, 3, 4]).unwrap();
    assert_eq!(map.lookup(b"abcdef").unwrap(), Some(vec![1, 2, 3, 4]));
    assert!(map.delete(b"abcdef").unwrap());
    assert!(!map.delete(b"abcdef").unwrap());
    map.update(b"aaaaaa", &[0; 4]).unwrap();
    map.update(b"bbbbbb", &[0; 4]).unwrap();
    let full = map.update(b"cccccc", &[0; 4]).unwrap_err().to_string();
    assert!(full.contains("test_hash") && full.contains("fewer entries"), "{full}");
}

#[test]
fn lengths_that_are_not_the_maps_are_refused() {
    if !is_root() {
        return;
    }
    let map = Map::hash("test_hash", 6, 4, 2).unwrap();
    assert!(map.update(b"abc", &[0; 4]).is_err());
    assert!(map.update(b"abcdef", &[0; 3]).is_err());
    assert!(map.lookup(b"abcdefg").is_err());
    assert!(map.delete(b"").is_err());
    assert!(Map::hash("test_hash", 0, 4, 2).is_err());
}

#[test]
fn mapped_array_shares_memory_with_kernel() {
    if !is_root() {
        return;
    }
    let array = MappedArray::new("test_array", 3, 1000).unwrap();
    let last = array.entry(999).unwrap();
    assert_eq!(last.len(), 3);
    assert!(last.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    last[2].store(u64::MAX, Ordering::Relaxed);
    // The kernel sees the same memory.
    let mut value = [0; 24];
    array.raw.lookup(&999u32.to_ne_bytes(), &mut value).unwrap();
    assert_eq!(value[16..], [0xff; 8]);
    assert!(array.entry(1000).is_none() && array.entry(u32::MAX).is_none());
}

#[test]
fn processors_are_summed() {
    if !is_root() {
        return;
    }
    let array = PerCpuArray::new("test_percpu", 2).unwrap();
    let processors = possible_processors().unwrap();
    let one: Vec<u8> = [3u64, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
    array.raw.update(&[0; 4], &one.repeat(processors)).unwrap();
    assert_eq!(array.sums().unwrap(), [3 * processors as u64, 5 * processors as u64]);
}

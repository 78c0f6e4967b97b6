use proptest::prelude::*;

use super::*;

/// The TS packets of a section of `length` bytes, starting at this continuity counter. A PAT is
/// filled with PIDs from 0x1000 on.
fn packets(pid: u16, table: u8, length: usize, mut counter: u8) -> Vec<u8> {
    let mut section = vec![table, 0xb0 | ((length - 3) >> 8) as u8, (length - 3) as u8];
    section.extend((3..length).map(|at| at as u8 | 1));
    if table == TABLE_PAT {
        let entries = section[8..length - 4].chunks_exact_mut(4);
        (0x1000..).zip(entries).for_each(|(pid, entry)| {
            entry.copy_from_slice(&[0, 1, 0xe0 | (pid >> 8) as u8, pid as u8]);
        });
    }
    let payload = [&[0][..], &section].concat();
    let mut out = Vec::new();
    for (n, piece) in payload.chunks(184).enumerate() {
        let start = if n == 0 { 0x40 } else { 0 };
        out.extend([0x47, start | (pid >> 8) as u8, pid as u8, 0x10 | counter & 0x0f]);
        out.extend_from_slice(piece);
        out.resize(out.len().next_multiple_of(188), 0xff);
        counter += 1;
    }
    out
}

fn other(pid: u16) -> Vec<u8> {
    let mut packet = vec![0x47, 0x40 | (pid >> 8) as u8, pid as u8, 0x10];
    packet.resize(188, 0);
    packet
}

fn counters(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(188).map(|packet| packet[3] & 0x0f).collect()
}

#[test]
fn find_last_returns_last_complete_tables() {
    let bytes = [
        packets(0, 0, 20, 3),
        packets(0x1000, 2, 300, 14),
        other(0x100),
        packets(0, 0, 20, 4),
        packets(0x1000, 2, 300, 0),
        other(0x100),
    ]
    .concat();
    let found = find(&bytes, &[0x1000], Which::Last).unwrap();
    assert_eq!(found, [packets(0, 0, 20, 4), packets(0x1000, 2, 300, 0)].concat());
    // The last PMT is cut off: the one before counts.
    let cut = &bytes[..bytes.len() - 2 * 188];
    let found = find(cut, &[0x1000], Which::Last).unwrap();
    assert_eq!(found, [packets(0, 0, 20, 4), packets(0x1000, 2, 300, 14)].concat());
}

#[test]
fn counters_lead_up_to_the_first_tables() {
    let bytes =
        [other(0x100), packets(0, 0, 20, 0), packets(0x1000, 2, 300, 1), packets(0, 0, 20, 1)].concat();
    let found = find(&bytes, &[0x1000], Which::First).unwrap();
    assert_eq!(counters(&found), [15, 15, 0]);
    // But for the counters they are the same.
    assert!(
        found.chunks(188).zip(bytes[188..].chunks(188)).all(|(a, b)| a[..3] == b[..3] && a[4..] == b[4..])
    );
}

#[test]
fn find_without_complete_tables_returns_none() {
    let map = packets(0x1000, 2, 30, 0);
    for (what, bytes) in [
        ("no PAT", map.clone()),
        ("no PMT", packets(0, 0, 20, 0)),
        ("another table", [packets(0, 0, 20, 0), packets(0x1000, 0x42, 30, 0)].concat()),
        (
            "a hole in it",
            [
                packets(0, 0, 20, 0),
                packets(0x1000, 2, 500, 0)[..188].to_vec(),
                packets(0x1000, 2, 500, 0)[376..].to_vec(),
            ]
            .concat(),
        ),
        ("half a packet", [packets(0, 0, 20, 0), map[..187].to_vec()].concat()),
        ("nothing", Vec::new()),
    ] {
        assert_eq!(find(&bytes, &[0x1000], Which::Last), None, "{what}");
        assert_eq!(find(&bytes, &[0x1000], Which::First), None, "{what}");
    }
    let mut damaged = [packets(0, 0, 20, 0), map].concat();
    assert!(find(&damaged, &[0x1000], Which::First).is_some());
    assert_eq!(find(&damaged, &[], Which::First), None);
    damaged[189] |= 0x80;
    assert_eq!(find(&damaged, &[0x1000], Which::First), None, "damaged on the way");
    // More than fits in front of a segment.
    let many: Vec<u16> = (0x1000..0x1015).collect();
    let bytes =
        [packets(0, 0, 12 + 21 * 4, 0), many.iter().flat_map(|&pid| packets(pid, 2, 30, 0)).collect()]
            .concat();
    assert!(find(&bytes, &many[..19], Which::First).is_some());
    assert_eq!(find(&bytes, &many, Which::First), None);
}

/// In joined recordings with different PIDs, no position has the map tables of both.
#[test]
fn find_wants_only_the_map_tables_that_the_pat_names() {
    let bytes = [packets(0, 0, 16, 3), packets(0x1000, 2, 30, 14)].concat();
    for which in [Which::Last, Which::First] {
        assert_eq!(find(&bytes, &[0x1000, 0x1234], which).map(|found| found.len()), Some(376));
        assert_eq!(find(&bytes, &[0x1234], which), None);
    }
}

proptest! {
    /// For any damage: the packets found are whole, with the PAT first.
    #[test]
    fn damaged_streams(edits in proptest::collection::vec((0usize..2000, any::<u8>()), 0..8), last in any::<bool>()) {
        let mut bytes = [packets(0, 0, 20, 3), packets(0x1000, 2, 300, 14), other(0x100), packets(0, 0, 20, 4)].concat();
        for (at, value) in edits {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let which = if last { Which::Last } else { Which::First };
        if let Some(found) = find(&bytes, &[0x1000], which) {
            prop_assert!(found.len() % 188 == 0 && found.len() <= MAX_TABLE_PACKETS * 188);
            prop_assert!(found.starts_with(&[0x47, 0x40, 0]) || found[1] & 0x5f == 0x40);
        }
    }
}

#[test]
fn anything_at_all() {
    bolero::check!().for_each(|bytes: &[u8]| {
        for which in [Which::Last, Which::First] {
            if let Some(found) = find(bytes, &[0x1000, 0], which) {
                assert!(found.len() <= MAX_TABLE_PACKETS * 188);
            }
        }
        assert!(bytes.chunks_exact(188).filter_map(payload).all(|payload| payload.len() <= 184));
    });
}

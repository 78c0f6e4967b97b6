use super::*;

/// All shapes that ST 2022-1 takes, with every number of parities that a volume may have.
fn shapes() -> impl Iterator<Item = (u32, u32, u32)> {
    let units = |k: u32| (1..=20u32.min(100 / k)).map(move |unit| (k, unit));
    (4..=20).flat_map(units).flat_map(|(k, unit)| (1..=8u32.min(2 * k)).map(move |m| (k, m, unit)))
}

fn spread(k: u32, m: u32, unit: u32) -> Spread {
    Spread::new(k as usize, m as usize, unit)
}

#[test]
fn spread_place_covers_all_parities_per_slot_and_column() {
    for (k, m, unit) in shapes() {
        let spread = spread(k, m, unit);
        for track in 1..=2 {
            let each = spread.parities(track).len() as u32;
            let mut seen = vec![[false; 8]; 3 * unit as usize];
            for packet in 0..3 * unit * each {
                let FecPlace { row, column, parity, slot } = spread.place(track, packet);
                assert!(row < 3 && column < unit && spread.parities(track).contains(&parity));
                assert_eq!((slot, row), (packet / each, slot / unit));
                assert_eq!(spread.slot(row, column, parity), slot);
                assert_eq!(spread.column(slot, parity), column);
                assert!(!std::mem::replace(&mut seen[(row * unit + column) as usize][parity], true));
                if track == 1 {
                    assert_eq!(column, packet % unit, "as ST 2022-1 numbers them");
                }
            }
            let count = seen.iter().flatten().filter(|seen| **seen).count() as u32;
            assert_eq!(count, 3 * unit * each);
        }
    }
}

#[test]
fn departs_with_distributes_row_over_next_row() {
    for (k, m, unit) in shapes() {
        let (spread, row) = (spread(k, m, unit), u64::from(k * unit));
        for slot in 0..3 * unit {
            let packet = spread.departs_with(slot);
            let of = u64::from(slot / unit);
            assert!(((of + 1) * row..(of + 2) * row).contains(&packet), "{k} {m} {unit}: {slot}");
            assert_eq!(spread.departs_with(slot + 1) - packet, u64::from(k));
        }
        for packet in 0..4 * k * unit {
            let due = (0..).find(|&slot| spread.departs_with(slot) >= u64::from(packet));
            assert_eq!(Some(spread.first_due(packet)), due);
        }
    }
}

/// Everything that is sent for the first rows, in order of departure: the codeword (row and column) of each packet. What leaves at
/// the same time is in one order or the other.
fn sent(spread: &Spread, (k, m, unit): (u32, u32, u32), is_media_first: bool) -> Vec<u32> {
    let row = k * unit;
    let mut sent = Vec::new();
    for packet in 0..(ROWS + 1) * row {
        let media = packet / row * unit + packet % unit;
        let slot = spread.first_due(packet);
        let is_due = spread.departs_with(slot) == u64::from(packet);
        let word = |parity| slot / unit * unit + spread.column(slot, parity as usize);
        let fec = (0..m).filter(|_| is_due).map(word);
        sent.extend(is_media_first.then_some(media));
        sent.extend(fec);
        sent.extend((!is_media_first).then_some(media));
    }
    sent
}

/// Rows that are looked at; the one behind them is sent too.
const ROWS: u32 = 3;

/// Most packets one after another that may be lost wherever they begin.
fn burst(sent: &[u32], (_, m, unit): (u32, u32, u32)) -> usize {
    let mut places = vec![Vec::new(); ((ROWS + 1) * unit) as usize];
    sent.iter().enumerate().for_each(|(place, word)| places[*word as usize].push(place));
    places.truncate((ROWS * unit) as usize);
    let m = m as usize;
    let too_many = places.iter().flat_map(|of| of.windows(m + 1).map(move |run| run[m] - run[0]));
    too_many.min().unwrap()
}

/// `m U` packets are the most that a column of media allows. It is less by `U / k` for each further parity, because the slots right
/// behind a row's end must carry some column too.
#[test]
fn bursts_of_nearly_m_units_leave_enough_of_every_codeword() {
    for shape in shapes() {
        let (k, m, unit) = shape;
        let spread = spread(k, m, unit);
        let bound = if m <= k { m * unit - ((m - 1) * unit).div_ceil(k) } else { k * unit };
        for is_media_first in [true, false] {
            let burst = burst(&sent(&spread, shape, is_media_first), shape);
            assert!(burst >= bound as usize, "{shape:?}: {burst} packets instead of {bound}");
        }
    }
}

/// The table of docs/guide/fec.md.
#[test]
fn bursts_of_layouts_that_are_chosen() {
    for (k, m, unit, expected) in [
        (4, 1, 16, 16),
        (4, 2, 16, 29),
        (4, 4, 16, 55),
        (6, 2, 16, 30),
        (8, 1, 12, 12),
        (8, 2, 12, 23),
        (8, 3, 12, 33),
        (8, 4, 12, 46),
        (10, 2, 10, 20),
    ] {
        let (spread, shape) = (spread(k, m, unit), (k, m, unit));
        let of = |is_media_first| burst(&sent(&spread, shape, is_media_first), shape);
        assert_eq!(of(true).min(of(false)), expected, "{k} + {m}, {unit}");
    }
}

#[test]
fn shapes_without_anything_do_no_harm() {
    let none = Spread::new(0, 0, 0);
    assert_eq!((none.departs_with(3), none.first_due(4), none.slot(u32::MAX, 1, 9)), (4, 3, u32::MAX));
    assert_eq!(none.place(2, 7), FecPlace { row: 7, column: 0, parity: 1, slot: 7 });
    assert!(Spread::new(4, 1, 20).parities(2).is_empty() && none.parities(1).is_empty());
}

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PACKET: u64 = DEFAULT_PACKET_BYTES as u64;

fn geometry(k: u16, m: u16, unit_packets: u32, members: u16) -> Geometry {
    Geometry { k, m, unit_packets, members }
}

#[test]
fn stripe_layout_matches_documented_example() {
    let stripes = StripeLayout::new(&geometry(4, 2, 2, 3), 24 * PACKET).unwrap();
    let on = |position, stripe| stripes.units_on(position, stripe).collect::<Vec<_>>();
    assert_eq!([on(0, 0), on(1, 0), on(2, 0)], [[0, 3], [1, 4], [2, 5]]);
    assert_eq!([on(0, 1), on(1, 1), on(2, 1)], [[2, 5], [0, 3], [1, 4]]);
    assert_eq!([on(0, 2), on(1, 2), on(2, 2)], [[1, 4], [2, 5], [0, 3]]);
    assert_eq!((stripes.stripes(), stripes.tolerance(), stripes.units_per_member()), (3, 1, 2));
}

#[test]
fn stripe_layout_of_one_member_keeps_media_contiguous() {
    let stripes = StripeLayout::new(&geometry(8, 2, 12, 1), 1000 * PACKET - 188).unwrap();
    assert_eq!(stripes.data_range(0, 0..stripes.stripes()), 0..1000 * PACKET - 188);
    assert_eq!(stripes.data_range(0, 2..3), 2 * 96 * PACKET..3 * 96 * PACKET);
    assert_eq!(stripes.offset_of(3, 5), (3 * 96 + 5 * 12) * PACKET);
    assert_eq!(stripes.parity_file_bytes(0), 11 * 2 * 12 * PACKET);
    assert_eq!(stripes.tolerance(), 0);
}

#[test]
fn layouts_that_are_chosen_serve_disk_and_network() {
    for (members, tolerance, k, m) in
        [(2, 1, 4, 4), (3, 1, 4, 2), (4, 1, 6, 2), (5, 1, 4, 1), (6, 2, 4, 2), (12, 2, 10, 2)]
    {
        let chosen = Geometry::choose(members, tolerance, 0).unwrap();
        assert_eq!((chosen.k, chosen.m), (k, m), "{members} members");
        assert_eq!(usize::from(chosen.tolerance()), tolerance, "{members} members");
        assert!(chosen.is_st2022(), "{chosen:?}");
        assert!(chosen.validate("x").is_ok() || chosen.k + chosen.m > chosen.members, "{chosen:?}");
        let whole = WireLayout::new(1316).unwrap().with_row(u32::from(k) * chosen.unit_packets);
        assert!(whole.packets_per_extent() >= 172, "{chosen:?} wastes room");
        assert!(chosen.unit_packets >= 8, "{chosen:?} bears short bursts only");
    }
    let alone = Geometry::choose(1, 0, 1).unwrap();
    assert_eq!((alone.k, alone.m, alone.unit_packets, alone.members), (8, 1, 12, 1));
    assert_eq!(Geometry::choose(1, 0, 0), Ok(Geometry::SINGLE));
    let striped = Geometry::choose(4, 0, 0).unwrap();
    assert_eq!((striped.k, striped.m, striped.tolerance()), (4, 0, 0));
    for (members, tolerance, network) in
        [(0, 0, 0), (33, 1, 0), (3, 3, 0), (4, 3, 0), (2, 1, 1), (1, 0, 9), (20, 9, 0)]
    {
        assert!(Geometry::choose(members, tolerance, network).is_err(), "{members} {tolerance} {network}");
    }
}

#[test]
fn geometries_out_of_bounds_are_refused() {
    for bad in [
        geometry(4, 1, 20, 4),
        geometry(0, 1, 4, 1),
        geometry(65, 1, 1, 1),
        geometry(4, 9, 4, 1),
        geometry(4, 1, 21, 5),
    ] {
        assert_eq!(StripeLayout::new(&bad, 1316), None, "{bad:?}");
    }
    assert_eq!(StripeLayout::new(&geometry(4, 1, 4, 5), 1316 << 33), None);
}

proptest! {
    /// Units laid out one after another, stripe by stripe, by hand: the arithmetic gives the same
    /// result.
    #[test]
    fn offsets_and_ranges_are_those_of_files_written_in_order(
        n in 1u16..6, each in 1u16..3, m in 0u16..5, unit in 1u32..4, grains in 7u64..900, from in 0u32..9, count in 0u32..9,
    ) {
        let units = n * each;
        prop_assume!(m < units);
        let media = grains * 188;
        let stripes = StripeLayout::new(&geometry(units - m, m, unit, n), media).unwrap();
        let mut ends: BTreeMap<(usize, bool), u64> = BTreeMap::new();
        let mut at_stripe = Vec::new();
        for stripe in 0..stripes.stripes() {
            at_stripe.push(ends.clone());
            for unit in 0..stripes.k() + stripes.m() {
                let data = unit < stripes.k();
                let end = ends.entry((stripes.position_of(stripe, unit), data)).or_default();
                let bytes = if data { stripes.media_in_unit(stripe, unit) } else { stripes.unit_bytes() };
                if bytes > 0 {
                    prop_assert_eq!(stripes.offset_of(stripe, unit), *end);
                }
                *end += bytes as u64;
            }
        }
        at_stripe.push(ends.clone());
        let total: u64 = ends.iter().filter(|((_, data), _)| *data).map(|(_, end)| end).sum();
        prop_assert_eq!(total, media);
        let (from, to) = (from.min(stripes.stripes()), (from + count).min(stripes.stripes()));
        for position in 0..stripes.members() {
            let end = |stripe: u32, data| at_stripe[stripe as usize].get(&(position, data)).copied().unwrap_or(0);
            prop_assert_eq!(stripes.data_file_bytes(position), end(stripes.stripes(), true));
            prop_assert_eq!(stripes.parity_file_bytes(position), end(stripes.stripes(), false));
            let data = stripes.data_range(position, from..to);
            prop_assert_eq!(data.end - data.start, end(to, true) - end(from, true));
            if data.start < data.end {
                prop_assert_eq!(data.start, end(from, true));
            }
            let parity = stripes.parity_range(position, from..to);
            prop_assert_eq!(parity, end(from, false)..end(to, false));
        }
    }

    #[test]
    fn units_on_gives_members_equal_share_of_stripe(n in 1usize..9, each in 1usize..4, stripe: u32) {
        let stripes = StripeLayout::new(&geometry((n * each) as u16, 0, 1, n as u16), 1316).unwrap();
        for position in 0..n {
            let units: Vec<_> = stripes.units_on(position, stripe).collect();
            prop_assert_eq!(units.len(), each);
            prop_assert!(units.iter().all(|&unit| stripes.position_of(stripe, unit) == position));
        }
    }
}

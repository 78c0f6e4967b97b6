//! Requests to members that are avoided.

use super::super::sample::{StripeSample, geometry};
use super::super::tests::Bench;
use super::*;
use crate::member_set::MemberSet;

/// k, m, members, unit.
const SHAPES: [(u16, u16, u16, u32); 5] =
    [(8, 1, 1, 12), (8, 3, 1, 20), (4, 4, 2, 20), (4, 2, 3, 16), (20, 8, 7, 5)];

/// Returns the parity reads for a track: members and bytes of their files.
fn parity(bench: &Bench, extent: u32, view: MemberView) -> Vec<(Option<u16>, Range<u64>)> {
    let order = bench.order(extent, 255, view, false).unwrap();
    let parity = order.spans.into_iter().filter(|span| matches!(span.role, Role::Parity { .. }));
    parity.map(|span| (span.member, span.bytes)).collect()
}

#[test]
fn parity_of_avoided_members_is_read_if_the_others_do_not_make_up_for_them() {
    for (k, m, members, unit) in SHAPES {
        for track in 1..=m.min(2) as u8 {
            let sample = StripeSample::of_stripes(geometry(k, m, members, unit), 13);
            let mut bench = Bench::new(sample, 1316);
            bench.title = Bench::title(bench.sample.open_track(track));
            let may = bench.sample.stripes.tolerance() as u16;
            for (extent, lost) in
                (0..bench.title.extents()).flat_map(|extent| (0..=may).map(move |lost| (extent, lost)))
            {
                let below = |member: u16| MemberSet::below(member.into());
                let lost_only = MemberView { lost: below(lost), ..MemberView::default() };
                let without = |last: u16| MemberView { avoid: below(last) - lost_only.lost, ..lost_only };
                let all = parity(&bench, extent, lost_only);
                assert!(members > 1 || !all.is_empty());
                // One too many.
                assert_eq!(parity(&bench, extent, without(may + 1)), all);
                let few = parity(&bench, extent, without(may));
                let asked = |member: Option<u16>| member.is_some_and(|member| member >= may);
                assert!(few.iter().all(|(member, _)| asked(*member)));
                assert!(all.iter().filter(|(member, _)| asked(*member)).eq(&few));
            }
        }
    }
}

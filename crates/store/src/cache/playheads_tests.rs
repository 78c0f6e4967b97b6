use proptest::prelude::*;

use super::*;

fn key(index: u32) -> StreamKey {
    StreamKey { handle: 0, index }
}

/// Media time of an extent in these tests: not quite regular.
fn start(extent: u32) -> Ns {
    Ns::from(extent) * 1000 + Ns::from(extent % 3) * 100
}

/// The definition, with nothing in common with the horizon.
fn naive(places: &[(PlayheadPosition, StreamKey)], extent: u32) -> NextUse {
    let reach = places.iter().filter(|(place, _)| place.extent <= extent);
    reach.map(|(place, _)| NextUse::At(place.offset + start(extent))).min().unwrap_or(NextUse::Never)
}

proptest! {
    #[test]
    fn next_use_is_the_soonest_arrival(
        places in proptest::collection::vec((0u32..50, -100_000i64..100_000), 0..40),
        moves in proptest::collection::vec((0usize..40, 0u32..50, -100_000i64..100_000), 0..40),
    ) {
        let mut heads = Playheads::default();
        let mut known: Vec<(PlayheadPosition, StreamKey)> = Vec::new();
        for (index, (extent, offset)) in places.into_iter().enumerate() {
            let place = PlayheadPosition { extent, offset };
            heads.place(key(index as u32), None, place);
            known.push((place, key(index as u32)));
        }
        for (who, extent, offset) in moves {
            if let Some((place, stream)) = known.get_mut(who) {
                let to = PlayheadPosition { extent, offset };
                heads.place(*stream, Some(*place), to);
                *place = to;
            }
        }
        while known.len() > 20 {
            let (place, stream) = known.swap_remove(known.len() / 2);
            heads.remove(stream, place);
        }
        let distinct: std::collections::HashSet<_> = known.iter().map(|(place, _)| place.extent).collect();
        prop_assert_eq!(heads.places(), distinct.len());
        heads.freeze();
        for extent in 0..55 {
            prop_assert_eq!(heads.next_use(extent, start(extent)), naive(&known, extent));
            let at = naive(&known, extent);
            if let NextUse::At(at) = at {
                prop_assert!(heads.reached_by(extent, start(extent), at));
            }
            prop_assert_eq!(heads.reached_by(extent, start(extent), 20_000), at <= NextUse::At(20_000));
        }
    }

    /// Without a new freeze, smooth steps leave the answer sooner than or equal to the truth, and jumps are seen.
    #[test]
    fn next_use_with_old_horizon_errs_early(steps in proptest::collection::vec((0u32..8, 0u32..3), 1..60)) {
        let mut heads = Playheads::default();
        let first = |i: u32| PlayheadPosition { extent: i * 5, offset: i64::from(i) * -700 };
        let mut known: Vec<_> = (0..8).map(|i| (first(i), key(i))).collect();
        known.iter().for_each(|&(place, stream)| heads.place(stream, None, place));
        heads.freeze();
        for (who, kind) in steps {
            let (place, stream) = &mut known[who as usize];
            let to = match kind {
                0 => PlayheadPosition { extent: 20, offset: -300_000_000 - place.offset },
                _ => PlayheadPosition { extent: place.extent + 1, offset: place.offset + 10 },
            };
            heads.place(*stream, Some(*place), to);
            *place = to;
            for extent in 0..60 {
                let (said, truth) = (heads.next_use(extent, start(extent)), naive(&known, extent));
                // A smooth step may move the clock by a little: that much later than the truth is the most.
                let latest = match truth {
                    NextUse::At(at) => NextUse::At(at + SMOOTH_NS as Ns),
                    NextUse::Never => NextUse::Never,
                };
                prop_assert!(said <= latest, "extent {}: {:?}, not {:?}", extent, said, truth);
            }
        }
    }
}

#[test]
fn reached_by_with_many_late_playheads_returns_true() {
    let mut heads = Playheads::default();
    for index in 0..200 {
        heads.place(key(index), None, PlayheadPosition { extent: 5, offset: 1_000_000 });
    }
    assert!(heads.reached_by(5, start(5), 0), "in doubt: yes");
    assert!(!heads.reached_by(4, start(4), Ns::MAX), "nobody is before extent 5");
}

//! Presentation time stamps in the index: where each time base begins, and when the last picture
//! has been shown.

use crate::ingest_support::index;
use millrace_core::time::MediaTicks;
use millrace_make::limits::MAX_END_AFTER_LAST_PACKET_TICKS;
use millrace_store::index::TimeBase;
use millrace_testkit::mux::*;

const MODULUS: u64 = 1 << 33;
/// A packet, one millisecond.
const MS: u64 = 90;
/// Between the clock and the time stamps of [`Media`].
const DELAY: u64 = 45_000;

/// Time stamp of a title's first picture.
fn first_pts(start: u64) -> u64 {
    (start / 300 + DELAY) % MODULUS
}

#[test]
fn presentation_has_first_pts_and_end_of_last_frame() {
    // Zero, what ffmpeg begins at, half an hour, a receiver that has been running for long, a wrap after 1.5 s, and one
    // between the clock's first value and the first stamp.
    for start in [0, HZ * 14 / 10, 1800 * HZ, 5000 * HZ, WRAP - HZ * 3 / 2, WRAP - HZ / 4] {
        let (passed, _) = index(&film(&Film { start, ..Film::default() }));
        let index = &passed.indexed.index;
        let base = TimeBase { byte: 0, time: MediaTicks(0), first_pts: first_pts(start) };
        assert_eq!(index.bases(), [base], "{start}");
        // The last sound begins with packet 3970, is shown 500 ms later and takes 40 ms; two packets of tables come first.
        assert_eq!(passed.indexed.duration, MediaTicks(4002 * MS));
        assert_eq!(index.parts().end, Some(MediaTicks((3970 + 500 + 40 + 2) * MS)), "{start}");
    }
}

#[test]
fn first_pts_is_lowest_first_stamp_even_across_wrap() {
    for clock in [HZ, WRAP - HZ / 10] {
        let mut mux = Mux::new();
        mux.usual_tables();
        let stamp = |ms: u64| (clock / 300 + ms * MS) % MODULUS;
        mux.pes_start(VIDEO, Adapt { pcr: Some(clock), ..Adapt::default() }, stamp(700), IDR);
        mux.pes_start(AUDIO, Adapt::default(), stamp(50), &[0xff, 0xf1]);
        for n in 1..500 {
            let now = clock + n * HZ / 1000;
            match n % 40 {
                0 => mux.pes_start(
                    VIDEO,
                    Adapt { pcr: Some(now), ..Adapt::default() },
                    stamp(700 + n),
                    NON_IDR,
                ),
                // Lower than the first of pictures, but not the first of sound.
                20 => mux.pes_start(AUDIO, Adapt::default(), stamp(50 + n), &[0xff, 0xf1]),
                _ => mux.more(VIDEO),
            }
        }
        let (passed, _) = index(&mux.out);
        let firsts: Vec<u64> = passed.indexed.index.bases().iter().map(|base| base.first_pts).collect();
        assert_eq!(firsts, [stamp(50)]);
    }
}

#[test]
fn time_bases_of_joined_recording_mark_each_part() {
    for (name, start, announced) in
        [("back", 1_200_000u64, false), ("an hour on", 3600 * HZ, false), ("announced", 62 * HZ, true)]
    {
        let mut mux = Mux::new();
        mux.usual_tables();
        Film { start: 60 * HZ, packets: 2000, ..Film::default() }.write(&mut mux);
        if announced {
            mux.packet(VIDEO, false, Adapt { discontinuity: true, ..Adapt::default() }, &[1; 182]);
        } else {
            mux.more(VIDEO);
        }
        let splice = mux.packets();
        Film { start, packets: 2000, ..Film::default() }.write(&mut mux);
        let (passed, sink) = index(&mux.out);
        let index = &passed.indexed.index;
        let bases = [
            TimeBase { byte: 0, time: MediaTicks(0), first_pts: first_pts(60 * HZ) },
            TimeBase { byte: splice * 188, time: MediaTicks(splice * MS), first_pts: first_pts(start) },
        ];
        assert_eq!(index.bases(), bases, "{name}");
        assert_eq!(index.parts().end, Some(MediaTicks((splice + 1970 + 500 + 40) * MS)), "{name}");
        assert_eq!(passed.indexed.duration.0, sink.data.len() as u64 / 188 * MS);
    }
}

#[test]
fn damaged_stamps_do_not_move_the_end_far() {
    let end_with = |ahead: u64| {
        let mut mux = Mux::new();
        mux.usual_tables();
        Film::default().write(&mut mux);
        mux.pes_start(VIDEO, Adapt::default(), 4000 * MS + ahead, NON_IDR);
        let (passed, _) = index(&mux.out);
        (passed.indexed.index.parts().end.unwrap(), passed.indexed.duration)
    };
    // An hour ahead, and almost 13 hours behind: as if it were not there.
    for damaged in [3600 * 90_000, MODULUS / 2 + 90_000] {
        assert_eq!(end_with(damaged).0, MediaTicks((3970 + 500 + 40 + 2) * MS));
    }
    // Nine seconds could be intended, but no viewer waits that long.
    let (end, duration) = end_with(9 * 90_000);
    assert_eq!(end.0, duration.0 + MAX_END_AFTER_LAST_PACKET_TICKS);
}

#[test]
fn presentation_without_stamps_has_no_bases_or_end() {
    let (passed, _) = index(&film(&Film { stamps: false, ..Film::default() }));
    let index = &passed.indexed.index;
    assert_eq!((index.bases(), index.parts().end), (&[][..], None));
}

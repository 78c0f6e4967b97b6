//! No titles make the splice panic or break its guarantees: whole packets, times that do not run back, and a clock that does not jump.
//! No bytes make the parser of playlists panic.

use bolero::TypeGenerator;
use millrace_make::channel::{SpliceRun, Splicer, parse_playlist};
use millrace_make::limits::channel::{MAX_CLOCK_STEP_TICKS, MAX_PLAYLIST_ITEMS};
use millrace_media::ts_packet::{PCR_MODULUS, TsPacket};
use millrace_testkit::fuzz::edited;
use millrace_testkit::mux::{Film, HZ, film};

/// A title: a film that begins anywhere, damaged or not.
#[derive(Clone, Debug, TypeGenerator)]
struct SplicedFilm {
    start_s: u32,
    cut: u8,
    packets: u16,
    edits: Vec<(u8, u16, u8)>,
}

#[test]
fn fuzz_spliced_titles() {
    bolero::check!(name = "spliced_titles").with_type::<(u64, Vec<SplicedFilm>)>().for_each(
        |(start, titles)| {
            let mut splicer = Splicer::new(start % PCR_MODULUS);
            let (mut last, mut last_clock) = (start % PCR_MODULUS, None);
            let mut out = |run: SpliceRun<'_>| {
                assert!(run.from >= last && run.to >= run.from, "{last}: {} to {}", run.from, run.to);
                last = run.to;
                let (packets, rest) = run.bytes.as_chunks::<188>();
                assert!(rest.is_empty() && !packets.is_empty());
                for clock in packets.iter().filter_map(|packet| TsPacket(packet).adaptation()?.pcr()) {
                    let step = last_clock.map_or(0, |last| (clock + PCR_MODULUS - last) % PCR_MODULUS);
                    // The gap between two titles is bridged, that within one is closed.
                    assert!(step <= 2 * MAX_CLOCK_STEP_TICKS, "{step}");
                    last_clock = Some(clock);
                }
            };
            for SplicedFilm { start_s, cut, packets, edits } in titles.iter().take(4) {
                let start = u64::from(*start_s) * HZ % PCR_MODULUS;
                let bytes = film(&Film { start, packets: u64::from(packets % 2000), ..Film::default() });
                let bytes = edited(&bytes[usize::from(*cut).min(bytes.len())..], edits);
                let whole = bytes.as_chunks::<188>().0.as_flattened();
                if splicer.push(whole, &mut out).is_ok() {
                    let _ = splicer.end(&mut out);
                }
            }
        },
    );
}

#[test]
fn fuzz_playlist() {
    bolero::check!(name = "playlist").for_each(|bytes| {
        if let Ok(items) = parse_playlist(bytes) {
            assert!((1..=MAX_PLAYLIST_ITEMS).contains(&items.len()));
            assert!(items.iter().all(|item| !item.address.contains('\n')));
        }
    });
}

//! Extents that a repairing viewer accepts with holes: FEC works on whole rows, so an extent that
//! the run covers only in part is not among them.

use millrace_core::wire::rtp::sequence_of;

use crate::world::{MS, PlaySpec, World, udp};
use millrace_testkit::film::Film;

const PACKETS: u32 = 3_000;

/// Returns the extents requested in a run of packets, each with its repair capacity.
fn wanted(spare: u8, from: u32, until: u32) -> Vec<(u32, u8)> {
    let film = Film::constant(0, PACKETS, 8_000_000);
    let mut world = World::small();
    world.spare = spare;
    let stream = world.open(&film, 0, udp(0));
    let at = world.now.plus_ns(50 * MS);
    world
        .play(stream, PlaySpec { from, until, at, sequence: sequence_of(from), scale_permille: 1000 })
        .unwrap();
    world.run_out();
    assert_eq!(world.datagrams, u64::from(until - from));
    world.disk.wants.iter().map(|(_, want)| (want.extent, want.spare)).collect()
}

#[test]
fn extents_of_which_a_run_has_a_part_are_wanted_whole() {
    let each = Film::constant(0, PACKETS, 8_000_000).layout.packets_per_extent();
    let all: Vec<_> = (0..PACKETS.div_ceil(each)).map(|extent| (extent, 4)).collect();
    assert_eq!(wanted(4, 0, PACKETS), all, "the title's end is a row's end");
    assert_eq!(wanted(4, each + 1, 4 * each), [(1, 0), (2, 4), (3, 4)], "a seek");
    assert_eq!(wanted(4, each, 4 * each - 1), [(1, 4), (2, 4), (3, 0)], "a range that ends");
    assert_eq!(wanted(4, each + 1, 2 * each - 1), [(1, 0)]);
    assert_eq!(wanted(4, each, 3 * each), [(1, 4), (2, 4)]);
}

#[test]
fn spare_of_zero_or_max_is_passed_to_requests_unchanged() {
    let each = Film::constant(0, PACKETS, 8_000_000).layout.packets_per_extent();
    assert_eq!(wanted(0, each + 1, 3 * each - 1), [(1, 0), (2, 0)]);
    assert_eq!(wanted(u8::MAX, each + 1, 3 * each - 1), [(1, u8::MAX), (2, u8::MAX)]);
}

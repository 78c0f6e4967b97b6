//! How many holes each stream can do with, over a run of extents.

use super::*;

/// After a seek into a stripe the first extent is wanted whole, because the FEC of a stripe that
/// began earlier is not sent. The extents read ahead after it may have holes as usual.
#[test]
fn read_ahead_after_request_for_whole_extent_allows_holes() {
    let mut world = PolicyFixture::new(64, 2_000_000_000);
    let title = world.open(1, 60);
    world.want_spare(0, title, 0, 0, 4);
    world.read_all();
    world.read_extents();
    world.want_spare(0, title, 40, 0, 0);
    let mut spares = Vec::new();
    while let Some(order) = world.policy.next_read(world.now) {
        spares.push((order.key.extent, order.spare));
        world.finish(order);
    }
    spares.sort_unstable();
    assert!(spares.len() > 1, "{spares:?}");
    assert_eq!(spares.remove(0), (40, 0));
    assert!(spares.iter().all(|(_, spare)| *spare == 4), "{spares:?}");
}

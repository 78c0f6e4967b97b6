//! Titles of real volumes of several members, through the cache: what viewers are lent is the title, whatever is lost or wrong.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::cache_common::{BACKENDS, Engine, StandingClock, World, stream};
use crate::members_support::Disks;
use millrace_core::fec::{Code, FecPlace};
use millrace_core::ids::{RunSerial, TitleRef};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::seam::{Clock, Want};
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::fec::{FecHeader, FecKind, protected_fields};
use millrace_core::wire::rtp::{RtpHeader, sequence_of};
use millrace_store::StoreError;
use millrace_store::cache::{Grant, ReadBackend, ReadFailure};
use millrace_store::members::MemberState;
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::{Film, SIZE};

/// Members, how many may be lost, parity for the network: every kind of volume.
const VOLUMES: [(usize, usize, usize); 7] =
    [(1, 0, 2), (2, 1, 0), (3, 1, 0), (4, 2, 0), (5, 1, 0), (6, 2, 0), (3, 0, 0)];

/// Sizes with records of their own, and such that are derived from the range sums.
const STORED: [u16; 2] = [SIZE, 940];
const SIZES: [u16; 5] = [SIZE, 940, 188, 1880, 8084];

fn added(film: &Film, (members, may, network): (usize, usize, usize)) -> (Disks, Volume, TitleInfo) {
    let (disks, volume) = Disks::volume(members, may, network);
    let info = film.add_sizes(&volume, "film", &STORED);
    (disks, volume, info)
}

fn world(backend: ReadBackend) -> Option<(World, Arc<StandingClock>)> {
    let clock = Arc::new(StandingClock::default());
    World::new(backend, 16, 0, 1, clock.clone()).map(|world| (world, clock))
}

fn fetch(engine: &mut Engine, title: TitleRef, extent: u32, spare: u8, clock: &StandingClock) -> Grant {
    let want = Want { stream: stream(0), run: RunSerial(0), title, extent, place: 0, by: clock.now(), spare };
    assert!(engine.handle.want(&want));
    engine.grant()
}

/// Whether a lease holds the title; which packets are marked as missing.
fn check(lease: &Lease, film: &Film, info: &TitleInfo, size: u16, extent: u32) -> Vec<u32> {
    let content = lease.content();
    assert_eq!(
        (content.number, content.first_packet),
        (extent, extent * content.layout.packets_per_extent())
    );
    let timeline = info.timeline_of(usize::from(size));
    let mut missing = Vec::new();
    for place in 0..content.packets {
        let packet = content.first_packet + place;
        let payload = film.bytes.chunks(usize::from(size)).nth(packet as usize).unwrap();
        let (expected, meta) = (film.meta(size, packet), lease.meta(place));
        let sent = if content.layout.is_raw() {
            lease.wire(place, 1)
        } else {
            let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
            assert_eq!(header, timeline.header(packet, expected.time()));
            sent
        };
        if meta.is_missing() {
            missing.push(packet);
            continue;
        }
        assert!(sent == payload, "payload of packet {packet} of {size}");
        assert_eq!((meta.sum(), meta.time()), (sum16(payload), expected.time()), "packet {packet} of {size}");
    }
    missing
}

fn play_all(
    world: &mut World,
    clock: &StandingClock,
    volume: &Volume,
    film: &Film,
    info: &TitleInfo,
    size: u16,
) {
    let open = || volume.open_title(info.id, usize::from(size)).unwrap();
    // Those of the default size also without RTP headers.
    let raw = (size == SIZE).then(|| open().raw().unwrap());
    for files in std::iter::once(open()).chain(raw) {
        let extents = files.extents();
        let title = world.cache.open_title(files).unwrap();
        for extent in 0..extents {
            let lease = fetch(&mut world.engines[0], title, extent, 0, clock).lease.unwrap();
            assert_eq!(lease.content().spare, 0);
            assert!(check(&lease, film, info, size, extent).is_empty());
        }
        world.cache.close_title(title);
    }
}

fn flip(path: &Path, offset: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], offset).unwrap();
    file.sync_all().unwrap();
}

/// Every volume, whole and with each single member and each pair away that it can do without.
#[test]
fn members_that_are_away_are_not_noticed_in_what_is_lent() {
    let film = Film::new(7 * 700 + 5, 5);
    for shape in VOLUMES {
        let (disks, volume, info) = added(&film, shape);
        let (members, may, _) = shape;
        let sets = (0..1u32 << members).filter(|set| set.count_ones() as usize <= may);
        for (number, set) in sets.enumerate() {
            let backend = BACKENDS[number % BACKENDS.len()];
            let Some((mut world, clock)) = world(backend) else { continue };
            (0..members).filter(|member| set >> member & 1 != 0).for_each(|member| disks.pull(member));
            volume.members().refresh();
            let sizes = if set == 0 { &SIZES[..] } else { &[SIZE, SIZES[1 + number % 4]] };
            for &size in sizes {
                play_all(&mut world, &clock, &volume, &film, &info, size);
            }
            assert_eq!(world.cache.stats().checksum_errors, 0);
            (0..members).filter(|member| set >> member & 1 != 0).for_each(|member| disks.push(member));
            volume.members().refresh();
        }
    }
}

/// One member goes while the title is open, another too; then both come back.
#[test]
fn members_go_and_come_back_while_a_title_is_open() {
    let film = Film::new(7 * 900, 7);
    for backend in BACKENDS {
        let (disks, volume, info) = added(&film, (3, 1, 0));
        let Some((mut world, clock)) = world(backend) else { continue };
        let title = world.cache.open_title(volume.open_title(info.id, usize::from(SIZE)).unwrap()).unwrap();
        let mut lent = |extent| {
            let grant = fetch(&mut world.engines[0], title, extent, 0, &clock);
            grant.lease.map(|lease| assert!(check(&lease, &film, &info, SIZE, extent).is_empty()))
        };
        assert_eq!(lent(0), Ok(()));
        disks.pull(1);
        volume.members().refresh();
        assert_eq!(lent(1), Ok(()));
        disks.pull(0);
        volume.members().refresh();
        assert_eq!(lent(0), Ok(()), "it is in memory");
        assert_eq!(lent(2), Err(ReadFailure::MembersLost { lost: 2, may: 1 }));
        disks.push(0);
        disks.push(1);
        volume.members().refresh();
        assert_eq!((lent(2), lent(3)), (Ok(()), Ok(())));
    }
}

/// Bytes that changed on one member: in media, parity, records and range sums. Leased data is right
/// all the same, even with a single member whose parity was made for the network.
#[test]
fn bytes_that_changed_on_a_disk_are_made_up_for() {
    let film = Film::new(7 * 700 + 5, 9);
    for (shape, file) in [((3, 1, 0), "data.mru"), ((4, 2, 0), "data.mru"), ((1, 0, 2), "data.ts")] {
        let (disks, volume, info) = added(&film, shape);
        let dir = disks.title(0, info.id);
        let bytes = std::fs::metadata(dir.join(file)).unwrap().len();
        (0..bytes).step_by(150_001).for_each(|at| flip(&dir.join(file), at));
        if shape.0 > 1 {
            for (records, at) in
                [("meta-1316.mrp", 4096 + 77), ("meta-940.mrp", 4096 + 9), ("sums.mrr", 4096 + 20)]
            {
                flip(&dir.join(records), at);
            }
        }
        for backend in BACKENDS {
            let Some((mut world, clock)) = world(backend) else { continue };
            for size in SIZES {
                play_all(&mut world, &clock, &volume, &film, &info, size);
            }
            let stats = world.cache.stats();
            assert_eq!((stats.checksum_errors, stats.read_errors), (0, 0), "nobody was refused");
        }
    }
}

/// A member that was out while the volume changed is not trusted, but its data of a title is as
/// good as its stored sums.
#[test]
fn stale_member_is_read_when_others_do_not_suffice() {
    let film = Film::new(7 * 900, 13);
    for backend in BACKENDS {
        let (disks, volume, info) = added(&film, (3, 1, 0));
        let Some((mut world, clock)) = world(backend) else { continue };
        volume.set_member_state(2, MemberState::Stale).unwrap();
        volume.members().refresh();
        play_all(&mut world, &clock, &volume, &film, &info, SIZE);
        assert_eq!(world.cache.members().get(2).map_or(0, |member| member.reads), 0, "nobody needs it");
        disks.pull(1);
        volume.members().refresh();
        for size in [SIZE, 1880] {
            play_all(&mut world, &clock, &volume, &film, &info, size);
        }
        assert!(world.cache.members()[2].reads > 0);
        let lost = |volume: &Volume| {
            let title = &volume.listing().unwrap().titles[0];
            title.lost(|slot| volume.members().is_usable(slot))
        };
        assert_eq!(lost(&volume), None);
        disks.pull(2);
        volume.members().refresh();
        assert_eq!(lost(&volume).map(|lost| lost.slots), Some(vec![1, 2]));
        let refused = volume.open_title(info.id, usize::from(SIZE)).unwrap_err();
        assert!(matches!(refused, StoreError::MembersLost { lost: 2, may: 1, .. }), "{refused}");
    }
}

/// A viewer that repairs gets a lease of the data present; then one that does not gets a lease of
/// all of it.
#[test]
fn holes_for_one_and_the_whole_for_another() {
    let film = Film::new(7 * 900, 11);
    for backend in BACKENDS {
        let (disks, volume, info) = added(&film, (5, 1, 0)); // 4 + 1: XOR does it
        disks.pull(2);
        volume.members().refresh();
        let Some((mut world, clock)) = world(backend) else { continue };
        let title = world.cache.open_title(volume.open_title(info.id, usize::from(SIZE)).unwrap()).unwrap();
        let engine = &mut world.engines[0];
        for extent in 0..2 {
            let holes = fetch(engine, title, extent, 1, &clock).lease.unwrap();
            assert_eq!(holes.content().spare, 1);
            let missing = check(&holes, &film, &info, SIZE, extent);
            // The member has a fifth of the units, and of these some are parity.
            let most = holes.content().packets as usize / 4 + 20;
            assert!(!missing.is_empty() && missing.len() <= most, "{} missing", missing.len());
            let whole = fetch(engine, title, extent, 0, &clock).lease.unwrap();
            assert_eq!(whole.content().spare, 0);
            assert!(check(&whole, &film, &info, SIZE, extent).is_empty());
            let again = fetch(engine, title, extent, 1, &clock).lease.unwrap();
            assert_eq!(again.content().spare, 0, "the whole took the place of the other");
            assert_eq!(check(&holes, &film, &info, SIZE, extent), missing, "who has it keeps it as it was");
        }
    }
}

/// The fields and the payload of a packet, as the code protects them.
fn protected(film: &Film, info: &TitleInfo, packet: u32) -> Option<Vec<u8>> {
    let payload = film.bytes.chunks(usize::from(SIZE)).nth(packet as usize)?;
    let timestamp = info.timeline_of(usize::from(SIZE)).timestamp(film.meta(SIZE, packet).time());
    let mut bytes = protected_fields(payload.len() as u16, 33, timestamp).to_vec();
    bytes.extend_from_slice(payload);
    Some(bytes)
}

/// Every datagram of both tracks of every volume, against the title encoded again.
#[test]
fn parity_tracks_are_fec_datagrams_of_the_media() {
    let film = Film::new(7 * 700 + 5, 13);
    for (number, shape) in VOLUMES.into_iter().enumerate() {
        let (_disks, volume, info) = added(&film, shape);
        let stripes = volume.open_title(info.id, usize::from(SIZE)).unwrap().stripes;
        let Some(stripes) = stripes.filter(|stripes| stripes.m() > 0) else {
            assert!(volume.open_parity(info.id, 1).is_err());
            continue;
        };
        let Some((mut world, clock)) = world(BACKENDS[number % BACKENDS.len()]) else { continue };
        let (k, m, unit) = (stripes.k(), stripes.m(), stripes.unit_packets());
        let code = Code::new(k, m).unwrap();
        for track in 1..=m.min(2) as u8 {
            let files = volume.open_parity(info.id, track).unwrap();
            let parities = files.parities();
            let title = world.cache.open_source(Box::new(files)).unwrap();
            let (mut sent, mut packet, mut before) = (0, 0, 0);
            let packets = stripes.stripes() * unit * parities.len() as u32;
            for extent in 0.. {
                if packet == packets {
                    break;
                }
                let lease = fetch(&mut world.engines[0], title, extent, 255, &clock).lease.unwrap();
                assert_eq!((lease.content().first_packet, lease.content().spare), (packet, 0));
                for place in 0..lease.content().packets {
                    let FecPlace { row: stripe, column, parity, .. } = stripes.spread().place(track, packet);
                    packet += 1;
                    let symbols: Vec<_> = (0..k as u32)
                        .map_while(|u| protected(&film, &info, (stripe * k as u32 + u) * unit + column))
                        .collect();
                    let meta: PacketMeta = lease.meta(place);
                    assert!(meta.time().0 >= before && meta.time() <= film.duration());
                    before = meta.time().0;
                    if symbols.is_empty() {
                        assert!(meta.is_missing());
                        continue;
                    }
                    let mut expected = vec![vec![0; 7 + usize::from(SIZE)]; m];
                    let symbols: Vec<&[u8]> = symbols.iter().map(Vec::as_slice).collect();
                    code.encode(
                        &symbols,
                        &mut expected.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
                    );
                    let (rtp, payload) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
                    assert_eq!((rtp.payload_type, rtp.ssrc, rtp.sequence), (96, 0, sequence_of(packet - 1)));
                    assert_eq!(rtp.timestamp, info.timeline_of(usize::from(SIZE)).timestamp(meta.time()));
                    assert_eq!(sum16(payload), meta.sum());
                    let (fec, bytes) = FecHeader::parse(payload).unwrap();
                    assert!(
                        bytes == &expected[parity][7..],
                        "parity {parity} of column {column} of stripe {stripe}"
                    );
                    assert_eq!(fec.recovery()[..], expected[parity][..7]);
                    let kind = if parity == 0 { FecKind::Xor } else { FecKind::ReedSolomon };
                    assert_eq!((fec.kind, usize::from(fec.index), fec.row), (kind, parity, false));
                    assert_eq!((u32::from(fec.offset), usize::from(fec.count)), (unit, symbols.len()));
                    assert_eq!(fec.sn_base, sequence_of(stripe * k as u32 * unit + column));
                    sent += 1;
                }
            }
            assert!(sent > 0);
            world.cache.close_title(title);
        }
    }
}

/// A viewer that has a title open reads on when the title is removed.
#[test]
fn removed_title_remains_readable_for_open_viewer() {
    let film = Film::new(7 * 900, 17);
    for backend in BACKENDS {
        let (_disks, volume, info) = added(&film, (3, 1, 0));
        let Some((mut world, clock)) = world(backend) else { continue };
        let title = world.cache.open_title(volume.open_title(info.id, usize::from(SIZE)).unwrap()).unwrap();
        let mut lent = |extent| {
            let lease = fetch(&mut world.engines[0], title, extent, 0, &clock).lease.unwrap();
            assert!(check(&lease, &film, &info, SIZE, extent).is_empty());
        };
        lent(0);
        volume.remove(info.id).unwrap();
        (1..4).for_each(lent);
    }
}

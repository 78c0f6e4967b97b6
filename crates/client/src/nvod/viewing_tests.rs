use millrace_core::wire::rtp::RtpHeader;
use millrace_nvod::{Plan, PlanRequest, SCHEMES, Scheme};

use super::*;

const PACKET_NS: u64 = 10_000_000;
const PACKETS: u32 = 3000;

fn announcement(scheme: Scheme, channels: u8, position_ns: u64) -> Announcement {
    let film_ns = u64::from(PACKETS) * PACKET_NS;
    let plan = Plan::new(PlanRequest { scheme, channels, film_ns }).unwrap();
    let largest = plan.slot_ns().div_ceil(PACKET_NS) as u32 + 1;
    Announcement {
        plan,
        session: 7,
        packets: PACKETS,
        largest_segment: largest.min(PACKETS),
        bytes: u64::from(PACKETS) * 1316 - 1128,
        position_ns,
        name: String::new(),
    }
}

fn payload(announced: &Announcement, number: u32) -> Vec<u8> {
    number.to_be_bytes().into_iter().cycle().take(announced.payload_bytes(number)).collect()
}

fn datagram(announced: &Announcement, number: u32) -> Vec<u8> {
    let header = RtpHeader { marker: false, payload_type: 33, sequence: 0, timestamp: 0, ssrc: 7 };
    let time = MediaTicks::from_ns(u64::from(number) * PACKET_NS);
    let packet = PlacedPacket { header, number, time, payload: &payload(announced, number) };
    [&packet.emit_header()[..], packet.payload].concat()
}

/// A cast and a viewer in virtual time: packets in the order of play, and the most channels heard in a step. `is_lost`
/// decides for a channel and a packet whether it is lost on the way.
struct Played {
    numbers: Vec<u32>,
    bytes: Vec<u8>,
    most_channels: usize,
    viewing: Viewing,
}

fn watch(announced: &Announcement, is_eager: bool, is_lost: impl Fn(u8, u32) -> bool) -> Played {
    // Slot 0 of the cast began at 1 s of the viewer's clock.
    let zero = 1_000_000_000;
    let start = zero + announced.position_ns;
    let mut viewing =
        Viewing::new(Instant(start), announced.clone(), is_eager, Path::new("/nonexistent")).unwrap();
    let plan = announced.plan.clone();
    let (mut numbers, mut bytes, mut most_channels) = (Vec::new(), Vec::new(), 0);
    let step = 1_000_000;
    let mut now = start;
    while !viewing.is_over(Instant(now)) {
        assert!(now < start + 3 * plan.request().film_ns + plan.delay_ns() + 10 * GUARD_NS, "it never ends");
        let channels: Vec<u8> = viewing.channels(Instant(now)).collect();
        most_channels = most_channels.max(channels.len());
        for channel in channels {
            // Packets of this channel in this step.
            let from = now - zero;
            for slot in from / plan.slot_ns()..=(from + step) / plan.slot_ns() {
                let segment = u64::from(plan.segment_at(channel, slot));
                let (begin, end) = (segment * plan.slot_ns(), (segment + 1) * plan.slot_ns());
                let first = begin.div_ceil(PACKET_NS);
                for number in first..end.div_ceil(PACKET_NS).min(PACKETS.into()) {
                    let at = slot * plan.slot_ns() + number * PACKET_NS - begin;
                    if (from..from + step).contains(&at) && !is_lost(channel, number as u32) {
                        viewing.receive(&datagram(announced, number as u32)).unwrap();
                    }
                }
            }
        }
        now += step;
        while let Some(played) = viewing.play(Instant(now), &mut bytes).unwrap() {
            assert_eq!(played.time.to_ns() / PACKET_NS, u64::from(played.number));
            let due = viewing.start().plus_ns(played.time.to_ns());
            assert!(is_eager || (due.0..due.0 + 2 * step).contains(&now), "played in its time");
            numbers.push(played.number);
        }
    }
    Played { numbers, bytes, most_channels, viewing }
}

#[test]
fn viewing_of_each_scheme_plays_every_byte_in_time() {
    for scheme in SCHEMES {
        for (channels, position_ns) in [(1, 0), (3, 1_234_567_890), (5, 77_777_777_777)] {
            for is_eager in [false, true] {
                let announced = announcement(scheme, channels, position_ns);
                let played = watch(&announced, is_eager, |_, _| false);
                let expected: Vec<u8> = (0..PACKETS).flat_map(|number| payload(&announced, number)).collect();
                assert!(played.bytes == expected, "{scheme} {channels}");
                assert_eq!(played.viewing.useless().overflow + played.viewing.useless().foreign, 0);
                let most = announced.plan.buffer_packets(announced.largest_segment);
                assert!(played.viewing.most_held() as u64 <= most);
                assert!(played.viewing.channels(Instant(u64::MAX / 2)).next().is_none(), "all were left");
                // Guards of two slots overlap where slots are short.
                let is_exact = announced.plan.slot_ns() > 2 * GUARD_NS && scheme != SCHEMES[1];
                assert!(!is_exact || played.most_channels <= usize::from(announced.plan.receive_channels()));
            }
        }
    }
}

#[test]
fn viewing_leaves_out_lost_packets_and_goes_on() {
    for is_eager in [false, true] {
        let announced = announcement(Scheme::Pagoda, 3, 5_000_000_000);
        let lost = [0, 1, 700, 701, PACKETS - 1];
        let played = watch(&announced, is_eager, |_, number| lost.contains(&number));
        let expected: Vec<u32> = (0..PACKETS).filter(|number| !lost.contains(number)).collect();
        assert_eq!(played.numbers, expected);
    }
}

#[test]
fn viewing_of_any_datagrams_holds_no_more_than_its_plan() {
    let announced = announcement(Scheme::Staggered, 2, 0);
    bolero::check!().with_type::<Vec<(u16, u8, u8)>>().with_iterations(300).for_each(|changes| {
        let folder = Path::new("/nonexistent");
        let mut viewing = Viewing::new(Instant(0), announced.clone(), false, folder).unwrap();
        for (number, at, value) in changes {
            let mut bytes = datagram(&announced, u32::from(*number) % PACKETS);
            let at = usize::from(*at) % bytes.len();
            bytes[at] ^= value;
            viewing.receive(&bytes).unwrap();
            viewing.receive(&bytes[..at]).unwrap();
        }
        let (mut out, mut last) = (Vec::new(), None);
        while let Some(played) = viewing.play(Instant(u64::MAX / 2), &mut out).unwrap() {
            assert!(last < Some(played.number), "in order");
            last = Some(played.number);
        }
    });
}

#[test]
fn viewing_with_quicker_announcement_corrects_its_clock() {
    let announced = announcement(Scheme::Pagoda, 3, 0);
    let mut viewing =
        Viewing::new(Instant(9_000), announced.clone(), false, Path::new("/nonexistent")).unwrap();
    let start = viewing.start();
    viewing.announce(Instant(10_000), &Announcement { position_ns: 4_000, ..announced.clone() });
    assert_eq!(viewing.start(), Instant(start.0 - 3_000));
    viewing.announce(Instant(10_000), &Announcement { position_ns: 1, ..announced.clone() });
    viewing.announce(Instant(10_000), &Announcement { session: 8, position_ns: 9_000, ..announced });
    assert_eq!(viewing.start(), Instant(start.0 - 3_000));
}

#[test]
fn viewing_begins_after_the_same_time_whenever_the_clock_of_the_viewer_began() {
    // A cast of an hour, seen by a machine that has been up for five seconds, and by one of two days.
    let announced = announcement(Scheme::FixedDelay, 3, 3_600_000_000_000);
    let begins = [5_000_000_000, 172_800_000_000_000].map(|now| {
        let viewing =
            Viewing::new(Instant(now), announced.clone(), false, Path::new("/nonexistent")).unwrap();
        let at = |step: u64| Instant(now).plus_ns(step * announced.plan.request().film_ns / 100);
        let heard: Vec<Vec<u8>> = (0..100).map(|step| viewing.channels(at(step)).collect()).collect();
        (viewing.start().0 - now, heard)
    });
    assert!(begins[0].1.iter().any(|channels| !channels.is_empty()));
    assert_eq!(begins[0], begins[1]);
}

#[test]
fn announcement_of_another_position_does_not_end_a_viewing() {
    let now = Instant(1_000_000_000);
    let announced = announcement(Scheme::Pagoda, 3, 10_000_000_000);
    let mut viewing = Viewing::new(now, announced.clone(), false, Path::new("/nonexistent")).unwrap();
    let start = viewing.start();
    let far = Announcement { position_ns: announced.position_ns + 100_000_000_000_000, ..announced.clone() };
    viewing.announce(now, &far);
    assert_eq!((viewing.start(), viewing.is_over(now)), (start, false));
    let quicker = Announcement { position_ns: announced.position_ns + 50_000_000, ..announced };
    viewing.announce(now, &quicker);
    assert_eq!(viewing.start().plus_ns(50_000_000), start);
}

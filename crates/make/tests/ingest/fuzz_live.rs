//! No datagrams make the intake of a live source panic or break its guarantees: whole packets in ascending time, every TS packet that
//! was taken once and in order, RTP payloads at most once.

use bolero::TypeGenerator;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::RtpHeader;
use millrace_make::live::{LivePacker, RtpReorder};
use millrace_testkit::fuzz::edited;
use millrace_testkit::mux::usual_film;

/// A datagram: the next TS packets of a film, damaged or not.
#[derive(Clone, Debug, TypeGenerator)]
struct Arrival {
    gap_ms: u16,
    packets: u8,
    edits: Vec<(u8, u16, u8)>,
    sequence: u16,
    bytes: Vec<u8>,
}

fn is_stuffing(ts: &[u8]) -> bool {
    ts[1] & 0x1f == 0x1f && ts[2] == 0xff
}

#[test]
fn fuzz_live_datagrams() {
    let film = usual_film();
    bolero::check!(name = "live_datagrams").with_type::<Vec<Arrival>>().for_each(|arrivals| {
        let mut packer = LivePacker::new(Instant(0));
        let (mut now, mut at, mut last, mut taken, mut given) = (0u64, 0, 0, 0, 0);
        for Arrival { gap_ms, packets, edits, .. } in arrivals {
            now += u64::from(*gap_ms) * 1_000_000;
            let count = (usize::from(*packets) % 24 * 188).min(film.len() - at);
            let datagram = edited(&film[at..at + count], edits);
            at = (at + count) % (film.len() - 188);
            let mut out = |packet: millrace_make::live::LivePacket<'_>| {
                assert!(packet.time.0 >= last && packet.bytes.len() == 1316);
                last = packet.time.0;
                given += packet.bytes.chunks(188).filter(|ts| ts[0] == 0x47 && !is_stuffing(ts)).count();
            };
            packer.flush(Instant(now), &mut out);
            if packer.push(Instant(now), &datagram, &mut out).is_ok() {
                taken += datagram.chunks(188).filter(|ts| !is_stuffing(ts)).count();
            }
            // Two tables at most stand before each access point.
            assert!(given <= 3 * taken, "{given} from {taken}");
        }
        packer.flush(Instant(now + 1_000_000_000), &mut |packet| {
            given += packet.bytes.chunks(188).filter(|ts| !is_stuffing(ts)).count();
        });
        assert!(given >= taken, "{given} of {taken}");
    });
}

#[test]
fn fuzz_live_rtp() {
    bolero::check!(name = "live_rtp").with_type::<Vec<Arrival>>().for_each(|arrivals| {
        let mut reorder = RtpReorder::default();
        let (mut now, mut given, mut taken) = (0u64, 0u64, 0u64);
        for Arrival { gap_ms, packets, sequence, bytes, .. } in arrivals {
            now += u64::from(*gap_ms) * 100_000;
            let header = RtpHeader {
                marker: false,
                payload_type: 33,
                // Near each other, so that the window is used.
                sequence: sequence % 200,
                timestamp: 0,
                ssrc: u32::from(packets % 8 == 0),
            };
            for datagram in [&[&header.emit()[..], bytes].concat(), bytes] {
                taken += u64::from(reorder.push(Instant(now), datagram, &mut |_| given += 1));
            }
            reorder.expire(Instant(now), &mut |_| given += 1);
            if let Some(deadline) = reorder.deadline() {
                assert!(deadline > Instant(now), "something is held for too long");
            }
        }
        while let Some(deadline) = reorder.deadline() {
            reorder.expire(deadline, &mut |_| given += 1);
        }
        assert_eq!(given + reorder.counts().late, taken);
    });
}

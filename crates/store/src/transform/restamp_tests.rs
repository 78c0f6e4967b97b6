use super::super::Transforms;
use super::*;
use millrace_media::ts_packet::PesStart;
use millrace_testkit::mux::{Adapt, Film, IDR, Mux, VIDEO, WRAP, film};

fn restamp(spec: &str) -> Restamp {
    let all = Transforms::parse(&[format!("x=restamp:{spec}")]).unwrap();
    let offset = all.iter().next().unwrap().stamp_offset();
    let text = spec.split("continuity=").nth(1).unwrap_or("0");
    let continuity = Continuity::All(text.parse().unwrap());
    Restamp::new(&RestampSpec { ticks: offset, continuity })
}

fn apply(restamp: &Restamp, bytes: &mut [u8]) -> u32 {
    restamp.apply(&mut PacketBlock::of_bytes(0, 188, bytes)).unwrap().left_out
}

/// Clock, decoding and presentation stamp of each packet that has one of them.
fn times(stream: &[u8]) -> Vec<(Option<u64>, Option<u64>, Option<u64>)> {
    let of = |packet: &[u8; 188]| {
        let view = TsPacket(packet);
        let clock = view.adaptation().and_then(|field| field.pcr());
        let start = PesStart::parse(view.payload()).filter(|_| view.starts_unit());
        (clock, start.and_then(|start| start.decode_stamp), start.and_then(|start| start.presentation_stamp))
    };
    let all = stream.as_chunks().0.iter().map(of);
    all.filter(|times| *times != (None, None, None)).collect()
}

#[test]
fn clocks_and_stamps_move_across_their_wraps_and_nothing_else_changes() {
    // The clock wraps within the stream, at a place where its extension is not 0.
    let before = film(&Film { packets: 200, start: WRAP - 1_000_007, ..Film::default() });
    for (spec, offset) in
        [("offset=10s", 900_000), ("offset=-10s", -900_000), ("ticks=-1", -1), ("ticks=8589934591", -1)]
    {
        let mut after = before.clone();
        assert_eq!(apply(&restamp(spec), &mut after), 0);
        let moved = |ticks: u64| (ticks.cast_signed() + offset).rem_euclid(1 << 33).cast_unsigned();
        let clock = |ticks: u64| moved(ticks / 300) * 300 + ticks % 300;
        let expected: Vec<_> = times(&before)
            .iter()
            .map(|(pcr, dts, pts)| (pcr.map(clock), dts.map(moved), pts.map(moved)))
            .collect();
        assert!(expected.iter().any(|(pcr, ..)| pcr.is_some_and(|pcr| pcr % 300 != 0)));
        assert_eq!(times(&after), expected, "{spec}");
        // But for 33 bits of each clock and stamp all bits are the same.
        for (was, is) in before.as_chunks::<188>().0.iter().zip(after.as_chunks::<188>().0) {
            let (mut was, mut is) = (*was, *is);
            for packet in [&mut was, &mut is] {
                if TsPacket(packet).adaptation().is_some_and(|field| field.pcr().is_some()) {
                    packet[6..10].fill(0);
                    packet[10] &= 0x7f;
                }
                if let Stamps::At(at, count) = stamps(packet) {
                    for stamp in packet[at..].chunks_mut(5).take(count) {
                        stamp[0] &= 0xf1;
                        (stamp[1], stamp[3]) = (0, 0);
                        stamp[2] &= 1;
                        stamp[4] &= 1;
                    }
                }
            }
            assert_eq!(is, was, "{spec}");
        }
    }
}

#[test]
fn moved_and_moved_back_is_what_it_was() {
    let good = film(&Film { packets: 120, start: WRAP - 900_000, ..Film::default() });
    bolero::check!().with_type::<(i64, u8, Vec<(u16, u8)>)>().for_each(|(ticks, counter, flips)| {
        let mut stream = good.clone();
        let length = stream.len();
        flips.iter().for_each(|(at, value)| stream[usize::from(*at) % length] = *value);
        let ticks = ticks.rem_euclid(1 << 33).cast_unsigned();
        let by = |ticks, offset: u8| {
            Restamp::new(&RestampSpec { ticks, continuity: Continuity::All(offset & 15) })
        };
        let mut out = stream.clone();
        if apply(&by(ticks, *counter), &mut out) > 0 {
            return; // what is left out does not come back
        }
        assert_eq!(apply(&by((PTS_MODULUS - ticks) % PTS_MODULUS, 16 - (counter & 15)), &mut out), 0);
        assert!(out == stream);
    });
}

#[test]
fn counters_move_by_pid_and_stuffing_has_none() {
    let before = film(&Film { packets: 100, ..Film::default() });
    let counters = |stream: &[u8], pid: u16| -> Vec<u8> {
        let packets = stream.as_chunks().0.iter().map(TsPacket).filter(|packet| packet.pid() == pid);
        packets.map(|packet| packet.continuity()).collect()
    };
    let mut after = before.clone();
    apply(&restamp("continuity=13"), &mut after);
    for pid in [0, 0x100, 0x101, 0x1000] {
        let moved: Vec<_> = counters(&before, pid).iter().map(|counter| (counter + 13) & 15).collect();
        assert_eq!(counters(&after, pid), moved, "PID {pid}");
    }
    assert_eq!(counters(&after, PID_NULL), counters(&before, PID_NULL));
    let of = Continuity::Of(vec![(VIDEO, 3)]);
    let mut after = before.clone();
    apply(&Restamp::new(&RestampSpec { ticks: 0, continuity: of }), &mut after);
    assert_eq!(counters(&after, 0x101), counters(&before, 0x101));
    assert_eq!(counters(&after, VIDEO)[5], (counters(&before, VIDEO)[5] + 3) & 15);
}

/// Returns a PES packet with two stamps whose first TS packet has only `bytes` bytes of it.
fn split(bytes: usize) -> Vec<u8> {
    let mut mux = Mux::new();
    mux.pes_start(VIDEO, Adapt::default(), 90_000, IDR);
    let payload = mux.out[4..].to_vec();
    let mut mux = Mux::new();
    mux.packet(VIDEO, true, Adapt::default(), &payload[..bytes]);
    mux.packet(VIDEO, false, Adapt::default(), &payload[bytes..]);
    mux.out
}

#[test]
fn restamp_check_of_split_header_fails_and_apply_drops_packet() {
    // Its two stamps end with byte 19.
    for bytes in 1..=30 {
        let before = split(bytes);
        let restamp = restamp("offset=1s");
        let mut after = before.clone();
        let left_out = apply(&restamp, &mut after);
        let checked = restamp.check(&before);
        if bytes < 19 {
            assert_eq!(left_out, 1, "{bytes}");
            assert_eq!(after[..188], NULL_PACKET, "{bytes}");
            assert_eq!(after[188..], before[188..], "{bytes}");
            assert_eq!(checked, Err(BindError::SplitHeader { pid: VIDEO }), "{bytes}");
        } else {
            assert_eq!((left_out, checked), (0, Ok(())), "{bytes}");
            assert_eq!(times(&after), [(None, Some(180_000), Some(180_000))], "{bytes}");
        }
        // Without an offset of times there is nothing to be changed.
        let mut same = before.clone();
        assert_eq!(apply(&self::restamp("continuity=0"), &mut same), 0);
        assert!(same == before);
    }
}

#[test]
fn restamp_check_of_scrambled_packet_fails_and_apply_drops_it() {
    let mut stream = split(100);
    stream[3] |= 0x80;
    let restamp = restamp("offset=1s");
    assert_eq!(restamp.check(&stream), Err(BindError::Scrambled { pid: VIDEO }));
    assert_eq!(apply(&restamp, &mut stream), 1);
    assert_eq!(stream[..188], NULL_PACKET);
}

#[test]
fn streams_without_the_optional_header_stay() {
    for stream_id in BARE {
        let mut packet = split(100);
        packet.truncate(188);
        let at = packet.windows(3).position(|bytes| bytes == [0, 0, 1]).unwrap();
        packet[at + 3] = stream_id;
        let before = packet.clone();
        assert_eq!(apply(&restamp("offset=1s"), &mut packet), 0);
        assert!(packet == before, "stream {stream_id:#x}");
    }
}

use millrace_media::ts_write::{PacketWriter, Pes, StreamEntry, Tables};

use super::*;

const VIDEO: u16 = 0x100;
const AUDIO: u16 = 0x101;
const DELAY: u64 = 63_000;

/// A stream as ffmpeg writes it: the clock with the pictures.
struct TestStream {
    writer: PacketWriter,
}

impl TestStream {
    fn new() -> Self {
        let entry = |pid, stream_type| StreamEntry { pid, stream_type, descriptors: Vec::new() };
        let mut writer = PacketWriter::default();
        writer.tables(&Tables::new(1, 0x1000, 0, VIDEO, &[entry(VIDEO, 0x1b), entry(AUDIO, 0x0f)]));
        Self { writer }
    }

    fn write(&mut self, mut pes: Pes, bytes: usize) {
        while pes.packets() > 0 {
            self.writer.pes(&mut pes, &vec![0; bytes]);
        }
    }

    fn picture(&mut self, ms: u64, bytes: usize) {
        let dts = ms * 90 + DELAY;
        self.writer.clock(VIDEO, ms * 90);
        self.write(Pes::picture(VIDEO, dts, dts, bytes, true), bytes);
    }

    fn audio(&mut self, ms: u64) {
        self.write(Pes::sound(AUDIO, 0, ms * 90 + DELAY, 2500), 2500);
    }

    /// Output of the filler for this stream, pushed and read in pieces.
    fn filled(&self, pushed: usize, read: usize) -> Vec<u8> {
        let (mut filler, mut out, mut room) = (ClockFiller::new(), Vec::new(), vec![0; read]);
        let mut drain = |filler: &mut ClockFiller, out: &mut Vec<u8>| loop {
            match filler.read(&mut room) {
                0 => break,
                count => out.extend_from_slice(&room[..count]),
            }
        };
        for piece in self.writer.out.chunks(pushed) {
            filler.push(piece);
            drain(&mut filler, &mut out);
        }
        filler.end();
        drain(&mut filler, &mut out);
        out
    }

    /// Times of all clock references in ms. Also checks the invariants of every stream.
    fn clock(&self) -> Vec<u64> {
        let out = self.filled(usize::MAX, 64 << 10);
        assert_eq!(out, self.filled(1000, 100), "pieces make no difference");
        let packets = || out.as_chunks::<TS_PACKET_BYTES>().0.iter().map(TsPacket);
        let has_payload = |packet: &TsPacket<'_>| packet.has_payload();
        let kept: Vec<u8> = packets().filter(has_payload).flat_map(|packet| *packet.0).collect();
        let given = self.writer.out.as_chunks::<TS_PACKET_BYTES>().0.iter().map(TsPacket);
        let given: Vec<u8> = given.filter(has_payload).flat_map(|packet| *packet.0).collect();
        assert!(kept == given, "no packet with payload is lost or changed");
        let mut counters = std::collections::HashMap::new();
        for packet in packets() {
            let before = counters.insert(packet.pid(), packet.continuity()).unwrap_or(15);
            let expected = (before + u8::from(packet.has_payload())) & 15;
            assert_eq!(packet.continuity(), expected, "counter of PID {}", packet.pid());
        }
        let clock = packets().filter_map(|packet| packet.adaptation()?.pcr());
        let clock: Vec<u64> = clock.map(|value| value / (SYSTEM_HZ / 1000)).collect();
        assert!(clock.is_sorted_by(|a, b| a < b && b - a <= 100), "{clock:?}");
        clock
    }
}

#[test]
fn fill_where_pictures_carry_the_clock_changes_nothing() {
    let mut stream = TestStream::new();
    (0..50).for_each(|n| stream.picture(1000 + 40 * n, 5000));
    assert_eq!(stream.filled(usize::MAX, 4096), stream.writer.out);
    assert_eq!(stream.clock().len(), 50);
}

#[test]
fn fill_of_audio_beyond_the_pictures_follows_its_stamps() {
    let mut stream = TestStream::new();
    for n in 0..25 {
        stream.picture(1000 + 40 * n, 5000);
        if n % 8 == 0 {
            stream.audio(1000 + 40 * n);
        }
    }
    (0..30).for_each(|n| stream.audio(2200 + 300 * n));
    let clock = stream.clock();
    assert_eq!(clock[0], 1000);
    // The last PES packet lasts as long as the one before.
    assert!((11_100..=11_200).contains(clock.last().unwrap()), "{clock:?}");
}

#[test]
fn fill_of_audio_before_the_pictures_begins_with_it() {
    let mut stream = TestStream::new();
    (0..10).for_each(|n| stream.audio(500 + 300 * n));
    (0..25).for_each(|n| stream.picture(3500 + 40 * n, 5000));
    assert_eq!(stream.clock()[0], 500);
}

#[test]
fn fill_between_sparse_pictures_sends_each_before_it_is_decoded() {
    let mut stream = TestStream::new();
    (0..4).for_each(|n| stream.picture(1000 + 5000 * n, 100_000));
    stream.clock();
    let out = stream.filled(usize::MAX, 4096);
    let (mut now, mut stamp) = (0, None);
    for packet in out.as_chunks::<TS_PACKET_BYTES>().0.iter().map(TsPacket) {
        now = packet.adaptation().and_then(|field| field.pcr()).unwrap_or(now);
        if packet.starts_unit() && packet.pid() == VIDEO {
            stamp = PesStart::parse(packet.payload()).and_then(|start| start.decode_stamp);
        }
        if let Some(stamp) = stamp.filter(|_| packet.has_payload() && packet.pid() == VIDEO) {
            assert!(now < stamp * SYSTEM_TICKS_PER_MEDIA_TICK, "{now} is behind {stamp}");
        }
    }
}

#[test]
fn fill_with_a_picture_behind_the_audio_does_not_turn_the_clock_back() {
    let mut stream = TestStream::new();
    stream.picture(1000, 500);
    (0..10).for_each(|n| stream.audio(1000 + 300 * n));
    // It lies in the wrong place of the file.
    stream.picture(2000, 500);
    stream.picture(4100, 500);
    stream.clock();
}

#[test]
fn fill_of_a_long_gap_takes_no_memory() {
    let mut stream = TestStream::new();
    stream.picture(1000, 500);
    stream.picture(36_001_000, 500);
    let (mut filler, mut room, mut total) = (ClockFiller::new(), vec![0; 4096], 0);
    filler.push(&stream.writer.out);
    loop {
        match filler.read(&mut room) {
            0 => break,
            count => total += count,
        }
        assert!(filler.out.len() + filler.held.len() <= 2 * PACKETS_AT_A_TIME * TS_PACKET_BYTES);
    }
    assert!(total > 359_000 * TS_PACKET_BYTES, "{total}");
}

#[test]
fn fill_of_bytes_that_are_no_stream_passes_them_on() {
    for bytes in [vec![0; 1000], vec![0x47; 1000], Vec::new(), vec![0x47; 100]] {
        let mut stream = TestStream { writer: PacketWriter::default() };
        stream.writer.out.clone_from(&bytes);
        assert_eq!(stream.filled(333, 77), bytes);
    }
}

#[test]
fn delimiter_behind_parameter_sets_comes_first() {
    let [sps, pps, delimiter, slice] = [
        &[0, 0, 0, 1, 0x67, 1, 2][..],
        &[0, 0, 0, 1, 0x68, 3],
        &[0, 0, 0, 1, 9, 0xf0],
        &[0, 0, 1, 0x65, 7, 7],
    ];
    let first = |units: &[&[u8]]| {
        let bytes = units.concat();
        let (mut writer, mut pes) = (PacketWriter::default(), Pes::picture(VIDEO, 5, 3, bytes.len(), true));
        writer.pes(&mut pes, &bytes);
        let mut packet = *writer.out.first_chunk().unwrap();
        put_delimiter_first(&mut packet);
        PesStart::parse(TsPacket(&packet).payload()).unwrap().payload.to_vec()
    };
    let expected = [delimiter, sps, pps, sps, slice].concat();
    assert_eq!(first(&[sps, pps, delimiter, sps, slice]), expected);
    for units in
        [&[delimiter, sps, pps, slice][..], &[sps, pps, slice], &[sps, pps], &[slice, delimiter, slice], &[]]
    {
        assert_eq!(first(units), units.concat());
    }
}

use super::super::audio::{self, Coding};
use super::super::config::Config;
use super::super::video::{self, Syntax};
use super::*;
use crate::cmaf::boxes;

/// A packet with this payload, filled up by an adaptation field.
pub(crate) fn packet(pid: u16, counter: u8, starts: bool, payload: &[u8]) -> Vec<u8> {
    let stuffing = 184 - payload.len();
    let start = if starts { 0x40 } else { 0 };
    let mut packet = vec![0x47, start | (pid >> 8) as u8, pid as u8, counter & 15 | 0x10];
    if stuffing > 0 {
        packet[3] |= 0x20;
        packet.push(stuffing as u8 - 1);
        packet.resize(packet.len() + stuffing - 1, 0xff);
        if stuffing > 1 {
            packet[5] = 0;
        }
    }
    packet.extend(payload);
    packet
}

/// A PES packet's header with a stamp of 90,000.
const HEAD: [u8; 14] = [0, 0, 1, 0xe0, 0, 0, 0x80, 0x80, 5, 0x21, 0, 5, 0xbf, 0x21];

#[test]
fn streams_are_the_payloads_from_the_first_beginning() {
    let begin = |byte: u8| [&HEAD[..], &[byte; 100]].concat();
    let packets = [
        packet(256, 1, false, &[9; 184]),
        packet(256, 2, true, &begin(1)),
        packet(256, 3, false, &[2; 184]),
        // The same once more, and another stream.
        packet(256, 3, false, &[2; 184]),
        packet(257, 3, true, &begin(7)),
        packet(256, 4, true, &begin(3)),
    ];
    let mut demux = Demux::new([256, 257, 258]);
    demux.push(1880, &packets.concat(), |pid| pid != 258);
    let stream = demux.stream(256);
    assert_eq!(stream.bytes, [&[1; 100][..], &[2; 184], &[3; 100]].concat());
    let mark = |at, byte| Mark { at, byte, stamps: Some((90_000, 90_000)) };
    assert_eq!(stream.marks, [mark(0, 1880 + 188), mark(284, 1880 + 5 * 188)]);
    assert_eq!((stream.mark_of(283), stream.mark_of(284)), (Some(0), Some(1)));
    assert_eq!(demux.stream(257).bytes, [7; 100]);
    assert_eq!((demux.stream(258), demux.stream(300)), (&Elementary::default(), &Elementary::default()));
}

/// Whatever the bytes, as packets of every coding: nothing panics, and samples are within the stream.
fn try_all(bytes: &[u8]) {
    let mut demux = Demux::new([256]);
    // Bytes alone seldom look like packets: each 184 of them are one.
    for (number, payload) in bytes.chunks(184).enumerate() {
        demux.push(number as u64 * 188, &packet(256, number as u8, number % 3 == 0, payload), |_| true);
    }
    demux.push(0, bytes, |_| true);
    let stream = demux.stream(256);
    for coding in [Coding::Aac, Coding::Ac3, Coding::Eac3] {
        let Some(config) = audio::config(stream, coding) else { continue };
        let frames = audio::frames(stream, &config);
        assert!(frames.iter().all(|frame| frame.at + frame.length <= stream.bytes.len()));
        assert!(frames.windows(2).all(|pair| pair[0].at + pair[0].length <= pair[1].at));
        boxes::init(&Config::Audio(config), Some("eng"));
    }
    for syntax in [Syntax::H264, Syntax::H265] {
        let config = video::config(stream, syntax);
        let pictures = video::pictures(stream, syntax, config.as_ref());
        assert!(pictures.windows(2).all(|pair| pair[0].mark <= pair[1].mark));
        let Some(config) = config else { continue };
        let mut out = Vec::new();
        pictures.iter().for_each(|picture| picture.append_to(&mut out, &stream.bytes, &config, &mut false));
        // A unit grows by a byte at most, if its start code had three.
        assert!(out.len() <= stream.bytes.len() * 2);
        boxes::init(&Config::Video(config), None);
    }
}

/// A PES packet of pictures, and one of each kind of sound.
fn seeds() -> [(&'static str, Vec<u8>); 4] {
    let sps = "000000010967f0000000016764001facd9405005bbff000300041000003e90000ea600f183196000000168ee3c80";
    let sps: Vec<u8> =
        (0..sps.len() / 2).map(|at| u8::from_str_radix(&sps[at * 2..at * 2 + 2], 16).unwrap()).collect();
    let pictures = [
        &sps[..],
        &[0, 0, 1, 0x65, 0x88, 1, 2],
        &[0, 0, 1, 9, 0x10, 0, 0, 1, 0x41, 0x9a, 3, 0, 0, 1, 9, 0x10],
    ]
    .concat();
    let frames = |frame: &[u8], length: usize| {
        let mut frame = frame.to_vec();
        frame.resize(length, 7);
        [&HEAD[..], &frame, &frame, &frame].concat()
    };
    [
        ("h264", [&HEAD[..], &pictures].concat()),
        ("aac", frames(&[0xff, 0xf1, 0x4c, 0x80, 3, 0xff, 0xfc], 31)),
        ("ac3", frames(&[0x0b, 0x77, 0, 0, 0, 0x40, 0x43, 0xe0], 128)),
        ("eac3", frames(&[0x0b, 0x77, 0, 0x1f, 0x34, 0x80], 64)),
    ]
}

#[test]
fn anything_at_all() {
    bolero::check!(name = "cmaf_streams").for_each(|bytes: &[u8]| try_all(bytes));
}

/// `MILLRACE_WRITE_SEEDS=1` writes the seeds of the target above.
#[test]
fn seeds_are_in_the_tree() {
    let corpus =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cmaf/__fuzz__/cmaf_streams/corpus");
    for (name, bytes) in seeds() {
        let file = corpus.join(name);
        if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&corpus).unwrap();
            std::fs::write(&file, &bytes).unwrap();
        }
        let found = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{name}: {error}; MILLRACE_WRITE_SEEDS=1 writes it"));
        assert!(found == bytes, "{name} is another");
        try_all(&found);
    }
}

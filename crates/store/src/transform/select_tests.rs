use super::super::Transforms;
use super::*;
use millrace_media::psi::SectionAssembler;
use millrace_testkit::mux::{Adapt, Mux, PMT, VIDEO};

const ENGLISH: u16 = 0x101;
const GERMAN: u16 = 0x102;
const SUBTITLES: u16 = 0x103;

/// An ISO 639 descriptor.
fn language(code: &str) -> Vec<u8> {
    [&[0x0a, 4], code.as_bytes(), &[0]].concat()
}

/// Pictures, sound in two languages, and subtitles; `clock` has the clock.
fn tables(mux: &mut Mux, clock: u16) {
    mux.pat(&[(1, PMT)]);
    let (english, german) = (language("eng"), language("deu"));
    let subtitles = [&[0x59, 8], &b"deu"[..], &[0x10, 0, 1, 0, 1]].concat();
    let streams: [(u8, u16, &[u8]); 4] = [
        (0x1b, VIDEO, &[]),
        (0x0f, ENGLISH, &english),
        (0x0f, GERMAN, &german),
        (0x06, SUBTITLES, &subtitles),
    ];
    mux.pmt(PMT, 1, clock, &streams);
}

/// Such a stream, with a few packets of each PID and the tables twice.
fn stream(clock: u16) -> Vec<u8> {
    let mut mux = Mux::new();
    for turn in 0..2 {
        tables(&mut mux, clock);
        for pid in [VIDEO, ENGLISH, GERMAN, SUBTITLES] {
            let pcr = (pid == clock).then_some(1000 + turn);
            mux.pes_start(pid, Adapt { pcr, ..Adapt::default() }, 90_000, &[1, 2, 3]);
            (0..3).for_each(|_| mux.more(pid));
        }
        mux.packet(0x1fff, false, Adapt::default(), &[0xff; 184]);
    }
    mux.out
}

fn select(spec: &str, stream: &[u8]) -> Result<Vec<u8>, BindError> {
    let all = Transforms::parse(&[format!("x=select:{spec}")]).unwrap();
    let steps = all.iter().next().unwrap().bind(&StreamTables::of(stream), stream)?;
    let mut out = stream.to_vec();
    assert_eq!(steps[0].apply(&mut PacketBlock::of_bytes(0, 1316, &mut out)), Ok(Applied::default()));
    Ok(out)
}

fn packets(stream: &[u8]) -> impl Iterator<Item = TsPacket<'_>> {
    stream.as_chunks().0.iter().map(TsPacket)
}

/// PIDs of each map table that a demultiplexer reads; none whose CRC is wrong.
fn tables_of(stream: &[u8]) -> Vec<Vec<u16>> {
    let (mut assembler, mut found) = (SectionAssembler::default(), Vec::new());
    for packet in packets(stream).filter(|packet| packet.pid() == PMT) {
        let wrong = assembler.push(packet, |section| {
            let pmt = psi::parse_pmt(section).unwrap();
            found.push(pmt.streams.iter().map(|stream| stream.pid).collect());
        });
        assert_eq!(wrong, 0, "every CRC is right");
    }
    found
}

#[test]
fn select_by_language_leaves_other_packets_unchanged() {
    let before = stream(VIDEO);
    let after = select("audio=deu,subtitles=none", &before).unwrap();
    assert_eq!(tables_of(&after), [[VIDEO, GERMAN], [VIDEO, GERMAN]]);
    let mut kept = 0;
    for (was, is) in packets(&before).zip(packets(&after)) {
        match was.pid() {
            ENGLISH | SUBTITLES => assert_eq!(*is.0, NULL_PACKET),
            PMT => assert_eq!((is.pid(), is.continuity()), (PMT, was.continuity())),
            _ => {
                kept += 1;
                assert_eq!(is.0, was.0);
            }
        }
    }
    assert_eq!(kept, 2 * (1 + 4 + 4 + 1), "PAT, pictures, German, stuffing");
}

#[test]
fn select_specs_keep_chosen_streams() {
    let before = stream(VIDEO);
    let kept = |spec: &str| tables_of(&select(spec, &before).unwrap()).remove(0);
    assert_eq!(kept("audio=all"), [VIDEO, ENGLISH, GERMAN, SUBTITLES]);
    assert_eq!(select("audio=all", &before).unwrap(), before);
    assert_eq!(kept("audio=none"), [VIDEO, SUBTITLES]);
    assert_eq!(kept("audio=fra/eng"), [VIDEO, ENGLISH, SUBTITLES]);
    assert_eq!(kept("subtitles=eng"), [VIDEO, ENGLISH, GERMAN], "subtitles have a language too");
    assert_eq!(kept("drop=0x100/259"), [ENGLISH, GERMAN]);
    // Subtitles are no other data.
    assert_eq!(kept("data=none"), [VIDEO, ENGLISH, GERMAN, SUBTITLES]);
    let none = select("audio=fra", &before).unwrap_err();
    assert_eq!(none, BindError::NoSuchAudio { wanted: "fra".into(), has: "eng, deu".into() });
    // A title without audio matches every language.
    let silent = select("audio=none", &before).unwrap();
    assert_eq!(select("audio=fra", &silent).unwrap(), silent);
    let no_tables = select("audio=deu", &before[2 * 188..3 * 188]).unwrap_err();
    assert!(matches!(no_tables, BindError::NoTables(_)), "{no_tables}");
}

#[test]
fn select_keeps_pcr_of_dropped_stream() {
    let before = stream(ENGLISH);
    let after = select("audio=deu", &before).unwrap();
    let clocks = |stream: &[u8]| -> Vec<_> {
        packets(stream).filter_map(|packet| Some((packet.pid(), packet.adaptation()?.pcr()?))).collect()
    };
    assert_eq!(clocks(&after), [(ENGLISH, 1000), (ENGLISH, 1001)]);
    assert_eq!(clocks(&after), clocks(&before));
    for packet in packets(&after).filter(|packet| packet.pid() == ENGLISH) {
        assert!(!packet.has_payload() && !packet.starts_unit() && packet.payload().is_empty());
        // The field fills the packet.
        assert_eq!(packet.0[4], 183);
        assert!(packet.0[12..].iter().all(|byte| *byte == 0xff));
    }
    assert_eq!(packets(&after).filter(|packet| packet.pid() == ENGLISH).count(), 2);
}

/// Returns a PAT, then a map table with `each` audio streams in each of three languages, in as many
/// packets as it takes, `times` times.
fn long_tables(each: usize, times: usize) -> Vec<u8> {
    let (mut one, mut mux) = (Mux::new(), Mux::new());
    let languages = [language("eng"), language("deu"), language("fra")];
    let mut streams: Vec<(u8, u16, &[u8])> = vec![(0x1b, VIDEO, &[])];
    for at in 0..3 * each {
        streams.push((0x0f, 0x200 + at as u16, &languages[at % 3]));
    }
    // The multiplexer of the tests knows short tables; the body is taken from it piece by piece.
    let mut section = vec![2, 0, 0, 0, 1, 0xc1, 0, 0, 0xe0 | (VIDEO >> 8) as u8, VIDEO as u8, 0xf0, 0];
    for (kind, pid, info) in streams {
        section.extend([kind, 0xe0 | (pid >> 8) as u8, pid as u8, 0xf0, info.len() as u8]);
        section.extend(info);
    }
    let length = section.len() + 4 - 3;
    (section[1], section[2]) = (0xb0 | (length >> 8) as u8, length as u8);
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Mpeg2, &section) as u32;
    section.extend(crc.to_be_bytes());
    one.pat(&[(1, PMT)]);
    mux.out.extend(&one.out);
    for _ in 0..times {
        let payload = [&[0], &section[..]].concat();
        for (at, piece) in payload.chunks(184).enumerate() {
            let mut piece = piece.to_vec();
            piece.resize(184, 0xff);
            mux.packet(PMT, at == 0, Adapt::default(), &piece);
            mux.more(VIDEO);
        }
    }
    mux.out
}

#[test]
fn select_rewrites_pmt_spanning_several_packets() {
    let before = long_tables(14, 3);
    assert_eq!(tables_of(&before)[0].len(), 43);
    let after = select("audio=deu", &before).unwrap();
    let expected: Vec<u16> = std::iter::once(VIDEO).chain((0..14).map(|n| 0x201 + 3 * n)).collect();
    assert_eq!(tables_of(&after), [&expected[..]; 3]);
    let counters = |stream: &[u8]| -> Vec<_> {
        packets(stream).map(|packet| (packet.pid(), packet.continuity(), packet.starts_unit())).collect()
    };
    assert_eq!(counters(&after), counters(&before));
    // Packet by packet it is the same: nothing is kept from one to the next.
    let all = Transforms::parse(&["x=select:audio=deu"]).unwrap();
    let steps = all.iter().next().unwrap().bind(&StreamTables::of(&before), &before).unwrap();
    let mut single = before.clone();
    for (at, packet) in single.chunks_mut(188).enumerate().rev() {
        steps[0].apply(&mut PacketBlock::of_bytes(at as u32, 188, packet)).unwrap();
    }
    assert!(single == after);
    let too_long = select("audio=deu", &long_tables(25, 1)).unwrap_err();
    assert!(matches!(too_long, BindError::TableTooLong { program: 1, bytes } if bytes > 183), "{too_long}");
}

#[test]
fn select_leaves_damaged_pmt_and_adjacent_section_unchanged() {
    let before = stream(VIDEO);
    let mut damaged = before.clone();
    let at = packets(&before).position(|packet| packet.pid() == PMT).unwrap() * 188;
    let table = psi::section_bytes(&damaged[at + 5..]).unwrap();
    // Another section behind the table, and the CRC of the second table damaged.
    let other = [0xc0, 0x30, 3, 7, 8, 9];
    damaged[at + 5 + table..at + 5 + table + 6].copy_from_slice(&other);
    let second = damaged.len() / 2 + at;
    assert_eq!(damaged[second + 1..second + 3], damaged[at + 1..at + 3], "the other table");
    damaged[second + 5 + table - 1] ^= 1;
    let after = select("audio=deu", &damaged).unwrap();
    assert_eq!(after[second..second + 188], damaged[second..second + 188]);
    let kept = psi::section_bytes(&after[at + 5..]).unwrap();
    assert!(kept < table);
    assert_eq!(after[at + 5 + kept..at + 5 + kept + 6], other);
    assert!(after[at + 5 + kept + 6..at + 188].iter().all(|byte| *byte == 0xff));
}

#[test]
fn select_of_arbitrary_packets_is_idempotent_without_panic() {
    let good = [stream(VIDEO), stream(ENGLISH), long_tables(14, 2)];
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, bool)>().for_each(|(which, flips, both)| {
        let mut stream = good[usize::from(*which) % good.len()].clone();
        let clean = stream.clone();
        let length = stream.len();
        flips.iter().for_each(|(at, value)| stream[usize::from(*at) * 7 % length] = *value);
        // Tables from the damaged stream, or from the good one.
        let head = if *both { &stream } else { &clean };
        let all = Transforms::parse(&["x=select:audio=deu,subtitles=none,data=none"]).unwrap();
        let steps = all.iter().next().unwrap().bind(&StreamTables::of(head), head);
        let Ok(steps) = steps else { return };
        let mut out = stream.clone();
        steps[0].apply(&mut PacketBlock::of_bytes(0, 1316, &mut out)).unwrap();
        let mut twice = out.clone();
        steps[0].apply(&mut PacketBlock::of_bytes(0, 1316, &mut twice)).unwrap();
        assert!(twice == out, "what is selected has nothing more to be left out");
    });
}

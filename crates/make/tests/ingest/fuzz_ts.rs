//! No bytes make the indexer panic or break its promises: one record for every packet with the right sum, times that
//! never run back, access points that hold, every byte of the source kept or counted.
//!
//! Each target runs on its seeds (`__fuzz__/<target>/corpus`) and on random input under plain `cargo test`, and for as
//! long as wanted under `cargo xtask fuzz`. Random bytes seldom look like a stream, so one target damages a valid one
//! and one multiplexes whatever comes. `MILLRACE_WRITE_SEEDS=1` writes the seeds again.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use crate::ingest_support::{Memory, check};
use bolero::TypeGenerator;
use millrace_make::ingest::{IndexOptions, StreamError, index_only};
use millrace_make::ladder::{Misfit, compare};
use millrace_testkit::mux::{Adapt, Film, IDR, Mux, NON_IDR, VIDEO, WRAP, film};

/// Hands out `bytes` in pieces of the given lengths, over and over.
struct Pieces<'a> {
    bytes: &'a [u8],
    lengths: &'a [u16],
    turn: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let wanted = self.lengths.get(self.turn % self.lengths.len().max(1)).copied().unwrap_or(u16::MAX);
        self.turn += 1;
        let n = usize::from(wanted).max(1).min(room.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(n);
        room[..n].copy_from_slice(now);
        self.bytes = later;
        Ok(n)
    }
}

/// Indexes `bytes` and checks everything; whether it was refused.
fn try_bytes(bytes: &[u8], lengths: &[u16], trusted_clock: bool) -> Result<Memory, StreamError> {
    let options = IndexOptions { packet_sizes: vec![1316, 188, 3760], framing: None, trusted_clock };
    let mut sink = Memory::default();
    let mut reader = Pieces { bytes, lengths, turn: 0 };
    let passed = index_only(&mut reader, &options, &mut sink)?;
    check(&passed, &sink, &options.packet_sizes);
    let skipped = passed.skipped;
    let stride = bytes.len() as u64 - skipped.before_bytes - skipped.bytes - skipped.tail_bytes;
    let packets = passed.indexed.bytes / 188;
    assert!(
        (packets * 188..=packets * 204).contains(&stride),
        "{packets} packets from {stride} bytes: {skipped:?}"
    );
    Ok(sink)
}

#[test]
fn fuzz_ts_bytes() {
    bolero::check!(name = "ts_bytes").with_max_len(20_000).for_each(|bytes: &[u8]| {
        let whole = try_bytes(bytes, &[], false);
        // How it is read does not matter.
        let in_pieces = try_bytes(bytes, &[1, 700, 187], false);
        match (whole, in_pieces) {
            (Ok(a), Ok(b)) => assert!(a.data == b.data && a.metas == b.metas),
            (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
            (a, b) => panic!("read whole: {:?}, read in pieces: {:?}", a.map(|_| ()), b.map(|_| ())),
        }
    });
}

/// One way to damage a stream. Places are shares of its length.
#[derive(Clone, Debug, TypeGenerator)]
enum Damage {
    Set { at: u16, value: u8 },
    Flip { packet: u16, byte: u8, bit: u8 },
    Cut { at: u16, bytes: u16 },
    Insert { at: u16, bytes: u8, value: u8 },
    Repeat { from: u16, bytes: u16, at: u16 },
    End { at: u16 },
}

fn damage(stream: &mut Vec<u8>, how: &Damage) {
    let place = |share: u16, length: usize| usize::from(share) * length / 65_536;
    let length = stream.len();
    match *how {
        _ if length == 0 => {}
        Damage::Set { at, value } => stream[place(at, length)] = value,
        // The first bytes of packets matter most.
        Damage::Flip { packet, byte, bit } => {
            let at = place(packet, length) / 188 * 188 + usize::from(byte % 32);
            stream[at.min(length - 1)] ^= 1 << (bit & 7);
        }
        Damage::Cut { at, bytes } => {
            let at = place(at, length);
            stream.drain(at..(at + usize::from(bytes % 1000)).min(length));
        }
        Damage::Insert { at, bytes, value } => {
            let at = place(at, length);
            stream.splice(at..at, std::iter::repeat_n(value, usize::from(bytes)));
        }
        Damage::Repeat { from, bytes, at } => {
            let from = place(from, length);
            let piece = stream[from..(from + usize::from(bytes % 2000)).min(length)].to_vec();
            let at = place(at, length);
            stream.splice(at..at, piece);
        }
        Damage::End { at } => stream.truncate(place(at, length)),
    }
}

#[test]
fn fuzz_ts_damaged() {
    let films = [
        film(&Film { packets: 300, key_every: 2, ..Film::default() }),
        film(&Film { packets: 300, start: WRAP - 1_000_000, indicator: false, ..Film::default() }),
        film(&Film { packets: 300, pcr: false, ..Film::default() }),
    ];
    let input = bolero::produce::<(u8, bool, Vec<u16>, Vec<Damage>)>();
    bolero::check!(name = "ts_damaged").with_generator(input).with_iterations(3000).for_each(
        |(which, trusted, lengths, damages)| {
            let mut stream = films[usize::from(*which) % films.len()].clone();
            damages.iter().take(20).for_each(|how| damage(&mut stream, how));
            // It may be refused, but only in words.
            if let Err(error) = try_bytes(&stream, lengths, *trusted) {
                assert!(!error.to_string().is_empty());
            }
        },
    );
}

#[test]
fn fuzz_ts_compared() {
    let whole = film(&Film { packets: 300, key_every: 2, ..Film::default() });
    let same = compare(&mut Cursor::new(&whole), &mut Cursor::new(&whole)).unwrap();
    let is_of_both = |misfit: &Misfit| matches!(misfit, Misfit::Boundary { .. } | Misfit::Open { .. });
    assert!(same.iter().all(|(misfit, _)| is_of_both(misfit)), "{same:?}");
    let input = bolero::produce::<(bool, Vec<Damage>)>();
    bolero::check!(name = "ts_compared").with_generator(input).with_iterations(1000).for_each(
        |(is_title, damages)| {
            let mut other = whole.clone();
            damages.iter().take(20).for_each(|how| damage(&mut other, how));
            let (a, b) = if *is_title { (&other, &whole) } else { (&whole, &other) };
            if let Ok(misfits) = compare(&mut Cursor::new(a), &mut Cursor::new(b)) {
                assert!(misfits.iter().all(|(misfit, times)| *times > 0 && !misfit.to_string().is_empty()));
            }
        },
    );
}

/// One packet of a multiplex by a madman.
#[derive(Clone, Debug, TypeGenerator)]
enum Step {
    Pat { first: u16, second: u16 },
    Pmt { table: u8, program: u8, clock: u8, kind: u8, stream: u8 },
    Clock { pid: u8, ticks: u64, new_base: bool },
    Pes { pid: u8, stamp: u64, access: bool, key: bool },
    More { pid: u8, packets: u8 },
    Lose { pid: u8 },
    Raw { pid: u16, start: bool, payload: Vec<u8> },
}

/// A few PIDs, so that steps meet.
fn pid(number: u8) -> u16 {
    0x100 + u16::from(number % 4)
}

fn table(number: u8) -> u16 {
    0x1000 + u16::from(number % 3)
}

fn multiplex(steps: &[Step]) -> Vec<u8> {
    let mut mux = Mux::new();
    for step in steps {
        match step {
            Step::Pat { first, second } => {
                mux.pat(&[(first % 4, table(*first as u8)), (second % 4, table(*second as u8))])
            }
            Step::Pmt { table: number, program, clock, kind, stream } => {
                let kinds = [0x1b, 0x24, 0x02, 0x10, 0x0f, 0x03, 0x06, *kind];
                let kind = kinds[usize::from(kind % 8)];
                mux.pmt(
                    table(*number),
                    u16::from(program % 4),
                    pid(*clock),
                    &[(kind, pid(*stream), &[]), (3, VIDEO, &[])],
                );
            }
            Step::Clock { pid: number, ticks, new_base } => {
                // Small numbers make small steps, large ones anything.
                let ticks = if ticks % 3 == 0 { ticks % WRAP } else { ticks % 27_000_000 };
                let adapt = Adapt { pcr: Some(ticks), discontinuity: *new_base, ..Adapt::default() };
                mux.packet(pid(*number), false, adapt, &[0x11; 100]);
            }
            Step::Pes { pid: number, stamp, access, key } => {
                let adapt = Adapt { random_access: *access, ..Adapt::default() };
                mux.pes_start(pid(*number), adapt, stamp % 1_000_000, if *key { IDR } else { NON_IDR });
            }
            Step::More { pid: number, packets } => (0..packets % 30).for_each(|_| mux.more(pid(*number))),
            Step::Lose { pid: number } => mux.lose(pid(*number), 5),
            Step::Raw { pid, start, payload } => {
                mux.packet(pid & 0x1fff, *start, Adapt::default(), payload);
            }
        }
    }
    mux.out
}

#[test]
fn fuzz_ts_multiplex() {
    let input = bolero::produce::<(bool, Vec<Step>)>();
    bolero::check!(name = "ts_multiplex").with_generator(input).with_iterations(5000).for_each(
        |(trusted, steps)| {
            // Tables first, or nearly nothing would get past them.
            let tables = [
                Step::Pat { first: 1, second: 2 },
                Step::Pmt { table: 1, program: 1, clock: 0, kind: 0, stream: 0 },
            ];
            let stream = multiplex(&[&tables[..], steps].concat());
            if let Err(error) = try_bytes(&stream, &[], *trusted) {
                assert!(!error.to_string().is_empty());
            }
        },
    );
}

/// Name and bytes of each seed of `ts_bytes`.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let short = film(&Film { packets: 61, key_every: 1, ..Film::default() });
    let prefixed = short.chunks(188).flat_map(|p| [&[1, 2, 3, 4], p].concat()).collect();
    let suffixed = short.chunks(188).flat_map(|p| [p, &[9; 16]].concat()).collect();
    let mut damaged = short.clone();
    damaged.drain(30 * 188 + 7..31 * 188 + 9);
    damaged[40 * 188] = 0;
    damaged.truncate(damaged.len() - 50);
    let wrap = film(&Film { packets: 61, start: WRAP - 500_000, ..Film::default() });
    let stamps = film(&Film { packets: 121, pcr: false, key_every: 2, ..Film::default() });
    let jump = [&short[..], &film(&Film { packets: 41, start: 9_000_000_000, ..Film::default() })].concat();
    vec![
        ("plain", short),
        ("prefixed", prefixed),
        ("suffixed", suffixed),
        ("damaged", damaged),
        ("wrap", wrap),
        ("stamps", stamps),
        ("jump", jump),
    ]
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ingest/__fuzz__/ts_bytes/corpus")
}

#[test]
fn seeds_are_in_the_tree_and_are_streams() {
    for (name, bytes) in seeds() {
        let file = corpus().join(name);
        if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&file, bytes).unwrap();
        }
        let bytes = std::fs::read(&file)
            .unwrap_or_else(|error| panic!("{name}: {error}; MILLRACE_WRITE_SEEDS=1 writes it"));
        try_bytes(&bytes, &[], false).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

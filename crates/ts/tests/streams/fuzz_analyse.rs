//! No bytes make the analyser panic, keep more than its bounds, or say something else when they come in other pieces.
//!
//! Each target runs on its seeds (`__fuzz__/<target>/corpus`) and on random input under plain `cargo test`, and for as long as wanted under
//! `cargo xtask fuzz`. `MILLRACE_WRITE_SEEDS=1` makes the seeds again, with ffmpeg.

use std::path::{Path, PathBuf};

use crate::support;
use crate::support::PACKET;
use bolero::TypeGenerator;
use millrace_ts::limits::MAX_FINDINGS_PER_CHECK;
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport, Check};

const OPTIONS: AnalyserOptions = AnalyserOptions { buffers: true, pid_interval_ticks: 27_000_000 };

/// Analyses `bytes` in pieces of the given lengths, over and over.
fn in_pieces(bytes: &[u8], lengths: &[u16]) -> AnalysisReport {
    let mut analyser = Analyser::new(OPTIONS);
    let (mut rest, mut turn) = (bytes, 0);
    while !rest.is_empty() {
        let wanted =
            lengths.get(turn % lengths.len().max(1)).map_or(usize::MAX, |length| usize::from(*length));
        let (now, later) = rest.split_at(wanted.clamp(1, rest.len()));
        analyser.push(now);
        (rest, turn) = (later, turn + 1);
    }
    analyser.finish()
}

fn check(bytes: &[u8], lengths: &[u16]) {
    let report = in_pieces(bytes, &[]);
    assert_eq!(in_pieces(bytes, lengths), report, "the pieces make no difference");
    assert_eq!(report.bytes, bytes.len() as u64);
    assert!(report.packets * PACKET as u64 <= report.bytes);
    assert!(report.findings.len() <= MAX_FINDINGS_PER_CHECK * Check::ALL.len());
    for check in Check::ALL {
        let kept = report.findings.iter().filter(|finding| finding.what.check() == *check).count() as u64;
        assert_eq!(kept, report.count(*check).min(MAX_FINDINGS_PER_CHECK as u64), "{}", check.id());
    }
    let pids: u64 = report.pids.iter().map(|pid| pid.packets).sum();
    assert!(pids + report.null_packets <= report.packets);
    assert!(!report.to_string().is_empty() && serde_json::to_value(&report).is_ok());
}

#[test]
fn fuzz_analyse_bytes() {
    bolero::check!(name = "analyse_bytes").with_max_len(40_000).for_each(|bytes: &[u8]| {
        check(bytes, &[1, 700, 187]);
        // Sync bytes where they belong, so that the rest is looked at.
        let mut packets = bytes.to_vec();
        packets.iter_mut().step_by(PACKET).for_each(|byte| *byte = 0x47);
        check(&packets, &[3, 189]);
    });
}

/// One way to damage a stream. Places are shares of its length.
#[derive(Clone, Debug, TypeGenerator)]
enum Damage {
    Set {
        at: u16,
        value: u8,
    },
    /// The first bytes of packets matter most.
    Head {
        packet: u16,
        byte: u8,
        value: u8,
    },
    Cut {
        at: u16,
        bytes: u16,
    },
    Insert {
        at: u16,
        bytes: u8,
        value: u8,
    },
    Repeat {
        from: u16,
        bytes: u16,
        at: u16,
    },
    End {
        at: u16,
    },
}

fn damage(stream: &mut Vec<u8>, how: &Damage) {
    let place = |share: u16, length: usize| usize::from(share) * length / 65_536;
    let length = stream.len();
    match *how {
        _ if length == 0 => {}
        Damage::Set { at, value } => stream[place(at, length)] = value,
        Damage::Head { packet, byte, value } => {
            let at = place(packet, length) / PACKET * PACKET + usize::from(byte % 40);
            stream[at.min(length - 1)] = value;
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
fn fuzz_analyse_damaged() {
    let seeds: Vec<_> = NAMES.iter().map(|name| seed(name)).collect();
    let input = bolero::produce::<(u8, Vec<u16>, Vec<Damage>)>();
    bolero::check!(name = "analyse_damaged").with_generator(input).with_iterations(1500).for_each(
        |(which, lengths, damages)| {
            let mut stream = seeds[usize::from(*which) % seeds.len()].clone();
            damages.iter().take(20).for_each(|how| damage(&mut stream, how));
            check(&stream, lengths);
        },
    );
}

#[test]
fn fuzz_analyse_datagrams() {
    let seeds: Vec<_> = NAMES.iter().map(|name| seed(name)).collect();
    bolero::check!(name = "analyse_datagrams").with_type::<(u8, Vec<u8>)>().with_iterations(1000).for_each(
        |(which, fates)| {
            let stream = &seeds[usize::from(*which) % seeds.len()];
            let mut analyser = Analyser::new(OPTIONS);
            let fates = fates.iter().copied().chain(std::iter::repeat(255));
            for (datagram, fate) in stream.chunks(7 * PACKET).zip(fates) {
                match fate {
                    0..40 => analyser.lost(),
                    40..60 => analyser.jumped(),
                    60..80 => analyser.push_packets(&datagram[..usize::from(fate).min(datagram.len())]),
                    _ => analyser.push_packets(datagram),
                }
            }
            let report = analyser.finish();
            assert!(report.packets * PACKET as u64 <= report.bytes);
        },
    );
}

const NAMES: [&str; 4] = ["constant", "variable", "old", "two"];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/streams/__fuzz__/analyse_bytes/corpus")
}

fn seed(name: &str) -> Vec<u8> {
    let file = corpus().join(name);
    std::fs::read(&file).unwrap_or_else(|error| panic!("{name}: {error}; MILLRACE_WRITE_SEEDS=1 writes it"))
}

#[test]
fn seeds_are_in_the_tree_and_are_streams() {
    if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(corpus()).unwrap();
        for (name, args) in NAMES.iter().zip([support::CBR, support::VBR, support::MPEG2, support::TWO]) {
            let stream = support::make(1, &[args, &["-s", "64x48"]].concat());
            // Enough for tables, clock references and PES packets of each kind.
            std::fs::write(corpus().join(name), &stream[..stream.len().min(120 * PACKET)]).unwrap();
        }
    }
    for name in NAMES {
        let report = in_pieces(&seed(name), &[]);
        assert!(report.programs.len() == if name == "two" { 2 } else { 1 }, "{name}: {report}");
        assert!(report.pids.iter().any(|pid| pid.pes_packets > 1), "{name}: {report}");
    }
}

//! Processor work for 4 KB, in traditional stacks and in ours: Table 2 and Figure 7 of the paper.
//!
//! Old: the sum of 16-bit words by the processor, headers written field by field. New: sums that were stored with the data, a
//! header that is there but for what changes. The paper's memory (40 and 64 % less) is not among them: a copy of cold data
//! beside a reference to memory that is there already is no comparison of two ways to do one thing.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use millrace_core::wire::checksum::{add, sum16};
use millrace_tcp::seq::Seq;
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Stamps, TcpOptions, Template};

use crate::benches::tcp_turns::Ground;
use crate::frame::{Contest, ContestOptions, ContestResult, Noise, Options, Report, Row};

/// The processed unit.
const UNIT_BYTES: usize = 4096;
/// Segments of a unit, each of full length but the last.
const SEGMENT_BYTES: usize = 1316;
const SEGMENTS: usize = UNIT_BYTES.div_ceil(SEGMENT_BYTES);
/// Memory that is walked: more than any cache holds.
const WALK_BYTES: usize = 64 << 20;
/// Units of a batch.
const BATCH: usize = 64;
const HEADER_ROOM: usize = 60;
const OLD: &str = "old way";
const NEW: &str = "new way";

/// Part, the paper's saving in words.
const PARTS: [(&str, &str); 2] = [
    ("checksum of 4 KB", "paper: 14 times as fast"),
    ("headers of 4 KB", "paper: the rest of the protocol 21 % less"),
];

pub(super) fn run(options: &Options, report: &mut Report) -> anyhow::Result<Noise> {
    let how = ContestOptions { slot_ms: options.pick(2, 60, 200), ..ContestOptions::from_options(options) };
    let walk: Vec<u8> =
        (0..options.pick(1 << 20, WALK_BYTES, WALK_BYTES)).map(|n| (n * 7 / 8) as u8).collect();
    let mut noise = Noise::quiet();
    for (part, paper) in PARTS {
        let mut contest = Contest::new(part);
        match part {
            "checksum of 4 KB" => checksums(&mut contest, &walk),
            _ => headers(&mut contest)?,
        }
        let result = contest.run(&how)?;
        write_up(part, paper, &result, report);
        noise = noise.and(result.noise);
    }
    // The whole calls of our stack, in which those parts are.
    let took = Ground::new(1000, true)?.measure(options.pick(20, 1500, 6000), (16, SEGMENTS as u32))?;
    report.rows.push(
        Row::new("4 KB through our stack, null device, 1000 connections")
            .with("socket output (queueing)", took.queue, "ns")
            .with("TCP data output", took.segment * SEGMENTS as f64, "ns")
            .with("TCP ACK input", took.ack * SEGMENTS as f64, "ns")
            .with("paper, old: socket output", 581.0, "us")
            .with("paper, old: data output", 155.0, "us")
            .with("paper, old: ACK input", 146.0, "us"),
    );
    Ok(noise)
}

fn write_up(part: &str, paper: &str, result: &ContestResult, report: &mut Report) {
    for contender in &result.contenders {
        let ratio = contender.ratio;
        report.rows.push(
            Row::new(format!("{part}: {} ({paper})", contender.name))
                .with("time", contender.p50, "ns")
                .with("times as fast as the old way", 1.0 / ratio.mid, "")
                .with("from", 1.0 / ratio.high, "")
                .with("to", 1.0 / ratio.low, "")
                .with("less time", (1.0 - ratio.mid) * 100.0, "%"),
        );
    }
}

/// "By adding the complement of one to each 16-bit unit" (section 3.1). The carry keeps compilers from adding many at a time, which no compiler
/// did then.
fn sum_words(bytes: &[u8]) -> u16 {
    bytes.as_chunks::<2>().0.iter().fold(0, |sum, word| {
        let (sum, carry) = u16::overflowing_add(sum, u16::from_be_bytes(*word));
        sum + u16::from(carry)
    })
}

fn checksums<'a>(contest: &mut Contest<'a>, walk: &'a [u8]) {
    let units = || walk.chunks_exact(UNIT_BYTES).cycle();
    let mut old = units();
    contest.contender(OLD, move |slot| {
        while slot.goes_on() {
            let sum = slot.batch(BATCH as u64, || {
                old.by_ref().take(BATCH).fold(0, |all, unit| add(all, black_box(sum_words(unit))))
            });
            slot.produced(u64::from(sum));
        }
        Ok(())
    });
    let mut vectors = units();
    contest.contender("a pass with vectors", move |slot| {
        while slot.goes_on() {
            let sum = slot.batch(BATCH as u64, || {
                vectors.by_ref().take(BATCH).fold(0, |all, unit| add(all, black_box(sum16(unit))))
            });
            slot.produced(u64::from(sum));
        }
        Ok(())
    });
    // Computed when the data was stored: before the clock runs.
    let stored: Vec<[u16; SEGMENTS]> = walk
        .chunks_exact(UNIT_BYTES)
        .map(|unit| {
            let mut sums = [0; SEGMENTS];
            for (sum, segment) in sums.iter_mut().zip(unit.chunks(SEGMENT_BYTES)) {
                *sum = sum16(segment);
            }
            sums
        })
        .collect();
    let mut at = 0;
    contest.contender(NEW, move |slot| {
        while slot.goes_on() {
            let sum = slot.batch(BATCH as u64, || {
                let mut all = 0;
                for _ in 0..BATCH {
                    let sums = black_box(&stored[at]);
                    at = (at + 1) % stored.len();
                    all = add(all, sums.iter().fold(0, |sum, part| add(sum, *part)));
                }
                all
            });
            slot.produced(u64::from(sum));
        }
        Ok(())
    });
}

fn headers(contest: &mut Contest<'_>) -> anyhow::Result<()> {
    let end = |last, port| SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), port));
    let flow = FlowKey::new(end(1, 1024), end(2, 80)).context("both are of IPv4")?;
    let head = |n: u32| Head {
        seq: Seq(n),
        ack: Seq(7),
        flags: Flags::ACK,
        window: 1000,
        urgent: 0,
        options: TcpOptions { stamps: Some(Stamps { value: n, echo: 3 }), ..TcpOptions::default() },
    };
    let body = Body::new(0x1234, SEGMENT_BYTES as u32);
    contest.contender(OLD, move |slot| {
        let mut room = [0; HEADER_ROOM];
        while slot.goes_on() {
            slot.batch(BATCH as u64, || {
                for n in 0..(BATCH * SEGMENTS) as u32 {
                    black_box(Template::new(black_box(&flow)).write(&head(n), body, &mut room));
                }
            });
            slot.produced(u64::from(sum16(&room)));
        }
        Ok(())
    });
    contest.contender(NEW, move |slot| {
        let (mut room, template) = ([0; HEADER_ROOM], Template::new(&flow));
        while slot.goes_on() {
            slot.batch(BATCH as u64, || {
                for n in 0..(BATCH * SEGMENTS) as u32 {
                    black_box(black_box(&template).write(&head(n), body, &mut room));
                }
            });
            slot.produced(u64::from(sum16(&room)));
        }
        Ok(())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_words_matches_sum16() {
        let data: Vec<u8> = (0..UNIT_BYTES).map(|n| (n * 31 / 4) as u8).collect();
        assert_eq!(sum_words(&data), sum16(&data));
        assert_eq!(sum_words(&[0xff, 0xff, 0, 1]), 1);
    }
}

//! Cost of a transformation when an extent is filled, in nanoseconds per packet: of the plain fill
//! (copy, sum and CRC of each packet), and of the same with a transformation and the sums of the
//! changed packets behind it.

use std::hint::black_box;

use anyhow::Context;
use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::ExtentContent;
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::copy_sum16;
use millrace_store::meta::PacketCrc;
use millrace_store::transform::{Derivation, Transforms};

use crate::frame::{Bench, Contest, ContestOptions, Noise, Options, Promise, Report};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "transforms",
    shows: "ns a packet to fill an extent, and to transform it as well: streams left out, re-stamped, both",
    not_for: "modules, whose cost is their own; reading and decoding, which come before; how many viewers share what was filled",
    options: &["runs"],
    targets: &["transforms-no-failure"],
    needs: &[],
    run,
};

const VIDEO: u16 = 0x100;
const AUDIO: u16 = 0x101;
const PMT: u16 = 0x1000;

/// The transformations, by what rows call them.
const STEPS: [(&str, &str); 3] = [
    ("streams left out", "select:audio=none,subtitles=none"),
    ("re-stamped", "restamp:offset=1h,continuity=5"),
    ("both", "select:audio=none,subtitles=none+restamp:offset=1h,continuity=5"),
];

fn run(options: &Options) -> anyhow::Result<Report> {
    let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("no layout")?;
    let stream = stream(layout.packets_per_extent() as usize * DEFAULT_PACKET_BYTES);
    let texts = STEPS.iter().enumerate().map(|(n, (_, steps))| format!("t{n}={steps}"));
    let transforms = Transforms::parse(&texts.collect::<Vec<_>>())?;
    let mut contest = Contest::new("an extent of 196 packets".to_owned());
    contest.contender("plain fill", work(layout, &stream, None)).as_base();
    for ((label, _), named) in STEPS.iter().zip(transforms.iter()) {
        let derivation = Derivation::bind(named, TitleId([0; 16]), &stream)?;
        contest.contender(*label, work(layout, &stream, Some(derivation)));
    }
    let result = contest.run(&ContestOptions::from_options(options))?;
    let mut report = Report::new("transforms");
    report.rows.extend(result.rows("packet"));
    let failed: u64 = transforms.iter().map(|named| named.report().counters().failed_blocks).sum();
    report.promises.push(
        Promise::at_most("transforms-no-failure", failed as f64, 0.0, "blocks that failed").correctness(),
    );
    report.noise = Some(Noise::quiet().and(result.noise));
    Ok(report)
}

/// Fills an extent over and over.
fn work(
    layout: WireLayout,
    stream: &[u8],
    derivation: Option<Derivation>,
) -> impl FnMut(&mut crate::frame::Slot) -> anyhow::Result<()> + '_ {
    let (mut extent, mut scratch) = (vec![0; EXTENT_BYTES], Vec::new());
    let packets = layout.packets_per_extent();
    let content = ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets,
        last_packet_bytes: DEFAULT_PACKET_BYTES as u16,
        layout,
        spare: 0,
    };
    move |slot| {
        while slot.goes_on() {
            slot.batch(u64::from(packets), || {
                let slots = extent.chunks_mut(layout.slot_bytes());
                let mut metas = [PacketMeta::default(); 256];
                for ((payload, slot), meta) in stream.chunks(DEFAULT_PACKET_BYTES).zip(slots).zip(&mut metas)
                {
                    let sum = copy_sum16(&mut slot[layout.header_bytes()..], payload);
                    black_box(PacketCrc::of(payload));
                    *meta = PacketMeta::new(sum, 0, MediaTicks(0));
                }
                let records = &mut extent[layout.meta_offset(0, packets)..];
                for (record, meta) in records.chunks_exact_mut(PacketMeta::BYTES).zip(&metas) {
                    record.copy_from_slice(&meta.to_bytes());
                }
                if let Some(derivation) = &derivation {
                    derivation.apply_to_extent(&content, &mut extent, &mut scratch);
                }
            });
            black_box(&extent);
        }
        Ok(())
    }
}

/// A transport stream: tables, pictures with a clock and time stamps every 40 packets, a tenth of sound.
fn stream(bytes: usize) -> Vec<u8> {
    let mut random = SplitMix(1);
    let mut out = Vec::with_capacity(bytes);
    let table = |pid: u16, section: &[u8]| {
        let mut packet = vec![0x47, 0x40 | (pid >> 8) as u8, pid as u8, 0x10, 0];
        packet.extend(section);
        packet.extend(crc(section).to_be_bytes());
        packet.resize(TS_PACKET_BYTES, 0xff);
        packet
    };
    out.extend(table(0, &[0, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1, 0xf0, 0]));
    let streams = [0x1b, 0xe1, 0, 0xf0, 0, 0x0f, 0xe1, 1, 0xf0, 0];
    out.extend(table(PMT, &[&[2, 0xb0, 23, 0, 1, 0xc1, 0, 0, 0xe1, 0, 0xf0, 0], &streams[..]].concat()));
    let mut number = 0u8;
    while out.len() < bytes {
        let is_start = number.is_multiple_of(40);
        let pid = if number % 10 == 9 { AUDIO } else { VIDEO };
        let mut packet =
            vec![0x47, u8::from(is_start) << 6 | (pid >> 8) as u8, pid as u8, 0x10 | number & 15];
        if is_start {
            packet[3] |= 0x20;
            packet.extend([7, 0x10, 0, 1, 2, 3, 0x7e, 0]);
            packet.extend([0, 0, 1, 0xe0, 0, 0, 0x80, 0xc0, 10, 0x31, 0, 1, 0, 1, 0x11, 0, 1, 0, 1]);
        }
        while packet.len() < TS_PACKET_BYTES {
            packet.push(random.next() as u8 | 1);
        }
        out.extend(packet);
        number = (number + 1) % 240;
    }
    out.truncate(bytes);
    out
}

/// ISO/IEC 13818-1 annex A.
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xffff_ffff, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |c, _| c << 1 ^ if c >> 31 == 1 { 0x04c1_1db7 } else { 0 })
    })
}

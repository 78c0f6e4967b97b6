//! The paper's claim that encoding is removed from the server: an FEC packet from parity that was stored beside one that is
//! encoded when it is needed.
//!
//! Stored packets are verified against their sum and copied behind their headers, once for all
//! viewers of the title. Packets that are not stored must be computed from k packets; a server that
//! does this where it sends does it for every viewer.

use std::hash::{DefaultHasher, Hasher};
use std::hint::black_box;

use anyhow::Context;
use millrace_core::fec::Code;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, FEC_HEADER_BYTES, RTP_HEADER_BYTES};
use millrace_core::random::SplitMix;
use millrace_core::wire::checksum::copy_sum16;
use millrace_core::wire::fec::{FecHeader, PAYLOAD_TYPE_FEC};
use millrace_core::wire::rtp::RtpHeader;

use crate::frame::{ContenderSlot, Contest, ContestOptions, Noise, Options, Report, Row};

const HEADERS: usize = RTP_HEADER_BYTES + FEC_HEADER_BYTES;
const FEC_PACKET_BYTES: usize = HEADERS + DEFAULT_PACKET_BYTES;
/// Packets in a unit.
const UNIT_PACKETS: usize = 12;
/// Memory that FEC packets are built in, one after the other: more than the second-level cache, as a cache of media is.
const BUILT_BYTES: usize = 64 << 20;

const STORED: &str = "from stored parity";
const COLD: &str = "encoded, media in memory";
const HOT: &str = "encoded, media in the first caches";

/// All contests.
pub(super) fn run(options: &Options, report: &mut Report) -> anyhow::Result<Noise> {
    let shapes = options.pick(vec![(8, 2)], vec![(8, 2)], vec![(4, 1), (8, 1), (8, 2), (20, 4)]);
    let mut noise = Noise::quiet();
    for (k, m) in shapes {
        let title = Title::new(k, m, options)?;
        let mut contest = Contest::new(format!("{k}+{m}, an FEC packet"));
        contest.contender(STORED, title.work(Title::copy, false)).as_base();
        contest.contender(COLD, title.work(Title::encode, false));
        contest.contender(HOT, title.work(Title::encode, true));
        let result = contest.run(&ContestOptions::from_options(options))?;
        for c in &result.contenders {
            // Bytes read and written by the processor for one FEC packet; a codeword's m parities share its k packets.
            let read = match c.name.as_str() {
                STORED => DEFAULT_PACKET_BYTES as f64,
                _ => (k * DEFAULT_PACKET_BYTES) as f64 / m as f64,
            };
            let row = Row::new(format!("{k}+{m}, an FEC packet {}", c.name))
                .with("p50", c.p50, "ns/FEC packet")
                .with("p99", c.p99, "ns/FEC packet")
                .with("to stored", c.ratio.mid, "")
                .with("memory touched", read + FEC_PACKET_BYTES as f64, "bytes/FEC packet");
            report.rows.push(row);
        }
        noise = noise.and(result.noise);
    }
    Ok(noise)
}

/// A title and its parity, far larger than the processor's caches.
struct Title {
    code: Code,
    data: Vec<u8>,
    parity: Vec<u8>,
    rows: usize,
    built_bytes: usize,
}

impl Title {
    fn new(k: usize, m: usize, options: &Options) -> anyhow::Result<Self> {
        options.say(&format!("{k}+{m}: making a title"));
        let code = Code::new(k, m).context("no such code")?;
        let unit = UNIT_PACKETS * DEFAULT_PACKET_BYTES;
        let rows = (options.pick(4 << 20, 512 << 20, 512 << 20) / (k * unit)).max(1);
        let (mut data, mut parity) = (vec![0; rows * k * unit], vec![0; rows * m * unit]);
        let mut random = SplitMix(2);
        data.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]));
        for (data, parity) in data.chunks(k * unit).zip(parity.chunks_mut(m * unit)) {
            let data: Vec<&[u8]> = data.chunks(unit).collect();
            let mut parity: Vec<&mut [u8]> = parity.chunks_mut(unit).collect();
            code.encode(&data, &mut parity);
        }
        Ok(Self { code, data, parity, rows, built_bytes: options.pick(1 << 20, BUILT_BYTES, BUILT_BYTES) })
    }

    /// Builds the FEC packets of one row after the other by `build`, or of the first row over and over.
    fn work(
        &self,
        build: fn(&Self, usize, usize, &mut [u8]),
        hot: bool,
    ) -> impl FnMut(&mut ContenderSlot) -> anyhow::Result<()> + '_ {
        let of_row = UNIT_PACKETS * self.code.m() * FEC_PACKET_BYTES;
        let mut built = vec![0; self.built_bytes / of_row * of_row];
        let mut next = 0;
        move |slot| {
            while slot.goes_on() {
                // Everybody is asked for the same in the check, whatever is hot: the first row.
                let row = if hot || slot.is_check() { 0 } else { next % self.rows };
                let room = &mut built[next * of_row % (self.built_bytes / of_row * of_row)..][..of_row];
                next += 1;
                slot.batch((UNIT_PACKETS * self.code.m()) as u64, || {
                    for column in 0..UNIT_PACKETS {
                        let of_column = self.code.m() * FEC_PACKET_BYTES;
                        build(self, row, column, &mut room[column * of_column..][..of_column]);
                    }
                });
                if slot.is_check() {
                    let mut hasher = DefaultHasher::new();
                    hasher.write(room);
                    slot.produced(hasher.finish());
                }
                black_box(room);
            }
            Ok(())
        }
    }

    fn packet<'a>(&self, units: &'a [u8], unit: usize, column: usize) -> &'a [u8] {
        &units[(unit * UNIT_PACKETS + column) * DEFAULT_PACKET_BYTES..][..DEFAULT_PACKET_BYTES]
    }

    /// Copies the stored parity of one column behind its headers and adds it up, as its stored sum is checked.
    fn copy(&self, row: usize, column: usize, room: &mut [u8]) {
        for (p, packet) in room.chunks_mut(FEC_PACKET_BYTES).enumerate() {
            let (headers, payload) = packet.split_at_mut(HEADERS);
            self.write_headers(row, column, headers);
            black_box(copy_sum16(payload, self.packet(&self.parity, row * self.code.m() + p, column)));
        }
    }

    /// Computes the parity of one column behind its headers.
    fn encode(&self, row: usize, column: usize, room: &mut [u8]) {
        const MOST: usize = millrace_core::limits::MAX_DATA_UNITS;
        let k = self.code.k();
        let mut data = [&[][..]; MOST];
        for (u, packet) in data[..k].iter_mut().enumerate() {
            *packet = self.packet(&self.data, row * k + u, column);
        }
        let mut parity = [const { None::<&mut [u8]> }; millrace_core::limits::MAX_PARITY_UNITS];
        for (slot, packet) in parity.iter_mut().zip(room.chunks_mut(FEC_PACKET_BYTES)) {
            let (headers, payload) = packet.split_at_mut(HEADERS);
            self.write_headers(row, column, headers);
            *slot = Some(payload);
        }
        let mut parity = parity.map(Option::unwrap_or_default);
        self.code.encode(&data[..k], &mut parity[..self.code.m()]);
    }

    fn write_headers(&self, row: usize, column: usize, room: &mut [u8]) {
        let number = (row * UNIT_PACKETS + column) as u32;
        let rtp = RtpHeader {
            marker: false,
            payload_type: PAYLOAD_TYPE_FEC,
            sequence: number as u16,
            timestamp: number * 60,
            ssrc: 0,
        };
        let fec = FecHeader {
            sn_base: (row * self.code.k() * UNIT_PACKETS + column) as u16,
            offset: UNIT_PACKETS as u8,
            count: self.code.k() as u8,
            ..FecHeader::default()
        };
        room[..RTP_HEADER_BYTES].copy_from_slice(&rtp.emit());
        room[RTP_HEADER_BYTES..].copy_from_slice(&fec.emit());
    }
}

//! Helpers that the ingest tests share: a small multiplexer, a sink that remembers, references that
//! share nothing with the code under test, and the ffmpeg program.
#![allow(unreachable_pub)]

pub mod bombs;
pub mod ffmpeg;

use millrace_core::packet::PacketMeta;
use millrace_make::ingest::{IndexOptions, IndexSink, Passed, StreamError, index_only};
use millrace_store::error::StoreError;
use millrace_store::index::{ClockPiece, IndexParts, TitleIndex};

/// Remembers everything.
#[derive(Default)]
pub struct Memory {
    pub data: Vec<u8>,
    pub metas: Vec<(u16, PacketMeta)>,
}

impl IndexSink for Memory {
    const SUMS: bool = true;

    fn data(&mut self, ts: &[u8]) -> Result<(), StoreError> {
        self.data.extend_from_slice(ts);
        Ok(())
    }

    fn meta(&mut self, packet_bytes: u16, meta: PacketMeta) -> Result<(), StoreError> {
        self.metas.push((packet_bytes, meta));
        Ok(())
    }
}

impl Memory {
    /// Metadata of one packet size.
    pub fn of(&self, packet_bytes: u16) -> Vec<PacketMeta> {
        self.metas.iter().filter(|(size, _)| *size == packet_bytes).map(|&(_, meta)| meta).collect()
    }

    /// Media times of the default packets.
    pub fn times(&self) -> Vec<u64> {
        self.of(1316).iter().map(|m| m.time().0).collect()
    }

    /// Default packets with a flag.
    pub fn flagged(&self, flag: u8) -> Vec<usize> {
        let metas = self.of(1316);
        (0..metas.len()).filter(|&i| metas[i].flags() & flag != 0).collect()
    }
}

/// Indexes `source` and checks the properties that every stream must have.
pub fn index(source: &[u8]) -> (Passed, Memory) {
    try_index(source, &IndexOptions::default()).unwrap()
}

pub fn try_index(source: &[u8], options: &IndexOptions) -> Result<(Passed, Memory), StreamError> {
    let mut sink = Memory::default();
    let passed = index_only(&mut &source[..], options, &mut sink)?;
    check(&passed, &sink, &options.packet_sizes);
    Ok((passed, sink))
}

/// Checks the properties that every stream must have, however damaged.
pub fn check(passed: &Passed, sink: &Memory, sizes: &[u16]) {
    let indexed = &passed.indexed;
    assert_eq!(indexed.bytes, sink.data.len() as u64);
    assert!(sink.data.len().is_multiple_of(188));
    for &size in sizes {
        let metas = sink.of(size);
        assert_eq!(
            metas.len(),
            sink.data.len().div_ceil(usize::from(size)),
            "one record for every packet of {size}"
        );
        for (i, (meta, bytes)) in metas.iter().zip(sink.data.chunks(usize::from(size))).enumerate() {
            assert_eq!(meta.sum(), sum(bytes), "sum of packet {i} of {size} bytes");
        }
        assert!(metas.windows(2).all(|w| w[0].time() <= w[1].time()), "time never runs back");
        assert!(metas.first().is_none_or(|m| m.time().0 == 0), "time starts at 0");
        assert!(metas.last().is_none_or(|m| m.time() <= indexed.duration));
    }
    assert!(indexed.peak_rate >= indexed.mean_rate);
    let times = sink.of(1316);
    for point in indexed.index.access_points() {
        assert_eq!(point.time, times[point.packet as usize].time());
        assert!(u64::from(point.packet) <= point.byte / 1316);
        assert!(times[(point.byte / 1316) as usize].is_random_access());
    }
    check_clock(passed, &times);
    let packets: u64 = indexed.index.pids().iter().map(|p| p.ts_packets).sum();
    assert_eq!(packets * 188, indexed.bytes);
}

/// The pieces of the clock say the same as the packets' records, and a store would take the index.
fn check_clock(passed: &Passed, metas: &[PacketMeta]) {
    let (index, duration) = (&passed.indexed.index, passed.indexed.duration);
    let mut pieces = index.pieces().to_vec();
    pieces.push(ClockPiece { byte: passed.indexed.bytes, time: duration });
    let mut at = 0;
    for (i, meta) in metas.iter().enumerate() {
        let byte = i as u64 * 1316;
        while at + 2 < pieces.len() && pieces[at + 1].byte <= byte {
            at += 1;
        }
        let (from, to) = (pieces[at], pieces[at + 1]);
        let into = u128::from(to.time.0 - from.time.0) * u128::from(byte - from.byte)
            / u128::from(to.byte - from.byte);
        let line = (from.time.0 + into as u64).min(PacketMeta::MAX_TICKS);
        assert!(
            line.abs_diff(meta.time().0) <= 3,
            "packet {i}: {} in its record, {line} by the clock",
            meta.time().0
        );
    }
    let parts = IndexParts {
        access: index.access_points().to_vec(),
        pieces: index.pieces().to_vec(),
        pids: index.pids().to_vec(),
        times: metas.iter().step_by(256).map(|m| m.time()).collect(),
        data_bytes: passed.indexed.bytes,
        duration,
        bases: index.bases().to_vec(),
        layouts: index.parts().layouts.clone(),
        end: index.parts().end,
    };
    TitleIndex::from_parts(parts).expect("a store takes the index");
}

/// RFC 1071's definition, word by word.
pub fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

//! Files of one record per packet: metadata and CRCs.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_core::packet::PacketMeta;
use serde_json::{Map, Value, json};

use crate::error::StoreError;
use crate::format::meta::{META_BLOCK_BYTES, PacketCrc, Record, RecordsHeader, open_block};

/// A record that can be printed as JSON.
pub(super) trait PrintableRecord: Record {
    /// Returns the contents of a readable block, in addition to its location.
    fn of_block(records: &[Self]) -> Map<String, Value>;
    /// The record of a packet.
    fn of_packet(self, packet: u32) -> Value;
}

/// A file of records: its header, its blocks, and the records of `range`.
pub(super) fn records<R: PrintableRecord>(
    file: &File,
    path: &Path,
    bytes: u64,
    range: Option<Range<u32>>,
) -> Result<Value, StoreError> {
    let mut block = [0; META_BLOCK_BYTES];
    let len = (bytes.min(META_BLOCK_BYTES as u64)) as usize;
    file.read_exact_at(&mut block[..len], 0).map_err(StoreError::io("read", path))?;
    let header = RecordsHeader::<R>::decode(&block[..len]).map_err(StoreError::format(path))?;
    let range = range.map(|r| r.start.min(header.packets)..r.end.min(header.packets));
    let shown = range.clone().unwrap_or(0..header.packets);
    let mut blocks = Vec::new();
    let mut records = Vec::new();
    for number in shown.start / R::PER_BLOCK..shown.end.div_ceil(R::PER_BLOCK) {
        let at = (1 + u64::from(number)) * META_BLOCK_BYTES as u64;
        let first = number * R::PER_BLOCK;
        let count = (header.packets - first).min(R::PER_BLOCK);
        let result = match file.read_exact_at(&mut block, at) {
            Err(error) => Err(error.to_string()),
            Ok(()) => open_block(&block, number).map_err(|error| error.to_string()),
        };
        let of_block: Result<Vec<R>, String> = result.map(|bytes| decode(bytes, count));
        if let (Some(range), Ok(found)) = (&range, &of_block) {
            let picked = found.iter().zip(first..).filter(|(_, packet)| range.contains(packet));
            records.extend(picked.map(|(record, packet)| record.of_packet(packet)));
        }
        blocks.push(block_json(number, at, first, count, &of_block));
    }
    let mut body = json!({
        "title": header.title.to_string(),
        "packet_bytes": header.packet_bytes,
        "packets": header.packets,
        "data_bytes": header.data_bytes,
        "blocks_total": header.blocks(),
        "blocks": blocks,
    });
    if range.is_some() {
        body["records"] = records.into();
    }
    Ok(body)
}

fn decode<R: Record>(records: &[u8], count: u32) -> Vec<R> {
    records.chunks_exact(R::LENGTH).take(count as usize).map(R::parse).collect()
}

fn block_json<R: PrintableRecord>(
    number: u32,
    at: u64,
    first: u32,
    count: u32,
    records: &Result<Vec<R>, String>,
) -> Value {
    let last = first + count.saturating_sub(1);
    let state = records.as_ref().map_or_else(|error| error.as_str(), |_| "ok");
    let mut block = json!({
        "block": number,
        "offset": at,
        "packets": format!("{first}..={last}"),
        "state": state,
    });
    if let (Ok(records), Value::Object(block)) = (records, &mut block) {
        block.extend(R::of_block(records));
    }
    block
}

impl PrintableRecord for PacketMeta {
    fn of_block(metas: &[Self]) -> Map<String, Value> {
        let time = |meta: Option<&Self>| meta.map_or(String::new(), |m| m.time().to_string());
        Map::from_iter([
            ("from".to_owned(), time(metas.first()).into()),
            ("to".to_owned(), time(metas.last()).into()),
            ("random_access".to_owned(), metas.iter().filter(|m| m.is_random_access()).count().into()),
        ])
    }

    fn of_packet(self, packet: u32) -> Value {
        let mut flags = Vec::new();
        if self.is_random_access() {
            flags.push("random-access");
        }
        if self.flags() & Self::DISCONTINUITY != 0 {
            flags.push("discontinuity");
        }
        json!({
            "packet": packet,
            "sum": format!("{:04x}", self.sum()),
            "flags": flags.join("+"),
            "ticks": self.time().0,
            "time": self.time().to_string(),
        })
    }
}

impl PrintableRecord for PacketCrc {
    fn of_block(_: &[Self]) -> Map<String, Value> {
        Map::new()
    }

    fn of_packet(self, packet: u32) -> Value {
        json!({ "packet": packet, "crc": format!("{:08x}", self.0) })
    }
}

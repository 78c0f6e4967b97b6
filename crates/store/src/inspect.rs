//! Shows every structure on disk, as text for people and as JSON for programs: what is there, not what should be.
//!
//! A damaged file is shown as far as it can be read, with an `error` where it cannot. Whether a store keeps its
//! promises is for [`crate::check`].

mod sums;
mod text;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use millrace_core::limits::{MAX_INDEX_BYTES, MAX_MANIFEST_BYTES};
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use serde_json::{Map, Value, json};

use crate::error::StoreError;
use crate::format::frame::{self, FRAME_BYTES, Frame, Kind};
use crate::format::manifest::{MANIFEST_FILE, Manifest};
use crate::format::members::{MAX_MEMBERS_FILE_BYTES, MembersRecord};
use crate::format::meta::{META_BLOCK_BYTES, MetaHeader, RECORDS_PER_BLOCK, open_block};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{FormatError, index as index_format};
use crate::index::TIME_STEP_PACKETS;
use crate::volume::dirs::read_whole;
use crate::volume::{TITLES_DIR, VOLUME_FILE};

/// A structure as it was found. `Display` prints it for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The same as JSON.
    pub json: Value,
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::render(f, &self.json, 0)
    }
}

/// Looks at a store, a title's directory, or one of their files (`volume.mrv`, `*.mrm`, `*.mri`,
/// `*.mrp`, `*.mrr`).
///
/// `range` picks entries: packets of a meta-data file, grains of range sums, numbers in each list of an index. Without it a meta-data file is
/// shown block by block and an index whole. `Err` only if nothing can be read there.
pub fn inspect(path: &Path, range: Option<Range<u32>>) -> Result<Inspection, StoreError> {
    let json = if path.is_dir() { directory(path, range)? } else { file(path, range)? };
    Ok(Inspection { json })
}

fn directory(dir: &Path, range: Option<Range<u32>>) -> Result<Value, StoreError> {
    if dir.join(VOLUME_FILE).exists() {
        let mut titles = Vec::new();
        for name in names(&dir.join(TITLES_DIR))? {
            let manifest = file(&dir.join(TITLES_DIR).join(&name).join(MANIFEST_FILE), None);
            titles.push(manifest.unwrap_or_else(|error| json!({ "error": error.to_string() })));
        }
        return Ok(json!({ "volume": file(&dir.join(VOLUME_FILE), None)?, "titles": titles }));
    }
    if !dir.join(MANIFEST_FILE).exists() {
        let reason =
            "it has neither volume.mrv nor manifest.mrm; give a store, a title's directory or a file of one";
        return Err(StoreError::NotAStore { path: dir.to_path_buf(), reason });
    }
    let mut shown = Map::new();
    for name in names(dir)? {
        let path = dir.join(&name);
        if matches!(path.extension().and_then(|e| e.to_str()), Some("mrm" | "mri" | "mrp" | "mrr")) {
            let value = file(&path, range.clone());
            shown.insert(name, value.unwrap_or_else(|error| json!({ "error": error.to_string() })));
        }
    }
    let manifest = read_whole(&dir.join(MANIFEST_FILE), MAX_MANIFEST_BYTES);
    if let Some(manifest) = manifest.ok().and_then(|bytes| Manifest::decode(&bytes).ok()) {
        shown.insert("storage".to_owned(), sums::storage(&manifest));
    }
    Ok(Value::Object(shown))
}

fn names(dir: &Path) -> Result<Vec<String>, StoreError> {
    let entries = std::fs::read_dir(dir).map_err(StoreError::io("list", dir))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

fn file(path: &Path, range: Option<Range<u32>>) -> Result<Value, StoreError> {
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let bytes = file.metadata().map_err(StoreError::io("look at", path))?.len();
    let mut start = Vec::new();
    (&file).take(FRAME_BYTES as u64).read_to_end(&mut start).map_err(StoreError::io("read", path))?;
    let mut shown = Map::new();
    shown.insert("file".to_owned(), path.display().to_string().into());
    shown.insert("file_bytes".to_owned(), bytes.into());
    let body = frame::peek(&start).map_err(StoreError::format(path)).and_then(|frame| {
        shown.insert("frame".to_owned(), frame_json(&frame));
        match frame.kind {
            Kind::Superblock => superblock(path),
            Kind::Manifest => manifest(path),
            Kind::Index => index(path, range),
            Kind::Meta => meta(&file, path, bytes, range),
            Kind::Sums => sums::sums(path, range),
            Kind::Members => members(path),
        }
    });
    let body = body.unwrap_or_else(|error| match error {
        StoreError::Format { error, .. } => json!({ "error": error.to_string() }),
        other => json!({ "error": other.to_string() }),
    });
    if let Value::Object(body) = body {
        shown.extend(body);
    }
    Ok(Value::Object(shown))
}

fn hex(number: u32) -> String {
    format!("{number:08x}")
}

fn frame_json(frame: &Frame) -> Value {
    json!({
        "kind": frame.kind.name(),
        "version": frame.version,
        "body_bytes": frame.body_bytes,
        "body_crc32c": hex(frame.body_crc),
        "frame_crc32c": hex(frame.frame_crc),
    })
}

fn superblock(path: &Path) -> Result<Value, StoreError> {
    let block =
        Superblock::decode(&read_whole(path, SUPERBLOCK_BYTES as u64)?).map_err(StoreError::format(path))?;
    Ok(json!({
        "volume": block.volume.to_string(),
        "member": block.member.to_string(),
        "member_index": block.member_index,
        "members": block.geometry.members,
        "k": block.geometry.k,
        "m": block.geometry.m,
        "unit_packets": block.geometry.unit_packets,
        "created_unix_s": block.created_unix_s,
    }))
}

fn manifest(path: &Path) -> Result<Value, StoreError> {
    let bytes = read_whole(path, MAX_MANIFEST_BYTES)?;
    Manifest::decode(&bytes).map_err(StoreError::format(path))?;
    let body = serde_json::from_slice(&bytes[FRAME_BYTES..]);
    body.map_err(|e| StoreError::format(path)(FormatError::value("manifest", "body", e, "JSON")))
}

fn members(path: &Path) -> Result<Value, StoreError> {
    let bytes = read_whole(path, MAX_MEMBERS_FILE_BYTES)?;
    MembersRecord::decode(&bytes).map_err(StoreError::format(path))?;
    let body = serde_json::from_slice(&bytes[FRAME_BYTES..]);
    body.map_err(|e| StoreError::format(path)(FormatError::value("list of members", "body", e, "JSON")))
}

fn index(path: &Path, range: Option<Range<u32>>) -> Result<Value, StoreError> {
    let index =
        index_format::decode(&read_whole(path, MAX_INDEX_BYTES)?).map_err(StoreError::format(path))?;
    let parts = index.parts();
    let time = |t: MediaTicks| t.to_string();
    let times = pick(&parts.times, &range, |number, &t| {
        let packet = number as u64 * u64::from(TIME_STEP_PACKETS);
        json!({ "packet": packet, "ticks": t.0, "time": time(t) })
    });
    let access = pick(
        &parts.access,
        &range,
        |_, p| json!({ "packet": p.packet, "ticks": p.time.0, "time": time(p.time), "byte": p.byte }),
    );
    let pieces = pick(
        &parts.pieces,
        &range,
        |_, p| json!({ "byte": p.byte, "ticks": p.time.0, "time": time(p.time) }),
    );
    let bases = pick(
        &parts.bases,
        &range,
        |_, b| json!({ "byte": b.byte, "ticks": b.time.0, "time": time(b.time), "first_pts": b.first_pts }),
    );
    let pids = pick(&parts.pids, &None, |_, pid| {
        json!({
            "pid": pid.pid,
            "role": format!("{:?}", pid.role).to_lowercase(),
            "stream_type": pid.stream_type,
            "pcr": pid.pcr,
            "ts_packets": pid.ts_packets,
        })
    });
    Ok(json!({
        "data_bytes": parts.data_bytes,
        "packets": index.packets(),
        "duration_ticks": parts.duration.0,
        "duration": time(parts.duration),
        "end_ticks": parts.end.map(|end| end.0),
        "end": parts.end.map(time),
        "times_total": parts.times.len(),
        "access_points_total": parts.access.len(),
        "clock_pieces_total": parts.pieces.len(),
        "times": times,
        "access_points": access,
        "clock_pieces": pieces,
        "time_bases": bases,
        "pids": pids,
    }))
}

/// The entries of a list that `range` picks, or all of them.
fn pick<T>(list: &[T], range: &Option<Range<u32>>, show: impl Fn(usize, &T) -> Value) -> Vec<Value> {
    let range = range.as_ref().map_or(0..list.len(), |r| r.start as usize..r.end as usize);
    let picked = list.iter().enumerate().take(range.end).skip(range.start);
    picked.map(|(number, entry)| show(number, entry)).collect()
}

fn meta(file: &File, path: &Path, bytes: u64, range: Option<Range<u32>>) -> Result<Value, StoreError> {
    let mut block = [0; META_BLOCK_BYTES];
    let len = (bytes.min(META_BLOCK_BYTES as u64)) as usize;
    file.read_exact_at(&mut block[..len], 0).map_err(StoreError::io("read", path))?;
    let header = MetaHeader::decode(&block[..len]).map_err(StoreError::format(path))?;
    let range = range.map(|r| r.start.min(header.packets)..r.end.min(header.packets));
    let shown = range.clone().unwrap_or(0..header.packets);
    let mut blocks = Vec::new();
    let mut records = Vec::new();
    for number in shown.start / RECORDS_PER_BLOCK..shown.end.div_ceil(RECORDS_PER_BLOCK) {
        let at = (1 + u64::from(number)) * META_BLOCK_BYTES as u64;
        let first = number * RECORDS_PER_BLOCK;
        let count = (header.packets - first).min(RECORDS_PER_BLOCK);
        let result = match file.read_exact_at(&mut block, at) {
            Err(error) => Err(error.to_string()),
            Ok(()) => open_block(&block, number).map_err(|error| error.to_string()),
        };
        let of_block = result.map(|bytes| decode_records(bytes, count));
        if let (Some(range), Ok(metas)) = (&range, &of_block) {
            let picked = metas.iter().zip(first..).filter(|(_, packet)| range.contains(packet));
            records.extend(picked.map(|(meta, packet)| record_json(packet, *meta)));
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

fn decode_records(records: &[u8], count: u32) -> Vec<PacketMeta> {
    let (records, _) = records.as_chunks::<{ PacketMeta::BYTES }>();
    records.iter().take(count as usize).map(|record| PacketMeta::from_bytes(*record)).collect()
}

fn block_json(
    number: u32,
    at: u64,
    first: u32,
    count: u32,
    metas: &Result<Vec<PacketMeta>, String>,
) -> Value {
    let last = first + count.saturating_sub(1);
    match metas {
        Err(error) => {
            json!({ "block": number, "offset": at, "packets": format!("{first}..={last}"), "state": error })
        }
        Ok(metas) => {
            let time = |meta: Option<&PacketMeta>| meta.map_or(String::new(), |m| m.time().to_string());
            json!({
                "block": number,
                "offset": at,
                "packets": format!("{first}..={last}"),
                "state": "ok",
                "from": time(metas.first()),
                "to": time(metas.last()),
                "random_access": metas.iter().filter(|m| m.is_random_access()).count(),
            })
        }
    }
}

fn record_json(packet: u32, meta: PacketMeta) -> Value {
    let mut flags = Vec::new();
    if meta.is_random_access() {
        flags.push("random-access");
    }
    if meta.flags() & PacketMeta::DISCONTINUITY != 0 {
        flags.push("discontinuity");
    }
    json!({
        "packet": packet,
        "sum": format!("{:04x}", meta.sum()),
        "flags": flags.join("+"),
        "ticks": meta.time().0,
        "time": meta.time().to_string(),
    })
}

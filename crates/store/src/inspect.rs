//! Shows every structure on disk, as text for people and as JSON for programs: its actual state,
//! not its intended state.
//!
//! A damaged file is shown as far as it can be read, with an `error` where it cannot. Whether a store keeps its
//! promises is for [`crate::check`].

mod records;
mod sums;
mod text;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use serde_json::{Map, Value, json};

use crate::dirs::read_whole;
use crate::error::StoreError;
use crate::format::frame::{self, FRAME_BYTES, FileFrame, FileKind};
use crate::format::manifest::{MANIFEST_FILE, Manifest};
use crate::format::members::{MAX_MEMBERS_FILE_BYTES, MembersRecord};
use crate::format::meta::PacketCrc;
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::format::{FormatError, index as index_format};
use crate::index::TIME_STEP_PACKETS;
use crate::limits::{MAX_INDEX_BYTES, MAX_MANIFEST_BYTES};
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
/// `*.mrp`, `*.mrr`, `*.mrc`).
///
/// `range` picks entries: packets of a file of records, grains of range sums, numbers in each list of an index. Without it a file of records is
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
        if matches!(path.extension().and_then(|e| e.to_str()), Some("mrm" | "mri" | "mrp" | "mrr" | "mrc")) {
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
            FileKind::Superblock => superblock(path),
            FileKind::Manifest => manifest(path),
            FileKind::Index => index(path, range),
            FileKind::Meta => records::records::<PacketMeta>(&file, path, bytes, range),
            FileKind::Crcs => records::records::<PacketCrc>(&file, path, bytes, range),
            FileKind::Sums => sums::sums(path, range),
            FileKind::Members => members(path),
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

fn frame_json(frame: &FileFrame) -> Value {
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
    let layouts = pick(&parts.layouts, &range, |_, stream| {
        json!({
            "byte": stream.byte,
            "pid": stream.pid,
            "stream_type": stream.stream_type,
            "codec": stream.codec,
            "language": stream.language,
            "config": stream.config,
        })
    });
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
        "layouts": layouts,
        "pids": pids,
    }))
}

/// The entries of a list that `range` picks, or all of them.
fn pick<T>(list: &[T], range: &Option<Range<u32>>, show: impl Fn(usize, &T) -> Value) -> Vec<Value> {
    let range = range.as_ref().map_or(0..list.len(), |r| r.start as usize..r.end as usize);
    let picked = list.iter().enumerate().take(range.end).skip(range.start);
    picked.map(|(number, entry)| show(number, entry)).collect()
}

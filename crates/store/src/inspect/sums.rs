//! The range sums of a title, and the disk space for the metadata of each packet size.

use std::ops::Range;
use std::path::Path;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use serde_json::{Value, json};

use crate::error::StoreError;
use crate::format::manifest::{CRC_FILE, DATA_FILE, Manifest, PARITY_CRC_FILE, SUMS_FILE, meta_file};
use crate::format::meta::{CrcHeader, MetaHeader};
use crate::limits::volume::MAX_LISTED;
use crate::packet_size::PACKET_CLASSES;
use crate::sums::{GRAIN_BYTES, SumsFile, SumsHeader};

/// A range sums file: its header, its damaged blocks, and the grains of `range`.
pub(super) fn sums(path: &Path, range: Option<Range<u32>>) -> Result<Value, StoreError> {
    let file = SumsFile::open(path)?;
    let header = *file.header();
    let mut damaged = Vec::new();
    file.each_block(|block, state| {
        if let Err(error) = state {
            damaged.push(json!({ "block": block, "state": error.to_string() }));
        }
    });
    let mut body = json!({
        "title": header.title.to_string(),
        "grain_bytes": header.grain_bytes,
        "grains": header.grains(),
        "data_bytes": header.data_bytes,
        "blocks_total": header.blocks(),
        "damaged_blocks": damaged,
    });
    if let Some(range) = range {
        let end = u64::from(range.end).min(header.grains());
        let listed = u64::from(range.start)..end.min(u64::from(range.start) + MAX_LISTED);
        let grains = listed.map(|grain| {
            let sum = file.between(grain, grain + 1).map(|sum| format!("{sum:04x}"));
            let sum = sum.unwrap_or_else(|error| error.to_string());
            json!({ "grain": grain, "byte": grain * u64::from(header.grain_bytes), "sum": sum })
        });
        body["grains_listed"] = grains.collect::<Vec<_>>().into();
    }
    Ok(body)
}

/// One line of the table: bytes on disk, and these in hundredths of the data's length.
fn line(form: &str, packet_bytes: Option<u16>, bytes: u64, data_bytes: u64, stored: bool) -> Value {
    json!({
        "form": form,
        "packet_bytes": packet_bytes.map_or("any".into(), Value::from),
        "bytes": bytes,
        "percent": (bytes as f64 * 1e5 / data_bytes.max(1) as f64).round() / 1e3,
        "stored": if stored { "yes" } else { "no" },
    })
}

/// Returns the size of each form of metadata, for the title's packet sizes and the named ones,
/// stored or not: whole records, sums alone (2 bytes a packet), and the range sums that stand for
/// every size; last, the total of all that are stored.
pub(super) fn storage(manifest: &Manifest) -> Value {
    let (title, data) = (&manifest.title, manifest.title.bytes);
    let file_bytes = |name: &str| manifest.file(name).map(|file| file.bytes);
    let mut sizes: Vec<u16> = PACKET_CLASSES.iter().map(|class| class.1).collect();
    sizes.extend(&title.packet_sizes);
    sizes.sort_unstable();
    sizes.dedup();
    let mut lines = vec![line("data", None, file_bytes(DATA_FILE).unwrap_or(data), data, true)];
    for &size in &sizes {
        let stored = file_bytes(&meta_file(size));
        let made = MetaHeader::new(title.id, size, data).map(|header| header.file_bytes());
        let form =
            if usize::from(size) == DEFAULT_PACKET_BYTES { "records (sum, time, flags)" } else { "records" };
        let Some(bytes) = stored.or(made) else { continue };
        lines.push(line(form, Some(size), bytes, data, stored.is_some()));
    }
    for &size in &sizes {
        let Some(header) = SumsHeader::new(title.id, size, data) else { continue };
        lines.push(line("sums alone", Some(size), header.file_bytes(), data, false));
    }
    let stored = file_bytes(SUMS_FILE);
    let made = SumsHeader::new(title.id, GRAIN_BYTES, data).map(|header| header.file_bytes());
    if let Some(bytes) = stored.or(made) {
        lines.push(line("range sums", None, bytes, data, stored.is_some()));
    }
    let size = DEFAULT_PACKET_BYTES as u16;
    let stored = file_bytes(CRC_FILE);
    let made = CrcHeader::new(title.id, size, data).map(|header| header.file_bytes());
    if let Some(bytes) = stored.or(made) {
        lines.push(line("CRCs", Some(size), bytes, data, stored.is_some()));
    }
    if let Some(bytes) = file_bytes(PARITY_CRC_FILE) {
        lines.push(line("CRCs of the parity", Some(size), bytes, data, true));
    }
    let beside_data = lines.iter().skip(1).filter(|line| line["stored"] == "yes");
    let total = beside_data.filter_map(|line| line["bytes"].as_u64()).sum();
    lines.push(line("stored beside the data, in all", None, total, data, true));
    lines.into()
}

//! `index.mri`: the bytes of a [`TitleIndex`].
//!
//! A 64-byte header holds the length of each list. The lists follow: time index, access points,
//! clock pieces, PIDs, time bases, streams of layouts.
//!
//! Version 1 has neither time bases nor the end, and versions 1 and 2 have no layouts. These header
//! fields are zero there, which means unknown in version 3.

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::MediaTicks;

use super::FormatError;
use super::bytes::{Fields, put};
use super::frame::{self, FileKind};
use crate::index::{
    ClockPiece, IndexParts, LayoutStream, PidRole, PidUse, RandomAccessPoint, TIME_STEP_PACKETS, TimeBase,
    TitleIndex,
};
use crate::limits::volume::MAX_CODEC_NAME_BYTES;

const RECORD: &str = "index";
const HEADER_BYTES: usize = 64;
const TIME_BYTES: usize = 8;
const ACCESS_BYTES: usize = 24;
const PIECE_BYTES: usize = 16;
const PID_BYTES: usize = 16;
const BASE_BYTES: usize = 24;
const LAYOUT_BYTES: usize = 48;

/// Offsets in the header.
mod at {
    pub(super) const DATA_BYTES: usize = 0; // u64
    pub(super) const DURATION: usize = 8; // u64
    pub(super) const PACKET_BYTES: usize = 16; // u32
    pub(super) const TIME_STEP: usize = 20; // u32
    pub(super) const TIMES: usize = 24; // u32
    pub(super) const ACCESS: usize = 28; // u32
    pub(super) const PIECES: usize = 32; // u32
    pub(super) const PIDS: usize = 36; // u32
    pub(super) const TITLE_END: usize = 40; // u64; 0: unknown
    pub(super) const BASES: usize = 48; // u32; 0: unknown
    pub(super) const LAYOUTS: usize = 52; // u32; 0: unknown
    pub(super) const RESERVED: usize = 56; // 8 zeros
    pub(super) const END: usize = 64;
    /// Version 2 has zeros from here on.
    pub(super) const RESERVED_V2: usize = LAYOUTS;
    /// Version 1 has zeros from here on.
    pub(super) const RESERVED_V1: usize = TITLE_END;
}

/// Offsets in an access point.
mod access_at {
    pub(super) const PACKET: usize = 0; // u32
    pub(super) const RESERVED: usize = 4; // 4 zeros
    pub(super) const TIME: usize = 8; // u64
    pub(super) const BYTE: usize = 16; // u64
    pub(super) const END: usize = 24;
}

/// Offsets in a clock piece.
mod piece_at {
    pub(super) const BYTE: usize = 0; // u64
    pub(super) const TIME: usize = 8; // u64
    pub(super) const END: usize = 16;
}

/// Offsets in a PID entry.
mod pid_at {
    pub(super) const PID: usize = 0; // u16
    pub(super) const ROLE: usize = 2; // u8
    pub(super) const STREAM_TYPE: usize = 3; // u8
    pub(super) const PCR: usize = 4; // u8, 0 or 1
    pub(super) const RESERVED: usize = 5; // 3 zeros
    pub(super) const TS_PACKETS: usize = 8; // u64
    pub(super) const END: usize = 16;
}

/// Offsets in a time base.
mod base_at {
    pub(super) const BYTE: usize = 0; // u64
    pub(super) const TIME: usize = 8; // u64
    pub(super) const FIRST_PTS: usize = 16; // u64
    pub(super) const END: usize = 24;
}

/// Offsets in the entry of a layout stream.
mod layout_at {
    pub(super) const BYTE: usize = 0; // u64
    pub(super) const PID: usize = 8; // u16
    pub(super) const STREAM_TYPE: usize = 10; // u8
    pub(super) const RESERVED: usize = 11; // 1 zero
    pub(super) const CONFIG: usize = 12; // u32
    pub(super) const LANGUAGE: usize = 16; // 3 letters, or zeros
    pub(super) const CODEC: usize = 19; // as long as 24 letters, zeros behind them
    pub(super) const RESERVED_2: usize = 43; // 5 zeros
    pub(super) const END: usize = 48;
}

const _: () = {
    assert!(
        layout_at::END == LAYOUT_BYTES && layout_at::RESERVED_2 == layout_at::CODEC + MAX_CODEC_NAME_BYTES
    );
    assert!(at::RESERVED + 8 == at::END && at::END == HEADER_BYTES && base_at::END == BASE_BYTES);
    assert!(access_at::END == ACCESS_BYTES && piece_at::END == PIECE_BYTES && pid_at::END == PID_BYTES);
    assert!(pid_at::RESERVED + 3 == pid_at::TS_PACKETS);
};

/// The whole file.
pub fn encode(index: &TitleIndex) -> Vec<u8> {
    let parts = index.parts();
    let mut body = vec![0; HEADER_BYTES];
    put(&mut body, at::DATA_BYTES, &parts.data_bytes.to_le_bytes());
    put(&mut body, at::DURATION, &parts.duration.0.to_le_bytes());
    put(&mut body, at::PACKET_BYTES, &(DEFAULT_PACKET_BYTES as u32).to_le_bytes());
    put(&mut body, at::TIME_STEP, &TIME_STEP_PACKETS.to_le_bytes());
    put(&mut body, at::TIMES, &(parts.times.len() as u32).to_le_bytes());
    put(&mut body, at::ACCESS, &(parts.access.len() as u32).to_le_bytes());
    put(&mut body, at::PIECES, &(parts.pieces.len() as u32).to_le_bytes());
    put(&mut body, at::PIDS, &(parts.pids.len() as u32).to_le_bytes());
    put(&mut body, at::TITLE_END, &parts.end.unwrap_or_default().0.to_le_bytes());
    put(&mut body, at::BASES, &(parts.bases.len() as u32).to_le_bytes());
    put(&mut body, at::LAYOUTS, &(parts.layouts.len() as u32).to_le_bytes());
    for time in &parts.times {
        body.extend_from_slice(&time.0.to_le_bytes());
    }
    for point in &parts.access {
        let mut entry = [0; ACCESS_BYTES];
        put(&mut entry, access_at::PACKET, &point.packet.to_le_bytes());
        put(&mut entry, access_at::TIME, &point.time.0.to_le_bytes());
        put(&mut entry, access_at::BYTE, &point.byte.to_le_bytes());
        body.extend_from_slice(&entry);
    }
    for piece in &parts.pieces {
        let mut entry = [0; PIECE_BYTES];
        put(&mut entry, piece_at::BYTE, &piece.byte.to_le_bytes());
        put(&mut entry, piece_at::TIME, &piece.time.0.to_le_bytes());
        body.extend_from_slice(&entry);
    }
    for pid in &parts.pids {
        let mut entry = [0; PID_BYTES];
        put(&mut entry, pid_at::PID, &pid.pid.to_le_bytes());
        put(&mut entry, pid_at::ROLE, &[pid.role as u8]);
        put(&mut entry, pid_at::STREAM_TYPE, &[pid.stream_type]);
        put(&mut entry, pid_at::PCR, &[u8::from(pid.pcr)]);
        put(&mut entry, pid_at::TS_PACKETS, &pid.ts_packets.to_le_bytes());
        body.extend_from_slice(&entry);
    }
    for base in &parts.bases {
        let mut entry = [0; BASE_BYTES];
        put(&mut entry, base_at::BYTE, &base.byte.to_le_bytes());
        put(&mut entry, base_at::TIME, &base.time.0.to_le_bytes());
        put(&mut entry, base_at::FIRST_PTS, &base.first_pts.to_le_bytes());
        body.extend_from_slice(&entry);
    }
    parts.layouts.iter().for_each(|stream| body.extend_from_slice(&layout_entry(stream)));
    frame::seal_file(FileKind::Index, &body)
}

fn layout_entry(stream: &LayoutStream) -> [u8; LAYOUT_BYTES] {
    let mut entry = [0; LAYOUT_BYTES];
    put(&mut entry, layout_at::BYTE, &stream.byte.to_le_bytes());
    put(&mut entry, layout_at::PID, &stream.pid.to_le_bytes());
    put(&mut entry, layout_at::STREAM_TYPE, &[stream.stream_type]);
    put(&mut entry, layout_at::CONFIG, &stream.config.to_le_bytes());
    put(&mut entry, layout_at::LANGUAGE, stream.language.as_deref().unwrap_or_default().as_bytes());
    put(&mut entry, layout_at::CODEC, stream.codec.as_bytes());
    entry
}

/// From the whole file; the lists are checked against each other.
pub fn decode(file: &[u8]) -> Result<TitleIndex, FormatError> {
    let body = Fields { record: RECORD, bytes: frame::open(FileKind::Index, file)? };
    let exactly = |at, field, expected: u32| {
        let found = body.u32(at, field)?;
        if found == expected { Ok(()) } else { Err(FormatError::value(RECORD, field, found, expected)) }
    };
    exactly(at::PACKET_BYTES, "packet bytes", DEFAULT_PACKET_BYTES as u32)?;
    exactly(at::TIME_STEP, "time step", TIME_STEP_PACKETS)?;
    let reserved = match frame::peek(file)?.version {
        1 => at::RESERVED_V1,
        2 => at::RESERVED_V2,
        _ => at::RESERVED,
    };
    body.reserved(reserved, at::END - reserved)?;
    let mut lists = Lists { body, next: HEADER_BYTES };
    let times = lists.list(at::TIMES, TIME_BYTES, "times", |e| Ok(MediaTicks(e.u64(0, "time")?)))?;
    let access = lists.list(at::ACCESS, ACCESS_BYTES, "access points", access_point)?;
    let pieces = lists.list(at::PIECES, PIECE_BYTES, "clock pieces", |e| {
        Ok(ClockPiece {
            byte: e.u64(piece_at::BYTE, "byte")?,
            time: MediaTicks(e.u64(piece_at::TIME, "time")?),
        })
    })?;
    let pids = lists.list(at::PIDS, PID_BYTES, "PIDs", pid_use)?;
    let bases = lists.list(at::BASES, BASE_BYTES, "time bases", |e| {
        Ok(TimeBase {
            byte: e.u64(base_at::BYTE, "byte")?,
            time: MediaTicks(e.u64(base_at::TIME, "time")?),
            first_pts: e.u64(base_at::FIRST_PTS, "first time stamp")?,
        })
    })?;
    let layouts = lists.list(at::LAYOUTS, LAYOUT_BYTES, "layouts", layout_stream)?;
    if lists.next != body.bytes.len() {
        return Err(FormatError::value(RECORD, "body length", body.bytes.len(), lists.next));
    }
    let data_bytes = body.u64(at::DATA_BYTES, "data bytes")?;
    let duration = MediaTicks(body.u64(at::DURATION, "duration")?);
    let end = Some(MediaTicks(body.u64(at::TITLE_END, "end")?)).filter(|end| end.0 > 0);
    let parts = IndexParts { access, pieces, pids, times, data_bytes, duration, bases, layouts, end };
    Ok(TitleIndex::from_parts(parts)?)
}

/// The lists behind the header, taken one after another.
struct Lists<'a> {
    body: Fields<'a>,
    next: usize,
}

impl Lists<'_> {
    fn list<T>(
        &mut self,
        count_at: usize,
        entry_bytes: usize,
        field: &'static str,
        entry: impl Fn(Fields<'_>) -> Result<T, FormatError>,
    ) -> Result<Vec<T>, FormatError> {
        let count = self.body.u32(count_at, field)? as usize;
        let bytes = self.body.slice(self.next, count.saturating_mul(entry_bytes), field)?;
        self.next += bytes.len();
        bytes.chunks_exact(entry_bytes).map(|bytes| entry(Fields { record: RECORD, bytes })).collect()
    }
}

fn access_point(e: Fields<'_>) -> Result<RandomAccessPoint, FormatError> {
    e.reserved(access_at::RESERVED, 4)?;
    Ok(RandomAccessPoint {
        packet: e.u32(access_at::PACKET, "packet")?,
        time: MediaTicks(e.u64(access_at::TIME, "time")?),
        byte: e.u64(access_at::BYTE, "byte")?,
    })
}

fn layout_stream(e: Fields<'_>) -> Result<LayoutStream, FormatError> {
    e.reserved(layout_at::RESERVED, 1)?;
    e.reserved(layout_at::RESERVED_2, layout_at::END - layout_at::RESERVED_2)?;
    let text = |at: usize, length: usize, field: &'static str| {
        let bytes = e.slice(at, length, field)?;
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        match std::str::from_utf8(&bytes[..used]) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(FormatError::value(RECORD, field, "other bytes", "text in UTF-8")),
        }
    };
    let language = text(layout_at::LANGUAGE, 3, "language of a stream")?;
    Ok(LayoutStream {
        byte: e.u64(layout_at::BYTE, "byte")?,
        pid: e.u16(layout_at::PID, "PID")?,
        stream_type: e.u8(layout_at::STREAM_TYPE, "stream type")?,
        codec: text(layout_at::CODEC, MAX_CODEC_NAME_BYTES, "codec of a stream")?,
        language: Some(language).filter(|language| !language.is_empty()),
        config: e.u32(layout_at::CONFIG, "configuration of a stream")?,
    })
}

fn pid_use(e: Fields<'_>) -> Result<PidUse, FormatError> {
    e.reserved(pid_at::RESERVED, 3)?;
    let role = e.u8(pid_at::ROLE, "role of a PID")?;
    let pcr = e.u8(pid_at::PCR, "PCR flag of a PID")?;
    if pcr > 1 {
        return Err(FormatError::value(RECORD, "PCR flag of a PID", pcr, "0 or 1"));
    }
    Ok(PidUse {
        pid: e.u16(pid_at::PID, "PID")?,
        role: PidRole::from_number(role)
            .ok_or_else(|| FormatError::value(RECORD, "role of a PID", role, "0 to 4"))?,
        stream_type: e.u8(pid_at::STREAM_TYPE, "stream type")?,
        pcr: pcr == 1,
        ts_packets: e.u64(pid_at::TS_PACKETS, "TS packets of a PID")?,
    })
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;

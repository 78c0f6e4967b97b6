//! PIDs of a splice and its tables.
//!
//! | PID | stream |
//! | --- | --- |
//! | 0x1000 | program map table |
//! | 0x100 + n | video |
//! | 0x120 + n | audio |
//! | 0x140 + n | subtitles and other data |
//! | 0x1f0 | the clock of a title that has it on a PID of its own |
//!
//! The n-th stream of a kind has the same PID in each title, in the order of the title's program map table. The table gets a new version
//! when it differs from the one of the title before.

use millrace_media::codec::StreamKind;
use millrace_media::psi::{Pmt, PmtHead, remapped_pmt};
use millrace_media::ts_write::{PacketWriter, pat_section};

use crate::limits::channel::MAX_STREAMS_OF_KIND;

const PROGRAM: u16 = 1;
const PMT_PID: u16 = 0x1000;
const VIDEO_PID: u16 = 0x100;
const AUDIO_PID: u16 = 0x120;
const OTHER_PID: u16 = 0x140;
const CLOCK_PID: u16 = 0x1f0;
/// Versions of a table (ISO/IEC 13818-1 section 2.4.4.9).
const VERSIONS: u8 = 32;

const _: () = assert!(VIDEO_PID + MAX_STREAMS_OF_KIND as u16 <= AUDIO_PID);

/// A stream of a title and its PID in the splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplicedStream {
    /// PID in the title.
    pub from: u16,
    /// PID in the splice.
    pub to: u16,
    pub kind: StreamKind,
}

/// The streams of the title that plays, and the tables that describe them.
#[derive(Debug, Default)]
pub(crate) struct SplicedProgram {
    streams: Vec<SplicedStream>,
    clock_pid: u16,
    /// The section with version 0, to compare; and as it is sent.
    plain: Vec<u8>,
    section: Vec<u8>,
    version: u8,
    writer: PacketWriter,
}

impl SplicedProgram {
    /// Follows a table of the title that plays. Streams beyond [`MAX_STREAMS_OF_KIND`] are left out. Returns whether the table of
    /// the splice has changed; `None` if `section` is no program map table.
    pub(crate) fn follow(&mut self, pmt: &Pmt, section: &[u8]) -> Option<bool> {
        let (mut video, mut audio, mut other) = (0, 0, 0);
        let mut streams: Vec<SplicedStream> = Vec::new();
        for stream in &pmt.streams {
            let (base, count) = match stream.kind {
                StreamKind::Video(_) => (VIDEO_PID, &mut video),
                StreamKind::Audio => (AUDIO_PID, &mut audio),
                StreamKind::Other => (OTHER_PID, &mut other),
            };
            let is_known = streams.iter().any(|known| known.from == stream.pid);
            if *count < MAX_STREAMS_OF_KIND as u16 && !is_known {
                streams.push(SplicedStream { from: stream.pid, to: base + *count, kind: stream.kind });
                *count += 1;
            }
        }
        let to = |pid: u16| streams.iter().find(|stream| stream.from == pid).map(|stream| stream.to);
        let pcr_pid = to(pmt.pcr_pid).unwrap_or(CLOCK_PID);
        let head = PmtHead { program: PROGRAM, version: 0, pcr_pid };
        let plain = remapped_pmt(section, head, to)?;
        let has_changed = plain != self.plain;
        if has_changed {
            let is_first = self.plain.is_empty();
            self.version = if is_first { 0 } else { (self.version + 1) % VERSIONS };
            self.section = remapped_pmt(section, PmtHead { version: self.version, ..head }, to)?;
            self.plain = plain;
        }
        (self.streams, self.clock_pid) = (streams, pcr_pid);
        Some(has_changed)
    }

    /// The stream of a PID of the title.
    pub(crate) fn stream(&self, pid: u16) -> Option<SplicedStream> {
        self.streams.iter().find(|stream| stream.from == pid).copied()
    }

    pub(crate) fn streams(&self) -> &[SplicedStream] {
        &self.streams
    }

    /// PID of the clock in the splice.
    pub(crate) fn clock_pid(&self) -> u16 {
        self.clock_pid
    }

    /// Appends both tables.
    pub(crate) fn write_tables(&mut self, out: &mut Vec<u8>) {
        self.writer.section(0, &pat_section(1, 0, PROGRAM, PMT_PID));
        self.writer.section(PMT_PID, &self.section);
        out.append(&mut self.writer.out);
    }
}

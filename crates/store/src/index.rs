//! The index of a title: time to packet, random access points, clock pieces, PIDs.

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::MediaTicks;

/// Default-size packets from one entry of the time index to the next: 2 KiB of index for an hour at 2 Mb/s... and a
/// step of about 1.3 s there, so that a search in the meta-data ends within one or two blocks.
pub const TIME_STEP_PACKETS: u32 = 256;

/// A place where a decoder can start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RandomAccessPoint {
    /// Default-size packet where sending must start: holds the PAT before the access point if one lies within 1 s,
    /// else the access point's own packet.
    pub packet: u32,
    /// Media time of `packet`.
    pub time: MediaTicks,
    /// Offset of the TS packet with the access point in the data file.
    pub byte: u64,
}

/// A piece of the title's clock: media time runs linearly over the bytes from here to the next piece (the last piece:
/// to the end of the data at the title's duration).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockPiece {
    /// First byte of the piece in the data file.
    pub byte: u64,
    /// Media time of that byte.
    pub time: MediaTicks,
}

/// What a PID carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PidRole {
    /// Something not announced.
    Other = 0,
    /// Program association table.
    Pat = 1,
    /// Program map table.
    Pmt = 2,
    /// An elementary stream of the program.
    Stream = 3,
    /// Stuffing (PID 0x1fff).
    Null = 4,
}

/// A PID and how often it occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidUse {
    /// 13 bits.
    pub pid: u16,
    /// What it carries.
    pub role: PidRole,
    /// `stream_type` of the PMT (ISO/IEC 13818-1 table 2-34); 0 unless an elementary stream.
    pub stream_type: u8,
    /// Whether the program's PCR comes on this PID.
    pub pcr: bool,
    /// TS packets.
    pub ts_packets: u64,
}

/// Parts of an index that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {number}: {problem}")]
pub struct IndexError {
    /// "access point", "clock piece", "time entry", "PID".
    pub what: &'static str,
    /// Which one, from 0.
    pub number: usize,
    /// Why it cannot be.
    pub problem: &'static str,
}

/// The index of one title. Packets are default-size packets ([`DEFAULT_PACKET_BYTES`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TitleIndex {
    access: Vec<RandomAccessPoint>,
    pieces: Vec<ClockPiece>,
    pids: Vec<PidUse>,
    times: Vec<MediaTicks>,
    data_bytes: u64,
    duration: MediaTicks,
}

impl TitleIndex {
    /// From what the ingest found, each list in ascending order. The time index, length and duration are added by
    /// [`crate::volume::TitleWriter::commit`].
    pub fn new(
        access: Vec<RandomAccessPoint>,
        pieces: Vec<ClockPiece>,
        pids: Vec<PidUse>,
    ) -> Result<Self, IndexError> {
        Ok(Self { access, pieces, pids, ..Self::default() })
    }

    /// The last random access point whose sending starts at or before `t`; packet 0 if there is none.
    pub fn access_at_or_before(&self, t: MediaTicks) -> RandomAccessPoint {
        let after = self.access.partition_point(|p| p.time <= t);
        after.checked_sub(1).map(|i| self.access[i]).unwrap_or_default()
    }

    /// All random access points in ascending order.
    pub fn access_points(&self) -> &[RandomAccessPoint] {
        &self.access
    }

    /// The first packet with a media time of at least `t`, from the time index and the clock pieces; the number of
    /// packets if there is none.
    pub fn packet_at(&self, t: MediaTicks) -> u32 {
        let after = self.times.partition_point(|&time| time < t);
        after as u32 * TIME_STEP_PACKETS
    }

    /// The pieces of the title's clock.
    pub fn pieces(&self) -> &[ClockPiece] {
        &self.pieces
    }

    /// The PIDs.
    pub fn pids(&self) -> &[PidUse] {
        &self.pids
    }

    /// Default-size packets.
    pub fn packets(&self) -> u32 {
        self.data_bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) as u32
    }
}

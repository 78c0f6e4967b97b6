//! Results of one pass over a title's packets.

use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{ElementaryStream, FinishTitle, Naming, SourceIdentity};

use super::clock_source::ClockOrigin;

/// Damage and oddities within the packets, for the title's notes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oddities {
    /// Places where continuity counters show that packets are missing.
    pub breaks: u64,
    /// Offset in the data of the first of them.
    pub first_break: u64,
    /// Packets that a demodulator has marked as damaged.
    pub marked_damaged: u64,
    /// Scrambled packets.
    pub scrambled: u64,
    /// Table sections with a wrong CRC.
    pub wrong_crcs: u64,
    /// Jumps of the clock that were taken out.
    pub jumps: u64,
    /// Offset in the data of the first of them.
    pub first_jump: u64,
    /// Number of clock gaps long enough that the time was extrapolated from the rate alone.
    pub coasted: u64,
    /// Programs in the stream.
    pub programs: usize,
    /// How often the chosen program's table changed.
    pub table_changes: u64,
    /// Pictures at which decoding could start if their parameter sets came with them.
    pub bare_pictures: u64,
    /// Offset in the data of the first of them.
    pub first_bare_picture: u64,
}

/// The result of the pass.
#[derive(Debug)]
pub struct Indexed {
    /// Length of the data.
    pub bytes: u64,
    /// Media time, to the end of the last packet.
    pub duration: MediaTicks,
    /// Mean rate.
    pub mean_rate: BitRate,
    /// Highest rate over windows of 1 s.
    pub peak_rate: BitRate,
    /// Whether the rate is constant.
    pub constant_rate: bool,
    /// The program's streams.
    pub streams: Vec<ElementaryStream>,
    /// Access points, clock, PIDs.
    pub index: TitleIndex,
    /// Where the time comes from.
    pub clock: ClockOrigin,
    /// Number of the program whose clock and pictures count.
    pub program: u16,
    /// Damage and oddities.
    pub oddities: Oddities,
    /// Audio that the tables announce as private data: PID and codec.
    pub untold: Vec<(u16, &'static str)>,
}

impl Indexed {
    /// The title that it makes of `source`, without what only some titles have.
    pub(crate) fn finish(self, name: String, source: SourceIdentity) -> FinishTitle {
        FinishTitle {
            name,
            source,
            duration: self.duration,
            mean_rate: self.mean_rate,
            peak_rate: self.peak_rate,
            constant_rate: self.constant_rate,
            streams: self.streams,
            index: self.index,
            notes: Vec::new(),
            derived: None,
            rendition: None,
            naming: Naming::default(),
        }
    }
}

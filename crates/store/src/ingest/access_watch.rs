//! Looks for access points as PES packets go by: pictures that a decoder can start with, and audio where none come.

use millrace_core::limits::volume::{MAX_UNDECIDED_BYTES, PICTURES_AWAY_TICKS};

use super::access::{PictureLook, Verdict};
use super::access_list::{AccessList, MIN_GAP_AUDIO_TICKS, MIN_GAP_TICKS};
use super::codec::VideoSyntax;
use super::ts_packet::PesStart;
use crate::index::PTS_MODULUS;

/// The start of a PES packet whose kind is not yet known.
#[derive(Clone, Copy, Debug)]
struct Undecided {
    byte: u64,
    tables: Option<u64>,
}

/// Pictures at which decoding could start if their parameter sets came with them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BarePictures {
    pub(super) count: u64,
    /// Offset in the data of the first.
    pub(super) first: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct AccessWatch {
    /// What was found.
    pub(super) list: AccessList,
    look: Option<PictureLook>,
    undecided: Option<Undecided>,
    indicator: bool,
    /// Stamp of the last picture, or of the first audio before any.
    last_picture: Option<u64>,
    bare: BarePictures,
    /// Places of access points that no packet was marked for yet.
    marks: Vec<u64>,
}

impl AccessWatch {
    /// Before the tables.
    pub(super) fn new() -> Self {
        Self {
            list: AccessList::new(),
            look: None,
            undecided: None,
            indicator: false,
            last_picture: None,
            bare: BarePictures::default(),
            marks: Vec::new(),
        }
    }

    /// The program's pictures have this syntax from now on; `None`: it has none.
    pub(super) fn follow(&mut self, syntax: Option<VideoSyntax>) {
        self.look = syntax.map(PictureLook::new);
        self.list.set_min_gap(if syntax.is_some() { MIN_GAP_TICKS } else { MIN_GAP_AUDIO_TICKS });
    }

    /// The random access indicator is set before the next PES packet.
    pub(super) fn indicated(&mut self) {
        self.indicator = true;
    }

    /// Whether a PES packet is being looked at.
    pub(super) fn is_looking(&self) -> bool {
        self.undecided.is_some()
    }

    /// A PES packet of pictures begins, or one of audio where there are none; `tables` is where the last PAT begins that a PMT
    /// follows.
    pub(super) fn unit_starts(&mut self, start: Option<PesStart<'_>>, byte: u64, tables: Option<u64>) {
        self.decide_at_end();
        let unit = Undecided { byte, tables };
        let is_indicated = std::mem::take(&mut self.indicator);
        let Some(look) = &mut self.look else {
            // Audio alone: every frame stands for itself.
            return self.add(unit);
        };
        look.begin(is_indicated);
        match start {
            Some(start) => {
                self.last_picture = start.decode_stamp.or(self.last_picture);
                self.undecided = Some(unit);
                self.unit_continues(start.payload, byte);
            }
            None if is_indicated => self.add(unit),
            None => {}
        }
    }

    /// The next payload of that PES packet.
    pub(super) fn unit_continues(&mut self, payload: &[u8], byte: u64) {
        let (Some(look), Some(unit)) = (&mut self.look, self.undecided) else { return };
        let verdict = match look.push(payload) {
            Verdict::More if byte - unit.byte <= MAX_UNDECIDED_BYTES => return,
            Verdict::More => look.untold(),
            verdict => verdict,
        };
        self.decide(unit, verdict);
    }

    /// A PES packet of audio begins beside pictures.
    pub(super) fn audio_starts(&mut self, start: PesStart<'_>, byte: u64, tables: Option<u64>) {
        let (Some(stamp), None) = (start.presentation_stamp, self.undecided) else { return };
        let since = stamp.wrapping_sub(*self.last_picture.get_or_insert(stamp)) % PTS_MODULUS;
        if (PICTURES_AWAY_TICKS..PTS_MODULUS / 2).contains(&since) {
            self.list.add_audio(byte, tables);
            self.marks.push(byte);
        }
    }

    /// The PES packet being looked at has ended.
    pub(super) fn decide_at_end(&mut self) {
        if let (Some(look), Some(unit)) = (&mut self.look, self.undecided) {
            let verdict = look.end();
            self.decide(unit, verdict);
        }
    }

    /// Packets before this byte have all their marks, when the data has `bytes` so far.
    pub(super) fn decided_up_to(&mut self, bytes: u64) -> u64 {
        if let (Some(look), Some(unit)) = (&self.look, self.undecided)
            && bytes - unit.byte > MAX_UNDECIDED_BYTES
        {
            let verdict = look.untold();
            self.decide(unit, verdict);
        }
        self.undecided.map_or(u64::MAX, |unit| unit.byte)
    }

    /// Places whose packets must be marked.
    pub(super) fn take_marks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.marks)
    }

    /// Pictures without their parameter sets so far.
    pub(super) fn bare(&self) -> BarePictures {
        self.bare
    }

    fn decide(&mut self, unit: Undecided, verdict: Verdict) {
        self.undecided = None;
        if verdict == Verdict::Access {
            return self.add(unit);
        }
        if verdict == Verdict::Bare {
            if self.bare.count == 0 {
                self.bare.first = unit.byte;
            }
            self.bare.count += 1;
        }
        self.list.add_dependent(unit.byte);
    }

    fn add(&mut self, unit: Undecided) {
        self.list.add(unit.byte, unit.tables);
        self.marks.push(unit.byte);
    }
}

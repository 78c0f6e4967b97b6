//! Detects access points in passing PES packets: pictures where a decoder can start, and audio in
//! gaps without pictures.

use millrace_media::codec::VideoSyntax;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PID_NULL, PesStart};

use super::access::{PictureAccess, PictureLook};
use super::access_list::{AccessList, MIN_GAP_AUDIO_TICKS, MIN_GAP_TICKS};
use super::layout::LayoutList;
use crate::limits::ingest::{MAX_UNDECIDED_BYTES, PICTURES_AWAY_TICKS};

/// The start of a PES packet whose kind is not yet known.
#[derive(Clone, Copy, Debug)]
struct Undecided {
    byte: u64,
    tables: Option<u64>,
}

/// Pictures at which decoding could start if their parameter sets came with them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BarePictures {
    pub(crate) count: u64,
    /// Offset of the first one in the data.
    pub(crate) first: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct AccessWatch {
    /// Access points found.
    pub(crate) list: AccessList,
    /// Streams of the program and their configuration.
    pub(crate) layouts: LayoutList,
    look: Option<PictureLook>,
    /// PID of the video stream.
    pid: u16,
    undecided: Option<Undecided>,
    indicator: bool,
    /// Time stamp of the last picture; before the first picture, that of the first audio.
    last_picture: Option<u64>,
    bare: BarePictures,
    /// Offsets of access points whose packets are not marked yet.
    marks: Vec<u64>,
}

impl AccessWatch {
    /// Creates a watch without a program, for use before the first tables.
    pub(crate) fn new() -> Self {
        Self {
            list: AccessList::new(),
            layouts: LayoutList::default(),
            look: None,
            pid: PID_NULL,
            undecided: None,
            indicator: false,
            last_picture: None,
            bare: BarePictures::default(),
            marks: Vec::new(),
        }
    }

    /// Sets PID and syntax of the program's video; `None`: it has none.
    pub(crate) fn follow(&mut self, video: Option<(u16, VideoSyntax)>) {
        self.pid = video.map_or(PID_NULL, |(pid, _)| pid);
        self.look = video.map(|(_, syntax)| PictureLook::new(syntax));
        self.list.set_min_gap(if video.is_some() { MIN_GAP_TICKS } else { MIN_GAP_AUDIO_TICKS });
    }

    /// The random access indicator is set before the next PES packet.
    pub(crate) fn indicated(&mut self) {
        self.indicator = true;
    }

    /// Whether the current PES packet is still undecided.
    pub(crate) fn is_looking(&self) -> bool {
        self.undecided.is_some()
    }

    /// A video PES packet begins, or an audio one if the program has no video. `tables` is the
    /// start of the last PAT followed by a PMT.
    pub(crate) fn unit_starts(&mut self, start: Option<PesStart<'_>>, byte: u64, tables: Option<u64>) {
        self.decide_at_end();
        let unit = Undecided { byte, tables };
        let is_indicated = std::mem::take(&mut self.indicator);
        let Some(look) = &mut self.look else {
            // Without video, decoding can start at every audio frame.
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

    /// Adds the next payload of the current PES packet.
    pub(crate) fn unit_continues(&mut self, payload: &[u8], byte: u64) {
        let (Some(look), Some(unit)) = (&mut self.look, self.undecided) else { return };
        let verdict = match look.push(payload) {
            PictureAccess::More if byte - unit.byte <= MAX_UNDECIDED_BYTES => return,
            PictureAccess::More => look.untold(),
            verdict => verdict,
        };
        self.decide(unit, verdict);
    }

    /// An audio PES packet begins in a program with video.
    pub(crate) fn audio_starts(&mut self, start: PesStart<'_>, byte: u64, tables: Option<u64>) {
        let (Some(stamp), None) = (start.presentation_stamp, self.undecided) else { return };
        let since = stamp.wrapping_sub(*self.last_picture.get_or_insert(stamp)) % PTS_MODULUS;
        if (PICTURES_AWAY_TICKS..PTS_MODULUS / 2).contains(&since) {
            self.list.add_audio(byte, tables);
            self.marks.push(byte);
        }
    }

    /// The current PES packet has ended.
    pub(crate) fn decide_at_end(&mut self) {
        if let (Some(look), Some(unit)) = (&mut self.look, self.undecided) {
            let verdict = look.end();
            self.decide(unit, verdict);
        }
    }

    /// Returns the offset before which all packets have their marks; `bytes` is the current length
    /// of the data.
    pub(crate) fn decided_up_to(&mut self, bytes: u64) -> u64 {
        if let (Some(look), Some(unit)) = (&self.look, self.undecided)
            && bytes - unit.byte > MAX_UNDECIDED_BYTES
        {
            let verdict = look.untold();
            self.decide(unit, verdict);
        }
        self.undecided.map_or(u64::MAX, |unit| unit.byte)
    }

    /// Takes the offsets whose packets must be marked.
    pub(crate) fn take_marks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.marks)
    }

    /// Returns the pictures found without their parameter sets.
    pub(crate) fn bare(&self) -> BarePictures {
        self.bare
    }

    fn decide(&mut self, unit: Undecided, verdict: PictureAccess) {
        self.undecided = None;
        if verdict == PictureAccess::Access {
            if let Some(config) = self.look.as_ref().and_then(PictureLook::config) {
                self.layouts.config(self.pid, config, unit.byte);
            }
            return self.add(unit);
        }
        if verdict == PictureAccess::Bare {
            if self.bare.count == 0 {
                self.bare.first = unit.byte;
            }
            self.bare.count += 1;
        }
        self.list.add_dependent(unit.byte);
    }

    fn add(&mut self, unit: Undecided) {
        self.list.add(unit.byte, unit.tables, self.layouts.take_first_access());
        self.marks.push(unit.byte);
    }
}

//! Writes a rung so that a viewer can go over to it from any other at every group.
//!
//! ```text
//!  slot of 40 ms │ clock │ (PAT PMT) │ pictures, sound evenly between │        …        │ stuffing at the end of a group
//! ```
//!
//! A group begins in the same slot of each rung, at a media packet, with clock and tables. All its pictures leave before the next begins. Clock,
//! tables and sound are the same packets in the same slots of all rungs; of pictures each group has a multiple of 16 packets. So all counters
//! are equal where a group begins, and what follows there in one rung can follow in every other.

use millrace_core::limits::DEFAULT_TS_PER_PACKET;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_write::{PacketWriter, Pes, StreamEntry, Tables};

use super::encoded::{Picture, Pictures, Sounds};
use super::error::LadderError;
use super::plan::{RungPlan, Sound};
use super::time::Times;
use crate::limits::trick::TRICK_SLOT_TICKS;

const PROGRAM: u16 = 1;
const PMT_PID: u16 = 0x1000;
const PICTURE_PID: u16 = 0x100;
/// Continuity counters count to this.
const COUNTERS: usize = 16;
/// H.264 and AAC in ADTS (ISO/IEC 13818-1 table 2-34).
const H264_TYPE: u8 = 0x1b;
const AAC_TYPE: u8 = 0x0f;

/// A PES packet on its way, with its bytes.
type Sending = (Pes, Vec<u8>);

/// Position in one audio stream of the program.
struct AudioCursor {
    pid: u16,
    number: usize,
    /// The next frame and its number.
    next: Option<Vec<u8>>,
    frame: u64,
}

/// A rung that is being written.
pub(super) struct RungMux<'a> {
    plan: &'a RungPlan,
    times: Times,
    packets: PacketWriter,
    tables: Tables,
    pictures: Pictures,
    sounds: Option<Sounds>,
    tracks: Vec<AudioCursor>,
    clock_start: u64,
    reorder: u64,
    /// Groups and pictures written, and packets in the group.
    group: u64,
    sent: u64,
    /// The group that is written next.
    next: Vec<Picture>,
}

impl<'a> RungMux<'a> {
    /// Creates the multiplexer for the encoded data. `clock_start`: the clock's first value, ticks
    /// of 90 kHz.
    pub(super) fn new(
        plan: &'a RungPlan,
        mut pictures: Pictures,
        times: Times,
        sounds: Option<Sounds>,
        of: &[Sound],
        clock_start: u64,
    ) -> Result<Self, LadderError> {
        let next = pictures.group()?;
        let reorder = pictures.reorder();
        let pid = |number: usize| PICTURE_PID + 1 + number as u16;
        let mut streams =
            vec![StreamEntry { pid: PICTURE_PID, stream_type: H264_TYPE, descriptors: Vec::new() }];
        streams.extend(of.iter().enumerate().map(|(number, sound)| StreamEntry {
            pid: pid(number),
            stream_type: AAC_TYPE,
            descriptors: sound.language.as_deref().map(language).unwrap_or_default(),
        }));
        let track = |number| AudioCursor { pid: pid(number), number, next: None, frame: 0 };
        let mut mux = Self {
            plan,
            times,
            packets: PacketWriter::default(),
            tables: Tables::new(PROGRAM, PMT_PID, 0, PICTURE_PID, &streams),
            pictures,
            tracks: (0..if sounds.is_some() { of.len() } else { 0 }).map(track).collect(),
            sounds,
            clock_start,
            reorder,
            group: 0,
            sent: 0,
            next,
        };
        if let Some(sounds) = &mut mux.sounds {
            for track in &mut mux.tracks {
                track.next = sounds.next(track.number)?;
            }
        }
        Ok(mux)
    }

    /// How many pictures showing is behind decoding.
    pub(super) fn reorder(&self) -> u64 {
        self.reorder
    }

    /// Returns the number of pictures written.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Writes the next group into `out`, which is emptied before; `false`: there is none.
    pub(super) fn group(&mut self, out: &mut Vec<u8>) -> Result<bool, LadderError> {
        out.clear();
        let now = std::mem::take(&mut self.next);
        if now.is_empty() {
            return Ok(false);
        }
        self.next = self.pictures.group()?;
        let first = self.times.first_slot(self.group);
        let is_last = self.next.is_empty();
        let total = self.sent + now.len() as u64;
        let end = match is_last {
            true => self.times.end_slot(total, self.reorder),
            false => self.times.first_slot(self.group + 1),
        };
        let mut queue = self.queue(now)?;
        queue.reverse();
        // Decoding times of the pictures in the queue, the next one's last.
        let mut due: Vec<u64> = (self.sent..total).rev().map(|sent| self.times.decoded(sent)).collect();
        for slot in first..end {
            self.slot(slot, slot - first, total, is_last, &mut queue, &mut due)?;
        }
        if !queue.is_empty() {
            return Err(self.does_not_fit(end));
        }
        while !(self.packets.out.len() / 188).is_multiple_of(DEFAULT_TS_PER_PACKET) {
            self.packets.null();
        }
        (self.group, self.sent) = (self.group + 1, total);
        std::mem::swap(out, &mut self.packets.out);
        self.packets.out.clear();
        Ok(true)
    }

    /// The pictures of a group as PES packets: a multiple of 16 packets altogether.
    fn queue(&self, group: Vec<Picture>) -> Result<Vec<Sending>, LadderError> {
        let stamp = |ticks: u64| (self.clock_start + ticks) % PTS_MODULUS;
        let mut queue: Vec<Sending> = (self.sent..)
            .zip(group)
            .map(|(sent, picture)| {
                let (pts, dts) = (self.times.shown(picture.shown, self.reorder), self.times.decoded(sent));
                let is_access = sent == self.sent;
                (
                    Pes::picture(PICTURE_PID, stamp(pts), stamp(dts), picture.bytes.len(), is_access),
                    picture.bytes,
                )
            })
            .collect();
        let packets: usize = queue.iter().map(|(pes, _)| pes.packets()).sum();
        let lacking = packets.next_multiple_of(COUNTERS) - packets;
        let largest = queue.iter_mut().max_by_key(|(_, bytes)| bytes.len());
        if largest.is_none_or(|(pes, _)| !pes.stretch(lacking)) {
            return Err(self.does_not_fit(self.times.first_slot(self.group)));
        }
        Ok(queue)
    }

    /// One slot, the `place`th of its group.
    fn slot(
        &mut self,
        slot: u64,
        place: u64,
        total: u64,
        is_last: bool,
        queue: &mut Vec<Sending>,
        due: &mut Vec<u64>,
    ) -> Result<(), LadderError> {
        self.packets.clock(PICTURE_PID, self.clock_start + slot * TRICK_SLOT_TICKS);
        let has_tables = place.is_multiple_of(2);
        if has_tables {
            self.packets.tables(&self.tables);
        }
        let mut sounds = self.sounds_of(slot, total, is_last)?;
        sounds.reverse();
        let sound: usize = sounds.iter().map(|(pes, _)| pes.packets()).sum();
        let used = 1 + if has_tables { 2 } else { 0 } + sound as u64;
        let room = usize::try_from(self.plan.most.saturating_sub(used)).unwrap_or(0);
        let waiting: usize = queue.iter().map(|(pes, _)| pes.packets()).sum();
        let pictures = room.min(waiting);
        let all = sound + pictures;
        for at in 0..all {
            let is_sound = (at + 1) * sound / all > at * sound / all;
            let line = if is_sound { &mut sounds } else { &mut *queue };
            let Some((pes, bytes)) = line.last_mut() else { continue };
            self.packets.pes(pes, bytes);
            if pes.packets() == 0 {
                line.pop();
                // A picture must have arrived when it is decoded.
                if !is_sound && due.pop().is_some_and(|due| (slot + 1) * TRICK_SLOT_TICKS > due) {
                    return Err(self.does_not_fit(slot));
                }
            }
        }
        Ok(())
    }

    /// The sound that is sent in a slot: of each at most one PES packet. What would be heard behind the last picture is left out.
    fn sounds_of(&mut self, slot: u64, total: u64, is_last: bool) -> Result<Vec<Sending>, LadderError> {
        let Some(sounds) = &mut self.sounds else { return Ok(Vec::new()) };
        let end = if is_last { self.times.shown(total, self.reorder) } else { u64::MAX };
        let mut found = Vec::new();
        for track in &mut self.tracks {
            let (first, mut bytes) = (track.frame, Vec::new());
            while let Some(frame) = &track.next
                && self.times.slot_of_frame(track.frame, self.reorder) <= slot
                && self.times.heard(track.frame, self.reorder) < end
            {
                bytes.extend_from_slice(frame);
                track.frame += 1;
                track.next = sounds.next(track.number)?;
            }
            if !bytes.is_empty() {
                let pts = (self.clock_start + self.times.heard(first, self.reorder)) % PTS_MODULUS;
                found.push((Pes::sound(track.pid, track.number as u8, pts, bytes.len()), bytes));
            }
        }
        Ok(found)
    }

    fn does_not_fit(&self, slot: u64) -> LadderError {
        LadderError::DoesNotFit { name: self.plan.rung.name, seconds: slot * TRICK_SLOT_TICKS / 90_000 }
    }
}

/// ISO_639_language_descriptor (ISO/IEC 13818-1 section 2.6.18).
fn language(code: &str) -> Vec<u8> {
    match code.as_bytes() {
        &[a, b, c] => vec![0x0a, 4, a, b, c, 0],
        _ => Vec::new(),
    }
}

//! Finds the pictures of an elementary stream: where each begins and ends, which stand alone, which none refers to.
//!
//! A picture here is everything shown at once: a frame, or both fields of one. It begins with the
//! first unit that belongs to it, so tables and parameter sets before it are its own.

use std::collections::{BTreeMap, VecDeque};

use millrace_media::codec::VideoSyntax;
use millrace_media::h264::{self, nal};
use millrace_media::sps::SpsStart;
use millrace_media::units::{StartCodeUnit, Units, trimmed};

use super::h265;
use super::mpeg2;
use crate::limits::trick::{MAX_LOSSES, MAX_PARAMETERS, MAX_STAMPS};

/// Where a byte of the elementary stream lies in the title: its TS packet, and how many bytes of the stream that packet has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ElementaryOffset {
    /// Offset of the TS packet in the title's data.
    pub(super) packet: u64,
    pub(super) skip: u8,
    pub(super) pid: u16,
}

/// Presentation and decoding time stamps: 90 kHz, 33 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) pts: u64,
    pub(super) dts: u64,
}

/// A picture found in the elementary stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FoundPicture {
    pub(super) place: ElementaryOffset,
    /// Its length in the elementary stream.
    pub(super) bytes: u32,
    /// Of two fields: where the second begins.
    pub(super) second: u32,
    pub(super) stamps: Option<Stamps>,
    /// Number of its parameters ([`Finder::parameters`]), if it needs no other picture.
    pub(super) alone: Option<u16>,
    /// Whether others may refer to it.
    pub(super) is_reference: bool,
    /// Whether a decoder can start at it as it is.
    pub(super) is_access: bool,
    /// Whether something of it is missing.
    pub(super) is_broken: bool,
}

/// The data that must come before a picture that stands alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// With start codes.
    pub(super) bytes: Vec<u8>,
    /// For H.264: the data needed to rewrite slice headers.
    pub(super) h264: Option<(SpsStart, Vec<h264::Pps>)>,
}

/// A picture whose end has not come yet.
#[derive(Clone, Debug)]
pub(super) struct OpenPicture {
    start: u64,
    place: ElementaryOffset,
    stamps: Option<Stamps>,
    /// Whether its own data has begun.
    pub(super) has_data: bool,
    /// Whether all of it seen until now needs no other picture.
    pub(super) is_alone: bool,
    /// Whether all of it seen until now needs nothing but the other field of its frame.
    pub(super) follows: bool,
    pub(super) is_reference: bool,
    pub(super) is_access: bool,
    /// Whether a sequence header or sequence parameter set came with it.
    pub(super) has_header: bool,
    /// Which field it is: 1 top, 2 bottom, 0 a frame.
    pub(super) field: u8,
    pub(super) slice: Option<h264::Slice>,
    pub(super) parameters: Option<u16>,
}

/// The common interface of the three syntaxes.
#[derive(Debug)]
enum Codec {
    H264(H264),
    H265(h265::H265ParameterSets),
    Mpeg2(mpeg2::SequenceHeader),
}

/// Cuts the stream of one PID into pictures.
#[derive(Debug)]
pub(super) struct Finder {
    codec: Codec,
    units: Units,
    /// Beginnings of the last pieces.
    pieces: VecDeque<(u64, ElementaryOffset)>,
    /// Where units start that are not over yet.
    places: VecDeque<(u64, ElementaryOffset)>,
    stamps: VecDeque<(u64, Stamps)>,
    losses: VecDeque<u64>,
    open: Option<OpenPicture>,
    /// A first field that waits for its second, and its end.
    field: Option<(OpenPicture, u64)>,
    parameters: Vec<Parameters>,
    found: Vec<FoundPicture>,
}

impl Finder {
    /// Returns `None` for a syntax whose pictures cannot be distinguished.
    pub(super) fn new(syntax: VideoSyntax) -> Option<Self> {
        let codec = match syntax {
            VideoSyntax::H264 => Codec::H264(H264::default()),
            VideoSyntax::H265 => Codec::H265(h265::H265ParameterSets::default()),
            VideoSyntax::Mpeg2 => Codec::Mpeg2(mpeg2::SequenceHeader::default()),
            VideoSyntax::Mpeg4 | VideoSyntax::Opaque => return None,
        };
        Some(Self {
            codec,
            units: Units::default(),
            pieces: VecDeque::new(),
            places: VecDeque::new(),
            stamps: VecDeque::new(),
            losses: VecDeque::new(),
            open: None,
            field: None,
            parameters: Vec::new(),
            found: Vec::new(),
        })
    }

    /// Parameters by number.
    pub(super) fn parameters(&self) -> &[Parameters] {
        &self.parameters
    }

    /// Something is missing before the next bytes.
    pub(super) fn lost(&mut self) {
        let at = self.units.at();
        if self.losses.back() != Some(&at) {
            self.losses.push_back(at);
        }
        // Without starts in between all of it is one broken picture.
        if self.losses.len() > MAX_LOSSES {
            self.losses.pop_front();
        }
    }

    /// The next bytes: the payload of a TS packet at `place`, and the stamps of a PES packet that begins there. Pictures that are
    /// over are handed to `each`.
    pub(super) fn push(
        &mut self,
        place: ElementaryOffset,
        stamps: Option<Stamps>,
        payload: &[u8],
        each: &mut impl FnMut(FoundPicture),
    ) {
        let at = self.units.at();
        self.pieces.push_back((at, place));
        // A start code lies in the last three bytes, so in the last three pieces with any; most are long.
        if self.pieces.len() > 4 {
            self.pieces.pop_front();
        }
        if let Some(stamps) = stamps {
            self.stamps.push_back((at, stamps));
            if self.stamps.len() > MAX_STAMPS {
                self.stamps.pop_front();
            }
        }
        if payload.is_empty() {
            self.pieces.pop_back();
            return;
        }
        let mut units = std::mem::take(&mut self.units);
        let mut over = Vec::new();
        let (pieces, places) = (&self.pieces, &mut self.places);
        units.push(
            payload,
            |start| {
                let piece = pieces.iter().rev().find(|(from, _)| *from <= start);
                if let Some(&(from, place)) = piece {
                    let skip = u8::try_from(start - from).unwrap_or(0);
                    places.push_back((start, ElementaryOffset { skip, ..place }));
                }
            },
            |unit| over.push((unit.start, unit.head.to_vec())),
        );
        self.units = units;
        for (start, head) in over {
            self.unit(StartCodeUnit { start, head: &head });
        }
        self.found.drain(..).for_each(each);
    }

    /// The stream ends.
    pub(super) fn finish(&mut self, each: &mut impl FnMut(FoundPicture)) {
        let mut last = None;
        self.units.end(|unit| last = Some((unit.start, unit.head.to_vec())));
        if let Some((start, head)) = last {
            self.unit(StartCodeUnit { start, head: &head });
        }
        self.close(self.units.at());
        if let Some((first, end)) = self.field.take() {
            self.emit(&first, end, None);
        }
        self.found.drain(..).for_each(each);
    }

    fn unit(&mut self, unit: StartCodeUnit<'_>) {
        let place = loop {
            match self.places.pop_front() {
                Some((start, place)) if start == unit.start => break place,
                Some(_) => {}
                None => return,
            }
        };
        let head = match self.codec {
            Codec::Mpeg2(_) => unit.head,
            Codec::H264(_) | Codec::H265(_) => trimmed(unit.head),
        };
        if head.is_empty() {
            return;
        }
        let has_data = self.open.as_ref().is_some_and(|open| open.has_data);
        let begins = match &self.codec {
            Codec::H264(_) => h264_begins(head),
            Codec::H265(_) => h265::begins(head),
            Codec::Mpeg2(_) => mpeg2::begins(head),
        };
        if begins && has_data {
            self.close(unit.start);
        }
        if begins && self.open.is_none() {
            self.open = Some(self.begin(unit.start, place));
        }
        let Some(mut open) = self.open.take() else { return };
        let parameters = match &mut self.codec {
            Codec::H264(codec) => codec.unit(head, &mut open),
            Codec::H265(codec) => codec.unit(head, &mut open),
            Codec::Mpeg2(codec) => codec.unit(head, &mut open),
        };
        if let Some(parameters) = parameters {
            open.parameters = self.number_of(parameters);
        }
        self.open = Some(open);
    }

    fn begin(&mut self, start: u64, place: ElementaryOffset) -> OpenPicture {
        let mut stamps = None;
        // A stamp is that of the first picture that begins behind it.
        while let Some(&(_, next)) = self.stamps.front().filter(|(at, _)| *at <= start) {
            stamps = Some(next);
            self.stamps.pop_front();
        }
        OpenPicture {
            start,
            place,
            stamps,
            has_data: false,
            is_alone: true,
            follows: true,
            is_reference: false,
            is_access: false,
            has_header: false,
            field: 0,
            slice: None,
            parameters: None,
        }
    }

    /// The number of parameters that are known, or are new.
    fn number_of(&mut self, parameters: Parameters) -> Option<u16> {
        let known = self.parameters.iter().rposition(|known| *known == parameters);
        if known.is_none() && self.parameters.len() < MAX_PARAMETERS {
            self.parameters.push(parameters);
            return u16::try_from(self.parameters.len() - 1).ok();
        }
        known.and_then(|known| u16::try_from(known).ok())
    }

    /// The open picture ends at `end`: it may be a field, or complete one.
    fn close(&mut self, end: u64) {
        let Some(open) = self.open.take().filter(|open| open.has_data) else { return };
        match self.field.take() {
            Some((first, _)) if self.completes(&first, &open) => {
                let second = Some(&open);
                self.emit(&first, end, second);
                return;
            }
            Some((first, end)) => self.emit(&first, end, None),
            None => {}
        }
        if open.field == 0 {
            self.emit(&open, end, None);
        } else {
            self.field = Some((open, end));
        }
    }

    /// Whether `second` is the other field of the frame that `first` begins.
    fn completes(&self, first: &OpenPicture, second: &OpenPicture) -> bool {
        let is_opposite = first.field != 0 && second.field != 0 && first.field != second.field;
        is_opposite
            && match (&self.codec, &first.slice, &second.slice) {
                (Codec::H264(_), Some(first), Some(second)) => second.completes(first),
                (Codec::Mpeg2(_), ..) => first.is_reference == second.is_reference && !second.has_header,
                _ => false,
            }
    }

    fn emit(&mut self, first: &OpenPicture, end: u64, second: Option<&OpenPicture>) {
        while self.losses.front().is_some_and(|&loss| loss < first.start) {
            self.losses.pop_front();
        }
        let is_broken = self.losses.front().is_some_and(|&loss| loss <= end);
        let length = |to: u64| u32::try_from(to - first.start).ok();
        let Some(bytes) = length(end) else { return };
        let is_whole = first.field == 0 || second.is_some_and(|second| self.follows(first, second));
        let alone = first.parameters.filter(|_| first.is_alone && is_whole && !is_broken);
        self.found.push(FoundPicture {
            place: first.place,
            bytes,
            second: second.and_then(|second| length(second.start)).unwrap_or(0),
            stamps: first.stamps,
            alone,
            is_reference: first.is_reference || second.is_some_and(|second| second.is_reference),
            is_access: first.is_access,
            is_broken,
        });
    }

    /// Whether a second field needs nothing but the first.
    fn follows(&self, first: &OpenPicture, second: &OpenPicture) -> bool {
        let is_idr = first.slice.is_some_and(|slice| slice.is_idr);
        let has_rest = |slice: h264::Slice| slice.can_follow_alone(is_idr) && (is_idr || second.is_alone);
        match &self.codec {
            Codec::H264(_) => second.follows && second.slice.is_some_and(has_rest),
            _ => second.follows,
        }
    }
}

/// Returns whether an H.264 unit may begin a picture (section 7.4.1.2.3): a unit that comes before
/// its slices, or its first slice.
fn h264_begins(head: &[u8]) -> bool {
    match head[0] & 0x1f {
        6..=nal::AUD | 14..=18 => true,
        nal::SLICE | nal::PARTITION_A | nal::IDR => head.get(1).is_some_and(|byte| byte & 0x80 != 0),
        _ => false,
    }
}

/// Parameter sets of an H.264 stream as they are now.
#[derive(Debug, Default)]
struct H264 {
    sps: BTreeMap<u32, (SpsStart, Vec<u8>)>,
    pps: BTreeMap<u32, (h264::Pps, Vec<u8>)>,
}

impl H264 {
    /// Parameters come with the first slice of a picture that may stand alone.
    fn unit(&mut self, head: &[u8], open: &mut OpenPicture) -> Option<Parameters> {
        match head[0] & 0x1f {
            nal::SPS => {
                open.has_header = true;
                if let Some(sps) = h264::sps(&head[1..]) {
                    self.sps.insert(sps.id, (sps, head.to_vec()));
                }
            }
            nal::PPS => {
                if let Some(pps) = h264::Pps::parse(&head[1..]) {
                    self.pps.insert(pps.id, (pps, head.to_vec()));
                }
            }
            nal::SLICE | nal::IDR => return self.slice(head, open),
            nal::PARTITION_A => {
                (open.has_data, open.is_alone, open.follows) = (true, false, false);
                open.is_reference |= head[0] & 0x60 != 0;
            }
            _ => {}
        }
        None
    }

    fn slice(&mut self, head: &[u8], open: &mut OpenPicture) -> Option<Parameters> {
        let is_first = !std::mem::replace(&mut open.has_data, true);
        open.is_reference |= head[0] & 0x60 != 0;
        let sets = h264::pps_of(head).and_then(|id| {
            let (pps, _) = self.pps.get(&id)?;
            Some((self.sps.get(&pps.sps)?, pps))
        });
        let slice = sets.and_then(|((sps, _), pps)| h264::Slice::parse(head, sps, pps));
        let (Some(((sps, sps_bytes), _)), Some(slice)) = (sets, slice) else {
            (open.is_alone, open.follows) = (false, false);
            return None;
        };
        open.is_alone &= slice.can_stand_alone();
        open.follows &= slice.can_follow_alone(true);
        if !is_first {
            return None;
        }
        open.field = slice.field.map_or(0, |bottom| 1 + u8::from(bottom));
        open.is_access = slice.is_idr || slice.is_intra && open.has_header;
        open.slice = Some(slice);
        if !open.is_alone {
            return None;
        }
        let of_it = self.pps.values().filter(|(pps, _)| pps.sps == sps.id);
        let mut bytes = [&[0, 0, 0, 1][..], sps_bytes].concat();
        of_it.clone().for_each(|(_, pps)| bytes.extend([&[0, 0, 0, 1][..], pps].concat()));
        Some(Parameters { bytes, h264: Some((*sps, of_it.map(|(pps, _)| *pps).collect())) })
    }
}

#[cfg(test)]
#[path = "pictures_tests.rs"]
mod tests;

//! H.264 (ITU-T H.264, ISO/IEC 14496-10): which pictures can be decoded alone, and how one becomes an IDR picture.
//!
//! A picture of I slices needs no other, but only as an IDR picture may it follow any other: a
//! decoder that meets another's frame number or order count takes this for a loss. The slice
//! headers of a picture that must stand alone are therefore rewritten (section 7.3.3): IDR, frame
//! number 0, an `idr_pic_id` that differs from the one before (section 7.4.3), order count 0, no
//! old reference. The slice data stays bit for bit.

use crate::bits::{Bits, BitsOut, escape, unescape};
use crate::limits::{MAX_HEADER_BYTES, MAX_PPS, MAX_SPS};
use crate::sps::SpsStart;
use crate::units::{split, trimmed};

/// NAL unit types (table 7-1).
pub mod nal {
    /// A slice of a picture that is no IDR picture.
    pub const SLICE: u8 = 1;
    /// The first partition of a slice.
    pub const PARTITION_A: u8 = 2;
    /// A slice of an IDR picture.
    pub const IDR: u8 = 5;
    /// A sequence parameter set.
    pub const SPS: u8 = 7;
    /// A picture parameter set.
    pub const PPS: u8 = 8;
    /// An access unit delimiter.
    pub const AUD: u8 = 9;
}

/// A sequence parameter set, from a NAL unit without its header byte.
pub fn sps(nal: &[u8]) -> Option<SpsStart> {
    SpsStart::read(&mut Bits::new(&unescape(nal, 1024)))
}

/// What of a picture parameter set slice headers depend on (section 7.3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pps {
    /// `pic_parameter_set_id`
    pub id: u32,
    /// `seq_parameter_set_id` of the set that it depends on.
    pub sps: u32,
    is_cabac: bool,
    has_bottom_order: bool,
    has_deblocking: bool,
    has_redundant: bool,
}

impl Pps {
    /// From a NAL unit without its header byte; `None` also with slice groups, which no broadcast profile has.
    pub fn parse(nal: &[u8]) -> Option<Self> {
        let payload = unescape(nal, 1024);
        let mut bits = Bits::new(&payload);
        let id = bits.ue().filter(|&id| id < MAX_PPS)?;
        let sps = bits.ue().filter(|&id| id < MAX_SPS)?;
        let (is_cabac, has_bottom_order) = (bits.bit()?, bits.bit()?);
        if bits.ue()? != 0 {
            return None;
        }
        bits.ue()?;
        bits.ue()?;
        bits.skip(3)?;
        bits.se()?;
        bits.se()?;
        bits.se()?;
        let has_deblocking = bits.bit()?;
        bits.skip(1)?;
        Some(Self { id, sps, is_cabac, has_bottom_order, has_deblocking, has_redundant: bits.bit()? })
    }
}

/// The PPS that a slice names: its id comes third in every slice header. `nal` begins with its header byte.
pub fn pps_of(nal: &[u8]) -> Option<u32> {
    let payload = unescape(nal.get(1..)?, 16);
    let mut bits = Bits::new(&payload);
    bits.ue()?;
    bits.ue()?;
    bits.ue()
}

/// The beginning of a slice header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whether it is of an IDR picture.
    pub is_idr: bool,
    /// Whether others may refer to it.
    pub is_reference: bool,
    /// Whether it is an I slice.
    pub is_intra: bool,
    frame_num: u32,
    /// Of a field: whether it is the bottom one.
    pub field: Option<bool>,
    /// Names pictures to be dropped or kept, which may not be there.
    has_marking: bool,
    order: u32,
}

/// A slice header as far as it goes before the data, and where its pieces end.
struct Header {
    slice: Slice,
    first_mb: u32,
    kind: u32,
    pps: u32,
    colour_plane: u32,
    bottom_delta: Option<i32>,
    order_deltas: [Option<i32>; 2],
}

impl Slice {
    /// From a slice (type 1 or 5), or the beginning of one: header byte and all.
    pub fn parse(nal: &[u8], sps: &SpsStart, pps: &Pps) -> Option<Self> {
        let payload = unescape(nal.get(1..)?, MAX_HEADER_BYTES);
        let mut bits = Bits::new(&payload);
        let mut slice = head(*nal.first()?, &mut bits, sps, pps)?.slice;
        if slice.is_reference && !slice.is_idr && slice.is_intra {
            slice.has_marking = bits.bit()?;
        }
        Some(slice)
    }

    /// Whether it belongs to the second field of the frame whose first field has the slice `first`.
    pub fn completes(&self, first: &Self) -> bool {
        let is_opposite = matches!((self.field, first.field), (Some(a), Some(b)) if a != b);
        is_opposite
            && !self.is_idr
            && self.frame_num == first.frame_num
            && self.is_reference == first.is_reference
    }

    /// Whether a picture of such slices can be made an IDR picture.
    pub fn can_stand_alone(&self) -> bool {
        self.is_intra && self.is_reference
    }

    /// Whether a second field of such slices needs nothing but the first field, if that `is_idr`.
    pub fn can_follow_alone(&self, is_idr: bool) -> bool {
        self.is_reference && (is_idr || self.is_intra && !self.has_marking)
    }
}

/// Reads up to and with `redundant_pic_cnt` (section 7.3.3); what follows of an I slice is the marking.
fn head(header: u8, bits: &mut Bits<'_>, sps: &SpsStart, pps: &Pps) -> Option<Header> {
    let (is_reference, is_idr) = (header >> 5 & 3 != 0, header & 0x1f == nal::IDR);
    let (first_mb, kind, pps_id) = (bits.ue()?, bits.ue()?, bits.ue()?);
    let colour_plane = if sps.has_colour_planes { bits.number(2)? } else { 0 };
    let frame_num = bits.number(sps.frame_num_bits)?;
    let field = match !sps.frames_only && bits.bit()? {
        true => Some(bits.bit()?),
        false => None,
    };
    if is_idr {
        bits.ue()?;
    }
    let (mut order, mut bottom_delta, mut order_deltas) = (0, None, [None; 2]);
    if sps.order_type == 0 {
        order = bits.number(sps.order_bits)?;
        if pps.has_bottom_order && field.is_none() {
            bottom_delta = Some(bits.se()?);
        }
    }
    if sps.order_type == 1 && sps.has_order_deltas {
        order_deltas[0] = Some(bits.se()?);
        if pps.has_bottom_order && field.is_none() {
            order_deltas[1] = Some(bits.se()?);
        }
    }
    if pps.has_redundant && bits.ue()? != 0 {
        return None;
    }
    let is_intra = matches!(kind, 2 | 7);
    let slice = Slice { is_idr, is_reference, is_intra, frame_num, field, has_marking: false, order };
    Some(Header { slice, first_mb, kind, pps: pps_id, colour_plane, bottom_delta, order_deltas })
}

/// An access unit delimiter: I slices only (section 7.3.2.4); one before each field.
pub const DELIMITER: [u8; 6] = [0, 0, 0, 1, nal::AUD, 0x10];

/// The end of a coded video sequence (section 7.3.2.5): so a decoder shows the picture at once, and does not wait for as many more as it would
/// reorder in the parent.
pub const END: [u8; 5] = [0, 0, 0, 1, 10];

/// Appends the slices of a picture, or of both fields of one, as an IDR picture. Without delimiters, parameter sets and supplemental
/// information, which speaks of the parent's clock.
pub fn rewrite_picture(
    first: &[u8],
    second: Option<&[u8]>,
    sps: &SpsStart,
    pps: &[Pps],
    idr_pic_id: u32,
    out: &mut Vec<u8>,
) -> Option<()> {
    let of = |nal: &[u8]| pps_of(nal).and_then(|id| pps.iter().find(|pps| pps.id == id));
    let slices = |stream| split(stream).map(trimmed).filter(|nal| is_slice(nal));
    let mut earlier = None;
    for nal in slices(first) {
        earlier = Slice::parse(nal, sps, of(nal)?);
        out.extend([0, 0, 1]);
        rewrite(nal, sps, of(nal)?, Become::Idr(idr_pic_id), out)?;
    }
    let earlier = earlier?;
    if let Some(second) = second {
        out.extend(DELIMITER_OF_ANY);
        for nal in slices(second) {
            out.extend([0, 0, 1]);
            match earlier.is_idr {
                // It refers to the first field only, whose frame number and order count stay.
                true => out.extend_from_slice(nal),
                false => rewrite(nal, sps, of(nal)?, Become::SecondField(earlier), out)?,
            }
        }
    }
    Some(())
}

/// A delimiter for I and P slices.
const DELIMITER_OF_ANY: [u8; 6] = [0, 0, 0, 1, nal::AUD, 0x30];

fn is_slice(nal: &[u8]) -> bool {
    nal.first().is_some_and(|byte| matches!(byte & 0x1f, nal::SLICE | nal::IDR))
}

/// The kind of slice to rewrite a slice as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Become {
    /// One of an IDR picture with this `idr_pic_id`.
    Idr(u32),
    /// One of the second field behind such a field, whose own slices are I slices too. `first` is a
    /// slice of the first field as it was.
    SecondField(Slice),
}

/// Appends an I slice, header byte and all, as one of another kind of picture. `None` if it is none that [`Slice::can_stand_alone`], or
/// is damaged.
pub fn rewrite(nal: &[u8], sps: &SpsStart, pps: &Pps, as_: Become, out: &mut Vec<u8>) -> Option<()> {
    let (&header, rest) = nal.split_first()?;
    let payload = unescape(rest, usize::MAX);
    let mut bits = Bits::new(&payload);
    let was = head(header, &mut bits, sps, pps)?;
    if !was.slice.can_stand_alone() {
        return None;
    }
    let mut to = BitsOut::default();
    to.ue(was.first_mb);
    to.ue(was.kind);
    to.ue(was.pps);
    if sps.has_colour_planes {
        to.number(was.colour_plane, 2);
    }
    to.number(0, sps.frame_num_bits);
    if !sps.frames_only {
        to.bit(was.slice.field.is_some());
        was.slice.field.iter().for_each(|&bottom| to.bit(bottom));
    }
    if let Become::Idr(id) = as_ {
        to.ue(id);
    }
    write_order(&was, sps, as_, &mut to);
    if pps.has_redundant {
        to.ue(0);
    }
    // dec_ref_pic_marking (section 7.3.3.3).
    if was.slice.is_idr {
        bits.skip(2)?;
    } else if bits.bit()? {
        while let operation @ 1..=6 = bits.ue()? {
            (0..[0, 1, 1, 2, 1, 0, 1][operation as usize]).try_for_each(|_| bits.ue().map(drop))?;
        }
    }
    let kind = match as_ {
        Become::Idr(_) => {
            to.number(0, 2);
            nal::IDR
        }
        Become::SecondField(_) => {
            to.bit(false);
            nal::SLICE
        }
    };
    copy_rest(&mut bits, pps, &mut to)?;
    out.push(header & 0xe0 | kind);
    escape(to.bytes(), out);
    Some(())
}

/// Order counts: 0 for the earlier field of an IDR picture (section 8.2.1), and for a second field
/// the difference between the two.
fn write_order(was: &Header, sps: &SpsStart, as_: Become, to: &mut BitsOut) {
    if sps.order_type == 0 {
        let order = match as_ {
            // Of an IDR picture as it was.
            Become::Idr(_) if was.slice.is_idr => was.slice.order,
            Become::Idr(_) => was.bottom_delta.map_or(0, |delta| delta.min(0).unsigned_abs()),
            Become::SecondField(first) => was.slice.order.wrapping_sub(first.order),
        };
        to.number(order & ((1 << sps.order_bits) - 1), sps.order_bits);
        was.bottom_delta.iter().for_each(|&delta| to.se(delta));
    }
    let [first, second] = was.order_deltas;
    first.iter().for_each(|_| to.se(0));
    second.iter().for_each(|&delta| to.se(delta));
}

/// The rest of an I slice: quantiser, deblocking, data.
fn copy_rest(bits: &mut Bits<'_>, pps: &Pps, to: &mut BitsOut) -> Option<()> {
    to.se(bits.se()?);
    if pps.has_deblocking {
        let disable = bits.ue()?;
        to.ue(disable);
        if disable != 1 {
            to.se(bits.se()?);
            to.se(bits.se()?);
        }
    }
    if pps.is_cabac {
        to.align_and_append(bits.aligned_rest());
    } else {
        let data = bits.before_stop()?;
        to.copy(bits, data)?;
        to.stop();
    }
    Some(())
}

#[cfg(test)]
#[path = "h264_tests.rs"]
mod tests;

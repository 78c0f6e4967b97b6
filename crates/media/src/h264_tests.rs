use proptest::prelude::*;

use super::*;

/// A sequence parameter set as the standard writes it (section 7.3.2.1.1): order counts of type 0 in 6 bits, frame numbers in 5.
fn sps(frames_only: bool) -> SpsStart {
    let mut out = BitsOut::default();
    out.number(100, 8);
    out.number(0, 8);
    out.number(40, 8);
    out.ue(0);
    out.ue(1);
    out.ue(0);
    out.ue(0);
    out.bit(false);
    // A scaling matrix with one list that is cut short, and one written out.
    out.bit(true);
    for list in 0..8 {
        out.bit(list == 0 || list == 6);
        match list {
            0 => out.se(-8),
            6 => (0..64).for_each(|_| out.se(0)),
            _ => {}
        }
    }
    out.ue(1);
    out.ue(0);
    out.ue(2);
    out.ue(4);
    out.bit(false);
    out.ue(19);
    out.ue(11);
    out.bit(frames_only);
    out.stop();
    super::sps(out.bytes()).unwrap()
}

fn pps(is_cabac: bool) -> Pps {
    let mut out = BitsOut::default();
    out.ue(3);
    out.ue(0);
    out.bit(is_cabac);
    out.bit(true);
    out.ue(0);
    out.ue(2);
    out.ue(0);
    out.number(0, 3);
    out.se(4);
    out.se(0);
    out.se(-2);
    out.bit(true);
    out.bit(false);
    out.bit(false);
    out.stop();
    Pps::parse(out.bytes()).unwrap()
}

/// Returns an I slice that is not of an IDR picture, with data behind its header; `frame_num` and
/// `order` describe it.
fn slice(
    sps: &SpsStart,
    pps: &Pps,
    field: Option<bool>,
    order: u32,
    marking: bool,
    data: &[bool],
) -> Vec<u8> {
    let mut out = BitsOut::default();
    out.ue(0);
    out.ue(7);
    out.ue(3);
    out.number(19, sps.frame_num_bits);
    if !sps.frames_only {
        out.bit(field.is_some());
        field.iter().for_each(|&bottom| out.bit(bottom));
    }
    out.number(order, sps.order_bits);
    if field.is_none() {
        out.se(-1);
    }
    out.bit(marking);
    if marking {
        out.ue(1);
        out.ue(5);
        out.ue(0);
    }
    out.se(-3);
    out.ue(0);
    out.se(2);
    out.se(-2);
    if pps.is_cabac {
        out.align_and_append(&[]);
    }
    data.iter().for_each(|&bit| out.bit(bit));
    out.stop();
    let mut nal = vec![0x61];
    escape(out.bytes(), &mut nal);
    nal
}

/// The bits behind the header of a slice that was rewritten.
fn data_of(nal: &[u8], sps: &SpsStart, pps: &Pps) -> Vec<bool> {
    let payload = unescape(&nal[1..], usize::MAX);
    let mut bits = Bits::new(&payload);
    let header = head(nal[0], &mut bits, sps, pps).unwrap();
    bits.skip(if header.slice.is_idr { 2 } else { 1 }).unwrap();
    assert_eq!((bits.se(), bits.ue(), bits.se(), bits.se()), (Some(-3), Some(0), Some(2), Some(-2)));
    if pps.is_cabac {
        bits = Bits::new(bits.aligned_rest());
    }
    let count = bits.before_stop().unwrap();
    (0..count).map(|_| bits.bit().unwrap()).collect()
}

#[test]
fn rewrite_to_idr_makes_picture_independent() {
    let (sps, pps) = (sps(true), pps(true));
    let nal = slice(&sps, &pps, None, 34, true, &[true, false, true]);
    let was = Slice::parse(&nal, &sps, &pps).unwrap();
    assert!(was.can_stand_alone() && !was.is_idr && was.has_marking);
    assert_eq!(pps_of(&nal), Some(3));
    let mut out = Vec::new();
    rewrite(&nal, &sps, &pps, Become::Idr(1), &mut out).unwrap();
    let payload = unescape(&out[1..], usize::MAX);
    let is = head(out[0], &mut Bits::new(&payload), &sps, &pps).unwrap();
    assert!(is.slice.is_idr && is.slice.is_intra && is.slice.is_reference);
    // The bottom field is shown first, so its order count is 0 and the frame's 1.
    assert_eq!((is.slice.frame_num, is.slice.order, is.bottom_delta), (0, 1, Some(-1)));
}

#[test]
fn rewrite_of_second_field_keeps_order_relative_to_first() {
    let (sps, pps) = (sps(false), pps(false));
    let first = slice(&sps, &pps, Some(false), 63, false, &[true]);
    let first = Slice::parse(&first, &sps, &pps).unwrap();
    // The count wraps at 64.
    let nal = slice(&sps, &pps, Some(true), 0, false, &[true]);
    let second = Slice::parse(&nal, &sps, &pps).unwrap();
    assert!(second.completes(&first) && second.can_follow_alone(false));
    let mut out = Vec::new();
    rewrite(&nal, &sps, &pps, Become::SecondField(first), &mut out).unwrap();
    let is = Slice::parse(&out, &sps, &pps).unwrap();
    assert_eq!((is.is_idr, is.frame_num, is.order, is.field), (false, 0, 1, Some(true)));
    let marked = slice(&sps, &pps, Some(true), 0, true, &[true]);
    assert!(!Slice::parse(&marked, &sps, &pps).unwrap().can_follow_alone(false));
}

proptest! {
    #[test]
    fn rewrite_to_idr_keeps_slice_data_bit_for_bit(
        is_cabac: bool,
        frames_only: bool,
        id in 0u32..2,
        order in 0u32..64,
        data in proptest::collection::vec(proptest::bool::weighted(0.1), 0..400),
    ) {
        let (sps, pps) = (sps(frames_only), pps(is_cabac));
        let nal = slice(&sps, &pps, None, order, false, &data);
        let mut out = Vec::new();
        rewrite(&nal, &sps, &pps, Become::Idr(id), &mut out).unwrap();
        prop_assert_eq!(data_of(&out, &sps, &pps), data);
        prop_assert!(!out.windows(3).any(|w| w[0] == 0 && w[1] == 0 && w[2] <= 2));
        let mut again = Vec::new();
        rewrite(&out, &sps, &pps, Become::Idr(1 - id), &mut again).unwrap();
        prop_assert_ne!(&again, &out, "the next one has another number");
    }

    #[test]
    fn damage_is_refused_or_harmless(nal: Vec<u8>, is_cabac: bool) {
        let (sps, pps) = (sps(false), pps(is_cabac));
        let _ = super::sps(&nal);
        let _ = Pps::parse(&nal);
        let _ = rewrite(&nal, &sps, &pps, Become::Idr(0), &mut Vec::new());
    }
}

use super::super::sample::{StripeSample, geometry};
use super::super::tests::Bench;
use super::*;
use crate::cache::order::{MemberView, SpanOrder};

/// Two members of three return wrong bytes where only one may fail: those packets are unavailable,
/// all others are available, and both members are named.
#[test]
fn build_with_two_wrong_members_names_them_and_keeps_the_rest() {
    let mut bench = Bench::new(StripeSample::of_stripes(geometry(4, 2, 3, 16), 8), 1316);
    let order = bench.order(0, 0, MemberView::default(), true).unwrap();
    let mut read = Bench::read(&order);
    for (span, bytes) in order.spans.iter().zip(&mut read) {
        if matches!(span.role, Role::Data { position: 0 | 1 }) {
            bytes.as_mut().unwrap().iter_mut().step_by(1316).for_each(|byte| *byte ^= 4);
        }
    }
    let Built::Damaged { filled, left_out, failure: ReadFailure::Checksum } = bench.build(&order, &read)
    else {
        panic!("some of the packets are right")
    };
    assert_eq!((filled.wrong, filled.content.is_damaged()), (MemberSet::from([0, 1]), true));
    let missing = bench.check(&filled.content);
    assert!(!missing.is_empty() && missing.len() < filled.content.packets as usize);
    let ends = (missing[0], missing[missing.len() - 1], missing.len() as u32);
    assert_eq!((left_out.first, left_out.last, left_out.packets), ends);
    // Where nothing comes at all there is nothing to send.
    let nothing = read.iter().map(|_| Err(libc::EIO)).collect();
    assert!(matches!(bench.build(&order, &nothing), Built::Failed { wrong: MemberSet::EMPTY, .. }));
}

/// Two members have one bad sector each, in one codeword, where one may be lost: its packets are left out, and nothing else.
#[test]
fn build_with_two_bad_sectors_in_codeword_omits_only_their_packets() {
    // k, m, members, unit: each member has one symbol of a codeword.
    let mut bench = Bench::new(StripeSample::of_stripes(geometry(4, 1, 5, 10), 8), 1316);
    let stripes = bench.sample.stripes;
    let view = MemberView { all: true, pieces: MemberSet::below(5), ..MemberView::default() };
    let order = bench.order(0, 0, view, true).unwrap();
    let mut read = Bench::read(&order);
    // Packet 3 of the first two units of stripe 1.
    for unit in [0, 1] {
        let at = stripes.offset_of(1, unit) + 3 * 1316;
        let role = Role::Data { position: stripes.position_of(1, unit) as u16 };
        let is_bad = |span: &SpanOrder| span.role == role && span.bytes.contains(&at);
        read[order.spans.iter().position(is_bad).unwrap()] = Err(libc::EIO);
    }
    let built = bench.build(&order, &read);
    let Built::Damaged { filled, left_out, failure: ReadFailure::Io(libc::EIO) } = built else {
        panic!("all but two packets can be had: {built:?}")
    };
    assert_eq!(bench.check(&filled.content), [43, 53]);
    assert_eq!((left_out.first, left_out.last, left_out.packets), (43, 53, 2));
    // The same while a third member is lost.
    let order = bench.order(0, 0, MemberView { lost: MemberSet::of(4), ..view }, true).unwrap();
    let mut read = Bench::read(&order);
    let mut data = (0..order.spans.len()).filter(|&at| matches!(order.spans[at].role, Role::Data { .. }));
    read[data.next_back().unwrap()] = Err(libc::EIO);
    assert!(matches!(bench.build(&order, &read), Built::Damaged { failure: ReadFailure::Io(libc::EIO), .. }));
}

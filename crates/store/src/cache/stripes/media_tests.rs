use super::super::sample::{StripeSample, geometry};
use super::super::tests::Bench;
use super::*;
use crate::cache::order::MemberView;

/// Two members of three give wrong bytes where one may: those packets cannot be had, all others can, and both members are named.
#[test]
fn who_gave_wrong_bytes_is_named_and_the_rest_can_be_had() {
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
    assert_eq!((filled.wrong, filled.content.is_damaged()), (0b011, true));
    let missing = bench.check(&filled.content);
    assert!(!missing.is_empty() && missing.len() < filled.content.packets as usize);
    let ends = (missing[0], missing[missing.len() - 1], missing.len() as u32);
    assert_eq!((left_out.first, left_out.last, left_out.packets), ends);
    // Where nothing comes at all there is nothing to send.
    let nothing = read.iter().map(|_| Err(libc::EIO)).collect();
    assert!(matches!(bench.build(&order, &nothing), Built::Failed { wrong: 0, .. }));
}

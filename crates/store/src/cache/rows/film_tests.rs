use super::super::sample::{RowSample, geometry};
use super::super::tests::Bench;
use super::*;
use crate::cache::order::MemberView;

/// Two members of three give wrong bytes where one may: it cannot be had, and both are named.
#[test]
fn who_gave_wrong_bytes_is_named_even_if_nothing_comes_of_it() {
    let mut bench = Bench::new(RowSample::of_rows(geometry(4, 2, 3, 16), 8), 1316);
    let order = bench.order(0, 0, MemberView::default(), true).unwrap();
    let mut read = Bench::read(&order);
    for (span, bytes) in order.spans.iter().zip(&mut read) {
        if matches!(span.role, Role::Data { position: 0 | 1 }) {
            bytes.as_mut().unwrap().iter_mut().step_by(500).for_each(|byte| *byte ^= 4);
        }
    }
    let failed = Built::Failed { failure: ReadFailure::Checksum, wrong: 0b011 };
    assert_eq!(bench.build(&order, &read), failed);
}

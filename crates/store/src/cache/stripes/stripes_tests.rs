use std::os::unix::fs::FileExt;

use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::ExtentContent;
use proptest::prelude::*;

use super::sample::{StripeSample, StripeSource, geometry};
use crate::cache::builder::Builder;
use crate::cache::handle::ReadFailure;
use crate::cache::order::{Built, Filled, MAX_SPANS, MemberView, Order, Role};
use crate::cache::source::{OpenTitle, OrderResults};
use crate::member_set::{MemberSet, PositionSet};
use std::sync::Arc;

/// k, m, members, unit: those that volumes have, and odd ones.
type StripeShape = (u16, u16, u16, u32);
const GEOMETRIES: [StripeShape; 12] = [
    (8, 1, 1, 8),
    (8, 3, 1, 20),
    (4, 4, 2, 16),
    (4, 2, 3, 16),
    (4, 4, 4, 12),
    (4, 1, 5, 16),
    (6, 3, 3, 5),
    (3, 0, 3, 20),
    (10, 2, 6, 10),
    (1, 1, 2, 1),
    (40, 8, 6, 2),
    (60, 4, 32, 20),
];

/// The named sizes, the smallest and the largest, and one that is more than a unit.
const SIZES: [usize; 7] = [188, 940, 1316, 1880, 3948, 8084, 9024];

/// A title, with the means to process the data read from it.
pub(super) struct Bench {
    pub(super) sample: StripeSample,
    pub(super) title: Arc<OpenTitle>,
    pub(super) builder: Builder,
    pub(super) bytes: Vec<u8>,
}

/// The data read for an order.
pub(super) type Read = Vec<Result<Vec<u8>, i32>>;

impl Bench {
    pub(super) fn new(sample: StripeSample, packet_bytes: usize) -> Self {
        let title = Self::title(sample.open(packet_bytes));
        Self { sample, title, builder: Builder::default(), bytes: vec![0xee; EXTENT_BYTES] }
    }

    pub(super) fn title(source: StripeSource) -> Arc<OpenTitle> {
        let title = OpenTitle::new(Box::new(source));
        title.refuse_direct(); // these tests read what they are told, not aligned
        Arc::new(title)
    }

    pub(super) fn order(
        &self,
        extent: u32,
        spare: u8,
        view: MemberView,
        thorough: bool,
    ) -> Result<Order, ReadFailure> {
        let order = self.title.order(extent, spare, view, thorough)?;
        assert!(order.spans.len() <= MAX_SPANS && order.spans.iter().all(|span| !span.bytes.is_empty()));
        assert!(order.thorough || !thorough);
        Ok(order)
    }

    pub(super) fn read(order: &Order) -> Read {
        let read = |span: &crate::cache::order::SpanOrder| {
            assert!(!span.direct);
            let mut bytes = vec![0; (span.bytes.end - span.bytes.start) as usize];
            let result = span.file.get().read_exact_at(&mut bytes, span.bytes.start);
            result.map(|()| bytes).map_err(|_| libc::ENODATA)
        };
        order.spans.iter().map(read).collect()
    }

    pub(super) fn build(&mut self, order: &Order, read: &Read) -> Built {
        let results: Vec<_> = read.iter().map(|r| r.as_deref().map_err(|errno| *errno)).collect();
        self.bytes.fill(0xee);
        let read = OrderResults { reference: TitleRef(1), title: &self.title, order, spans: &results };
        self.builder.assemble(read, &mut self.bytes)
    }

    /// Reads as often as it takes, as a reader does.
    pub(super) fn fetch(&mut self, extent: u32, spare: u8, view: MemberView) -> Result<Filled, ReadFailure> {
        let mut thorough = false;
        loop {
            let order = self.order(extent, spare, view, thorough)?;
            let read = Self::read(&order);
            match self.build(&order, &read) {
                Built::Done(filled) => return Ok(filled),
                Built::More { .. } => {
                    assert!(!order.thorough, "a thorough order is the last");
                    thorough = true;
                }
                Built::Failed { failure, .. } | Built::Damaged { failure, .. } => return Err(failure),
            }
        }
    }

    pub(super) fn check(&self, content: &ExtentContent) -> Vec<u32> {
        self.sample.check(content, &self.bytes)
    }
}

fn sample((k, m, members, unit): StripeShape) -> StripeSample {
    let stripe_packets = usize::from(k) * unit as usize;
    StripeSample::of_stripes(geometry(k, m, members, unit), (450 / stripe_packets).max(2))
}

fn avoided(lost: impl Into<MemberSet>, avoid: impl Into<MemberSet>) -> MemberView {
    MemberView { lost: lost.into(), avoid: avoid.into(), ..MemberView::default() }
}

fn lost(members: impl Into<MemberSet>) -> MemberView {
    MemberView { lost: members.into(), ..MemberView::default() }
}

/// The positions of these members: those of the sample title lie in the slots of the same numbers.
fn positions(members: MemberSet) -> PositionSet {
    members.iter().collect()
}

#[test]
fn fetch_of_any_geometry_and_size_reads_only_needed_bytes() {
    for shape in GEOMETRIES {
        let mut bench = Bench::new(sample(shape), 1316);
        for size in SIZES {
            bench.title = Bench::title(bench.sample.open(size));
            for extent in 0..bench.title.extents() {
                let order = bench.order(extent, 0, MemberView::default(), false).unwrap();
                let is_data = |role: Role| matches!(role, Role::Data { .. });
                let data: Vec<_> = order.spans.iter().filter(|span| is_data(span.role)).collect();
                let read: u64 = data.iter().map(|span| span.bytes.end - span.bytes.start).sum();
                let geometry = bench.title.geometry(extent).unwrap();
                assert_eq!(read, geometry.data.end - geometry.data.start, "{:?}", shape);
                assert_eq!(order.spans.len(), data.len() + 1, "one file of records");
                assert!(data.len() <= bench.sample.stripes.members());
                let filled = bench.fetch(extent, 0, MemberView::default()).unwrap();
                assert_eq!((filled.decoded_bytes, filled.content.spare), (0, 0));
                assert!(filled.wrong.is_empty());
                assert!(bench.check(&filled.content).is_empty());
            }
        }
    }
}

/// Every loss of one and of two members, in every size: decoded if the parity makes up for it,
/// otherwise reported.
#[test]
fn fetch_with_one_or_two_members_lost_decodes_or_reports_loss() {
    for shape in GEOMETRIES {
        let sample = sample(shape);
        let (members, may) = (sample.stripes.members() as u16, sample.stripes.tolerance());
        let mut bench = Bench::new(sample, 1316);
        let pairs = (0..members).flat_map(|a| (a..members).map(move |b| (a, b)));
        // Of many members not every pair: each that is the first of a pair is with its neighbours and the last.
        let near = |&(a, b): &(u16, u16)| members < 8 || b - a <= 1;
        for (number, (a, b)) in pairs.filter(near).enumerate() {
            let set = MemberSet::from([a, b]);
            let sizes = if members < 8 { &SIZES[..] } else { &SIZES[2 + number % 3..3 + number % 3] };
            for &size in sizes {
                bench.title = Bench::title(bench.sample.open(size));
                for extent in 0..bench.title.extents() {
                    match bench.fetch(extent, 0, lost(set)) {
                        Ok(filled) => {
                            assert_eq!((filled.wrong, filled.content.spare), (MemberSet::EMPTY, 0));
                            assert!(bench.check(&filled.content).is_empty());
                        }
                        Err(failure) => {
                            let count = set.len();
                            let expected = ReadFailure::MembersLost { lost: count as u8, may: may as u8 };
                            assert_eq!(failure, expected);
                            assert!(count > may, "{set:?} of {:?}", shape);
                        }
                    }
                }
            }
        }
    }
}

/// The same with members that say nothing, fail in the middle, or end too early instead of being known as lost.
#[test]
fn build_with_failed_or_short_reads_decodes_missing_data() {
    let mut bench = Bench::new(sample(GEOMETRIES[3]), 1880);
    for extent in 0..bench.title.extents() {
        for position in 0..3 {
            let order = bench.order(extent, 0, MemberView::default(), false).unwrap();
            let mut read = Bench::read(&order);
            let span = order.spans.iter().position(|span| span.role == Role::Data { position }).unwrap();
            let whole = read[span].clone().unwrap();
            for bad in [Err(libc::EIO), Ok(whole[..whole.len() / 2].to_vec()), Ok(Vec::new())] {
                read[span] = bad;
                assert_eq!(bench.build(&order, &read), Built::More { wrong: MemberSet::EMPTY });
            }
            let order = bench.order(extent, 0, MemberView::default().without(position), true).unwrap();
            let mut read = Bench::read(&order);
            let Built::Done(filled) = bench.build(&order, &read) else { panic!("one of three may be lost") };
            assert!(filled.decoded_bytes > 0 && bench.check(&filled.content).is_empty());
            // A second member fails while the first is made up for: only its data fails, and its
            // other content is used.
            let span = order.spans.iter().position(|span| matches!(span.role, Role::Data { .. })).unwrap();
            read[span] = Err(libc::ETIMEDOUT);
            let Built::Damaged { filled, left_out, failure } = bench.build(&order, &read) else {
                panic!("the third has all of its packets")
            };
            assert_eq!(failure, ReadFailure::Io(libc::ETIMEDOUT));
            assert_eq!(bench.check(&filled.content).len(), left_out.packets as usize);
            // Of one that gives nothing at all nothing can be used.
            let member = order.spans[span].member;
            let others = order.spans.iter().map(|span| span.member);
            let of_member = others.enumerate().filter(|(_, other)| *other == member);
            of_member.for_each(|(span, _)| read[span] = Err(libc::ETIMEDOUT));
            let failed = Built::failed(ReadFailure::MembersLost { lost: 2, may: 1 });
            assert_eq!(bench.build(&order, &read), failed);
        }
    }
}

#[test]
fn build_with_wrong_byte_decodes_it_and_names_member() {
    for shape in [0, 1, 2, 3, 8].map(|index: usize| GEOMETRIES[index]) {
        let mut bench = Bench::new(sample(shape), 1316);
        for extent in 0..bench.title.extents() {
            let order = bench.order(extent, 0, MemberView::default(), false).unwrap();
            let good = Bench::read(&order);
            for (span, bytes) in
                order.spans.iter().zip(0..).filter(|(span, _)| matches!(span.role, Role::Data { .. }))
            {
                let mut read = good.clone();
                let flipped = read[bytes].as_mut().unwrap();
                let at = (extent as usize * 7919 + bytes * 977) % flipped.len();
                flipped[at] ^= 0x10;
                let wrong = MemberSet::of(span.member.unwrap());
                assert_eq!(bench.build(&order, &read), Built::More { wrong });
                // It is still wrong when everything is read.
                let order = bench.order(extent, 0, MemberView::default(), true).unwrap();
                let mut read = Bench::read(&order);
                let place = order.spans.iter().position(|other| other.role == span.role).unwrap();
                let media_at = span.bytes.start + at as u64 - order.spans[place].bytes.start;
                read[place].as_mut().unwrap()[media_at as usize] ^= 0x10;
                let Built::Done(filled) = bench.build(&order, &read) else { panic!("one packet is wrong") };
                assert_eq!((filled.wrong, filled.decoded_bytes), (wrong, 1316));
                assert!(bench.check(&filled.content).is_empty());
            }
        }
    }
}

#[test]
fn wrong_records_are_read_from_another_member() {
    let mut bench = Bench::new(sample(GEOMETRIES[3]), 1880);
    let order = bench.order(1, 0, MemberView::default(), false).unwrap();
    let mut read = Bench::read(&order);
    let place = order.spans.iter().position(|span| span.role == Role::Meta).unwrap();
    read[place].as_mut().unwrap()[100] ^= 1;
    assert!(matches!(bench.build(&order, &read), Built::More { .. }));
    let order = bench.order(1, 0, MemberView::default(), true).unwrap();
    let good = Bench::read(&order);
    for role in [Role::Meta, Role::StripeMeta, Role::ParityMeta] {
        let copies: Vec<_> = (0..order.spans.len()).filter(|&at| order.spans[at].role == role).collect();
        assert_eq!(copies.len(), 2);
        assert_ne!(order.spans[copies[0]].member, order.spans[copies[1]].member);
        let mut read = good.clone();
        read[copies[0]].as_mut().unwrap()[100] ^= 1;
        let Built::Done(filled) = bench.build(&order, &read) else {
            panic!("{role:?}: the other copy is good")
        };
        assert!(bench.check(&filled.content).is_empty());
        read[copies[1]] = Err(libc::EIO);
        match (role, bench.build(&order, &read)) {
            // Nothing was missing: then the parity is not needed.
            (Role::ParityMeta, Built::Done(_))
            | (_, Built::Failed { failure: ReadFailure::Io(libc::EIO), .. }) => {}
            (_, other) => panic!("{role:?}: {other:?}"),
        }
    }
}

#[test]
fn members_that_are_avoided_are_asked_when_it_does_not_work_without() {
    let bench = Bench::new(sample(GEOMETRIES[3]), 1316);
    let slots = |view: MemberView| {
        let order = bench.order(0, 0, view, false).unwrap();
        let asked = order.spans.iter().filter(|span| matches!(span.role, Role::Data { .. }));
        (asked.filter_map(|span| span.member).collect::<MemberSet>(), order.thorough)
    };
    assert_eq!(slots(avoided([], [0])), ([1, 2].into(), true), "decoded from the two quick ones");
    assert_eq!(
        slots(avoided([], [0, 1])),
        ([0, 1, 2].into(), false),
        "two slow ones of three: all are asked"
    );
    assert_eq!(slots(avoided([2], [0])), ([0, 1].into(), true));
    let failure = bench.order(0, 0, lost([0, 2]), false).unwrap_err();
    assert_eq!(failure, ReadFailure::MembersLost { lost: 2, may: 1 });
}

#[test]
fn members_that_come_and_go_are_opened_anew() {
    let mut bench = Bench::new(sample(GEOMETRIES[3]), 1316);
    let decoded = |bench: &mut Bench| {
        let filled = bench.fetch(0, 0, MemberView::default()).unwrap();
        assert!(bench.check(&filled.content).is_empty());
        filled.decoded_bytes > 0
    };
    assert!(!decoded(&mut bench));
    bench.sample.take_away(&[1]);
    assert!(decoded(&mut bench), "not believed");
    std::fs::remove_dir_all(bench.sample.member(1)).unwrap();
    bench.sample.take_away(&[]);
    bench.sample.epoch.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    let order = bench.order(0, 0, MemberView::default(), false).unwrap();
    assert_eq!((order.absent, order.left_out), ([1].into(), [1].into()), "not there");
    assert!(order.thorough);
    bench.sample.replace(1);
    assert!(!decoded(&mut bench));
}

/// The lease of a viewer who repairs: nothing decoded, holes marked, as many as the viewer can
/// repair and no more.
#[test]
fn holes_for_those_who_repair() {
    for shape in GEOMETRIES {
        let (k, m, members, unit) = shape;
        let mut bench = Bench::new(sample(shape), 1316);
        for (extent, position) in (0..bench.title.extents()).flat_map(|e| (0..members).map(move |p| (e, p))) {
            for spare in [1, m.max(1) as u8] {
                let Ok(filled) = bench.fetch(extent, spare, lost([position])) else {
                    assert!(bench.sample.stripes.tolerance() == 0);
                    continue;
                };
                let missing = bench.check(&filled.content);
                let decoded = filled.decoded_bytes > 0;
                assert!(filled.content.spare <= spare && (missing.is_empty() == (filled.content.spare == 0)));
                assert!(missing.is_empty() || !decoded);
                // The symbols missing from each codeword, computed only from the packets' numbers
                // and the lost parity.
                let mut most = 0;
                for stripe in 0..bench.sample.stripes.stripes() {
                    for column in 0..unit {
                        let of = |p: &&u32| **p / (u32::from(k) * unit) == stripe && **p % unit == column;
                        let data = missing.iter().filter(of).count();
                        let on = |p: &u16| {
                            bench.sample.stripes.position_of(stripe, usize::from(k + p))
                                == usize::from(position)
                        };
                        let parity: Vec<u16> = (0..m).filter(on).collect();
                        let xor = data <= 1 && !(data == 1 && parity.contains(&0));
                        assert!(
                            data == 0 || xor || spare == m as u8 && data + parity.len() <= usize::from(m)
                        );
                        most = most.max(match data {
                            0 => 0,
                            _ if xor => 1,
                            _ => m as u8,
                        });
                    }
                }
                // For stripes longer than an extent, only the symbols missing from the whole stripe
                // are known.
                let is_exact = u32::from(k) * unit <= 196 && members > 1;
                assert!(
                    filled.content.spare == most || !is_exact && filled.content.spare > most,
                    "{shape:?}"
                );
                if spare == m as u8 && !decoded {
                    assert!(!bench.order(extent, spare, lost([position]), false).unwrap().thorough);
                }
            }
        }
    }
}

/// The viewer has room for more holes than a lost member leaves: what others have wrong, or do not give in time, is decoded even so.
#[test]
fn fetch_for_repairing_viewer_leaves_holes_only_for_lost_members() {
    let mut bench = Bench::new(sample(GEOMETRIES[4]), 1316); // 4 + 4 on 4
    let order = bench.order(0, 4, lost([0]), false).unwrap();
    assert!(!order.thorough);
    let mut read = Bench::read(&order);
    let place = order.spans.iter().position(|span| span.role == Role::Data { position: 1 }).unwrap();
    read[place].as_mut().unwrap()[0] ^= 1;
    assert_eq!(bench.build(&order, &read), Built::More { wrong: [1].into() });
    read[place] = Err(libc::EIO);
    assert_eq!(bench.build(&order, &read), Built::More { wrong: MemberSet::EMPTY });
    for view in [avoided([], [0]), avoided([0], [1])] {
        let order = bench.order(0, 4, view, false).unwrap();
        assert_eq!((order.thorough, order.left_out), (true, positions(view.lost | view.avoid)));
        let filled = bench.fetch(0, 4, view).unwrap();
        assert!(filled.decoded_bytes > 0 && bench.check(&filled.content).is_empty());
    }
    // Where the parity does not make up for both, the one that is avoided is asked, and only the other leaves holes.
    let view = avoided([0, 1], [2]);
    let order = bench.order(0, 4, view, false).unwrap();
    assert_eq!((order.thorough, order.left_out), (false, positions(view.lost)));
    // Packets that FEC is not for are decoded.
    bench.title = Bench::title(bench.sample.open(1880));
    assert!(bench.order(0, 4, lost([0]), false).unwrap().thorough);
}

proptest! {
    // A case makes a whole title: fewer of them, but still as many more as are asked for.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]
    /// Whatever is lost, truncated or wrong: leased data is correct, and it is leased if the
    /// remaining data suffices.
    #[test]
    fn build_with_random_losses_never_returns_wrong_bytes(
        index in 0..GEOMETRIES.len() - 1,
        size in 0..SIZES.len(),
        extent: u32,
        gone: u32,
        spare in 0u8..9,
        harm in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4), 0..6),
    ) {
        let mut bench = Bench::new(sample(GEOMETRIES[index]), SIZES[size]);
        let (members, may) = (bench.sample.stripes.members(), bench.sample.stripes.tolerance());
        let gone: MemberSet = (0..members as u16).filter(|member| gone & gone >> 3 & 1 << member != 0).collect();
        let extent = extent % bench.title.extents();
        let mut thorough = false;
        loop {
            let Ok(order) = bench.order(extent, spare, lost(gone), thorough) else {
                prop_assert!(gone.len() > may);
                break;
            };
            let mut read = Bench::read(&order);
            let mut harmed = MemberSet::EMPTY;
            for (span, at, kind) in &harm {
                let span = span.index(read.len());
                harmed.insert(order.spans[span].member.unwrap());
                let Ok(bytes) = &mut read[span] else { continue };
                match kind {
                    0 => read[span] = Err(libc::EIO),
                    1 => bytes.truncate(at.index(bytes.len().max(1))),
                    _ if bytes.is_empty() => {}
                    _ => { let at = at.index(bytes.len()); bytes[at] ^= 1 << kind }
                }
            }
            match bench.build(&order, &read) {
                Built::Done(filled) => {
                    let missing = bench.check(&filled.content);
                    prop_assert!(filled.content.spare <= spare && (missing.is_empty() || spare > 0));
                    break;
                }
                Built::More { .. } => thorough = true,
                Built::Damaged { filled, left_out, .. } => {
                    prop_assert!(order.thorough && !harmed.is_empty() && filled.content.is_damaged());
                    let missing = bench.check(&filled.content);
                    prop_assert_eq!(missing.len(), left_out.packets as usize);
                    let ends = (missing.first().copied(), missing.last().copied());
                    prop_assert_eq!(ends, (Some(left_out.first), Some(left_out.last)));
                    break;
                }
                Built::Failed { .. } => {
                    prop_assert!(order.thorough && (gone | harmed).len() > may);
                    break;
                }
            }
        }
    }
}

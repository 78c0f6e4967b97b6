use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::time::MediaTicks;

use super::super::Transforms;
use super::*;
use millrace_testkit::mux::usual_film;

/// Changes everything, and fails if the flag is set.
struct Invert(bool);

impl Transform for Invert {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        let mut packets = 0;
        let mut failed = false;
        block.for_each(|packet| {
            packets += 1;
            failed = self.0 && packets == 500;
            if !failed {
                packet.iter_mut().for_each(|byte| *byte = !*byte);
            }
        });
        if self.0 {
            panic!("a transformation that panics, for the test");
        }
        Ok(Applied { left_out: packets })
    }
    fn may_fail(&self) -> bool {
        self.0
    }
}

fn derivation(steps: Vec<Box<dyn Transform>>) -> (Derivation, Arc<NamedTransform>) {
    let all = Transforms::parse(&["x=select:audio=all"]).unwrap();
    let named = Arc::clone(all.iter().next().unwrap());
    (Derivation { named: Arc::clone(&named), title: TitleId([3; 16]), transform: Chain(steps) }, named)
}

/// Returns an extent as it is filled, with these packets missing, and a description of its
/// contents.
fn extent(layout: WireLayout, packets: u32, last: u16, missing: &[u32]) -> (Vec<u8>, ExtentContent) {
    let mut extent: Vec<u8> = (0..EXTENT_BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
    for place in 0..packets {
        let flags = 1 | if missing.contains(&place) { PacketMeta::MISSING } else { 0 };
        let record = PacketMeta::new(0x1234, flags, MediaTicks(u64::from(place) * 9));
        extent[layout.meta_offset(place, packets)..][..8].copy_from_slice(&record.to_bytes());
    }
    let content = ExtentContent {
        title: TitleRef(1),
        number: 2,
        first_packet: 392,
        packets,
        last_packet_bytes: last,
        layout,
        spare: 0,
    };
    (extent, content)
}

#[test]
fn payloads_are_changed_and_summed_and_nothing_else_of_an_extent() {
    let default = WireLayout::new(1316).unwrap();
    for (layout, packets, last) in [
        (default, 196, 1316),
        (default, 7, 376),
        (default.raw().unwrap(), 196, 188),
        (WireLayout::new(8084).unwrap(), 31, 188),
    ] {
        let missing = [0, 3, packets - 2];
        let (before, content) = extent(layout, packets, last, &missing);
        let (derivation, named) = derivation(vec![Box::new(Invert(false))]);
        let mut after = before.clone();
        derivation.apply_to_extent(&content, &mut after, &mut Vec::new());
        for place in 0..packets {
            let bytes = if place + 1 == packets { usize::from(last) } else { layout.packet_bytes() };
            let at = place as usize * layout.slot_bytes();
            let payload = at + layout.header_bytes()..at + layout.header_bytes() + bytes;
            assert_eq!(after[at..payload.start], before[at..payload.start], "header {place}");
            let record =
                PacketMeta::from_bytes(*after[layout.meta_offset(place, packets)..].first_chunk().unwrap());
            assert_eq!((record.time().0, record.flags() & 1), (u64::from(place) * 9, 1));
            if missing.contains(&place) {
                assert_eq!(after[payload.clone()], before[payload], "missing packet {place}");
                assert_eq!(record.sum(), 0x1234);
            } else {
                assert!(
                    after[payload.clone()].iter().zip(&before[payload.clone()]).all(|(is, was)| *is == !was)
                );
                assert_eq!(record.sum(), sum16(&after[payload]), "sum of packet {place}");
            }
        }
        let end = (packets as usize - 1) * layout.slot_bytes() + layout.header_bytes() + usize::from(last);
        let records = layout.meta_offset(0, packets);
        assert!(after[end..records] == before[end..records], "what lies between is left alone");
        let ts =
            (packets as usize - 1 - missing.len()) * (layout.packet_bytes() / 188) + usize::from(last) / 188;
        assert_eq!(named.report().counters().left_out_packets, ts as u64);
    }
}

#[test]
fn apply_to_extent_with_failing_step_restores_block_and_reports() {
    let layout = WireLayout::new(1316).unwrap();
    let (before, content) = extent(layout, 196, 1316, &[5]);
    let (derivation, named) = derivation(vec![Box::new(Invert(false)), Box::new(Invert(true))]);
    let mut after = before.clone();
    derivation.apply_to_extent(&content, &mut after, &mut Vec::new());
    assert!(after == before, "payloads and records");
    let counters = named.report().counters();
    assert_eq!((counters.failed_blocks, counters.transformed_blocks), (1, 0));
    let failure = named.report().take_failure(millrace_core::time::Instant(0)).unwrap();
    assert_eq!((failure.title, failure.first_ts), (TitleId([3; 16]), 392 * 7));
    assert!(failure.error.to_string().contains("panicked"), "{}", failure.error);
}

#[test]
fn bytes_are_copied_out_and_back_without_headers_and_holes() {
    let layout = WireLayout::new(1316).unwrap();
    let (mut before, _) = extent(layout, 5, 188, &[1]);
    let (slots, records) = before.split_at_mut(layout.meta_offset(0, 5));
    let mut block = PacketBlock::new(layout, 10, &mut slots[..4 * layout.slot_bytes() + 12 + 188], records);
    assert_eq!((block.first_ts(), block.payload_bytes()), (70, 4 * 1316 + 188));
    let mut copy = vec![9; block.payload_bytes()];
    block.copy_to(&mut copy);
    assert!(copy[1316..2 * 1316].iter().all(|byte| *byte == 0), "a packet that is not there");
    let mut seen = Vec::new();
    block.for_each(|packet| seen.extend(*packet));
    assert!(seen == [&copy[..1316], &copy[2 * 1316..]].concat());
    copy.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    block.copy_from(&copy);
    let mut now = Vec::new();
    block.for_each(|packet| now.extend(*packet));
    assert!(now == [&copy[..1316], &copy[2 * 1316..]].concat());
}

#[test]
fn offsets_of_a_chain_add_up_and_its_steps_follow_each_other() {
    let all =
        Transforms::parse(&["x=restamp:offset=10s+select:audio=none+restamp:ticks=8589934591"]).unwrap();
    let named = all.iter().next().unwrap();
    assert_eq!(named.stamp_offset(), 899_999);
    let stream = usual_film();
    let derivation = Derivation::bind(named, TitleId([1; 16]), &stream).unwrap();
    assert_eq!(derivation.transform.stamp_offset(), 899_999);
    assert!(!derivation.is_slow());
    let mut out = stream.clone();
    assert!(derivation.apply(&mut PacketBlock::of_bytes(0, 1316, &mut out), &mut Vec::new()));
    let one = Transforms::parse(&["x=restamp:ticks=899999", "y=select:audio=none"]).unwrap();
    let mut expected = stream.clone();
    for named in one.iter() {
        let step = Derivation::bind(named, TitleId([1; 16]), &stream).unwrap();
        assert!(step.apply(&mut PacketBlock::of_bytes(0, 1316, &mut expected), &mut Vec::new()));
    }
    assert!(out == expected && out != stream);
}

#[test]
fn timeline_of_each_track_has_unique_ssrc() {
    let timeline = Timeline { ssrc: 77, timestamp_base: 5 };
    let mut found: Vec<_> = (0..=255).map(|number| timeline_of(timeline, number).ssrc).collect();
    found.push(timeline.ssrc);
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 257);
}

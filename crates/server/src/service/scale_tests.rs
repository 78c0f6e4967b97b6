use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::packet::WireLayout;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::*;
use crate::service::ports::{AccessPoint, AccessPoints, TitleEntry};
use crate::service::presentation::Presentation;
use crate::service::run::Stop;
use crate::service::shown::ShownEntry;

/// 400 packets a second, an access point every second.
struct Even;

impl AccessPoints for Even {
    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let second = time.0 / 90_000;
        AccessPoint { packet: (second * 400) as u32, time: MediaTicks(second * 90_000) }
    }
    fn access_at_or_after(&self, _: MediaTicks) -> Option<AccessPoint> {
        None
    }
    fn packet_at(&self, time: MediaTicks) -> u32 {
        time.0.div_ceil(225) as u32
    }
    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        Some(MediaTicks(u64::from(packet) * 225))
    }
}

fn entry(hundredths: i16, seconds: u64) -> TitleEntry {
    TitleEntry {
        id: TitleId([1; 16]),
        name: "film".into(),
        title: "Film".into(),
        is_made: hundredths != 100,
        scale: Scale::from_hundredths(hundredths).unwrap(),
        duration: MediaTicks(seconds * 90_000),
        presentation: Presentation::new(Some(MediaTicks(seconds * 90_000 + 9_000)), Vec::new()),
        mean_rate: BitRate(4_000_000),
        peak_rate: BitRate(4_000_000),
        packets: (seconds * 400) as u32,
        timeline: Timeline { ssrc: 1, timestamp_base: 0 },
        layout: WireLayout::new(1316).unwrap(),
        fec: None,
        access: Arc::new(Even),
        transform: None,
        began_unix_ms: None,
    }
}

const S: u64 = 90_000;

#[test]
fn shown_times_and_places_in_what_is_sent() {
    let title = entry(100, 120);
    for (hundredths, shown_s, packet, begins_s) in [
        (400, 40, 4_000, 40),
        (400, 43, 4_000, 40),
        (-400, 40, 8_000, 40),
        // The access point before it shows a later part of the title.
        (-400, 43, 7_600, 44),
        (50, 30, 24_000, 30),
        (-100, 0, 48_000, 0),
        (-3_200, 120, 0, 120),
        (100, 40, 16_000, 40),
    ] {
        let speed = u64::from(hundredths_of(hundredths));
        let made = entry(hundredths, 120 * 100 / speed);
        let shown = ShownEntry::new(&title, &made);
        let access = shown.access(MediaTicks(shown_s * S));
        assert_eq!(access.packet, packet, "{hundredths} at {shown_s} s");
        assert_eq!(shown.shown_time(access.time), MediaTicks(begins_s * S), "{hundredths} at {shown_s} s");
    }
}

fn hundredths_of(hundredths: i16) -> u16 {
    Scale::from_hundredths(hundredths).unwrap().speed_hundredths()
}

#[test]
fn ends_and_stops() {
    let title = entry(100, 120);
    let (forward, back) = (entry(400, 30), entry(-400, 30));
    let (forward, back) = (ShownEntry::new(&title, &forward), ShownEntry::new(&title, &back));
    assert_eq!(forward.end(), Stop { packet: 12_000, time: MediaTicks(120 * S + 9_000) });
    assert_eq!(back.end(), Stop { packet: 12_000, time: MediaTicks(0) });
    assert_eq!(forward.stop_at(MediaTicks(40 * S)), Stop { packet: 4_000, time: MediaTicks(40 * S) });
    assert_eq!(back.stop_at(MediaTicks(40 * S)), Stop { packet: 8_000, time: MediaTicks(40 * S) });
    assert_eq!(back.stop_at(MediaTicks(0)), back.end());
    assert_eq!(forward.stop_at(MediaTicks(500 * S)), forward.end());
    // One second of the made title is several seconds of the title.
    let second = MediaTicks(S);
    assert_eq!(forward.after(MediaTicks(40 * S), second, forward.end()), MediaTicks(44 * S));
    assert_eq!(back.after(MediaTicks(40 * S), second, back.end()), MediaTicks(36 * S));
    assert_eq!(back.after(MediaTicks(2 * S), second, back.end()), MediaTicks(0));
    assert_eq!(forward.after(MediaTicks(40 * S), second, forward.stop_at(MediaTicks(42 * S))).0, 42 * S);
}

#[test]
fn by_distance_prefers_scale_of_smallest_ratio() {
    let nearest = |wished: i16, there: &[i16]| {
        let scale = |hundredths: &i16| Scale::from_hundredths(*hundredths).unwrap();
        let mut there: Vec<_> = there.iter().map(scale).collect();
        there.sort_by(|a, b| by_distance(scale(&wished), *a, *b));
        there[0].hundredths()
    };
    assert_eq!(nearest(800, &[100, 400, 1_600, 800]), 800);
    assert_eq!(nearest(3_200, &[100, 200, 400]), 400);
    assert_eq!(nearest(300, &[100, 200, 400]), 400);
    assert_eq!(nearest(110, &[100, 200, 400]), 100);
    assert_eq!(nearest(200, &[100, 400]), 400, "equally far, and normal speed is not what was wished");
    assert_eq!(nearest(-50, &[-200, -400]), -200);
}

#[test]
fn speed_more_of_returns_extra_bit_rate() {
    assert_eq!(Speed::nearest(0).permille(), 250);
    assert_eq!(Speed::nearest(99_000).permille(), 4_000);
    assert_eq!(Speed::nearest(2_500).more_of(4_000_000), 6_000_000);
    assert_eq!(Speed::nearest(500).more_of(4_000_000), 0);
    assert!(
        LOWER_SPEEDS.is_sorted_by(|a, b| a > b) && LOWER_SPEEDS.iter().all(|speed| *speed > Speed::NORMAL)
    );
}

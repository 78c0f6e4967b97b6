use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;

fn at(tenths: u64) -> Instant {
    Instant(1_000 * S + tenths * S / 10)
}

/// A viewer that is measured each second, and what becomes of it.
#[derive(Default)]
struct MeasuredViewer {
    adapter: Adapter,
    tenths: u64,
    verdicts: Vec<(u64, AdaptDecision)>,
}

impl MeasuredViewer {
    /// Runs for `seconds` seconds, with this report each second; verdicts are carried out.
    fn live(&mut self, seconds: u64, mut heard: impl FnMut(&mut Adapter, Instant, u64)) {
        for second in 0..seconds {
            self.tenths += 10;
            let now = at(self.tenths);
            heard(&mut self.adapter, now, second);
            if let Some(verdict) = self.adapter.verdict(now) {
                self.verdicts.push((self.tenths / 10, verdict));
                self.adapter.changed(now, verdict == AdaptDecision::Up);
            }
        }
    }

    fn times(&self) -> Vec<(u64, bool)> {
        self.verdicts.iter().map(|(at, verdict)| (*at, *verdict == AdaptDecision::Up)).collect()
    }
}

#[test]
fn adapter_of_lagging_viewer_goes_down_to_its_throughput() {
    let mut viewer = MeasuredViewer::default();
    // It takes 6 of 10.
    viewer.live(9, |adapter, now, second| adapter.behind(now, second * 4 * S / 10));
    let down = AdaptDecision::Down { through_permille: 600, trouble: Trouble::SlowReader };
    assert_eq!(viewer.verdicts, [(4, down)]);
    // Its lag before it began to fall behind does not count.
    let mut late = MeasuredViewer::default();
    late.live(5, |adapter, now, second| adapter.behind(now, (3 + second * 4) * S / 10));
    assert_eq!(late.verdicts, [(3, down)]);
    // Nor does the time before that.
    let mut well = MeasuredViewer::default();
    well.live(8, |adapter, now, second| adapter.behind(now, second.saturating_sub(4) * 4 * S / 10));
    assert_eq!(well.verdicts, [(8, down)]);
    // It is still behind, but catches up.
    viewer.live(20, |adapter, now, second| adapter.behind(now, (3 * S).saturating_sub(second * S / 10)));
    assert_eq!(viewer.verdicts.len(), 1);
}

#[test]
fn adapter_ignores_short_read_pauses() {
    let mut viewer = MeasuredViewer::default();
    // It stands still for just under a second, again and again, and catches up each time.
    for _ in 0..10 {
        viewer.live(4, |adapter, now, second| adapter.behind(now, (9 - 3 * second) * S / 10));
    }
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
}

#[test]
fn adapter_ignores_isolated_loss_reports() {
    let mut viewer = MeasuredViewer::default();
    // As live555 and GStreamer begin; once more after each good report; and far apart.
    viewer.live(120, |adapter, now, second| match second % 5 {
        0 | 1 => adapter.report(now, 255),
        2 => adapter.report(now, 0),
        _ => {}
    });
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
    viewer.live(200, |adapter, now, second| {
        if second % 25 == 0 {
            adapter.report(now, 255);
        }
    });
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
    // Nor do two of them, however far apart they are.
    let mut viewer = MeasuredViewer::default();
    viewer.live(60, |adapter, now, second| match second % 15 {
        0 | 7 => adapter.report(now, 255),
        8 => adapter.report(now, 0),
        _ => {}
    });
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
    // Not in so short a time either, however many.
    let mut viewer = MeasuredViewer::default();
    viewer.live(1, |adapter, now, _| (0..40).for_each(|n| adapter.report(Instant(now.0 + n * S / 12), 200)));
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
}

#[test]
fn sustained_loss_is_believed() {
    let mut viewer = MeasuredViewer::default();
    viewer.live(6, |adapter, now, second| {
        if second % 2 == 0 {
            adapter.report(now, 64);
        }
    });
    assert_eq!(viewer.verdicts, [(5, AdaptDecision::Down { through_permille: 750, trouble: Trouble::Loss })]);
}

#[test]
fn adapter_doubles_retry_interval_after_each_failed_upgrade() {
    let mut viewer = MeasuredViewer::default();
    let reads_well =
        |viewer: &mut MeasuredViewer, seconds| viewer.live(seconds, |adapter, now, _| adapter.behind(now, 0));
    reads_well(&mut viewer, 25);
    let mut ups = Vec::new();
    for _ in 0..6 {
        // The attempted rate is too much.
        viewer.live(13, |adapter, now, second| adapter.behind(now, second * S));
        let begins = viewer.verdicts.last().expect("it has gone down").0;
        let before = viewer.verdicts.len();
        while viewer.verdicts.len() == before {
            reads_well(&mut viewer, 1);
        }
        ups.push(viewer.verdicts.last().unwrap().0 - begins);
    }
    let least = |n: usize| {
        (RENDITION_UP_NS << n.min(4)) / S * u64::from(n < 5) + RENDITION_UP_MAX_NS / S * u64::from(n >= 5)
    };
    for (n, up) in ups.iter().enumerate() {
        // Up to 13 s of falling behind may follow the change.
        assert!((least(n + 1)..least(n + 1) + 13).contains(up), "{ups:?}");
    }
    // One that lasts counts for all that failed.
    reads_well(&mut viewer, 61);
    let last = viewer.verdicts.last().unwrap().0;
    viewer.live(13, |adapter, now, second| adapter.behind(now, second * S));
    reads_well(&mut viewer, 2 * RENDITION_UP_NS / S + 13);
    assert!(
        viewer.times().iter().any(|(at, up)| *up && *at > last && *at < last + 130),
        "{:?}",
        viewer.times()
    );
}

#[test]
fn adapter_delays_upgrade_after_pressure_or_refusal() {
    let mut viewer = MeasuredViewer::default();
    viewer.live(100, |adapter, _, _| adapter.pressure());
    viewer.live(19, |adapter, now, _| adapter.behind(now, 0));
    let now = at(viewer.tenths);
    viewer.adapter.refused(now);
    viewer.live(19, |adapter, now, _| adapter.behind(now, 0));
    assert!(viewer.verdicts.is_empty(), "{:?}", viewer.verdicts);
    viewer.live(2, |_, _, _| {});
    assert_eq!(viewer.times().len(), 1);
}

/// Simulates a viewer whose rendition is changed at 10 s, after the reports of `before`; returns
/// the verdicts in the 25 s after the change.
fn after_a_change(
    before: impl Fn(&mut Adapter, Instant, u64),
    behind: impl Fn(&mut Adapter, Instant, u64),
) -> Vec<(u64, AdaptDecision)> {
    let mut adapter = Adapter::default();
    (1..10).for_each(|second| before(&mut adapter, at(second * 10), second));
    adapter.changed(at(100), false);
    let verdicts = (11..=35).map(|second| {
        behind(&mut adapter, at(second * 10), second);
        (second, adapter.verdict(at(second * 10)))
    });
    verdicts.filter_map(|(second, verdict)| Some((second, verdict?))).collect()
}

/// Whatever it was: each part of it is followed by what would make it a verdict.
#[test]
fn adapter_after_change_discards_earlier_observations() {
    let silence = |_: &mut Adapter, _: Instant, _: u64| {};
    let first = |verdicts: Vec<(u64, AdaptDecision)>| verdicts.into_iter().next();
    let up = Some((31, AdaptDecision::Up));
    // A reason to go down that was not acted upon; and that all was well.
    let falls = |adapter: &mut Adapter, now, second| adapter.behind(now, second * S);
    assert_eq!(first(after_a_change(falls, silence)), up);
    let reads = |adapter: &mut Adapter, now: Instant, _: u64| adapter.behind(now, 0);
    let looked_at = |adapter: &mut Adapter, now, second| {
        reads(adapter, now, second);
        assert_eq!(adapter.verdict(now), None);
    };
    assert_eq!(first(after_a_change(looked_at, reads)), up);
    // Loss: two reports before, and one behind, are not three.
    let lossy_until = |end| {
        move |adapter: &mut Adapter, now, second: u64| {
            if second.is_multiple_of(4) && second <= end {
                adapter.report(now, 64);
            }
        }
    };
    assert_eq!(after_a_change(lossy_until(9), lossy_until(12)), []);
    // A report of loss from before, and none behind.
    assert_eq!(first(after_a_change(lossy_until(9), silence)), up);
    // How far it was behind, which is no less behind the change; and where it began to fall behind.
    let far = |adapter: &mut Adapter, now, second| {
        if second < 10 || second == 20 {
            adapter.behind(now, 2 * S);
        }
    };
    assert_eq!(after_a_change(far, far), []);
    let slowly = |adapter: &mut Adapter, now, second| adapter.behind(now, second * S / 10);
    let faster = |adapter: &mut Adapter, now, second: u64| {
        if second >= 20 {
            adapter.behind(now, (second - 18) * S / 2);
        }
    };
    let down = AdaptDecision::Down { through_permille: 500, trouble: Trouble::SlowReader };
    assert_eq!(first(after_a_change(slowly, faster)), Some((21, down)));
}

#[derive(Clone, Copy, Debug)]
enum Heard {
    Behind(u64),
    Report(u8),
    Pressure,
    Refused,
    Viewer(bool),
    Nothing,
}

fn heard() -> impl Strategy<Value = Heard> {
    prop_oneof![
        (0..5_000u64).prop_map(|ms| Heard::Behind(ms * 1_000_000)),
        any::<u8>().prop_map(Heard::Report),
        Just(Heard::Report(255)),
        Just(Heard::Pressure),
        Just(Heard::Refused),
        any::<bool>().prop_map(Heard::Viewer),
        Just(Heard::Nothing),
    ]
}

proptest! {
    /// Whatever is heard: at most one change in 10 s, down for a reason from behind the last one, up only when all has been well for long enough
    /// since then, and a share that is one.
    #[test]
    fn adapter_given_any_events_limits_rate_of_changes(all in proptest::collection::vec((heard(), 1u64..40), 1..400)) {
        let mut adapter = Adapter::default();
        let (mut tenths, mut changed, mut bad, mut trouble) = (0, None, 0, false);
        for (heard, passes) in all {
            tenths += passes;
            let now = at(tenths);
            match heard {
                Heard::Behind(ns) => adapter.behind(now, ns),
                Heard::Report(fraction) => adapter.report(now, fraction),
                Heard::Pressure => adapter.pressure(),
                Heard::Refused => adapter.refused(now),
                Heard::Viewer(is_up) => {
                    adapter.changed(now, is_up);
                    (changed, trouble) = (Some(tenths), false);
                }
                Heard::Nothing => {}
            }
            let is_bad = match heard {
                Heard::Behind(ns) => ns > GOOD_READER_NS,
                Heard::Report(fraction) => fraction >= LOSS_LOW_256,
                Heard::Nothing => false,
                _ => true,
            };
            bad = if is_bad { tenths } else { bad };
            trouble |= match heard {
                Heard::Behind(ns) => ns >= SLOW_READER_NS,
                Heard::Report(fraction) => fraction >= LOSS_HIGH_256,
                _ => false,
            };
            let Some(verdict) = adapter.verdict(now) else { continue };
            prop_assert!(changed.is_none_or(|changed| tenths - changed >= 100));
            match verdict {
                AdaptDecision::Up => {
                    let since = bad.max(changed.unwrap_or(0));
                    prop_assert!((tenths - since) * S / 10 >= RENDITION_UP_NS);
                }
                AdaptDecision::Down { through_permille, .. } => prop_assert!(trouble && through_permille <= 1_000),
            }
            adapter.changed(now, verdict == AdaptDecision::Up);
            (changed, trouble) = (Some(tenths), false);
        }
    }
}

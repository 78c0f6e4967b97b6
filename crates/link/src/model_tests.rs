use super::*;
use std::time::Duration;

use millrace_core::units::BitRate;
use proptest::prelude::*;

use crate::spec::{Reorder, Share};

const MS: u64 = 1_000_000;

fn spec(text: &str) -> Impairment {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// The number of a packet stands for it: nothing happens to the number itself. The odd ones are ECN-capable.
impl LinkPacket for u64 {
    fn flip_bits(&mut self, _random: u64) {}

    fn mark(&mut self) -> bool {
        !self.is_multiple_of(2)
    }
}

/// The output: number, copies, time.
type ModelOutput = Vec<(u64, u32, u64)>;

fn drain(model: &mut ImpairmentModel<u64>, now: Instant, out: &mut ModelOutput) {
    while let Some(departure) = model.poll_output(now) {
        assert!(departure.due <= now);
        out.push((departure.packet, departure.times, departure.due.0));
    }
    assert!(model.poll_at().is_none_or(|at| at > now), "it said it had nothing");
}

/// Takes everything out at the time at which it is due.
fn finish(model: &mut ImpairmentModel<u64>, out: &mut ModelOutput) {
    while let Some(at) = model.poll_at() {
        drain(model, at, out);
    }
    assert_eq!((model.waiting(), model.counts().waiting), (0, 0));
}

/// `count` packets of 1000 bytes, one every `gap_ns`.
fn steady(text: &str, count: u64, gap_ns: u64) -> (ModelOutput, LinkCounts) {
    let mut model = ImpairmentModel::new(&spec(text));
    let mut out = Vec::new();
    for number in 0..count {
        let now = Instant(number * gap_ns);
        drain(&mut model, now, &mut out);
        model.handle_packet(now, 1000, Traffic::Rtp, number);
    }
    finish(&mut model, &mut out);
    assert!(model.counts().is_conserved());
    (out, model.counts())
}

/// The shortest middle range that a binomial count of `n` trials leaves with a probability of less than 1e-9: exact,
/// from the ratios of neighbouring probabilities.
fn binomial_range(n: u64, p: f64) -> std::ops::RangeInclusive<u64> {
    let up = |k: u64| (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
    let mode = ((n as f64 + 1.0) * p).floor().min(n as f64) as u64;
    let mut weights = std::collections::VecDeque::from([(mode, 1.0_f64)]);
    let (mut low, mut high) = (1.0, 1.0);
    for k in mode..n {
        high *= up(k);
        if high < 1e-16 {
            break;
        }
        weights.push_back((k + 1, high));
    }
    for k in (0..mode).rev() {
        low /= up(k);
        if low < 1e-16 {
            break;
        }
        weights.push_front((k, low));
    }
    let cut = weights.iter().map(|(_, w)| w).sum::<f64>() * 0.5e-9;
    let edge = |mut all: Box<dyn Iterator<Item = &(u64, f64)> + '_>| {
        let mut sum = 0.0;
        let found = all.find(|(_, w)| {
            sum += w;
            sum > cut
        });
        found.expect("the weights are more than the cut").0
    };
    edge(Box::new(weights.iter()))..=edge(Box::new(weights.iter().rev()))
}

#[test]
fn binomial_range_matches_known_values() {
    // Of 10 fair coins, 10 heads come with probability 1/1024: all counts are possible.
    assert_eq!(binomial_range(10, 0.5), 0..=10);
    let range = binomial_range(10_000, 0.01);
    // 6.1 standard deviations of 9.95 around 100, wider above than below.
    assert!((44..=52).contains(range.start()) && (162..=172).contains(range.end()), "{range:?}");
}

#[test]
fn impairment_model_without_impairment_changes_nothing() {
    let (out, counts) = steady("none", 100, 7);
    assert_eq!(out, (0..100).map(|n| (n, 1, n * 7)).collect::<ModelOutput>());
    let all = LinkCounts { received: 100, forwarded: 100, ..LinkCounts::default() };
    assert_eq!(counts, LinkCounts { received_bytes: 100_000, forwarded_bytes: 100_000, ..all });
}

#[test]
fn loss_and_duplication_are_binomial() {
    for ppm in [1_000, 10_000, 500_000] {
        let percent = Share::from_ppm(ppm);
        let p = f64::from(ppm) / 1e6;
        for seed in 1..4 {
            let (out, counts) = steady(&format!("loss {percent}, seed {seed}"), 100_000, 1);
            assert!(binomial_range(100_000, p).contains(&counts.lost), "{percent}: {counts}");
            assert_eq!(out.len() as u64, 100_000 - counts.lost);
            let (out, counts) = steady(&format!("duplicate {percent}, seed {seed}"), 100_000, 1);
            assert!(binomial_range(100_000, p).contains(&counts.duplicated), "{percent}: {counts}");
            assert_eq!(out.iter().map(|(_, times, _)| u64::from(*times)).sum::<u64>(), counts.forwarded);
        }
    }
    assert_eq!(steady("loss 100%", 1000, 1).1.lost, 1000);
    assert_eq!(steady("duplicate 100%", 1000, 1).1.forwarded, 2000);
}

#[test]
fn damage_and_marks_are_binomial() {
    let (out, counts) = steady("corrupt 1%, mark 10%", 100_000, 1);
    assert!(binomial_range(100_000, 0.01).contains(&counts.corrupted), "{counts}");
    assert!(binomial_range(50_000, 0.1).contains(&counts.marked), "{counts}");
    assert_eq!((out.len(), counts.lost), (100_000, 0));
    let mut model = ImpairmentModel::new(&spec("corrupt 50%"));
    for n in 0..1000 {
        assert_eq!(model.handle_packet(Instant(n), 100, Traffic::Other, vec![0x45; 100]), None);
    }
    let mut changed = 0;
    while let Some(departure) = model.poll_output(Instant(1000)) {
        changed += u64::from(departure.packet != [0x45; 100]);
    }
    assert_eq!(changed, model.counts().corrupted, "what is counted has happened, and nothing else");
}

#[test]
fn bursts_have_the_wanted_share_and_length() {
    for (share, mean) in [(0.01, 5), (0.2, 3), (0.05, 40), (0.5, 1)] {
        let count = 400_000;
        let text = format!("burst-loss {}% x{mean}", share * 100.0);
        let (out, counts) = steady(&text, count, 1);
        let mut there = vec![false; count as usize];
        out.iter().for_each(|(number, _, _)| there[*number as usize] = true);
        let bursts = u64::from(!there[0]) + there.windows(2).filter(|w| w[0] && !w[1]).count() as u64;
        // Each lost packet ends its burst with probability 1/mean, each good one begins one with the given odds.
        let begins = share / (f64::from(mean) * (1.0 - share));
        assert!(
            binomial_range(counts.lost, 1.0 / f64::from(mean)).contains(&bursts),
            "{text}: {bursts} bursts"
        );
        assert!(binomial_range(count - counts.lost, begins).contains(&bursts), "{text}: {bursts} bursts");
        let got = counts.lost as f64 / count as f64;
        assert!((got / share - 1.0).abs() < 0.1, "{text}: {got}");
    }
}

#[test]
fn delay_is_exact_and_jitter_keeps_order() {
    let (out, _) = steady("delay 20ms", 1000, MS / 3);
    assert!(out.iter().all(|(number, _, at)| *at == number * (MS / 3) + 20 * MS));
    // The packets are spaced widely enough that preserving their order does not compress the gaps:
    // the whole range is used, evenly.
    let (out, counts) = steady("delay 20ms, jitter 10ms", 10_000, 11 * MS);
    let extra: Vec<u64> = out.iter().map(|(number, _, at)| at - number * 11 * MS - 20 * MS).collect();
    assert!(extra.iter().all(|ns| *ns <= 10 * MS));
    for tenth in 0..10 {
        let within = extra.iter().filter(|ns| (tenth * MS..(tenth + 1) * MS).contains(*ns)).count() as u64;
        assert!(binomial_range(10_000, 0.1).contains(&within), "{tenth}: {within}");
    }
    assert_eq!(counts.reordered, 0);
    let (out, _) = steady("jitter 10ms", 10_000, MS / 10);
    assert!(out.windows(2).all(|w| w[0].0 < w[1].0 && w[0].2 <= w[1].2), "in order though pressed together");
}

#[test]
fn impairment_model_rate_is_exact_over_time() {
    // 1000 bytes at 7 Mb/s take 1142857 1/7 ns: whole nanoseconds alone would be off by one every seven packets.
    let (out, counts) = steady("rate 7Mb/s queue 32768", 30_000, 100_000);
    assert_eq!((counts.queue_drops, counts.overflow), (0, 0));
    for (number, _, at) in out {
        assert_eq!(at, (number + 1) * 8_000 * NS_PER_S / 7_000_000);
    }
}

#[test]
fn impairment_model_full_queue_drops_newest_packet() {
    // A packet takes 1 ms; ten come at once: one is being sent, three wait.
    let (out, counts) = steady("rate 8Mb/s queue 3", 10, 0);
    assert_eq!(out, [(0, 1, MS), (1, 1, 2 * MS), (2, 1, 3 * MS), (3, 1, 4 * MS)]);
    assert_eq!((counts.queue_drops, counts.forwarded), (6, 4));
    let (out, _) = steady("rate 8Mb/s queue 3000B", 10, 0);
    assert_eq!(out.len(), 4);
    let (out, _) = steady("rate 8Mb/s queue 2999B", 10, 0);
    assert_eq!(out.len(), 3);
    // Twice the rate comes in: half of it goes through, at exactly the rate.
    let (out, counts) = steady("rate 8Mb/s queue 10", 10_000, MS / 2);
    assert!((5_000..=5_011).contains(&out.len()), "{counts}");
    assert!(out.windows(2).all(|w| w[1].2 - w[0].2 == MS));
    // Without a queue a packet passes if nothing is being sent.
    let (out, _) = steady("rate 8Mb/s queue 0", 10, MS);
    assert_eq!(out.len(), 10);
}

#[test]
fn lost_packets_have_used_the_bottleneck() {
    let (out, counts) = steady("loss 50%, rate 8Mb/s queue 100", 50, 0);
    assert_eq!(counts.queue_drops, 0);
    assert!(out.iter().all(|(number, _, at)| *at == (number + 1) * MS), "{out:?}");
}

/// Numbers that were in front of later ones, and by how many packets each was overtaken.
fn overtaken(out: &ModelOutput) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for (place, (number, _, _)) in out.iter().enumerate() {
        let by = out[..place].iter().rev().take(4000).filter(|(other, _, _)| other > number).count() as u64;
        if by > 0 {
            all.push((*number, by));
        }
    }
    all
}

#[test]
fn exactly_so_many_overtake_as_was_said() {
    for by in [1, 3, 50] {
        let (out, counts) = steady(&format!("reorder 5% by {by} within 10s"), 5_000, MS);
        let all = overtaken(&out);
        assert_eq!(all.len() as u64, counts.reordered);
        assert!(binomial_range(5_000, 0.05).contains(&counts.reordered), "{counts}");
        // The last ones run out of followers.
        assert!(all.iter().all(|(number, got)| *got == by || *number > 5_000 - 2 * by), "{by}: {all:?}");
        assert!(all.iter().all(|(_, got)| *got <= by));
    }
}

#[test]
fn impairment_model_releases_held_packet_after_timeout() {
    // One packet per 40 ms: only two others pass within 100 ms, and none after the last.
    let (out, counts) = steady("reorder 10% by 3", 1000, 40 * MS);
    assert_eq!(out.len(), 1000);
    assert!(out.iter().all(|(number, _, at)| *at == number * 40 * MS || *at == (number * 40 + 100) * MS));
    assert!(overtaken(&out).iter().all(|(_, by)| *by <= 2));
    assert_eq!(overtaken(&out).len() as u64, counts.reordered);
    // Every packet is held, so none overtakes another.
    let (out, counts) = steady("reorder 100% by 1", 100, MS);
    assert!(out.iter().all(|(number, _, at)| *at == (number + 100) * MS));
    assert_eq!(counts.reordered, 0);
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let (out, counts) = steady("delay 10s", MAX_LINK_PACKETS as u64 + 10, 1);
    assert_eq!((out.len(), counts.overflow), (MAX_LINK_PACKETS, 10));
    let mut model = ImpairmentModel::new(&spec("delay 1s"));
    let full = MAX_LINK_BYTES as usize / 65_535;
    let dropped =
        (0..full as u64 + 3).filter_map(|n| model.handle_packet(Instant(0), 65_535, Traffic::Rtp, n));
    assert_eq!(dropped.count(), 3);
    let (_, counts) = steady("rate 1b/s queue 32768, loss 100%", MAX_LINK_PACKETS as u64 + 11, 1);
    assert_eq!((counts.lost, counts.queue_drops), (MAX_LINK_PACKETS as u64 + 1, 10));
}

#[test]
fn extreme_times_and_rates_do_not_overflow() {
    let mut model =
        ImpairmentModel::new(&spec("delay 10s, jitter 10s, rate 1b/s, reorder 100% by 1 within 10s"));
    assert_eq!(model.handle_packet(Instant(u64::MAX - 5), 1 << 60, Traffic::Other, 0), Some(0), "no memory");
    assert_eq!(model.handle_packet(Instant(u64::MAX - 5), 1 << 25, Traffic::Other, 1), None);
    assert_eq!(model.handle_packet(Instant(3), 100, Traffic::Other, 2), None, "a clock that ran back");
    let mut out = Vec::new();
    finish(&mut model, &mut out);
    assert_eq!(out.len(), 2);
}

#[test]
fn streams_of_one_seed_differ_and_each_repeats_itself() {
    let lost = |stream| {
        let mut model = ImpairmentModel::with_stream(&spec("loss 50%"), stream);
        (0..64).map(|n| model.handle_packet(Instant(n), 100, Traffic::Rtp, n).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(lost(0), lost(0));
    assert_ne!(lost(0), lost(1));
}

#[test]
fn impairment_model_loss_is_independent_of_other_effects() {
    let gone = |text: &str| -> Vec<u64> {
        let there: Vec<u64> = steady(text, 1000, 1).0.iter().map(|(number, _, _)| *number).collect();
        (0..1000).filter(|number| !there.contains(number)).collect()
    };
    assert_eq!(
        gone("loss 10%"),
        gone("loss 10%, jitter 1us, delay 1ms, duplicate 10%, mark 9%, corrupt 9%, reorder 10% by 2")
    );
    let both = gone("loss 10%, burst-loss 10% x4");
    assert!(gone("loss 10%").iter().all(|number| both.contains(number)));
}

fn shares() -> impl Strategy<Value = Share> {
    prop_oneof![Just(0), 0..=1_000_000u32].prop_map(Share::from_ppm)
}

fn impairments() -> impl Strategy<Value = Impairment> {
    let times = || prop_oneof![Just(0), 0..50 * MS].prop_map(Duration::from_nanos);
    let burst = (shares(), 1..20u32).prop_map(|(share, mean_packets)| BurstLoss { share, mean_packets });
    let reorder = (shares(), 1..10u32, times()).prop_map(|(share, by_packets, within)| Reorder {
        share,
        by_packets,
        within,
    });
    let queue =
        prop_oneof![(0..20u32).prop_map(QueueBound::Packets), (0..20_000u64).prop_map(QueueBound::Bytes)];
    let rate =
        (1_000..1_000_000_000u64, queue).prop_map(|(rate, queue)| RateLimit { rate: BitRate(rate), queue });
    (
        (shares(), proptest::option::of(burst), shares(), shares(), shares()),
        (times(), times(), proptest::option::of(reorder), proptest::option::of(rate)),
        any::<u64>(),
    )
        .prop_map(
            |((loss, burst_loss, duplicate, mark, corrupt), (delay, jitter, reorder, rate), seed)| {
                Impairment { loss, burst_loss, duplicate, mark, corrupt, delay, jitter, reorder, rate, seed }
            },
        )
}

/// Gives the packets in, polling in time after each if `prompt`, else only now and then.
fn play(spec: &Impairment, gaps: &[(u64, usize, bool)], prompt: bool) -> (ModelOutput, ImpairmentModel<u64>) {
    let mut model = ImpairmentModel::new(spec);
    let mut out = Vec::new();
    let mut now = Instant(0);
    for (number, (gap_ns, bytes, other)) in gaps.iter().enumerate() {
        let next = now.plus_ns(*gap_ns);
        while let Some(at) = model.poll_at().filter(|at| prompt && *at <= next) {
            drain(&mut model, at.max(now), &mut out);
            assert!(model.counts().is_conserved());
        }
        now = next;
        let class = if *other { Traffic::Other } else { Traffic::Rtp };
        let before = model.counts();
        let back = model.handle_packet(now, *bytes, class, number as u64);
        let counts = model.counts();
        assert_eq!(back.is_some(), counts.waiting == before.waiting);
        assert!(counts.is_conserved() && counts.waiting == model.waiting() as u64);
    }
    finish(&mut model, &mut out);
    (out, model)
}

proptest! {
    #[test]
    fn impairment_model_accounts_for_all_packets(
        spec in impairments(),
        gaps in proptest::collection::vec((0..5 * MS, 20..1500usize, any::<bool>()), 0..200),
    ) {
        let (out, model) = play(&spec, &gaps, true);
        let counts = model.counts();
        prop_assert_eq!(counts.received, gaps.len() as u64);
        prop_assert_eq!(counts.overflow, 0);
        prop_assert_eq!(counts, model.counts_of(Traffic::Rtp).plus(&model.counts_of(Traffic::Other)));
        prop_assert_eq!(out.iter().map(|o| u64::from(o.1)).sum::<u64>(), counts.forwarded);
        prop_assert_eq!(out.len() as u64 + counts.lost + counts.queue_drops, counts.received);
        let mut numbers: Vec<u64> = out.iter().map(|o| o.0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        prop_assert_eq!(numbers.len(), out.len(), "nothing comes out twice but as a copy");
        prop_assert!(out.windows(2).all(|w| w[0].2 <= w[1].2), "time does not run back");
        prop_assert_eq!(overtaken(&out).len() as u64, counts.reordered);
        if let Some(reorder) = spec.reorder {
            prop_assert!(overtaken(&out).iter().all(|(_, by)| *by <= u64::from(reorder.by_packets)));
        }
        let arrivals: Vec<u64> =
            gaps.iter().scan(0, |now, (gap, _, _)| { *now += gap; Some(*now) }).collect();
        let delay_ns = spec.delay.as_nanos() as u64;
        prop_assert!(out.iter().all(|(n, _, at)| *at >= arrivals[*n as usize] + delay_ns));
    }

    #[test]
    fn impairment_model_output_is_independent_of_polling_time(
        spec in impairments(),
        gaps in proptest::collection::vec((0..5 * MS, 20..1500usize, any::<bool>()), 0..200),
    ) {
        let (prompt, a) = play(&spec, &gaps, true);
        let (late, b) = play(&spec, &gaps, false);
        prop_assert_eq!(prompt, late);
        prop_assert_eq!(a.counts(), b.counts());
    }

    #[test]
    fn impairment_model_never_exceeds_rate(
        rate in 1_000..1_000_000_000u64,
        gaps in proptest::collection::vec((0..5 * MS, 20..1500usize, any::<bool>()), 1..200),
    ) {
        let limit = RateLimit { rate: BitRate(rate), queue: QueueBound::Packets(1000) };
        let spec = Impairment { rate: Some(limit), ..Impairment::default() };
        let (out, _) = play(&spec, &gaps, true);
        let bytes = |n: u64| gaps[n as usize].1 as u128;
        for (from, to) in [(0, out.len() - 1), (out.len() / 2, out.len() - 1)] {
            let bits: u128 = out[from + 1..=to].iter().map(|o| bytes(o.0) * 8).sum();
            let ns = u128::from(out[to].2 - out[from].2);
            // Times are cut to whole nanoseconds.
            prop_assert!(bits * 1_000_000_000 <= (ns + 1) * u128::from(rate));
        }
    }
}

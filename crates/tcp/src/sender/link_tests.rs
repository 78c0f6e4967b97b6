use super::link::{PathProperties, SimulatedLink};
use super::*;

const S: u64 = 1_000_000_000;
const START: u64 = S;

fn setup(algorithm: Algorithm) -> Setup {
    Setup {
        first: Seq(u32::MAX - 1_000_000),
        mss: 1448,
        mss_limit: 1448,
        has_sack: true,
        has_ecn: true,
        was_syn_repeated: false,
        handshake_ns: Some(20_000_000),
        algorithm,
        is_paced: true,
    }
}

/// Sends `segments` segments; returns the link afterwards.
fn transfer(setup: &Setup, path: PathProperties, segments: u64, limit_s: u64) -> SimulatedLink {
    let mut link = SimulatedLink::new(setup, path.clone(), segments * 1448, 4 << 20);
    let done = link.run(START + limit_s * S);
    assert_eq!(done, segments * 1448, "not done after {limit_s} s: {path:?} {:?}", link.records.counts);
    link
}

#[test]
fn transfer_on_clean_path_fills_link_without_retransmission() {
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        let link = transfer(
            &setup(algorithm),
            PathProperties { queue_bytes: 1 << 30, ..PathProperties::default() },
            5000,
            10,
        );
        assert_eq!(link.transmissions, 5000, "{:?}", link.records.counts);
        let seconds = (link.now.0 - START) as f64 / S as f64;
        assert!(seconds < 0.606 + 0.3, "5000 segments of 1514 bytes at 100 Mb/s: {seconds}");
    }
}

#[test]
fn transfer_with_short_loss_burst_needs_no_timeout() {
    for has_stamps in [true, false] {
        for first in 0..40 {
            for lost in 1..=3 {
                let path = PathProperties {
                    has_stamps,
                    lost: (first..first + lost).collect(),
                    ..PathProperties::default()
                };
                let link = transfer(&setup(Algorithm::Cubic), path, 40, 10);
                let counts = link.records.counts;
                // Transmission 40 is the probe.
                let has_probe = first + lost > 40;
                assert!(has_probe || counts.timeouts == 0, "{first} {lost}: {counts:?}");
                assert!(
                    link.transmissions <= 40 + 2 * lost + 1,
                    "{first} {lost}: {} {counts:?}",
                    link.transmissions
                );
            }
        }
    }
}

#[test]
fn goodput_is_near_what_the_path_and_the_losses_allow() {
    for (loss_ppm, least) in [(0, 0.90), (1000, 0.20), (10_000, 0.055), (30_000, 0.028)] {
        let path = PathProperties { loss_ppm, ..PathProperties::default() };
        let mut link = SimulatedLink::new(&setup(Algorithm::Cubic), path, u64::from(u32::MAX), 4 << 20);
        let done = link.run(START + 20 * S);
        // Of 100 Mb/s less headers. The figures for losses: 1.2 / sqrt(loss) segments a round trip of 20 ms, with some
        // allowance (RFC 9438 section 4.3: at least what Reno has).
        let share = done as f64 * 8.0 / 20.0 / (100e6 * 1448.0 / 1514.0);
        let counts = link.records.counts;
        assert!(share >= least, "{loss_ppm} ppm: {share:.3} {counts:?}");
        assert!(counts.timeouts <= counts.lost / 100, "{loss_ppm} ppm: {counts:?}");
    }
}

#[test]
fn reordering_is_learnt_and_costs_little() {
    let path = PathProperties {
        late_ppm: 20_000,
        late_ns: 4_000_000,
        queue_bytes: 1 << 20,
        ..PathProperties::default()
    };
    let mut link = SimulatedLink::new(&setup(Algorithm::Cubic), path, 100 << 20, 4 << 20);
    let done = link.run(START + 10 * S);
    let share = done as f64 * 8.0 / 10.0 / 100e6;
    let counts = link.records.counts;
    assert!(share > 0.8, "{share:.3} {counts:?}");
    assert_eq!(counts.timeouts, 0, "{counts:?}");
}

#[test]
fn transfer_continues_after_outage() {
    let path = PathProperties { outage: START + S / 2..START + 4 * S, ..PathProperties::default() };
    let link = transfer(&setup(Algorithm::Cubic), path, 10_000, 12);
    let counts = link.records.counts;
    assert!((1..=6).contains(&counts.timeouts), "{counts:?}");
}

#[test]
fn transfer_through_mtu_black_hole_completes() {
    let path = PathProperties { largest: 1300, ..PathProperties::default() };
    let link = transfer(&setup(Algorithm::Cubic), path, 1000, 30);
    assert!(link.records.counts.black_holes == 1 && link.sender.mss() <= 1300, "{:?}", link.records.counts);
}

#[test]
fn larger_segments_are_found_out_and_cost_no_window() {
    let setup = Setup { mss_limit: 8948, ..setup(Algorithm::Cubic) };
    let link =
        transfer(&setup, PathProperties { queue_bytes: 1 << 30, ..PathProperties::default() }, 20_000, 30);
    assert_eq!(link.sender.mss(), 8948);
    let path = PathProperties { largest: 1448, queue_bytes: 1 << 30, ..PathProperties::default() };
    let link = transfer(&setup, path, 20_000, 60);
    let counts = link.records.counts;
    assert_eq!(link.sender.mss(), 1448);
    assert!(counts.mtu_probes > 0 && counts.recoveries == 0 && counts.timeouts == 0, "{counts:?}");
}

#[test]
fn marks_keep_the_queue_short_without_a_loss() {
    let path = PathProperties { mark_bytes: 100_000, queue_bytes: 1 << 20, ..PathProperties::default() };
    let link = transfer(&setup(Algorithm::Cubic), path, 30_000, 20);
    let counts = link.records.counts;
    assert!(counts.ecn > 0 && counts.lost == 0, "{counts:?}");
    assert!((link.now.0 - START) < 6 * S, "3.6 s at the path's rate: {}", link.now.0 - START);
}

#[test]
fn transfer_without_sack_completes_despite_loss() {
    for loss_ppm in [0, 10_000, 30_000] {
        let path = PathProperties { loss_ppm, ..PathProperties::default() };
        let setup = Setup { has_sack: false, ..setup(Algorithm::Reno) };
        transfer(&setup, path, 2000, 120);
    }
}

/// A path made from a seed.
fn any_path(seed: u64) -> PathProperties {
    let mut random = seed.wrapping_mul(0xD134_2543_DE82_EF95) | 1;
    let mut pick = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) % most
    };
    let outage = START + pick(S);
    PathProperties {
        rate_bps: 1_000_000 << pick(10),
        delay_ns: 100_000 << pick(10),
        queue_bytes: 5000 + (1 << pick(20)),
        loss_ppm: [0, 1000, 30_000, 200_000][pick(4) as usize],
        ack_loss_ppm: [0, 0, 100_000, 500_000][pick(4) as usize],
        twice_ppm: [0, 0, 50_000][pick(3) as usize],
        late_ppm: [0, 0, 50_000][pick(3) as usize],
        late_ns: pick(50_000_000),
        lost: (0..pick(30)).collect(),
        outage: outage..outage + pick(4) * pick(S),
        largest: [u16::MAX, u16::MAX, 1300][pick(3) as usize],
        mark_bytes: [u64::MAX, 10_000][pick(2) as usize],
        has_stamps: pick(2) == 0,
        seed,
    }
}

#[test]
fn transfer_over_random_paths_completes() {
    for seed in 1..=400 {
        let path = any_path(seed);
        let setup = Setup {
            has_sack: !seed.is_multiple_of(5),
            has_ecn: seed.is_multiple_of(2),
            is_paced: !seed.is_multiple_of(3),
            mss_limit: [1448, 8948][usize::from(seed.is_multiple_of(7))],
            ..setup([Algorithm::Cubic, Algorithm::Reno][usize::from(seed.is_multiple_of(4))])
        };
        let mut link = SimulatedLink::new(&setup, path.clone(), 200 * 1448, 65_535 << (seed % 3));
        let done = link.run(START + 24 * 3600 * S);
        assert_eq!(done, 200 * 1448, "seed {seed}: {path:?} {:?} {:?}", link.records.counts, link.sender);
    }
}

/// Ours beside one that is not paced and hands its device large segments, as a kernel does.
#[test]
fn transfer_at_shared_bottleneck_gets_half_of_the_rate() {
    let setup = |is_paced| Setup { is_paced, has_ecn: false, ..setup(Algorithm::Cubic) };
    let mut shares = Vec::new();
    for (train, later_ms) in [(1, 0), (1, 7), (1, 300), (5, 0), (5, 7), (5, 300)] {
        let ours = SimulatedLink::new(&setup(true), PathProperties::default(), 1 << 40, 4 << 20);
        let other = ours.beside(&setup(false), train, later_ms * S / 1000);
        let mut pair = [ours, other];
        // Slow start is over then.
        let before = SimulatedLink::run_both(&mut pair, START + 4 * S);
        let after = SimulatedLink::run_both(&mut pair, START + 40 * S);
        let [ours, other] = [0, 1].map(|at| (after[at] - before[at]) as f64);
        assert!(ours + other > 0.95 * 36.0 * 12.5e6 * 1448.0 / 1514.0, "{train} {later_ms}: {ours} {other}");
        shares.push(ours / (ours + other));
    }
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!(shares.iter().all(|share| (0.4..0.6).contains(share)), "{shares:?}");
    assert!((0.46..0.56).contains(&mean), "{shares:?}");
}

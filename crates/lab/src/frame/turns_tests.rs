use super::*;

const BOUND: f64 = 1.5;

fn target(turns: &Turns<f64>) -> Vec<Promise> {
    vec![Promise::at_most("cost", turns.ratio(0, 1, |seconds| *seconds), BOUND, "of theirs")]
}

/// Takes turns whose ratios are these, the last again and again; returns the verdict and the number of rounds.
fn decide(ratios: &[f64], limit_s: u64) -> (TargetState, usize) {
    let options = Options { limit_s: Some(limit_s), ..Options::new("x") };
    let turn = |contender: usize, round: usize| {
        // A round that the machine disturbs, disturbs both.
        let weather = 1.0 + (round % 3) as f64;
        Ok(if contender == 0 { weather * ratios[round.min(ratios.len() - 1)] } else { weather })
    };
    let turns = Turns::take(&options, &mut NoiseMeter::start(), &["ours", "theirs"], turn, target).unwrap();
    (target(&turns)[0].verdict, turns.of(0).len())
}

#[test]
fn ratios_on_one_side_of_bound_decide_after_six_rounds() {
    assert_eq!(decide(&[1.2], 60), (TargetState::Met, 6));
    assert_eq!(decide(&[1.7], 60), (TargetState::Missed, 6));
}

#[test]
fn ratios_on_both_sides_of_bound_stay_undecided_until_limit() {
    assert_eq!(decide(&[1.4, 1.6, 1.4, 1.6, 1.4, 1.6], 0), (TargetState::Undecided, 6));
}

#[test]
fn one_outlier_takes_more_rounds_and_changes_no_verdict() {
    assert_eq!(decide(&[1.2, 1.2, 40.0, 1.2], 60), (TargetState::Met, 12));
    assert_eq!(decide(&[1.7, 0.01, 1.7], 60), (TargetState::Missed, 12));
}

#[test]
fn contender_that_fails_ends_the_benchmark_with_its_name() {
    let turn = |contender: usize, round: usize| {
        anyhow::ensure!((contender, round) != (1, 2), "nothing came");
        Ok(1.0)
    };
    let options = Options::new("x");
    let failed =
        Turns::take(&options, &mut NoiseMeter::start(), &["ours", "theirs"], turn, target).unwrap_err();
    assert_eq!(format!("{failed:#}"), "theirs, round 3: nothing came");
}

#[test]
fn round_without_a_figure_is_replaced_by_more_rounds() {
    assert_eq!(decide(&[1.2, f64::NAN, 1.2], 60), (TargetState::Met, 12));
    assert_eq!(decide(&[1.7, f64::INFINITY, 1.7], 60), (TargetState::Missed, 12));
    assert_eq!(decide(&[1.2, f64::NAN, 1.2], 0), (TargetState::Undecided, 6));
    // More rounds would not change this.
    assert_eq!(decide(&[f64::NAN], 60), (TargetState::NotMeasured, 6));
}

#[test]
fn order_within_rounds_changes() {
    let mut order = Vec::new();
    let turn = |contender: usize, _: usize| {
        order.push(contender);
        Ok(1)
    };
    let options = Options { runs: Some(3), ..Options::new("x") };
    let turns =
        Turns::take(&options, &mut NoiseMeter::start(), &["a", "b", "c"], turn, |_| Vec::new()).unwrap();
    assert_eq!(turns.sum(|count| *count), 9);
    assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
}

#[test]
fn turns_stop_when_the_user_wants_it() {
    let options = Options::new("x");
    let cancel = std::sync::Arc::clone(&options.cancel);
    let turn = |_: usize, round: usize| {
        cancel.store(round == 1, std::sync::atomic::Ordering::Relaxed);
        Ok(1.0)
    };
    let stopped = Turns::take(&options, &mut NoiseMeter::start(), &["a", "b"], turn, target).unwrap_err();
    assert!(stopped.is::<super::super::Cancelled>(), "{stopped:#}");
}

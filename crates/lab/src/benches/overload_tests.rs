//! Verdicts on an overload, for runs that went well and for each kind of failure.

use super::*;
use crate::capacity::crowd::Fates;
use crate::capacity::limits::TrialFigures;
use crate::frame::TargetState;

fn stream(began_ms: u64, has_ended: bool) -> StreamReport {
    StreamReport { began_ms, has_ended, setup_us: Some(1_000), ..StreamReport::default() }
}

fn refused(began_ms: u64) -> StreamReport {
    let failure = Some("SETUP refused: 453".to_owned());
    StreamReport { failure, setup_us: None, ..stream(began_ms, false) }
}

fn sample(at_ms: u64, playing: u64, p99_ms: u64) -> LoadSample {
    let (lateness_p99_us, lateness_max_us) = (p99_ms * 1000, p99_ms * 2000);
    LoadSample { at_ms, playing, lateness_p99_us, lateness_max_us, ..LoadSample::default() }
}

fn crowd(streams: Vec<StreamReport>, series: Vec<LoadSample>) -> Crowd {
    let fates = Fates::of(&streams);
    let viewers = fates.admitted() as u32;
    let figures = TrialFigures { viewers, p99_ms: 18.0, delivered_ratio: 1.0, ..TrialFigures::default() };
    Crowd { fates, figures, lost: 0, latest_ms: 40.0, streams, series, failures: Default::default() }
}

/// Six came within ten seconds; of the five who were admitted two were ended, and two came in for them.
fn good() -> OverloadResult {
    let mut streams: Vec<_> = [1_000, 3_000, 5_000].map(|began| stream(began, false)).into();
    streams.extend([7_000, 9_000].map(|began| stream(began, true)));
    streams.extend([refused(9_500), refused(15_000), stream(21_000, false), stream(23_000, false)]);
    let series = [(10_000, 5, 18), (10_500, 5, 300), (11_000, 5, 600), (13_500, 3, 150), (14_000, 3, 18)];
    let mut series: Vec<_> = series.map(|(at, playing, p99)| sample(at, playing, p99)).into();
    series.extend([sample(20_000, 3, 18), sample(20_500, 4, 400), sample(25_000, 5, 18)]);
    OverloadResult::of(crowd(streams, series), Strike { began_ms: 10_000, ended_ms: 20_000 }, 2, 100.0)
}

/// Six rounds whose admitted viewers and whose busy process are these.
fn judged(admitted: &Crowd, struck: &OverloadResult) -> Vec<Promise> {
    let round = |_, _| {
        let (carried, admitted) = (good().crowd, admitted.clone());
        Ok(OverloadRound { carried, admitted, struck: struck.clone() })
    };
    let options = Options { limit_s: Some(0), ..Options::new("x") };
    judge(&Turns::take(&options, &mut NoiseMeter::start(), &["x"], round, judge).unwrap())
}

/// What makes a good run one that is not.
type Spoil = fn(&mut OverloadResult);

/// Names of the targets that a run misses.
fn missed(promises: &[Promise]) -> Vec<&str> {
    let is_missed = |promise: &&Promise| promise.verdict == TargetState::Missed;
    promises.iter().filter(is_missed).map(|promise| promise.id.as_str()).collect()
}

#[test]
fn overload_run_without_faults_meets_all_targets() {
    let seen = good();
    assert_eq!((seen.before, seen.fewest, seen.in_the_end), (5, 3, 5));
    // The busy process is not the cause of lateness after its end.
    assert_eq!((seen.recovery_s, seen.worst_p99_ms, seen.latest_ms), (3.5, 600.0, 1200.0));
    assert_eq!((seen.out_of_order, seen.admitted_after, seen.crowd.fates.ended), (0, 2, 2));
    let promises = judged(&seen.crowd, &seen);
    // Those who were ended are no failures of the second part; of the first they are.
    assert_eq!(missed(&promises), [""; 0]);
    let ids: Vec<_> = promises.iter().map(|promise| promise.id.as_str()).collect();
    assert_eq!(ids, BENCH.targets);
}

#[test]
fn overload_target_is_missed_by_its_own_fault() {
    let late =
        |seen: &mut OverloadResult| *seen = again(seen, |_, series| series[4].lateness_p99_us = 200_000);
    let cases: [(&str, Spoil); 5] = [
        ("overload-recovery", |seen| seen.recovery_s = 5.5),
        ("overload-newest-first", |seen| *seen = again(seen, |streams, _| streams[0].has_ended = true)),
        ("overload-told", |seen| seen.ended_by_server += 1),
        ("overload-kept-loss", |seen| *seen = again(seen, |streams, _| streams[1].lost = 1)),
        ("overload-admitted-again", |seen| *seen = again(seen, |_, series| series[7].playing = 3)),
    ];
    for (target, spoil) in cases {
        let mut seen = good();
        spoil(&mut seen);
        assert!(missed(&judged(&good().crowd, &seen)).contains(&target), "{target}: {seen:?}");
    }
    let mut seen = good();
    late(&mut seen);
    assert_eq!(seen.recovery_s, 4.0);
}

/// The same run with other streams or samples.
fn again(seen: &OverloadResult, change: impl Fn(&mut [StreamReport], &mut [LoadSample])) -> OverloadResult {
    let Crowd { mut streams, mut series, .. } = seen.crowd.clone();
    change(&mut streams, &mut series);
    OverloadResult::of(crowd(streams, series), seen.strike, seen.ended_by_server, seen.in_time_ms)
}

#[test]
fn admitted_viewers_miss_targets_and_run_without_overload_has_none() {
    let judge_admitted = |change: fn(&mut Crowd)| {
        let mut crowd = good().crowd;
        change(&mut crowd);
        judged(&crowd, &good()).into_iter().take_while(|promise| promise.id != "overload-recovery").collect()
    };
    let missed_by = |change: fn(&mut Crowd)| {
        let promises: Vec<Promise> = judge_admitted(change);
        missed(&promises).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(missed_by(|crowd| crowd.figures.p99_ms = 91.0), ["overload-lateness-ratio"]);
    assert_eq!(missed_by(|crowd| crowd.lost = 1), ["overload-loss"]);
    assert_eq!(missed_by(|crowd| crowd.figures.without = 1), ["overload-failed"]);
    // No viewer was refused: either all was well, which shows nothing, or too many were admitted.
    assert_eq!(judge_admitted(|crowd| crowd.fates.refused = 0).len(), 0);
    let too_many = missed_by(|crowd| (crowd.fates.refused, crowd.figures.p99_ms) = (0, 900.0));
    assert_eq!(too_many, ["overload-lateness-ratio", "overload-refused"]);
    // A receiver that drops loses its own packets.
    assert_eq!(missed_by(|crowd| (crowd.lost, crowd.figures.spoiled) = (9, true)), [""; 0]);
}

#[test]
fn idle_neighbour_yields_no_targets() {
    let seen = again(&good(), |streams, series| {
        streams.iter_mut().for_each(|stream| stream.has_ended = false);
        series.iter_mut().for_each(|sample| sample.lateness_p99_us = 18_000);
    });
    let count =
        |ended_by_server| judged(&good().crowd, &OverloadResult { ended_by_server, ..seen.clone() }).len();
    assert_eq!((count(0), count(2)), (4, 9));
}

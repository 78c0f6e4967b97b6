use super::*;

fn options(first: u32) -> SearchOptions {
    SearchOptions { first, max: 20_000, growth: 2.0, precision: 0.03 }
}

/// Runs a search against `oracle`, which also gets the number of the trial; returns the result and
/// every count tried.
fn hunt(
    options: SearchOptions,
    mut oracle: impl FnMut(u32, u32) -> TrialVerdict,
) -> (SearchResult, Vec<u32>) {
    let mut search = Search::new(options);
    let mut tried = Vec::new();
    for n in 0..200 {
        match search.step() {
            SearchStep::Done(found) => return (found, tried),
            SearchStep::Try { count, .. } => {
                assert!((1..=options.max).contains(&count));
                tried.push(count);
                search.tell(count, oracle(count, n));
            }
        }
    }
    panic!("no end after {tried:?}");
}

fn clear(limit: u32) -> impl Fn(u32, u32) -> TrialVerdict {
    move |count, _| if count <= limit { TrialVerdict::ClearPass } else { TrialVerdict::ClearFail }
}

#[test]
fn search_finds_limit_within_precision() {
    for limit in (1..60).chain([99, 100, 101, 333, 640, 1000, 1333, 4096, 9999, 19_999]) {
        for first in [1, 64, 5000] {
            let (found, tried) = hunt(options(first), clear(limit));
            assert!(found.passed <= limit && found.is_narrow && !found.is_spoiled, "{limit} {found:?}");
            let failed = found.failed.unwrap();
            assert!(failed > limit);
            assert!(f64::from(failed - found.passed) <= (0.03 * f64::from(found.passed)).max(1.0));
            assert!(tried.len() <= 26, "{limit} from {first}: {tried:?}");
        }
    }
}

#[test]
fn doubling_is_rough_and_halving_is_not() {
    let mut search = Search::new(options(64));
    assert_eq!(search.step(), SearchStep::Try { count: 64, rough: true });
    search.tell(64, TrialVerdict::ClearPass);
    assert_eq!(search.step(), SearchStep::Try { count: 128, rough: true });
    search.tell(128, TrialVerdict::ClearFail);
    assert_eq!(search.step(), SearchStep::Try { count: 96, rough: false });
}

#[test]
fn search_with_all_failing_or_all_passing_ends_at_bound() {
    let (found, tried) = hunt(options(64), |_, _| TrialVerdict::ClearFail);
    assert_eq!((found.passed, found.failed), (0, Some(1)));
    assert_eq!(tried, [64, 64, 32, 16, 8, 4, 2, 1, 1]);
    let few = SearchOptions { max: 100, ..options(64) };
    let (found, tried) = hunt(few, |_, _| TrialVerdict::ClearPass);
    assert_eq!((found.passed, found.failed, found.is_narrow), (100, None, true));
    assert_eq!(tried, [64, 100]);
}

#[test]
fn search_near_limit_takes_two_of_three_trials() {
    let mut search = Search::new(options(100));
    search.tell(100, TrialVerdict::NarrowFail);
    assert_eq!(search.step(), SearchStep::Try { count: 100, rough: false });
    search.tell(100, TrialVerdict::NarrowPass);
    assert_eq!(search.step(), SearchStep::Try { count: 100, rough: false });
    search.tell(100, TrialVerdict::NarrowPass);
    assert_eq!(search.step(), SearchStep::Try { count: 200, rough: true });
    search.tell(200, TrialVerdict::NarrowPass);
    search.tell(200, TrialVerdict::NarrowFail);
    search.tell(200, TrialVerdict::NarrowFail);
    assert_eq!(search.step(), SearchStep::Try { count: 150, rough: false });
}

#[test]
fn search_with_periodic_disturbance_finds_limit() {
    // Every third trial is disturbed and fails narrowly, whatever the count.
    let disturbed = |count: u32, n: u32| match (n % 3 == 2, count <= 900) {
        (true, _) => TrialVerdict::NarrowFail,
        (false, true) => TrialVerdict::NarrowPass,
        (false, false) => TrialVerdict::ClearFail,
    };
    let (found, _) = hunt(options(64), disturbed);
    assert!((870..=900).contains(&found.passed), "{found:?}");
}

#[test]
fn one_disturbed_trial_does_not_change_the_limit() {
    for first in [64, 900] {
        let (_, undisturbed) = hunt(options(first), clear(900));
        for disturbed in 0..undisturbed.len() as u32 {
            let (found, tried) = hunt(options(first), |count, n| match n == disturbed {
                true => TrialVerdict::ClearFail,
                false => clear(900)(count, n),
            });
            // The failing trial is tried again before it decides anything.
            assert!((873..=900).contains(&found.passed), "trial {disturbed} of {tried:?}: {found:?}");
        }
    }
}

#[test]
fn spoiled_trials_are_repeated_once_and_then_bound_the_search() {
    let mut search = Search::new(options(64));
    search.tell(64, TrialVerdict::Spoiled);
    assert_eq!(search.step(), SearchStep::Try { count: 64, rough: false });
    search.tell(64, TrialVerdict::ClearPass);
    assert_eq!(search.step(), SearchStep::Try { count: 128, rough: true });
    let (found, _) =
        hunt(
            options(64),
            |count, _| if count > 100 { TrialVerdict::Spoiled } else { TrialVerdict::ClearPass },
        );
    assert!(found.is_spoiled && found.passed >= 97, "{found:?}");
}

#[test]
fn search_starting_near_limit_needs_few_trials() {
    let near = SearchOptions { first: 1000, growth: 1.06, ..options(0) };
    for limit in [950, 1000, 1040, 1090] {
        let (found, tried) = hunt(near, clear(limit));
        assert!(found.passed <= limit && found.passed >= limit - 32, "{limit} {found:?}");
        assert!(tried.len() <= 7, "{limit}: {tried:?}");
    }
}

#[test]
fn search_adopts_results_of_earlier_trials() {
    let mut search = Search::new(options(64));
    for (count, passed) in [(64, true), (512, false), (256, true), (128, true)] {
        search.tell(count, if passed { TrialVerdict::ClearPass } else { TrialVerdict::ClearFail });
    }
    assert_eq!(search.step(), SearchStep::Try { count: 384, rough: false });
    // Contradictions: the smallest failure counts, and what passed below it.
    search.tell(200, TrialVerdict::ClearFail);
    assert_eq!(
        search.stop(),
        SearchResult { passed: 128, failed: Some(200), is_narrow: false, is_spoiled: false }
    );
    assert_eq!(search.trials(), 5);
}

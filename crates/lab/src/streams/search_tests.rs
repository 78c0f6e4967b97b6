use super::*;

const OPTIONS: LoadOptions =
    LoadOptions { target: 0.9, first: 100, max: 100_000, precision: 0.05, trials: 12 };

/// Searches a core whose busy share for a number of streams is `busy`, and that serves all viewers
/// up to `most` streams.
fn hunt(options: LoadOptions, busy: impl Fn(u32) -> f64, most: u32) -> (SearchAnswer, Vec<u32>) {
    let mut search = LoadSearch::new(options);
    let mut tried = Vec::new();
    for _ in 0..50 {
        match search.step() {
            LoadStep::Done(answer) => return (answer, tried),
            LoadStep::Try(count) => {
                assert!((1..=options.max).contains(&count), "{count}");
                assert_eq!(search.step(), LoadStep::Try(count), "the same until it is told something");
                tried.push(count);
                search.tell(StreamTrial { count, busy: busy(count).min(1.0), is_kept: count <= most });
            }
        }
    }
    panic!("no end after {tried:?}");
}

#[test]
fn load_search_finds_linear_core_limit_in_few_trials() {
    for capacity in [7u32, 150, 999, 2_000, 14_000] {
        for first in [5, 100, 30_000] {
            let (answer, tried) = hunt(
                LoadOptions { first, ..OPTIONS },
                |n| 0.03 + 0.87 * f64::from(n) / f64::from(capacity),
                u32::MAX,
            );
            let error = answer.streams / f64::from(capacity) - 1.0;
            assert!(error.abs() < 0.05 && answer.bound == Bound::Core, "{capacity} from {first}: {answer:?}");
            assert!(tried.len() <= 9, "{capacity} from {first}: {tried:?}");
        }
    }
}

#[test]
fn load_search_finds_limit_of_superlinear_load() {
    let busy = |n: u32| 0.9 * (f64::from(n) / 4_000.0).powf(1.4);
    let (answer, tried) = hunt(OPTIONS, busy, u32::MAX);
    assert!((3_800.0..4_200.0).contains(&answer.streams), "{answer:?} {tried:?}");
}

#[test]
fn load_search_with_failed_delivery_is_bounded_by_it() {
    let (answer, tried) = hunt(OPTIONS, |n| f64::from(n) / 10_000.0, 600);
    assert_eq!(answer.bound, Bound::Delivery, "{tried:?}");
    assert!((560.0..=600.0).contains(&answer.streams), "{answer:?} {tried:?}");
    let (nobody, tried) = hunt(OPTIONS, |_| 0.1, 0);
    assert_eq!((nobody.streams, nobody.low, nobody.bound), (0.0, 0, Bound::Delivery), "{tried:?}");
}

#[test]
fn load_search_beyond_max_reports_extrapolation() {
    let (answer, tried) = hunt(LoadOptions { max: 1_000, ..OPTIONS }, |n| f64::from(n) / 5_000.0, u32::MAX);
    assert_eq!((answer.bound, answer.low, answer.high), (Bound::Extrapolated, 1_000, None), "{tried:?}");
    assert!((4_400.0..4_600.0).contains(&answer.streams), "{answer:?}");
}

#[test]
fn trials_are_bounded_and_few_ones_still_answer() {
    let busy = |n: u32| if n > 3_000 { 1.0 } else { f64::from(n) / 6_000.0 };
    let (answer, tried) = hunt(LoadOptions { trials: 4, ..OPTIONS }, busy, u32::MAX);
    assert_eq!(tried.len(), 4);
    assert!(answer.low <= 3_000 && answer.streams >= f64::from(answer.low), "{answer:?} {tried:?}");
}

#[test]
fn load_search_ignores_passed_trial_beyond_failed_one() {
    let mut search = LoadSearch::new(OPTIONS);
    search.tell(StreamTrial { count: 100, busy: 0.3, is_kept: true });
    search.tell(StreamTrial { count: 200, busy: 0.6, is_kept: false });
    search.tell(StreamTrial { count: 300, busy: 0.9, is_kept: true });
    search.tell(StreamTrial { count: 104, busy: 0.31, is_kept: false });
    let LoadStep::Done(answer) = search.step() else { panic!("{:?}", search.step()) };
    assert_eq!((answer.streams, answer.bound), (100.0, Bound::Delivery));
}

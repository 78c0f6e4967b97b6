use proptest::prelude::*;

use super::*;

fn labels(values: &[f64], is_log: bool) -> Vec<String> {
    Scale::of(values.iter().copied(), is_log, false, 5).labels().into_iter().map(|l| l.1).collect()
}

#[test]
fn ticks_are_round_numbers() {
    assert_eq!(labels(&[0.0, 97.0], false), ["0", "20", "40", "60", "80", "100"]);
    assert_eq!(labels(&[0.13, 0.31], false), ["0.10", "0.15", "0.20", "0.25", "0.30", "0.35"]);
    assert_eq!(labels(&[-3.0, 7.0], false), ["-4", "-2", "0", "2", "4", "6", "8"]);
    assert_eq!(labels(&[1_000.0, 100_000.0], false), ["0", "20k", "40k", "60k", "80k", "100k"]);
    assert_eq!(labels(&[0.0, 0.3], false), ["0", "0.1", "0.2", "0.3"]);
    assert_eq!(labels(&[14_000.0, 16_000.0], false), ["14.0k", "14.5k", "15.0k", "15.5k", "16.0k"]);
}

#[test]
fn log_ticks_are_powers_or_ones_twos_and_fives() {
    assert_eq!(labels(&[1_000.0, 100_000.0], true), ["1000", "2000", "5000", "10k", "20k", "50k", "100k"]);
    assert_eq!(labels(&[310.0, 620.0], true), ["200", "500", "1000"]);
    assert_eq!(labels(&[0.02, 1_500.0], true), ["0.01", "0.1", "1", "10", "100", "1000", "10k"]);
    assert_eq!(labels(&[5.0], true), ["2", "5", "10"]);
}

#[test]
fn scale_of_no_usable_values_still_has_ticks() {
    for is_log in [false, true] {
        for values in [&[][..], &[f64::NAN, f64::INFINITY], &[0.0], &[-1.0], &[1e308, -1e308], &[5e-324]] {
            let scale = Scale::of(values.iter().copied(), is_log, true, 5);
            assert!(scale.ticks.len() >= 2, "{values:?} {is_log}: {scale:?}");
            assert!(scale.place(f64::NAN).is_finite() && scale.place(-5.0) >= 0.0);
        }
    }
    assert!(!Scale::of([1.0].into_iter(), true, false, 5).shows(0.0));
    assert!(!Scale::of([1.0].into_iter(), false, false, 5).shows(f64::NAN));
}

#[test]
fn equal_values_stand_in_the_middle() {
    let scale = Scale::of([7.0, 7.0].into_iter(), false, false, 5);
    assert!((0.2..0.8).contains(&scale.place(7.0)), "{scale:?}");
    let zero = Scale::of([0.0].into_iter(), false, false, 5);
    assert_eq!((zero.first(), zero.place(0.0)), (0.0, 0.0));
}

proptest! {
    #[test]
    fn ticks_enclose_the_values_and_are_few_and_round(
        values in prop::collection::vec(-1e6..1e6f64, 1..20), scale in 1e-6..1e6f64, wanted in 2usize..10,
    ) {
        let values: Vec<f64> = values.iter().map(|v| v * scale).collect();
        let axis = Scale::of(values.iter().copied(), false, false, wanted);
        let (first, last) = (axis.ticks[0], *axis.ticks.last().unwrap());
        let dust = (last - first) * 1e-6;
        prop_assert!(values.iter().all(|v| *v >= first - dust && *v <= last + dust), "{axis:?} {values:?}");
        prop_assert!(axis.ticks.len() <= wanted + 3, "{axis:?}");
        let step = axis.ticks[1] - axis.ticks[0];
        let lead = step / 10f64.powf((step * 1.000_001).log10().floor());
        prop_assert!([1.0, 2.0, 5.0].iter().any(|m| (lead - m).abs() < 1e-6), "step {step}");
    }

    #[test]
    fn log_ticks_enclose_the_values(low in -6.0..9.0f64, decades in 0.0..9.0f64) {
        let (low, high) = (10f64.powf(low), 10f64.powf(low + decades));
        let axis = Scale::of([low, high].into_iter(), true, false, 5);
        prop_assert!(axis.ticks[0] <= low * 1.00001 && *axis.ticks.last().unwrap() >= high * 0.99999, "{axis:?}");
        prop_assert!(axis.ticks.len() >= 2 && axis.ticks.len() <= 12, "{axis:?}");
        prop_assert!(axis.ticks.windows(2).all(|w| w[0] < w[1]));
        prop_assert!(axis.place(low) <= axis.place(high));
    }
}

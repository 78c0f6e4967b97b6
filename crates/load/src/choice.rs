//! Which viewer watches what, and when viewers come. All of it follows from the seed.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millrace_client::error::ClientError;
use millrace_core::units::HumanDuration;

use crate::limits::{MAX_ARRIVALS_S, MAX_EXPONENT};
use crate::rng::Rng;

/// Which viewer watches what.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TitleChoice {
    /// The first viewer the first title, the second the second, and so round.
    #[default]
    InTurn,
    /// Every title is as likely as any other.
    Uniform,
    /// The n-th title of the list is drawn n^s times less often than the first.
    Zipf(f64),
}

/// When viewers come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At once.
    AllAtOnce,
    /// Evenly over this time.
    Ramp(Duration),
    /// At random, with this mean rate per second.
    Poisson {
        /// Viewers a second.
        per_s: f64,
    },
}

/// The generator that arrivals are drawn from; viewers have those below.
const ARRIVALS_NUMBER: u64 = u64::MAX;

fn wrong(option: &'static str, text: &str, allowed: &'static str) -> ClientError {
    let got = text.chars().take(60).collect::<String>();
    ClientError::Option { option, got: format!("\"{got}\""), allowed }
}

impl FromStr for TitleChoice {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let error = || wrong("titles", text, "in-turn, uniform, or zipf:S with S from 0 to 5, as zipf:0.8");
        match text.trim() {
            "in-turn" => Ok(Self::InTurn),
            "uniform" => Ok(Self::Uniform),
            other => {
                let s: f64 =
                    other.strip_prefix("zipf:").and_then(|s| s.trim().parse().ok()).ok_or_else(error)?;
                if (0.0..=MAX_EXPONENT).contains(&s) { Ok(Self::Zipf(s)) } else { Err(error()) }
            }
        }
    }
}

impl fmt::Display for TitleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InTurn => f.write_str("in-turn"),
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(s) => write!(f, "zipf:{s}"),
        }
    }
}

impl FromStr for Arrivals {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let error = || wrong("arrivals", text, "all, ramp:TIME as ramp:10s, or poisson:N/s as poisson:50/s");
        let text = text.trim();
        if text == "all" {
            return Ok(Self::AllAtOnce);
        }
        if let Some(time) = text.strip_prefix("ramp:") {
            let time: HumanDuration = time.parse().map_err(|_| error())?;
            return if time.0.as_secs_f64() <= MAX_ARRIVALS_S {
                Ok(Self::Ramp(time.0))
            } else {
                Err(error())
            };
        }
        let rate =
            text.strip_prefix("poisson:").and_then(|rate| rate.strip_suffix("/s")).ok_or_else(error)?;
        let per_s: f64 = rate.trim().parse().map_err(|_| error())?;
        if per_s > 0.0 && per_s <= 1e6 { Ok(Self::Poisson { per_s }) } else { Err(error()) }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllAtOnce => f.write_str("all"),
            Self::Ramp(time) => write!(f, "ramp:{}", HumanDuration(*time)),
            Self::Poisson { per_s } => write!(f, "poisson:{per_s}/s"),
        }
    }
}

impl Arrivals {
    /// When each viewer comes, in nanoseconds after the first could come, in rising order; and when all are there.
    pub(super) fn times_ns(&self, streams: u32, seed: u64) -> (Vec<u64>, u64) {
        match *self {
            Self::AllAtOnce => (vec![0; streams as usize], 0),
            Self::Ramp(time) => {
                let all = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                let at = |index| (u128::from(all) * u128::from(index) / u128::from(streams.max(1))) as u64;
                ((0..streams).map(at).collect(), all)
            }
            Self::Poisson { per_s } => {
                let mut rng = Rng::new(seed, ARRIVALS_NUMBER);
                let mean = Duration::from_secs_f64((1.0 / per_s).min(MAX_ARRIVALS_S));
                let mut at = 0u64;
                let mut next = || {
                    at = at.saturating_add(rng.exponential(mean).as_nanos() as u64);
                    at
                };
                let times: Vec<u64> = (0..streams).map(|_| next()).collect();
                let all = times.last().copied().unwrap_or(0);
                (times, all)
            }
        }
    }
}

/// Draws the titles that viewers play.
#[derive(Clone, Debug)]
pub(super) struct TitlePicker {
    choice: TitleChoice,
    count: usize,
    /// With Zipf: the share of this title and all before it.
    shares: Vec<f64>,
}

impl TitlePicker {
    /// Of `count` titles, at least one.
    pub(super) fn new(choice: TitleChoice, count: usize) -> Self {
        let mut shares = Vec::new();
        if let TitleChoice::Zipf(s) = choice {
            let mut sum = 0.0;
            for rank in 1..=count {
                sum += (rank as f64).powf(-s);
                shares.push(sum);
            }
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        Self { choice, count: count.max(1), shares }
    }

    fn draw(&self, rng: &mut Rng) -> usize {
        if self.shares.is_empty() {
            return rng.below(self.count);
        }
        let unit = rng.unit();
        self.shares.partition_point(|share| *share <= unit).min(self.count - 1)
    }

    /// What viewer `index` watches first.
    pub(super) fn first(&self, index: u32, rng: &mut Rng) -> usize {
        match self.choice {
            TitleChoice::InTurn => index as usize % self.count,
            _ => self.draw(rng),
        }
    }

    /// Returns the title to which a viewer of `current` zaps: a different one, if there is one.
    pub(super) fn next(&self, current: usize, rng: &mut Rng) -> usize {
        let neighbour = (current + 1) % self.count;
        if self.choice == TitleChoice::InTurn {
            return neighbour;
        }
        (0..16).map(|_| self.draw(rng)).find(|title| *title != current).unwrap_or(neighbour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_and_print() {
        for text in ["in-turn", "uniform", "zipf:0.8"] {
            assert_eq!(text.parse::<TitleChoice>().unwrap().to_string(), text);
        }
        for text in ["all", "ramp:10s", "poisson:50/s", "poisson:0.5/s"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        for text in ["zipf", "zipf:-1", "zipf:nan", "zipf:9", "x", ""] {
            let error = text.parse::<TitleChoice>().unwrap_err().to_string();
            assert!(error.contains("titles") && error.contains("zipf:0.8"), "{error}");
        }
        for text in ["ramp", "ramp:10", "poisson:0/s", "poisson:5", "poisson:inf/s", "at once", "ramp:999h"] {
            let error = text.parse::<Arrivals>().unwrap_err().to_string();
            assert!(error.contains("arrivals") && error.contains("ramp:10s"), "{error}");
        }
    }

    #[test]
    fn arrivals_come_when_they_should() {
        assert_eq!(Arrivals::AllAtOnce.times_ns(3, 1), (vec![0; 3], 0));
        let ramp = Arrivals::Ramp(Duration::from_nanos(100));
        assert_eq!(ramp.times_ns(4, 1), (vec![0, 25, 50, 75], 100));
        let poisson = Arrivals::Poisson { per_s: 50.0 };
        let (times, all) = poisson.times_ns(5000, 7);
        assert_eq!(poisson.times_ns(5000, 7).0, times);
        assert_ne!(poisson.times_ns(5000, 8).0, times);
        assert!(times.is_sorted() && times.last() == Some(&all));
        let seconds = all as f64 / 1e9;
        assert!((90.0..110.0).contains(&seconds), "{seconds}");
        // The standard deviation of exponential gaps is their mean, 20 ms.
        let gaps: Vec<f64> = times.windows(2).map(|two| (two[1] - two[0]) as f64 / 1e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((0.9..1.1).contains(&(deviation / mean)), "{mean} {deviation}");
    }

    #[test]
    fn zipf_draws_by_rank() {
        let titles = TitlePicker::new(TitleChoice::Zipf(1.0), 4);
        let mut rng = Rng::new(3, 0);
        let mut seen = [0u32; 4];
        (0..50_000).for_each(|_| seen[titles.first(0, &mut rng)] += 1);
        // 1 : 1/2 : 1/3 : 1/4 of 25/12.
        for (got, part) in seen.iter().zip([24_000, 12_000, 8_000, 6_000]) {
            assert!(got.abs_diff(part) < part / 10, "{seen:?}");
        }
        let flat = TitlePicker::new(TitleChoice::Zipf(0.0), 2);
        let first = (0..10_000).filter(|_| flat.first(0, &mut rng) == 0).count();
        assert!((4700..5300).contains(&first), "{first}");
    }

    #[test]
    fn titles_next_picks_another_title_if_there_is_one() {
        let mut rng = Rng::new(3, 0);
        for choice in [TitleChoice::InTurn, TitleChoice::Uniform, TitleChoice::Zipf(5.0)] {
            let titles = TitlePicker::new(choice, 3);
            for current in [0, 1, 2] {
                assert!((0..100).all(|_| titles.next(current, &mut rng) != current));
            }
            assert_eq!(TitlePicker::new(choice, 1).next(0, &mut rng), 0);
        }
        assert_eq!(TitlePicker::new(TitleChoice::InTurn, 3).first(7, &mut rng), 1);
    }
}

//! The measurements of a trial, and whether they are good enough.

use std::fmt;

use millrace_client::play::TransportChoice;

use super::search::TrialVerdict;

/// What viewers must get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Packets lost, of all.
    pub loss_ratio: f64,
    /// Lateness that 99 % of the packets must keep.
    pub p99_ms: f64,
    /// Payload delivered, relative to the title's rate.
    pub delivered_ratio: f64,
}

impl Limits {
    /// What we promise: a receiver with a buffer of a quarter of a second never notices.
    pub const STRICT: Self = Self { loss_ratio: 1e-4, p99_ms: 20.0, delivered_ratio: 0.995 };
    /// Limits that a patient receiver accepts, and every client that reads from a connection: there
    /// the receiver has a buffer, and bursts are long on purpose.
    pub const PATIENT: Self = Self { p99_ms: 100.0, ..Self::STRICT };

    /// Returns the limits that we must keep over a transport.
    pub fn of(transport: TransportChoice) -> &'static Self {
        if transport == TransportChoice::Tcp { &Self::PATIENT } else { &Self::STRICT }
    }

    /// The strict limits for the patient ones, and the other way round: reports have both.
    pub fn other(&self) -> &'static Self {
        if *self == Self::STRICT { &Self::PATIENT } else { &Self::STRICT }
    }
}

/// Measurements of one trial.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrialFigures {
    /// Viewers asked for.
    pub viewers: u32,
    /// Viewers that failed, got nothing, or never began.
    pub without: u64,
    /// Packets received; pieces read from a connection over TCP.
    pub packets: u64,
    /// Packets a second while all watched.
    pub packets_per_s: f64,
    /// Packets lost, of all.
    pub loss_ratio: f64,
    /// Payload delivered, relative to the rate; more than 1 for data sent ahead.
    pub delivered_ratio: f64,
    /// Payload bits a second while all watched.
    pub bits_per_s: f64,
    /// Lateness.
    pub p50_ms: f64,
    /// Lateness.
    pub p99_ms: f64,
    /// Lateness.
    pub p999_ms: f64,
    /// The receiver itself could not keep up: it dropped, or it was late and its lateness is in the figures.
    pub spoiled: bool,
    /// Share of all processors' time that the hypervisor took while the trial ran.
    pub stolen_ratio: f64,
}

/// How far beyond its limit a figure fails clearly.
const CLEAR_FAIL: f64 = 2.5;
/// How far below its limit lateness passes clearly. Senders that burst up to the limit on purpose are near it always.
const CLEAR_PASS: f64 = 0.9;
/// From this part of the processors' time on that a hypervisor took, a failure may be its doing: if one core of two lost all of it, that is
/// 1 % of its time, and as many packets may be as late as p99 looks at.
const DISTURBED: f64 = 0.005;
/// Part of the viewers whose failing may be chance.
const FEW: f64 = 0.01;

/// Returns whether enough of the processors' time was taken away that a failure is inconclusive.
pub fn is_disturbing(stolen_ratio: f64) -> bool {
    stolen_ratio > DISTURBED
}

impl TrialFigures {
    /// Returns whether a failure is inconclusive because the processors were taken away while the
    /// trial ran.
    pub fn is_disturbed(&self, limits: &Limits) -> bool {
        let fails = matches!(
            self.judge(limits),
            TrialVerdict::NarrowFail | TrialVerdict::ClearFail | TrialVerdict::Spoiled
        );
        fails && is_disturbing(self.stolen_ratio)
    }

    /// The verdict under `limits`.
    pub fn judge(&self, limits: &Limits) -> TrialVerdict {
        let undelivered = 1.0 - self.delivered_ratio;
        let undelivered_limit = 1.0 - limits.delivered_ratio;
        let measured = [
            (self.loss_ratio, limits.loss_ratio, 10.0),
            (self.p99_ms, limits.p99_ms, CLEAR_FAIL),
            (undelivered, undelivered_limit, CLEAR_FAIL),
        ];
        let fails = self.without > 0 || measured.iter().any(|(value, limit, _)| value > limit);
        if !fails {
            // A rate is measured between two moments: half a limit of error is nothing to worry about.
            let is_clear = self.loss_ratio == 0.0 && self.p99_ms <= limits.p99_ms * CLEAR_PASS;
            return if is_clear { TrialVerdict::ClearPass } else { TrialVerdict::NarrowPass };
        }
        if self.spoiled {
            return TrialVerdict::Spoiled;
        }
        let many = self.without as f64 > FEW * f64::from(self.viewers);
        let is_clear = many || measured.iter().any(|(value, limit, factor)| *value > limit * factor);
        if is_clear { TrialVerdict::ClearFail } else { TrialVerdict::NarrowFail }
    }
}

impl fmt::Display for TrialFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} viewers: {:.0} Mb/s ({:.2} %), loss {:.4} %, late p50 {:.1} p99 {:.1} p99.9 {:.1} ms",
            self.viewers,
            self.bits_per_s / 1e6,
            self.delivered_ratio * 100.0,
            self.loss_ratio * 100.0,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms,
        )?;
        if self.without > 0 {
            write!(f, ", {} got nothing", self.without)?;
        }
        if self.spoiled {
            write!(f, ", the receiver was too slow")?;
        }
        if self.stolen_ratio > DISTURBED {
            write!(f, ", the hypervisor took {:.1} % of the processors", self.stolen_ratio * 100.0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> TrialFigures {
        TrialFigures { viewers: 200, p99_ms: 5.0, delivered_ratio: 0.999, ..TrialFigures::default() }
    }

    #[test]
    fn judge_grades_each_figure_against_limits() {
        let judge = |change: fn(&mut TrialFigures)| {
            let mut figures = good();
            change(&mut figures);
            figures.judge(&Limits::STRICT)
        };
        assert_eq!(judge(|_| ()), TrialVerdict::ClearPass);
        assert_eq!(judge(|f| f.p99_ms = 19.0), TrialVerdict::NarrowPass);
        assert_eq!(judge(|f| f.p99_ms = 21.0), TrialVerdict::NarrowFail);
        assert_eq!(judge(|f| f.p99_ms = 51.0), TrialVerdict::ClearFail);
        assert_eq!(judge(|f| f.loss_ratio = 5e-5), TrialVerdict::NarrowPass);
        assert_eq!(judge(|f| f.loss_ratio = 5e-4), TrialVerdict::NarrowFail);
        assert_eq!(judge(|f| f.loss_ratio = 5e-3), TrialVerdict::ClearFail);
        assert_eq!(judge(|f| f.delivered_ratio = 0.99), TrialVerdict::NarrowFail);
        assert_eq!(judge(|f| f.delivered_ratio = 0.9), TrialVerdict::ClearFail);
        assert_eq!(judge(|f| f.delivered_ratio = 1.4), TrialVerdict::ClearPass);
        assert_eq!(judge(|f| f.without = 1), TrialVerdict::NarrowFail);
        assert_eq!(judge(|f| f.without = 20), TrialVerdict::ClearFail);
    }

    #[test]
    fn judge_with_spoiled_receiver_excuses_failure_but_not_pass() {
        let mut figures = TrialFigures { spoiled: true, ..good() };
        assert_eq!(figures.judge(&Limits::STRICT), TrialVerdict::ClearPass);
        figures.loss_ratio = 0.1;
        assert_eq!(figures.judge(&Limits::STRICT), TrialVerdict::Spoiled);
    }

    #[test]
    fn is_disturbed_by_stolen_cpu_time_only_on_failure() {
        let mut figures = TrialFigures { stolen_ratio: 0.08, ..good() };
        assert!(!figures.is_disturbed(&Limits::STRICT));
        figures.p99_ms = 58.0;
        assert!(figures.is_disturbed(&Limits::STRICT) && !figures.is_disturbed(&Limits::PATIENT));
        assert!(figures.to_string().ends_with("the hypervisor took 8.0 % of the processors"));
        assert!(!TrialFigures { stolen_ratio: 0.004, ..figures }.is_disturbed(&Limits::STRICT));
    }

    #[test]
    fn patient_limits_pass_lateness_that_strict_limits_fail() {
        let figures = TrialFigures { p99_ms: 95.0, ..good() };
        assert_eq!(figures.judge(&Limits::STRICT), TrialVerdict::ClearFail);
        assert_eq!(figures.judge(&Limits::PATIENT), TrialVerdict::NarrowPass);
        assert_eq!(figures.judge(Limits::of(TransportChoice::Tcp)), TrialVerdict::NarrowPass);
        assert_eq!(figures.judge(Limits::of(TransportChoice::Udp)), TrialVerdict::ClearFail);
        assert!(figures.to_string().starts_with("200 viewers: 0 Mb/s (99.90 %)"));
    }
}

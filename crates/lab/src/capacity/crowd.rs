//! More viewers than a server lets in: how many were admitted, how the others were turned away, and what those who were admitted got.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use millrace_load::{Arrivals, Behaviour, LoadProgress, LoadReport, LoadSample, StreamReport};

use super::limits::{Limits, TrialFigures};
use super::search::TrialVerdict;
use super::site::BenchSite;
use super::trial::{RunningService, Service, TrialPlan, is_spoiled, load_options, rates, run_load};
use crate::frame::{CpuTime, Row};

/// How the words of a failure end that is the refusal of a server that is full (RFC 2326 section 11.3.3).
const NOT_ENOUGH_BANDWIDTH: &str = ": 453";
/// The same by HTTP: the first response.
const UNAVAILABLE: [&str; 2] = ["file: HTTP 503", "playlist: HTTP 503"];

/// Viewers who arrive at random.
#[derive(Clone, Debug)]
pub struct Offer {
    /// How many come.
    pub viewers: u32,
    /// How many come in a second, in the mean.
    pub per_s: f64,
    /// For how long those who were admitted watch after the last has come.
    pub hold: Duration,
    /// Their behaviour meanwhile.
    pub behaviour: Behaviour,
}

/// How sessions ended, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Watched until the end.
    pub kept: u64,
    /// Watched, and heard the BYE before the end.
    pub ended: u64,
    /// Refused because the server is full: 453 by RTSP, 503 to the first request by HTTP.
    pub refused: u64,
    /// Anything else: an error, another refusal, no reply.
    pub otherwise: u64,
    /// Still asking when time was over.
    pub asking: u64,
}

/// How one session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFate {
    /// See [`Fates::kept`].
    Kept,
    /// See [`Fates::ended`].
    Ended,
    /// See [`Fates::refused`].
    Refused,
    /// See [`Fates::otherwise`].
    Otherwise,
    /// See [`Fates::asking`].
    Asking,
}

impl SessionFate {
    /// That of a session.
    pub fn of(stream: &StreamReport) -> Self {
        match (&stream.failure, stream.setup_us) {
            (Some(why), _) if why.ends_with(NOT_ENOUGH_BANDWIDTH) => Self::Refused,
            (Some(why), None) if UNAVAILABLE.contains(&why.as_str()) => Self::Refused,
            (Some(_), _) => Self::Otherwise,
            (None, None) => Self::Asking,
            (None, Some(_)) if stream.has_ended => Self::Ended,
            (None, Some(_)) => Self::Kept,
        }
    }
}

impl Fates {
    /// Those of sessions.
    pub fn of<'a>(streams: impl IntoIterator<Item = &'a StreamReport>) -> Self {
        streams.into_iter().fold(Self::default(), |mut sum, stream| {
            let count = match SessionFate::of(stream) {
                SessionFate::Kept => &mut sum.kept,
                SessionFate::Ended => &mut sum.ended,
                SessionFate::Refused => &mut sum.refused,
                SessionFate::Otherwise => &mut sum.otherwise,
                SessionFate::Asking => &mut sum.asking,
            };
            *count += 1;
            sum
        })
    }

    /// Sessions that were let in.
    pub fn admitted(&self) -> u64 {
        self.kept + self.ended
    }
}

/// The result of an [`Offer`].
#[derive(Clone, Debug)]
pub struct Crowd {
    /// How sessions ended.
    pub fates: Fates,
    /// Figures of the admitted viewers, as in a trial with this number of viewers: `without` are
    /// sessions that failed other than by a refusal, were ended, or got nothing.
    pub figures: TrialFigures,
    /// Packets that they missed anywhere.
    pub lost: u64,
    /// The latest packet.
    pub latest_ms: f64,
    /// One entry for each session.
    pub streams: Vec<StreamReport>,
    /// The load over time.
    pub series: Vec<LoadSample>,
    /// Why sessions failed, but for refusals of a full server.
    pub failures: BTreeMap<String, u64>,
}

/// Lets viewers arrive at a running server; `look` gets the progress four times a second.
///
/// # Errors
/// When the receiver cannot be set up.
pub fn offer(
    site: &BenchSite,
    service: &Service<'_>,
    running: &RunningService,
    offer: Offer,
    cancel: &AtomicBool,
    look: &mut (dyn FnMut(&LoadProgress) + Send),
) -> anyhow::Result<Crowd> {
    let plan = TrialPlan { count: offer.viewers, window: offer.hold, profile: false };
    let (mut options, _) = load_options(site, service, service.nominal, plan);
    options.targets.clone_from(&running.targets);
    options.arrivals = Arrivals::Poisson { per_s: offer.per_s };
    options.duration = offer.hold;
    options.behaviour = offer.behaviour;
    let before = CpuTime::read();
    let report = run_load(site, &mut options, cancel, look).context("viewers who come at random")?;
    let stolen = before.zip(CpuTime::read()).map(|(before, now)| now.stolen_since(before));
    Ok(Crowd::of(report, service, stolen.unwrap_or(0.0)))
}

/// The worst p99 of the lateness of an interval that ended within one of these times (begin, end), in milliseconds; NaN
/// if none did.
pub fn worst_p99_ms(series: &[LoadSample], times: &[(Duration, Duration)]) -> f64 {
    let is_within = |at: Duration| times.iter().any(|(begin, end)| (*begin..=*end).contains(&at));
    let seen = series.iter().filter(|sample| is_within(Duration::from_millis(sample.at_ms)));
    seen.map(|sample| sample.lateness_p99_us as f64 / 1e3).reduce(f64::max).unwrap_or(f64::NAN)
}

impl Crowd {
    fn of(r: LoadReport, service: &Service<'_>, stolen_ratio: f64) -> Self {
        let fates = Fates::of(&r.per_stream);
        let (packets_per_s, bits_per_s) = rates(&r.series, r.ramp_ms as f64 / 1e3, Duration::ZERO);
        let wanted = service.nominal.map_or(0.0, |rate| rate.0 as f64) * fates.kept as f64;
        let ms = |us: u64| us as f64 / 1e3;
        let lost = r.lost_in_all();
        let figures = TrialFigures {
            viewers: u32::try_from(fates.admitted()).unwrap_or(u32::MAX),
            without: fates.otherwise + fates.ended + r.sessions_silent + r.restarts,
            packets: r.packets,
            packets_per_s,
            loss_ratio: lost as f64 / (r.packets + lost).max(1) as f64,
            delivered_ratio: if wanted > 0.0 { bits_per_s / wanted } else { 1.0 },
            bits_per_s,
            p50_ms: ms(r.lateness.p50_us),
            p99_ms: ms(r.lateness.p99_us),
            p999_ms: ms(r.lateness.p999_us),
            spoiled: is_spoiled(&r, service.transport),
            stolen_ratio,
        };
        let (latest_ms, mut failures) = (ms(r.lateness.max_us), r.failures);
        failures
            .retain(|why, _| !why.ends_with(NOT_ENOUGH_BANDWIDTH) && !UNAVAILABLE.contains(&why.as_str()));
        Self { fates, figures, lost, latest_ms, streams: r.per_stream, series: r.series, failures }
    }

    /// Returns whether the admitted viewers got the quality that `limits` demand; `None` if the
    /// receiver was too slow to judge, or no viewer was admitted.
    pub fn keeps(&self, limits: &Limits) -> Option<bool> {
        match self.figures.judge(limits) {
            TrialVerdict::Spoiled => None,
            _ if self.figures.viewers == 0 => None,
            verdict => Some(matches!(verdict, TrialVerdict::ClearPass | TrialVerdict::NarrowPass)),
        }
    }

    /// Its lines in a report: figures, and one for each reason that is none.
    pub fn rows(&self, label: &str) -> Vec<Row> {
        let (fates, f) = (&self.fates, &self.figures);
        let offered = fates.admitted() + fates.refused + fates.otherwise + fates.asking;
        let mut rows = vec![
            Row::new(label)
                .with("offered", offered as f64, "")
                .with("admitted", fates.admitted() as f64, "")
                .with("refused", fates.refused as f64, "")
                .with("failed", fates.otherwise as f64, "")
                .with("ended", fates.ended as f64, "")
                .with("packets lost", self.lost as f64, "")
                .with("lateness p50", f.p50_ms, "ms")
                .with("p99", f.p99_ms, "ms")
                .with("p99.9", f.p999_ms, "ms")
                .with("max", self.latest_ms, "ms")
                .with("stolen", f.stolen_ratio * 100.0, "%"),
        ];
        let failures = self.failures.iter();
        rows.extend(failures.map(|(why, count)| Row::new(format!("{label}: {count} failed: {why}"))));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_p99_of_an_interval_ignores_other_times() {
        let sample = |at_ms, lateness_p99_us| LoadSample { at_ms, lateness_p99_us, ..LoadSample::default() };
        let series = [sample(500, 9_000), sample(1_000, 50_000), sample(1_500, 7_000), sample(3_000, 8_000)];
        let s = Duration::from_secs;
        assert_eq!(worst_p99_ms(&series, &[(s(2), s(3))]), 8.0);
        assert_eq!(worst_p99_ms(&series, &[(s(0), Duration::from_millis(500)), (s(2), s(3))]), 9.0);
        assert!(worst_p99_ms(&series, &[(s(4), s(5))]).is_nan());
    }

    #[test]
    fn fates_of_counts_each_session_once() {
        let played = StreamReport { setup_us: Some(900), ..StreamReport::default() };
        let failed = |why: &str| StreamReport { failure: Some(why.to_owned()), ..StreamReport::default() };
        let streams = [
            played.clone(),
            played.clone(),
            StreamReport { has_ended: true, ..played.clone() },
            failed("SETUP refused: 453"),
            failed("PLAY refused: 453"),
            failed("SETUP refused: 503"),
            failed("playlist: HTTP 503"),
            // In the middle of a title.
            StreamReport { failure: Some("segment: HTTP 503".to_owned()), ..played.clone() },
            // It played, and was cut off: admitted, but not kept, and without an RTCP BYE.
            StreamReport {
                failure: Some("the server closed the connection while playing".to_owned()),
                ..played
            },
            StreamReport::default(),
        ];
        let fates = Fates::of(&streams);
        assert_eq!(fates, Fates { kept: 2, ended: 1, refused: 3, otherwise: 3, asking: 1 });
        assert_eq!(fates.admitted(), 3);
    }
}

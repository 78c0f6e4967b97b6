//! The state of a live source, and the sentence that reports it: once for each change.

use std::fmt;

use millrace_core::time::{Instant, NS_PER_S};
use millrace_make::live::NotTs;

use crate::limits::live::{LIVE_HURRIES, LIVE_HURRY_NS, LIVE_OTHER_FORMAT_NS, LIVE_SILENT_NS};

/// State of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Nothing has come yet.
    Waiting,
    /// Media comes.
    Running,
    /// Nothing comes any more, since then.
    Silent(Instant),
    /// The data received is not usable.
    OtherFormat(NotTs),
    /// Media comes faster than it plays.
    TooFast,
    /// The program that fetches it has ended, and is started again soon.
    Failed,
}

impl SourceState {
    /// One word, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Silent(_) => "silent",
            Self::OtherFormat(_) => "not-ts",
            Self::TooFast => "too-fast",
            Self::Failed => "failed",
        }
    }

    /// Whether media comes.
    pub fn is_media(self) -> bool {
        matches!(self, Self::Running | Self::TooFast)
    }

    /// Whether an operator should look at it.
    pub fn is_trouble(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "nothing has come yet",
            Self::Running => "media comes",
            Self::Silent(_) => "silent: no media for 3 s; check the encoder and the network",
            Self::OtherFormat(NotTs::Garbage) => {
                "cannot use what comes: it is not MPEG-TS; set the encoder to MPEG-TS (ffmpeg: -f mpegts)"
            }
            Self::OtherFormat(NotTs::Rtp) => {
                "cannot use what comes: it is MPEG-TS in RTP; write rtp:// in place of udp:// for this source"
            }
            Self::TooFast => {
                "media comes faster than it plays: viewers get it as it comes; let the encoder send in real time (ffmpeg: -re)"
            }
            Self::Failed => "cannot be fetched; trying again",
        })
    }
}

/// Name of this transport in log lines.
pub(super) const BY_HTTP: &str = "HTTP";

/// One line for each change.
pub(super) fn report(name: &str, from: &str, state: SourceState) {
    if state.is_trouble() {
        tracing::warn!("live source {name} ({from}): {state}");
    } else {
        tracing::info!("live source {name} ({from}): {state}");
    }
}

/// Unusable datagrams in a row: arrival of the first and the last one, and the kind of the last.
#[derive(Clone, Copy, Debug)]
struct OtherData {
    since: Instant,
    last: Instant,
    what: NotTs,
}

/// Derives the state of a source from its data. The time is an argument.
#[derive(Debug)]
pub struct SourceWatch {
    state: SourceState,
    last_media: Option<Instant>,
    /// Unusable datagrams since the last media.
    other: Option<OtherData>,
    /// It could not be fetched, and no media has come since.
    has_failed: bool,
    /// When the source was too fast the last time, and how often in a row.
    hurry: Option<(Instant, u32)>,
}

impl Default for SourceWatch {
    fn default() -> Self {
        Self { state: SourceState::Waiting, last_media: None, other: None, has_failed: false, hurry: None }
    }
}

impl SourceWatch {
    /// The state that was reported last.
    pub fn state(&self) -> SourceState {
        self.state
    }

    /// Media has come.
    pub fn media(&mut self, now: Instant) {
        (self.last_media, self.other, self.has_failed) = (Some(now), None, false);
    }

    /// The source could not be fetched.
    pub fn failed(&mut self) {
        self.has_failed = true;
    }

    /// Something else has come.
    pub fn other(&mut self, now: Instant, what: NotTs) {
        let since = self.other.map_or(now, |other| other.since);
        self.other = Some(OtherData { since, last: now, what });
    }

    /// The source was a second of media ahead of time, again.
    pub fn hurried(&mut self, now: Instant) {
        let before = self.hurry.filter(|(last, _)| now.ns_since(*last) < LIVE_HURRY_NS);
        self.hurry = Some((now, before.map_or(1, |(_, count)| count.saturating_add(1))));
    }

    /// The state now, if it has changed.
    pub fn look(&mut self, now: Instant) -> Option<SourceState> {
        let state = self.judge(now);
        let has_changed = std::mem::discriminant(&state) != std::mem::discriminant(&self.state);
        if has_changed {
            self.state = state;
        }
        has_changed.then_some(state)
    }

    fn judge(&self, now: Instant) -> SourceState {
        if self.has_failed {
            return SourceState::Failed;
        }
        if let Some(OtherData { since, last, what }) = self.other
            && last.ns_since(since) >= LIVE_OTHER_FORMAT_NS
            && now.ns_since(last) < LIVE_SILENT_NS
        {
            return SourceState::OtherFormat(what);
        }
        let Some(last) = self.last_media else { return SourceState::Waiting };
        if now.ns_since(last) >= LIVE_SILENT_NS {
            return SourceState::Silent(last);
        }
        match self.hurry {
            Some((at, count)) if count >= LIVE_HURRIES && now.ns_since(at) < LIVE_HURRY_NS => {
                SourceState::TooFast
            }
            _ => SourceState::Running,
        }
    }

    /// How long nothing has come, in seconds.
    pub fn silent_s(&self, now: Instant) -> Option<u64> {
        self.last_media.map(|last| now.ns_since(last) / NS_PER_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut watch = SourceWatch::default();
        assert_eq!(watch.look(ms(60_000)), None, "waiting is no news");
        watch.media(ms(60_000));
        assert_eq!(watch.look(ms(60_000)), Some(SourceState::Running));
        watch.media(ms(61_000));
        assert_eq!(watch.look(ms(63_999)), None);
        assert_eq!(watch.look(ms(64_000)), Some(SourceState::Silent(ms(61_000))));
        assert_eq!(watch.look(ms(90_000)), None);
        assert_eq!(watch.silent_s(ms(90_000)), Some(29));
        watch.media(ms(91_000));
        assert_eq!(watch.look(ms(91_000)), Some(SourceState::Running));
    }

    #[test]
    fn other_format_is_reported_when_it_stays() {
        let mut watch = SourceWatch::default();
        watch.other(ms(0), NotTs::Garbage);
        watch.media(ms(500));
        watch.other(ms(600), NotTs::Garbage);
        watch.other(ms(1_500), NotTs::Rtp);
        assert_eq!(watch.look(ms(1_500)), Some(SourceState::Running), "damage");
        watch.other(ms(1_600), NotTs::Rtp);
        assert_eq!(watch.look(ms(1_600)), Some(SourceState::OtherFormat(NotTs::Rtp)));
        assert!(watch.state().to_string().contains("rtp://"));
        watch.media(ms(1_700));
        assert_eq!(watch.look(ms(1_700)), Some(SourceState::Running));
        watch.other(ms(1_800), NotTs::Garbage);
        assert_eq!(watch.look(ms(4_700)), Some(SourceState::Silent(ms(1_700))), "one datagram is no format");
    }

    #[test]
    fn source_that_cannot_be_fetched_has_failed_until_media_comes() {
        let mut watch = SourceWatch::default();
        watch.failed();
        assert_eq!(watch.look(ms(0)), Some(SourceState::Failed));
        assert_eq!(watch.look(ms(60_000)), None);
        watch.media(ms(60_000));
        assert_eq!(watch.look(ms(60_000)), Some(SourceState::Running));
        watch.failed();
        assert_eq!(watch.look(ms(90_000)), Some(SourceState::Failed), "rather than silent");
    }

    #[test]
    fn source_that_hurries_again_and_again_is_too_fast() {
        let mut watch = SourceWatch::default();
        let mut at = |second: u64, hurries: bool| {
            watch.media(ms(second * 1000));
            if hurries {
                watch.hurried(ms(second * 1000));
            }
            watch.look(ms(second * 1000))
        };
        assert_eq!(at(0, true), Some(SourceState::Running), "one burst");
        assert_eq!(at(10, true), Some(SourceState::TooFast));
        let back: Vec<_> = (11..40).filter_map(|second| at(second, false)).collect();
        assert_eq!(back, [SourceState::Running]);
    }
}

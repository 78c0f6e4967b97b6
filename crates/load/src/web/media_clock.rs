//! How much media the bytes of a body are: by the program clock references in it, by a rate that was given, or by the
//! title's length that was given.

use millrace_core::time::NS_PER_S;
use millrace_core::units::BitRate;

use crate::limits::{CLOCK_SEARCH_BYTES, MAX_CLOCK_STEP_NS};
use crate::ts::scan::{Pcr, ScanCounts, TsScan};

/// Sources for the media time of a body, best first: its own clock, the rate, the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockHints {
    /// Bits a second, if given.
    pub rate: Option<BitRate>,
    /// Media in the whole body, if given.
    pub media_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MediaClockSource {
    /// No clock reference has come, but one may.
    Searching,
    Pcr {
        last: Pcr,
    },
    Rate(BitRate),
    /// Media and bytes of the whole.
    Share {
        media_ns: u64,
        whole_bytes: u64,
    },
}

/// The text names the option to give.
pub const NO_CLOCK: &str = "no clock reference in the first MiB: give the media's bit rate (nominal rate) or its duration (film length)";

/// The media time of one body's bytes.
#[derive(Clone, Debug)]
pub struct MediaClock {
    hints: ClockHints,
    source: MediaClockSource,
    scan: TsScan,
    /// Whether the body began like a transport stream.
    is_ts: bool,
    bytes: u64,
    whole_bytes: Option<u64>,
    media_ns: u64,
    jumps: u64,
}

impl MediaClock {
    /// For a body of `whole_bytes`, if that is known.
    pub fn new(hints: ClockHints, whole_bytes: Option<u64>) -> Self {
        Self {
            hints,
            source: MediaClockSource::Searching,
            scan: TsScan::default(),
            is_ts: true,
            bytes: 0,
            whole_bytes,
            media_ns: 0,
            jumps: 0,
        }
    }

    /// Another body begins, elsewhere in the title: its bytes and its media are counted from here.
    pub fn begin(&mut self, whole_bytes: Option<u64>) {
        let mut scan = std::mem::take(&mut self.scan);
        scan.restart();
        *self = Self { scan, jumps: self.jumps, ..Self::new(self.hints, whole_bytes) };
    }

    /// Takes the next bytes; returns how much media is there now.
    ///
    /// # Errors
    /// [`NO_CLOCK`] once there is nothing to tell it by.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<u64, &'static str> {
        if self.bytes == 0 && !bytes.is_empty() {
            self.is_ts = bytes[0] == 0x47;
        }
        self.bytes += bytes.len() as u64;
        if self.is_ts {
            let (source, media_ns, jumps) = (&mut self.source, &mut self.media_ns, &mut self.jumps);
            self.scan.bytes(bytes, |pcr| follow(source, media_ns, jumps, pcr));
        }
        if self.source == MediaClockSource::Searching && (!self.is_ts || self.bytes >= CLOCK_SEARCH_BYTES) {
            self.source = self.other_source().ok_or(NO_CLOCK)?;
        }
        match self.source {
            MediaClockSource::Rate(rate) => self.media_ns = rate_ns(self.bytes, rate),
            MediaClockSource::Share { media_ns, whole_bytes } => {
                self.media_ns = share_ns(media_ns, self.bytes, whole_bytes)
            }
            _ => {}
        }
        Ok(self.media_ns)
    }

    fn other_source(&self) -> Option<MediaClockSource> {
        if let Some(rate) = self.hints.rate.filter(|rate| rate.0 > 0) {
            return Some(MediaClockSource::Rate(rate));
        }
        let (media_ns, whole_bytes) = self.hints.media_ns.zip(self.whole_bytes)?;
        (whole_bytes > 0).then_some(MediaClockSource::Share { media_ns, whole_bytes })
    }

    /// Returns the media to date, and the bytes it took.
    pub fn media(&self) -> (u64, u64) {
        (self.media_ns, self.bytes)
    }

    /// Returns the findings of the scan; nothing if the body is no transport stream.
    pub fn scan(&self) -> ScanCounts {
        if self.is_ts { self.scan.counts() } else { ScanCounts::default() }
    }

    /// Times that the stream's clock jumped.
    pub fn jumps(&self) -> u64 {
        self.jumps
    }
}

/// Takes one clock reference.
fn follow(source: &mut MediaClockSource, media_ns: &mut u64, jumps: &mut u64, pcr: Pcr) {
    if let MediaClockSource::Pcr { last } = *source {
        let step_ns = pcr.ns_since(last);
        if step_ns <= MAX_CLOCK_STEP_NS && !pcr.discontinuity {
            *media_ns += step_ns;
        } else {
            *jumps += 1;
        }
    }
    if !matches!(source, MediaClockSource::Rate(_) | MediaClockSource::Share { .. }) {
        *source = MediaClockSource::Pcr { last: pcr };
    }
}

/// Media time of `bytes` at `rate`.
pub(crate) fn rate_ns(bytes: u64, rate: BitRate) -> u64 {
    let ns = u128::from(bytes) * 8 * u128::from(NS_PER_S) / u128::from(rate.0.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn share_ns(media_ns: u64, bytes: u64, whole_bytes: u64) -> u64 {
    (u128::from(media_ns) * u128::from(bytes.min(whole_bytes)) / u128::from(whole_bytes.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ts::scan::tests::packet;

    const MS: u64 = 1_000_000;

    #[test]
    fn media_clock_prefers_pcr_over_hints() {
        let hints = ClockHints { rate: Some(BitRate(1)), media_ns: Some(1) };
        let mut clock = MediaClock::new(hints, Some(1));
        // 100 ms apart, then a jump, then 40 ms.
        for (n, (ms, film_ms)) in
            [(5000, 0), (5100, 100), (5200, 200), (90_000, 200), (90_040, 240), (1000, 240)]
                .iter()
                .enumerate()
        {
            let bytes =
                [packet(1, 2 * n as u8, Some(ms * 27_000)), packet(1, 2 * n as u8 + 1, None)].concat();
            assert_eq!(clock.bytes(&bytes), Ok(film_ms * MS), "{ms}");
        }
        assert_eq!((clock.jumps(), clock.scan().packets, clock.scan().continuity_errors), (2, 12, 0));
        assert_eq!(clock.media(), (240 * MS, 12 * 188));
    }

    #[test]
    fn media_clock_without_pcr_uses_rate_then_length() {
        let rate = ClockHints { rate: Some(BitRate(8_000_000)), media_ns: Some(10_000 * MS) };
        let mut clock = MediaClock::new(rate, Some(1000));
        assert_eq!(clock.bytes(b"ftyp"), Ok(4000));
        assert_eq!(clock.bytes(&[0x47; 996]), Ok(MS));
        assert_eq!(clock.scan(), ScanCounts::default(), "not a transport stream");
        let mut clock = MediaClock::new(ClockHints { rate: None, ..rate }, Some(1000));
        assert_eq!(clock.bytes(&[1; 500]), Ok(5_000 * MS));
        assert_eq!(clock.bytes(&[1; 700]), Ok(10_000 * MS), "more came than was announced");
        let mut clock = MediaClock::new(ClockHints { rate: None, ..rate }, None);
        assert_eq!(clock.bytes(&[1; 500]), Err(NO_CLOCK));
    }

    #[test]
    fn another_body_is_counted_from_its_beginning() {
        let mut clock = MediaClock::new(ClockHints::default(), None);
        let pair =
            |ms: u64| [packet(1, 0, Some(ms * 27_000)), packet(1, 1, Some((ms + 30) * 27_000))].concat();
        assert_eq!(clock.bytes(&pair(1000)), Ok(30 * MS));
        clock.begin(None);
        assert_eq!((clock.media(), clock.bytes(&pair(90_000))), ((0, 0), Ok(30 * MS)));
        assert_eq!((clock.jumps(), clock.scan().packets, clock.scan().continuity_errors), (0, 4, 0));
    }

    #[test]
    fn media_clock_search_for_pcr_is_bounded() {
        let mut clock = MediaClock::new(ClockHints::default(), None);
        let silent = [packet(1, 0, None), packet(1, 1, None)].concat();
        let mut bytes = 0;
        let fault = loop {
            match clock.bytes(&silent) {
                Ok(media_ns) => assert_eq!(media_ns, 0),
                Err(fault) => break fault,
            }
            bytes += silent.len() as u64;
        };
        assert_eq!(fault, NO_CLOCK);
        assert!((CLOCK_SEARCH_BYTES - 376..=CLOCK_SEARCH_BYTES).contains(&bytes), "{bytes}");
        assert_eq!(MediaClock::new(ClockHints::default(), None).bytes(&[]), Ok(0));
    }
}

//! The `Range` header in normal play time (RFC 2326 sections 3.6 and 12.29).

use millrace_core::time::MediaTicks;

use crate::service::{From, Span};

/// Why a `Range` is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// `smpte`, `clock` or another unit.
    #[error("Range is understood in npt only")]
    Unit,
    /// Not a range of normal play time.
    #[error("Range is not npt=START-END in seconds or h:mm:ss")]
    Malformed,
}

/// Reads the header's value; parameters behind `;` (`time=`) are left out. `-T-` begins before 0, `-T` ends at T.
///
/// # Errors
/// [`RangeError`].
pub fn parse(value: &str) -> Result<Span, RangeError> {
    let value = value.split(';').next().unwrap_or_default().trim();
    let (unit, times) = value.split_once('=').ok_or(RangeError::Malformed)?;
    if !unit.trim().eq_ignore_ascii_case("npt") {
        return Err(RangeError::Unit);
    }
    let times = times.trim();
    if let Some(from) = ffmpeg_below_zero(times) {
        return Ok(Span { from: From::At(from), to: None });
    }
    let (is_negative, times) = match times.strip_prefix('-') {
        Some(rest) if rest.contains('-') => (true, rest),
        _ => (false, times),
    };
    let (from, to) = times.split_once('-').ok_or(RangeError::Malformed)?;
    let (from, to) = (from.trim(), to.trim());
    let to = if to.is_empty() { None } else { Some(time(to).ok_or(RangeError::Malformed)?) };
    let from = match from {
        "" if to.is_none() || is_negative => return Err(RangeError::Malformed),
        "" => From::Here,
        now if now.eq_ignore_ascii_case("now") && !is_negative => From::Here,
        at => {
            let at = time(at).ok_or(RangeError::Malformed)?.0.cast_signed();
            From::At(if is_negative { -at } else { at })
        }
    };
    Ok(Span { from, to })
}

/// FFmpeg writes seconds and milliseconds each with the sign that its division leaves: -1.5 s is `-1.-500-`, -20 ms is
/// `0.-20-`. `None` if it is not that.
fn ffmpeg_below_zero(times: &str) -> Option<i64> {
    let (seconds, ms) = times.strip_suffix('-')?.split_once(".-")?;
    let digits = |text: &str, most: usize| -> Option<i64> {
        let ok = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
        ok.then(|| text.parse().ok()).flatten()
    };
    let seconds = digits(seconds.strip_prefix('-').unwrap_or(seconds), 9)?;
    Some(-(seconds * 90_000 + digits(ms, 3)? * 90))
}

/// `12`, `12.5`, `12.`, `1:02:03.5`, at most 10^9 hours; rounded to the nearest tick.
fn time(text: &str) -> Option<MediaTicks> {
    let digits = |text: &str| -> Option<u64> {
        let ok = !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
        ok.then(|| text.parse().ok()).flatten()
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':');
    let seconds = match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(s), None, None, None) => digits(s)?,
        (Some(h), Some(m), Some(s), None) => {
            let (m, s) = (digits(m)?, digits(s)?);
            if m > 59 || s > 59 {
                return None;
            }
            digits(h)? * 3600 + m * 60 + s
        }
        _ => return None,
    };
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(9)];
    let scale = 10u64.pow(fraction.len() as u32);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    Some(MediaTicks(seconds * 90_000 + (fraction * 90_000 + scale / 2) / scale))
}

/// Seconds with 3 to 6 decimals: reading it back gives the same tick (a tick is 11.1 us).
pub fn npt(time: MediaTicks) -> String {
    let us = (u128::from(time.0) * 1_000_000 + 45_000) / 90_000;
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    let keep = text.trim_end_matches('0').len().max(text.len() - 3);
    text[..keep].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> MediaTicks {
        MediaTicks(seconds * 90_000)
    }

    #[test]
    fn what_players_send() {
        let at = |t: MediaTicks, to| Ok(Span { from: From::At(t.0.cast_signed()), to });
        assert_eq!(parse("npt=0.000-"), at(s(0), None));
        assert_eq!(parse("npt=0-"), at(s(0), None));
        assert_eq!(parse("npt=0-60.5"), at(s(0), Some(MediaTicks(5_445_000))));
        assert_eq!(parse("npt=12.-13."), at(s(12), Some(s(13))));
        assert_eq!(parse("npt = 1:02:03.5 - "), at(MediaTicks(335_115_000), None));
        assert_eq!(parse("NPT=10-20;time=19970123T143720Z"), at(s(10), Some(s(20))));
        assert_eq!(parse("npt=now-"), Ok(Span { from: From::Here, to: None }));
        assert_eq!(parse("npt=now-60"), Ok(Span { from: From::Here, to: Some(s(60)) }));
        assert_eq!(parse("npt=-20"), Ok(Span { from: From::Here, to: Some(s(20)) }));
    }

    #[test]
    fn a_start_below_zero_is_no_end() {
        let below = |ticks: i64, to| Ok(Span { from: From::At(-ticks), to });
        assert_eq!(parse("npt=-20-"), below(1_800_000, None));
        assert_eq!(parse("npt=-20.5-7"), below(1_845_000, Some(s(7))));
        assert_eq!(parse("npt=-0:00:01-"), below(90_000, None));
        // As ffmpeg prints what C leaves of a division.
        assert_eq!(parse("npt=-1.-500-"), below(135_000, None));
        assert_eq!(parse("npt=0.-20-"), below(1800, None));
        assert_eq!(parse("npt=0.-05-"), below(450, None));
        assert_eq!(parse("npt=-26.000-"), below(26 * 90_000, None));
    }

    #[test]
    fn what_is_not_understood() {
        assert_eq!(parse("smpte=10:07:00-"), Err(RangeError::Unit));
        assert_eq!(parse("clock=19961108T142300Z-"), Err(RangeError::Unit));
        assert_eq!(parse("bytes=0-"), Err(RangeError::Unit));
        for bad in [
            "",
            "npt",
            "npt=",
            "npt=-",
            "npt=a-",
            "npt=1",
            "npt=1:2-",
            "npt=0:60:00-",
            "npt=1e3-",
            "npt=--1",
            "npt=--1-",
            "npt=-now-",
            "npt=1.-5000-",
            "npt=1.--",
            "npt=1.x-",
        ] {
            assert_eq!(parse(bad), Err(RangeError::Malformed), "{bad}");
        }
        assert_eq!(parse("npt=99999999999999999999-"), Err(RangeError::Malformed));
    }

    #[test]
    fn npt_reads_back_as_the_same_tick() {
        assert_eq!(npt(s(20)), "20.000");
        assert_eq!(npt(MediaTicks(45)), "0.0005");
        for ticks in (0..200_000).chain([90_000 * 86_400 * 100 + 1, (1 << 40) - 1]) {
            let text = npt(MediaTicks(ticks));
            assert_eq!(time(&text), Some(MediaTicks(ticks)), "{text}");
        }
    }
}

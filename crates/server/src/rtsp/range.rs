//! The `Range` header (RFC 2326 sections 3.5 to 3.7 and 12.29): normal play time, SMPTE time codes,
//! absolute time, and the named positions of set-top boxes.

use millrace_core::time::MediaTicks;

use crate::date;
use crate::service::{From, Span};

/// Why a `Range` is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// An unsupported unit.
    #[error("Range is supported in npt, smpte and clock only")]
    Unit,
    /// Not a valid range in a supported unit.
    #[error("Range is not npt=START-END, smpte=START-END or clock=START-END")]
    Malformed,
}

/// Reads the header's value; parameters behind `;` (`time=`) are left out. `-T-` begins before 0, `-T` ends at T.
///
/// # Errors
/// [`RangeError`].
pub fn parse(value: &str) -> Result<Span, RangeError> {
    let value = value.split(';').next().unwrap_or_default().trim();
    let (unit, times) = value.split_once('=').ok_or(RangeError::Malformed)?;
    let times = times.trim();
    let unit = unit.trim().to_ascii_lowercase();
    let time: fn(&str) -> Option<MediaTicks> = match unit.as_str() {
        "npt" => time,
        "smpte" | "smpte-30-drop" => time_code_30_drop,
        "smpte-25" => time_code_25,
        "clock" => clock_time,
        _ => return Err(RangeError::Unit),
    };
    if let Some(span) = in_words(times) {
        return Ok(span);
    }
    if let Some(from) = ffmpeg_below_zero(times).filter(|_| unit != "clock") {
        return Ok(Span { from: From::At(from), to: None, is_clock: false });
    }
    let (is_negative, times) = match times.strip_prefix('-') {
        Some(rest) if rest.contains('-') && unit != "clock" => (true, rest),
        _ => (false, times),
    };
    let (from, to) = times.split_once('-').ok_or(RangeError::Malformed)?;
    let (from, to) = (from.trim(), to.trim());
    let is_endless = to.is_empty();
    let to = match to {
        end if end.is_empty() || end.eq_ignore_ascii_case("end") => None,
        at => Some(time(at).ok_or(RangeError::Malformed)?),
    };
    let from = match from {
        "" if is_endless || is_negative => return Err(RangeError::Malformed),
        "" => From::Here,
        word if !is_negative && word_of(word).is_some() => word_of(word).unwrap_or(From::Here),
        at => {
            let at = time(at).ok_or(RangeError::Malformed)?.0.cast_signed();
            From::At(if is_negative { -at } else { at })
        }
    };
    Ok(Span { from, to, is_clock: unit == "clock" })
}

/// Parses a named position. `now` is in RFC 2326; set-top boxes send the others.
fn word_of(text: &str) -> Option<From> {
    let is = |word| text.eq_ignore_ascii_case(word);
    match text {
        _ if is("now") => Some(From::Here),
        _ if is("beginning") => Some(From::Beginning),
        _ if is("end") => Some(From::End),
        _ => None,
    }
}

/// Parses a range from a named position to the end.
fn in_words(times: &str) -> Option<Span> {
    let (from, to) = times.split_once('-')?;
    let to = to.trim();
    let is_to_the_end = to.is_empty() || to.eq_ignore_ascii_case("end");
    Some(Span { from: word_of(from.trim()).filter(|_| is_to_the_end)?, to: None, is_clock: false })
}

/// Parses `h:mm:ss`, `h:mm:ss:ff` or `h:mm:ss:ff.hundredths` at `fps` frames a second: returns
/// minutes from the start, seconds, frames, and hundredths of a frame.
fn time_code(text: &str, fps: u64) -> Option<[u64; 4]> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = whole.split(':');
    let (hours, minutes, seconds) = (parts.next()?, parts.next()?, parts.next()?);
    let frames = parts.next();
    if parts.next().is_some() || !part.is_empty() && frames.is_none() {
        return None;
    }
    let (hours, minutes, seconds) = (digits(hours, 6)?, digits(minutes, 2)?, digits(seconds, 2)?);
    let frames = frames.map_or(Some(0), |frames| digits(frames, 2))?;
    let hundredths = if part.is_empty() { 0 } else { digits(part, 2)? };
    (minutes < 60 && seconds < 60 && frames < fps).then_some([
        hours * 60 + minutes,
        seconds,
        frames,
        hundredths,
    ])
}

/// Parses a drop-frame time code (29.97 frames a second). It skips two frame numbers in each minute
/// except every tenth, so that it keeps up with the clock.
fn time_code_30_drop(text: &str) -> Option<MediaTicks> {
    let [minutes, seconds, frames, hundredths] = time_code(text, 30)?;
    let left_out = 2 * (minutes - minutes / 10);
    let frames = ((minutes * 60 + seconds) * 30 + frames).saturating_sub(left_out);
    Some(MediaTicks(frames * 3_003 + hundredths * 3_003 / 100))
}

fn time_code_25(text: &str) -> Option<MediaTicks> {
    let [minutes, seconds, frames, hundredths] = time_code(text, 25)?;
    Some(MediaTicks(((minutes * 60 + seconds) * 25 + frames) * 3_600 + hundredths * 36))
}

/// FFmpeg writes seconds and milliseconds each with the sign that its division leaves: -1.5 s is `-1.-500-`, -20 ms is
/// `0.-20-`. `None` if it is not that.
fn ffmpeg_below_zero(times: &str) -> Option<i64> {
    let (seconds, ms) = times.strip_suffix('-')?.split_once(".-")?;
    let seconds = digits(seconds.strip_prefix('-').unwrap_or(seconds), 9)?;
    Some(-(seconds * 90_000 + digits(ms, 3)? * 90).cast_signed())
}

/// Parses a text that is a number of at most `most` digits, without a sign or spaces.
fn digits(text: &str, most: usize) -> Option<u64> {
    let is_number = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

/// `12`, `12.5`, `12.`, `1:02:03.5`, at most 10^9 hours; rounded to the nearest tick.
fn time(text: &str) -> Option<MediaTicks> {
    let digits = |text: &str| digits(text, 9);
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
    Some(MediaTicks(seconds * 90_000 + ticks_of_fraction(fraction)?))
}

/// Absolute time (RFC 2326 section 3.7) since 1970: `19961108T143720.25Z`. Seconds and `Z` are optional, as in appendix C.1.5 of the
/// RFC. A time before 1970 counts as 1 January 1970.
fn clock_time(text: &str) -> Option<MediaTicks> {
    let text = text.strip_suffix(['Z', 'z']).unwrap_or(text);
    let (date, time) = text.split_once(['T', 't'])?;
    let (time, fraction) = time.split_once('.').map_or((time, None), |(time, part)| (time, Some(part)));
    let part = |text: &str, at: std::ops::Range<usize>| digits(text.get(at)?, 4);
    let days = date::days_to(part(date, 0..4)?, part(date, 4..6)?, part(date, 6..8)?)?;
    let (hour, minute) = (part(time, 0..2)?, part(time, 2..4)?);
    let second = match time.len() {
        4 if fraction.is_none() => 0,
        6 => part(time, 4..6)?,
        _ => return None,
    };
    // The 61st second of a minute is a leap second.
    if date.len() != 8 || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days * 86_400 + (hour * 3600 + minute * 60 + second).cast_signed();
    let within = fraction.map_or(Some(0), ticks_of_fraction)?;
    Some(MediaTicks((seconds * 90_000 + within.cast_signed()).max(0).cast_unsigned()))
}

/// A time since 1970 as absolute time, at most a millisecond later: the access point that is at a place is the one before the written time, too.
pub fn clock(since_1970: MediaTicks) -> String {
    date::clock_ms(since_1970.0.div_ceil(90))
}

/// The decimals of a second; rounded to the nearest tick.
fn ticks_of_fraction(decimals: &str) -> Option<u64> {
    if !decimals.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let decimals = &decimals[..decimals.len().min(9)];
    let scale = 10u64.pow(decimals.len() as u32);
    let fraction = if decimals.is_empty() { 0 } else { decimals.parse::<u64>().ok()? };
    Some((fraction * 90_000 + scale / 2) / scale)
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
    fn parse_of_npt_ranges_from_players_returns_span() {
        let span = |from, to| Ok(Span { from, to, is_clock: false });
        let at = |t: MediaTicks, to| span(From::At(t.0.cast_signed()), to);
        assert_eq!(parse("npt=0.000-"), at(s(0), None));
        assert_eq!(parse("npt=0-"), at(s(0), None));
        assert_eq!(parse("npt=0-60.5"), at(s(0), Some(MediaTicks(5_445_000))));
        assert_eq!(parse("npt=12.-13."), at(s(12), Some(s(13))));
        assert_eq!(parse("npt = 1:02:03.5 - "), at(MediaTicks(335_115_000), None));
        assert_eq!(parse("NPT=10-20;time=19970123T143720Z"), at(s(10), Some(s(20))));
        assert_eq!(parse("npt=now-"), span(From::Here, None));
        assert_eq!(parse("npt=now-60"), span(From::Here, Some(s(60))));
        assert_eq!(parse("npt=-20"), span(From::Here, Some(s(20))));
    }

    #[test]
    fn parse_of_negative_start_is_not_taken_as_end() {
        let below = |ticks: i64, to| Ok(Span { from: From::At(-ticks), to, is_clock: false });
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
    fn parse_of_words_names_places() {
        let from = |from| Ok(Span { from, to: None, is_clock: false });
        for unit in ["npt", "NPT", "smpte", "clock"] {
            assert_eq!(parse(&format!("{unit}=beginning-")), from(From::Beginning));
            assert_eq!(parse(&format!("{unit}=end-")), from(From::End));
            assert_eq!(parse(&format!("{unit} = Now - ")), from(From::Here));
            assert_eq!(parse(&format!("{unit}=Beginning-END")), from(From::Beginning));
        }
        assert_eq!(parse("npt=10-end"), from(From::At(900_000)));
        assert_eq!(parse("npt=-end"), from(From::Here));
        let to_10 = Span { from: From::Beginning, to: Some(s(10)), is_clock: false };
        assert_eq!(parse("npt=beginning-10"), Ok(to_10));
        for bad in ["npt=-beginning-", "npt=start-", "npt=beginning", "npt=0-beginning", "npt=-end-"] {
            assert_eq!(parse(bad), Err(RangeError::Malformed), "{bad}");
        }
    }

    #[test]
    fn parse_of_absolute_times_counts_from_1970() {
        // 8 November 1996, 14:37:20 UTC.
        const S: u64 = 847_463_840;
        let span = |from: u64, to| Ok(Span { from: From::At(from.cast_signed()), to, is_clock: true });
        assert_eq!(parse("clock=19961108T143720.25Z-"), span(S * 90_000 + 22_500, None));
        assert_eq!(parse("CLOCK = 19961108t143720z - "), span(S * 90_000, None));
        assert_eq!(parse("clock=19961108T143720-19961108T1438Z"), span(S * 90_000, Some(s(S + 40))));
        assert_eq!(parse("clock=19961108T143720.Z-end;time=x"), span(S * 90_000, None));
        assert_eq!(parse("clock=19961108T143760Z-"), span((S + 40) * 90_000, None), "a leap second");
        assert_eq!(parse("clock=19691231T235959Z-"), span(0, None));
        let until = |from| Ok(Span { from, to: Some(s(S)), is_clock: true });
        assert_eq!(parse("clock=-19961108T143720Z"), until(From::Here));
        assert_eq!(parse("clock=beginning-19961108T143720Z"), until(From::Beginning));
        for bad in [
            "yesterday-",
            "-",
            "19961108T143720Z",
            "19961108-",
            "19961108T-",
            "19961108T14Z-",
            "19961108T14372Z-",
            "19961108T1437.5Z-",
            "19961108T143720.5xZ-",
            "19961108T243720Z-",
            "19961108T146020Z-",
            "19961108T143761Z-",
            "19961308T143720Z-",
            "19960230T143720Z-",
            "1996110T143720Z-",
            "199611080T143720Z-",
            "+9961108T143720Z-",
            "19961108T143720ZZ-",
            "-19961108T143720Z-",
            "\u{e9}9961108T143720Z-",
            "1996110\u{e9}T143720Z-",
        ] {
            assert_eq!(parse(&format!("clock={bad}")), Err(RangeError::Malformed), "{bad}");
        }
    }

    #[test]
    fn clock_reads_back_as_the_same_millisecond() {
        for ms in (0..2_000u64).chain([847_463_840_250, 1_795_298_940_500, 253_402_300_799_999]) {
            let text = clock(MediaTicks((ms * 90).saturating_sub(ms % 90)));
            assert_eq!(clock_time(&text), Some(MediaTicks(ms * 90)), "{text}");
        }
    }

    #[test]
    fn parse_of_time_codes_counts_from_the_start() {
        let at = |ticks: i64| Ok(Span { from: From::At(ticks), to: None, is_clock: false });
        assert_eq!(parse("smpte-25=0:00:10:05-"), at(10 * 90_000 + 5 * 3_600));
        assert_eq!(parse("smpte-25=0:00:10:05.50-"), at(10 * 90_000 + 5 * 3_600 + 1_800));
        // Ten minutes have 17,982 frames, an hour has 107,892.
        assert_eq!(parse("smpte=0:10:00-"), at(17_982 * 3_003));
        assert_eq!(parse("smpte-30-drop=1:00:00:00-"), at(107_892 * 3_003));
        let span = parse("smpte=0:00:01:00-0:00:02:00").unwrap();
        assert_eq!((span.from, span.to), (From::At(90_090), Some(MediaTicks(180_180))));
        for bad in
            ["smpte=1-", "smpte=0:0:1:30-", "smpte-25=0:00:60-", "smpte=0:00:01.5-", "smpte=0:0:0:0:0-"]
        {
            assert_eq!(parse(bad), Err(RangeError::Malformed), "{bad}");
        }
    }

    #[test]
    fn parse_of_unsupported_range_returns_error() {
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

//! Master playlists (RFC 8216 section 4.3.4): the renditions of a title, with what players choose by.

use std::fmt::Write;

use millrace_core::time::MEDIA_HZ;

use super::segments::Segment;

/// A rendition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Where its media playlist is.
    pub(crate) address: String,
    pub(crate) rates: Rates,
    pub(crate) streams: Streams,
    /// Whether its sound is in renditions of their own ([`Sound`]).
    pub(crate) has_sounds_apart: bool,
}

/// A sound that players choose beside the pictures (section 4.3.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    pub(crate) address: String,
    /// For people; unique among all.
    pub(crate) name: String,
    /// As RFC 5646 has it.
    pub(crate) language: Option<String>,
    pub(crate) channels: u16,
}

/// Subtitles that players offer beside the pictures (the same section).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subtitles {
    pub(crate) address: String,
    /// For people; unique among all.
    pub(crate) name: String,
    /// As RFC 5646 has it.
    pub(crate) language: Option<String>,
    /// It has only what every viewer needs.
    pub(crate) is_forced: bool,
    pub(crate) is_for_hearing_impaired: bool,
}

/// Pictures that stand alone, for seeking (section 4.3.4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Still {
    pub(crate) address: String,
    pub(crate) rate: u64,
    pub(crate) codec: String,
    pub(crate) resolution: (u32, u32),
}

/// What is known of its streams. What is not known is left out of the playlist: players look for themselves then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    /// `CODECS`: all of them, or none.
    pub(crate) codecs: Option<String>,
    /// Width and height of its pictures.
    pub(crate) resolution: Option<(u32, u32)>,
    /// Thousandths of pictures a second.
    pub(crate) frame_rate: Option<u32>,
}

/// Bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Of the fastest run of segments of half to one and a half target durations.
    pub(crate) peak: u64,
    pub(crate) mean: u64,
}

/// The rates of a title cut into these segments, each with so many bytes of tables in front.
pub(crate) fn rates(segments: &[Segment], target_s: u64, tables: u64) -> Rates {
    let bytes_of = |segment: &Segment| segment.bytes.end - segment.bytes.start + tables;
    let rate = |bytes: u64, ticks: u64| {
        let bits = u128::from(bytes) * 8 * u128::from(MEDIA_HZ);
        u64::try_from(bits.div_ceil(u128::from(ticks.max(1)))).unwrap_or(u64::MAX)
    };
    let target = target_s * MEDIA_HZ;
    let (mut peak, mut longest) = (0, 0);
    for start in 0..segments.len() {
        let (mut bytes, mut ticks) = (0, 0);
        for segment in &segments[start..] {
            bytes += bytes_of(segment);
            ticks += segment.duration.0;
            if ticks > target + target / 2 {
                break;
            }
            if ticks >= target / 2 {
                peak = peak.max(rate(bytes, ticks));
            }
            longest = longest.max(rate(bytes, ticks.max(target / 2)));
        }
    }
    let all = segments.iter().map(bytes_of).sum();
    let mean = rate(all, segments.iter().map(|segment| segment.duration.0).sum());
    // A title shorter than half a target duration has no such run.
    let peak = if peak > 0 { peak } else { longest.max(mean) };
    Rates { peak: peak.max(mean), mean }
}

/// What there is beside the renditions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside<'a> {
    pub(crate) sounds: &'a [Sound],
    pub(crate) subtitles: &'a [Subtitles],
    pub(crate) stills: &'a [Still],
}

/// The group of all sounds.
const GROUP: &str = "sound";
/// That of all subtitles.
const SUBTITLES: &str = "subtitles";
/// What those for people who do not hear well have (section 4.3.4.1).
const HEARING_IMPAIRED: &str =
    "public.accessibility.transcribes-spoken-dialog,public.accessibility.describes-music-and-sound";

/// The text.
pub(crate) fn write(version: u32, variants: &[Variant], beside: Beside<'_>, are_independent: bool) -> String {
    let Beside { sounds, subtitles, stills } = beside;
    let mut text = format!("#EXTM3U\n#EXT-X-VERSION:{version}\n");
    if are_independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    for (at, Sound { address, name, language, channels }) in sounds.iter().enumerate() {
        // Writing into a string does not fail.
        let _ = write!(text, "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"{GROUP}\",NAME=\"{name}\"");
        if let Some(language) = language {
            let _ = write!(text, ",LANGUAGE=\"{language}\"");
        }
        let is_default = if at == 0 { "YES" } else { "NO" };
        let _ = write!(text, ",DEFAULT={is_default},AUTOSELECT=YES,CHANNELS=\"{channels}\"");
        let _ = writeln!(text, ",URI=\"{address}\"");
    }
    subtitles.iter().for_each(|one| write_subtitles(one, &mut text));
    for Variant { address, rates, streams, has_sounds_apart } in variants {
        let _ = write!(text, "#EXT-X-STREAM-INF:BANDWIDTH={},AVERAGE-BANDWIDTH={}", rates.peak, rates.mean);
        if let Some(codecs) = &streams.codecs {
            let _ = write!(text, ",CODECS=\"{codecs}\"");
        }
        if let Some((width, height)) = streams.resolution {
            let _ = write!(text, ",RESOLUTION={width}x{height}");
        }
        if let Some(rate) = streams.frame_rate {
            let _ = write!(text, ",FRAME-RATE={}.{:03}", rate / 1000, rate % 1000);
        }
        if *has_sounds_apart {
            let _ = write!(text, ",AUDIO=\"{GROUP}\"");
        }
        if !subtitles.is_empty() {
            let _ = write!(text, ",SUBTITLES=\"{SUBTITLES}\"");
        }
        let _ = write!(text, "\n{address}\n");
    }
    for Still { address, rate, codec, resolution: (width, height) } in stills {
        let _ = write!(text, "#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH={rate},CODECS=\"{codec}\"");
        let _ = writeln!(text, ",RESOLUTION={width}x{height},URI=\"{address}\"");
    }
    text
}

/// Nobody is shown subtitles that he did not ask for, here or in his player's settings.
fn write_subtitles(of: &Subtitles, text: &mut String) {
    let Subtitles { address, name, language, is_forced, is_for_hearing_impaired } = of;
    // Writing into a string does not fail.
    let _ = write!(text, "#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID=\"{SUBTITLES}\",NAME=\"{name}\"");
    if let Some(language) = language {
        let _ = write!(text, ",LANGUAGE=\"{language}\"");
    }
    text.push_str(",DEFAULT=NO,AUTOSELECT=YES");
    text.push_str(if *is_forced { ",FORCED=YES" } else { "" });
    if *is_for_hearing_impaired {
        let _ = write!(text, ",CHARACTERISTICS=\"{HEARING_IMPAIRED}\"");
    }
    let _ = writeln!(text, ",URI=\"{address}\"");
}

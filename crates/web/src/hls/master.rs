//! Master playlists (RFC 8216 section 4.3.4): the renditions of a title, with what players choose by.

use std::fmt::Write;

use millrace_core::time::MEDIA_HZ;

use super::audio::{self, AudioGroup, AudioRendition};
use super::first_pictures::Captions;
use super::language;
use super::segments::MediaSegment;

/// A rendition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Where its media playlist is.
    pub(crate) address: String,
    pub(crate) rates: Rates,
    pub(crate) streams: StreamAttributes,
    /// The audio group of the variant, if its audio is separate.
    pub(crate) audio: Option<&'static str>,
    /// The subtitle group that uses the times of the variant.
    pub(crate) subtitles: Option<&'static str>,
    /// Captions in its video; `None`: not known.
    pub(crate) captions: Option<Captions>,
}

/// A group of subtitles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubtitleGroup {
    pub(crate) id: &'static str,
    pub(crate) members: Vec<Subtitles>,
}

/// Subtitles that players offer beside the pictures (the same section).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subtitles {
    pub(crate) address: String,
    /// For people; unique among all.
    pub(crate) name: String,
    /// ISO 639-2 code.
    pub(crate) language: Option<String>,
    /// Whether the track has only the text that every viewer needs.
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
    pub(crate) video_range: Option<&'static str>,
}

/// Known properties of its streams. Unknown ones are left out of the playlist: players then look
/// for themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamAttributes {
    /// `CODECS`: the codecs that a player must decode.
    pub(crate) codecs: Option<String>,
    /// Width and height of its pictures.
    pub(crate) resolution: Option<(u32, u32)>,
    /// Thousandths of pictures a second.
    pub(crate) frame_rate: Option<u32>,
    /// `VIDEO-RANGE` (draft-pantos-hls-rfc8216bis section 4.4.6.2).
    pub(crate) video_range: Option<&'static str>,
}

/// Bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Of the fastest run of segments of half to one and a half target durations.
    pub(crate) peak: u64,
    pub(crate) mean: u64,
}

/// Returns the rates of a title cut into these segments, each with `tables` bytes of tables in
/// front.
pub(crate) fn rates(segments: &[MediaSegment], target_s: u64, tables: u64) -> Rates {
    let bytes_of = |segment: &MediaSegment| segment.bytes.end - segment.bytes.start + tables;
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
    pub(crate) audio: &'a [AudioGroup],
    pub(crate) subtitles: &'a [SubtitleGroup],
    pub(crate) stills: &'a [Still],
    /// Address of the chapters.
    pub(crate) chapters: Option<&'a str>,
}

/// Name of the group for all captions.
const CAPTIONS: &str = "captions";
/// Characteristics of subtitles for the hard of hearing (section 4.3.4.1).
const HEARING_IMPAIRED: &str =
    "public.accessibility.transcribes-spoken-dialog,public.accessibility.describes-music-and-sound";

fn yes_or_no(is: bool) -> &'static str {
    if is { "YES" } else { "NO" }
}

/// The text.
pub(crate) fn write(version: u32, variants: &[Variant], beside: Beside<'_>, are_independent: bool) -> String {
    let Beside { audio, subtitles, stills, chapters } = beside;
    let mut captions = Captions::default();
    variants.iter().filter_map(|variant| variant.captions).for_each(|found| captions.join(found));
    let captions = captions.instream_ids();
    // CEA-708 services require version 7 (section 7).
    let version = if captions.iter().any(|id| id.starts_with("SERVICE")) { version.max(7) } else { version };
    // Writing into a string does not fail.
    let mut text = format!("#EXTM3U\n#EXT-X-VERSION:{version}\n");
    if are_independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    if let Some(address) = chapters {
        let _ = writeln!(text, "#EXT-X-SESSION-DATA:DATA-ID=\"com.apple.hls.chapters\",URI=\"{address}\"");
    }
    for AudioGroup { id, members, .. } in audio {
        members.iter().for_each(|member| write_audio(id, member, &mut text));
    }
    for SubtitleGroup { id, members } in subtitles {
        members.iter().for_each(|one| write_subtitles(id, one, &mut text));
    }
    for id in &captions {
        let _ = write!(text, "#EXT-X-MEDIA:TYPE=CLOSED-CAPTIONS,GROUP-ID=\"{CAPTIONS}\",NAME=\"{id}\"");
        let _ = writeln!(text, ",DEFAULT=NO,AUTOSELECT=YES,INSTREAM-ID=\"{id}\"");
    }
    let have_none = captions.is_empty() && variants.iter().all(|variant| variant.captions.is_some());
    for variant in variants {
        write_variant(variant, have_none, &mut text);
    }
    for Still { address, rate, codec, resolution: (width, height), video_range } in stills {
        let _ = write!(text, "#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH={rate},CODECS=\"{codec}\"");
        let _ = write!(text, ",RESOLUTION={width}x{height}");
        if let Some(range) = video_range {
            let _ = write!(text, ",VIDEO-RANGE={range}");
        }
        let _ = writeln!(text, ",URI=\"{address}\"");
    }
    text
}

/// `have_no_captions`: no variant of the playlist has captions, which every variant must then state
/// (section 4.3.4.2).
fn write_variant(variant: &Variant, have_no_captions: bool, text: &mut String) {
    let Variant { address, rates, streams, audio, subtitles, captions } = variant;
    // Writing into a string does not fail.
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
    if let Some(range) = streams.video_range {
        let _ = write!(text, ",VIDEO-RANGE={range}");
    }
    if let Some(group) = audio {
        let _ = write!(text, ",AUDIO=\"{group}\"");
    }
    if let Some(group) = subtitles {
        let _ = write!(text, ",SUBTITLES=\"{group}\"");
    }
    if have_no_captions {
        text.push_str(",CLOSED-CAPTIONS=NONE");
    } else if captions.is_some_and(|captions| !captions.instream_ids().is_empty()) {
        let _ = write!(text, ",CLOSED-CAPTIONS=\"{CAPTIONS}\"");
    }
    let _ = write!(text, "\n{address}\n");
}

fn write_audio(group: &str, of: &AudioRendition, text: &mut String) {
    let AudioRendition { address, name, language, channels, role, is_default, is_chosen_by_itself } = of;
    // Writing into a string does not fail.
    let _ = write!(text, "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"{group}\",NAME=\"{name}\"");
    if let Some(language) = language {
        let _ = write!(text, ",LANGUAGE=\"{language}\"");
    }
    let _ = write!(text, ",DEFAULT={}", yes_or_no(*is_default));
    let _ = write!(text, ",AUTOSELECT={}", yes_or_no(*is_chosen_by_itself));
    if let Some(characteristic) = role.and_then(audio::characteristic) {
        let _ = write!(text, ",CHARACTERISTICS=\"{characteristic}\"");
    }
    let _ = writeln!(text, ",CHANNELS=\"{channels}\",URI=\"{address}\"");
}

/// Subtitles are shown if the viewer selects them, in the player or in its settings.
fn write_subtitles(group: &str, of: &Subtitles, text: &mut String) {
    let Subtitles { address, name, language, is_forced, is_for_hearing_impaired } = of;
    // Writing into a string does not fail.
    let _ = write!(text, "#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID=\"{group}\",NAME=\"{name}\"");
    if let Some(language) = language.as_deref().and_then(language::tag) {
        let _ = write!(text, ",LANGUAGE=\"{language}\"");
    }
    text.push_str(",DEFAULT=NO,AUTOSELECT=YES");
    text.push_str(if *is_forced { ",FORCED=YES" } else { "" });
    if *is_for_hearing_impaired {
        let _ = write!(text, ",CHARACTERISTICS=\"{HEARING_IMPAIRED}\"");
    }
    let _ = writeln!(text, ",URI=\"{address}\"");
}

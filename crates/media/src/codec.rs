//! The meaning of a PMT entry: maps stream type and descriptors to a codec name and the way its
//! access points are found.

use serde::{Deserialize, Serialize};

/// How an elementary stream is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Pictures, in a syntax whose access points can be seen.
    Video(VideoSyntax),
    /// Sound.
    Audio,
    /// Subtitles, data, tables.
    Other,
}

/// Syntax of a video elementary stream, as far as access points need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VideoSyntax {
    /// MPEG-1 and MPEG-2 video (ISO/IEC 11172-2, 13818-2).
    Mpeg2,
    /// MPEG-4 part 2 (ISO/IEC 14496-2).
    Mpeg4,
    /// H.264 (ISO/IEC 14496-10).
    H264,
    /// H.265 (ISO/IEC 23008-2).
    H265,
    /// Another: only the random access indicator is available.
    Opaque,
}

/// The audience of a stream that is not the main one of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamRole {
    /// Narration for the visually impaired, alone or mixed with the main audio.
    AudioDescription,
    /// For the hard of hearing.
    HearingImpaired,
    /// Music and effects without dialogue.
    CleanEffects,
    /// Speech about the media.
    Commentary,
}

impl StreamRole {
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AudioDescription => "audio-description",
            Self::HearingImpaired => "hearing-impaired",
            Self::CleanEffects => "clean-effects",
            Self::Commentary => "commentary",
        }
    }
}

/// Codec name and kind of a PMT entry.
///
/// Stream types: ISO/IEC 13818-1 table 2-34, ATSC A/53 part 3 for 0x81 and 0x87, SCTE and Blu-ray assignments for the
/// other private ones. Descriptors (ETSI EN 300 468) or a registration identify type 6 (private
/// PES). `program`: the descriptors of the whole program, which may register all of its stream
/// types.
pub fn identify(stream_type: u8, descriptors: &[u8], program: &[u8]) -> (String, StreamKind) {
    use StreamKind::{Audio, Other, Video};
    let is_disc = [descriptors, program].iter().any(|list| registration(list) == Some(b"HDMV"));
    let (name, kind) = match stream_type {
        0x01 => ("MPEG-1 video", Video(VideoSyntax::Mpeg2)),
        0x02 => ("MPEG-2 video", Video(VideoSyntax::Mpeg2)),
        0x03 | 0x04 => (MPEG_AUDIO, Audio),
        0x0f => ("AAC", Audio),
        0x10 => ("MPEG-4 video", Video(VideoSyntax::Mpeg4)),
        0x11 => ("AAC LATM", Audio),
        0x05 => ("private sections", Other),
        0x0a..=0x0d => ("DSM-CC data", Other),
        0x15 => ("metadata", Other),
        0x1b => ("H.264", Video(VideoSyntax::H264)),
        0x1c => ("AAC", Audio),
        0x20 => ("H.264 MVC", Video(VideoSyntax::Opaque)),
        0x21 => ("JPEG 2000", Video(VideoSyntax::Opaque)),
        0x24 => ("H.265", Video(VideoSyntax::H265)),
        0x2d | 0x2e => ("MPEG-H audio", Audio),
        0x33 => ("H.266", Video(VideoSyntax::Opaque)),
        0x42 => ("AVS", Video(VideoSyntax::Opaque)),
        0xd2 => ("AVS2", Video(VideoSyntax::Opaque)),
        0xd4 => ("AVS3", Video(VideoSyntax::Opaque)),
        0xea => ("VC-1", Video(VideoSyntax::Opaque)),
        0x81 => ("AC-3", Audio),
        0x84 | 0x87 => ("E-AC-3", Audio),
        0x80 if is_disc => ("LPCM", Audio),
        0x82 if is_disc => ("DTS", Audio),
        0x83 if is_disc => ("TrueHD", Audio),
        0x85 | 0x86 if is_disc => ("DTS-HD", Audio),
        0x86 => ("SCTE-35", Other),
        0x90 => (PGS_SUBTITLES, Other),
        _ => private(descriptors),
    };
    match name {
        "" if PRIVATE_TYPES.contains(&stream_type) => (PRIVATE.to_owned(), kind),
        "" => (format!("unknown (type 0x{stream_type:02x})"), kind),
        name => (name.to_owned(), kind),
    }
}

/// Types of PES packets with private data, whose coding the tables do not name. The last two are
/// DTS unless something else is registered.
const PRIVATE_TYPES: [u8; 3] = [0x06, 0x82, 0x8a];
/// Name of such a stream until its content identifies it ([`private_sound`]).
pub const PRIVATE: &str = "private data";

/// The codec of sound that the tables call private data, from the beginning of a PES packet's payload.
pub fn private_sound(payload: &[u8]) -> Option<&'static str> {
    match *payload {
        // ADTS (ISO/IEC 13818-7 section 6.2): syncword, layer 0, one of 13 sampling frequencies, a length beyond the header.
        [0xff, b1, b2, b3, b4, b5, ..]
            if b1 & 0xf6 == 0xf0
                && b2 >> 2 & 0x0f < 13
                && (u16::from(b3 & 3) << 11 | u16::from(b4) << 3 | u16::from(b5 >> 5)) > 7 =>
        {
            Some("AAC")
        }
        // LOAS (ISO/IEC 14496-3 section 1.7.2).
        [0x56, b1, ..] if b1 & 0xe0 == 0xe0 => Some("AAC LATM"),
        // ETSI TS 102 366: bit stream identification.
        [0x0b, 0x77, _, _, _, b5, ..] if b5 >> 3 <= 10 => Some("AC-3"),
        [0x0b, 0x77, _, _, _, b5, ..] if b5 >> 3 <= 16 => Some("E-AC-3"),
        // ETSI TS 102 114: 16-bit words, the higher byte first.
        [0x7f, 0xfe, 0x80, 0x01, ..] => Some("DTS"),
        _ => None,
    }
}

/// Name of stream types 3 and 4 until a frame header gives the layer ([`mpeg_audio_layer`]).
pub const MPEG_AUDIO: &str = "MPEG audio";

/// "MP1", "MP2" or "MP3" from the first frame header in `payload` (ISO/IEC 11172-3 section 2.4.1.3).
pub fn mpeg_audio_layer(payload: &[u8]) -> Option<&'static str> {
    let header = payload.windows(3).find(|w| {
        w[0] == 0xff && w[1] & 0xe0 == 0xe0 && w[1] & 0x18 != 0x08 && w[1] & 0x06 != 0 && w[2] >> 4 != 15
    })?;
    Some(match header[1] >> 1 & 3 {
        3 => "MP1",
        2 => "MP2",
        _ => "MP3",
    })
}

/// A private stream by its descriptors; an empty name if nothing is known of it.
fn private(descriptors: &[u8]) -> (&'static str, StreamKind) {
    use StreamKind::{Audio, Other, Video};
    let known = match registration(descriptors) {
        Some(b"AC-3") => Some(("AC-3", Audio)),
        Some(b"EAC3") => Some(("E-AC-3", Audio)),
        Some(b"DTS1" | b"DTS2" | b"DTS3") => Some(("DTS", Audio)),
        Some(b"Opus") => Some(("Opus", Audio)),
        Some(b"BSSD") => Some(("SMPTE 302M", Audio)),
        Some(b"HEVC") => Some(("H.265", Video(VideoSyntax::H265))),
        Some(b"VC-1") => Some(("VC-1", Video(VideoSyntax::Opaque))),
        Some(b"AV01") => Some(("AV1", Video(VideoSyntax::Opaque))),
        Some(b"KLVA") => Some(("KLV metadata", Other)),
        _ => None,
    };
    let by_descriptor = || {
        descriptors_of(descriptors).find_map(|(tag, _)| match tag {
            0x6a => Some(("AC-3", Audio)),
            0x7a => Some(("E-AC-3", Audio)),
            0x7b => Some(("DTS", Audio)),
            0x7c => Some(("AAC", Audio)),
            0x56 => Some((TELETEXT, Other)),
            0x59 => Some((DVB_SUBTITLES, Other)),
            _ => None,
        })
    };
    known.or_else(by_descriptor).unwrap_or(("", Other))
}

/// Names of subtitles.
const TELETEXT: &str = "teletext";
const DVB_SUBTITLES: &str = "DVB subtitles";
const PGS_SUBTITLES: &str = "PGS subtitles";

/// Whether a codec that [`identify`] has named is one of subtitles.
pub fn is_subtitles(codec: &str) -> bool {
    [TELETEXT, DVB_SUBTITLES, PGS_SUBTITLES].contains(&codec)
}

/// The language of an ISO 639 language descriptor (ISO/IEC 13818-1 section 2.6.18), of the first page or subtitle that a teletext or
/// subtitling descriptor names (ETSI EN 300 468 sections 6.2.41 and 6.2.43), or of a supplementary audio descriptor: three lower-case letters.
pub fn language(descriptors: &[u8]) -> Option<String> {
    let of = |tag| descriptors_of(descriptors).find(|&(found, _)| found == tag);
    let (_, body) =
        of(0x0a).or_else(|| of(0x59)).or_else(|| of(0x56)).or_else(|| supplementary_language(descriptors))?;
    let code = body.get(..3)?;
    let letters = code.iter().all(u8::is_ascii_alphabetic);
    letters.then(|| code.iter().map(|&c| char::from(c.to_ascii_lowercase())).collect())
}

/// The body of the extension descriptor (ETSI EN 300 468 section 6.2.16) whose extension tag is
/// `wanted`, without the tag.
fn extension(descriptors: &[u8], wanted: u8) -> Option<&[u8]> {
    descriptors_of(descriptors).find_map(|(tag, body)| match body {
        [found, rest @ ..] if tag == EXTENSION && *found == wanted => Some(rest),
        _ => None,
    })
}

const EXTENSION: u8 = 0x7f;
/// Extension tag of the supplementary audio descriptor (ETSI EN 300 468 section 6.4.11).
const SUPPLEMENTARY_AUDIO: u8 = 0x06;

/// The language that a supplementary audio descriptor may have behind its first byte.
fn supplementary_language(descriptors: &[u8]) -> Option<(u8, &[u8])> {
    match extension(descriptors, SUPPLEMENTARY_AUDIO)? {
        [flags, language @ ..] if flags & 1 != 0 => Some((EXTENSION, language)),
        _ => None,
    }
}

/// The audience of a stream. The most specific source wins: the supplementary audio descriptor,
/// then the audio type of the ISO 639 language descriptor, then the service type of an AC-3 or
/// E-AC-3 descriptor (ETSI EN 300 468 annex D; ATSC A/52 annex A).
pub fn role(descriptors: &[u8]) -> Option<StreamRole> {
    let supplementary = || match extension(descriptors, SUPPLEMENTARY_AUDIO)?.first()? >> 2 & 0x1f {
        1 | 3 => Some(StreamRole::AudioDescription),
        2 => Some(StreamRole::HearingImpaired),
        _ => None,
    };
    // A descriptor may list several languages with an audio type each; the first language is the one that is listed.
    let audio_type = || {
        let (_, body) = descriptors_of(descriptors).find(|&(tag, _)| tag == 0x0a)?;
        match body.get(3)? {
            1 => Some(StreamRole::CleanEffects),
            2 => Some(StreamRole::HearingImpaired),
            3 => Some(StreamRole::AudioDescription),
            _ => None,
        }
    };
    let service = || {
        let service = descriptors_of(descriptors).find_map(|(tag, body)| match (tag, body) {
            // The flag 0x80 announces the component type; bits 3 to 5 of the component type are the
            // service.
            (0x6a | 0x7a, [flags, component, ..]) if flags & 0x80 != 0 => Some(component >> 3 & 7),
            (0x81, [_, _, modes, ..]) => Some(modes >> 5),
            _ => None,
        })?;
        match service {
            1 => Some(StreamRole::CleanEffects),
            2 => Some(StreamRole::AudioDescription),
            3 => Some(StreamRole::HearingImpaired),
            5 => Some(StreamRole::Commentary),
            _ => None,
        }
    };
    supplementary().or_else(audio_type).or_else(service)
}

/// The format identifier of a registration descriptor (ISO/IEC 13818-1 section 2.6.8).
fn registration(descriptors: &[u8]) -> Option<&[u8; 4]> {
    let (_, body) = descriptors_of(descriptors).find(|&(tag, _)| tag == 0x05)?;
    body.first_chunk()
}

/// Tag and body of each descriptor; ends at the first that does not fit.
fn descriptors_of(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (&[tag, length], rest) = bytes.split_first_chunk()?;
        let body = rest.get(..usize::from(length))?;
        bytes = &rest[usize::from(length)..];
        Some((tag, body))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_streams_are_told_by_descriptors() {
        let name = |stream_type, descriptors: &[u8]| identify(stream_type, descriptors, &[]).0;
        assert_eq!(name(6, &[0x05, 4, b'A', b'C', b'-', b'3']), "AC-3");
        assert_eq!(name(6, &[0x0a, 4, b'd', b'e', b'u', 0, 0x7a, 1, 0]), "E-AC-3");
        assert_eq!(name(6, &[0x59, 0]), "DVB subtitles");
        assert_eq!(name(6, &[0x05, 200, b'A']), "private data");
        assert_eq!(name(0xc0, &[]), "unknown (type 0xc0)");
        assert_eq!(name(0x82, &[0x05, 4, b'H', b'D', b'M', b'V']), "DTS");
        assert_eq!(name(0x1b, &[]), "H.264");
        // Types that the program registers, and types that only the content identifies.
        let disc = [0x05, 4, b'H', b'D', b'M', b'V'];
        let of_program = |stream_type| identify(stream_type, &[], &disc).0;
        assert_eq!([0x80, 0x82, 0x83, 0x86].map(of_program), ["LPCM", "DTS", "TrueHD", "DTS-HD"]);
        assert_eq!([0x82, 0x8a].map(|stream_type| name(stream_type, &[])), [PRIVATE; 2]);
    }

    #[test]
    fn sound_in_private_data_is_told_by_its_first_bytes() {
        assert_eq!(private_sound(&[0xff, 0xf1, 0x50, 0x80, 0x20, 0x1f, 0xfc]), Some("AAC"));
        assert_eq!(private_sound(&[0xff, 0xf1, 0x7c, 0x80, 0x20, 0x1f, 0xfc]), None, "a reserved frequency");
        assert_eq!(private_sound(&[0xff, 0xfb, 0x90, 0x64, 0, 0]), None, "MPEG audio has a layer");
        assert_eq!(private_sound(&[0x56, 0xe1, 0x10]), Some("AAC LATM"));
        assert_eq!(private_sound(&[0x0b, 0x77, 1, 2, 0x14, 0x40]), Some("AC-3"));
        assert_eq!(private_sound(&[0x0b, 0x77, 1, 2, 0x34, 0x87]), Some("E-AC-3"));
        assert_eq!(private_sound(&[0x7f, 0xfe, 0x80, 0x01, 0xfc]), Some("DTS"));
        assert_eq!(private_sound(&[0x20, 0, 0x0f]), None, "DVB subtitles");
        assert_eq!(private_sound(&[]), None);
    }

    #[test]
    fn language_of_the_descriptor() {
        assert_eq!(language(&[0x05, 1, 0, 0x0a, 4, b'D', b'e', b'u', 0]).as_deref(), Some("deu"));
        assert_eq!(language(&[0x0a, 4, b'1', b'e', b'u', 0]), None);
        assert_eq!(language(&[0x0a, 2, b'd', b'e']), None);
        assert_eq!(language(&[0x0a]), None);
        // Subtitles and teletext have it in descriptors of their own; the general one goes first.
        assert_eq!(language(&[0x59, 8, b'D', b'e', b'u', 0x10, 0, 1, 0, 1]).as_deref(), Some("deu"));
        assert_eq!(language(&[0x56, 5, b'f', b'r', b'a', 9, 0]).as_deref(), Some("fra"));
        let both = [&[0x59, 8][..], b"deu", &[0x10, 0, 1, 0, 1, 0x0a, 4], b"eng", &[0]].concat();
        assert_eq!(language(&both).as_deref(), Some("eng"));
    }

    #[test]
    fn role_of_each_descriptor_is_the_audience() {
        use StreamRole::{AudioDescription, CleanEffects, Commentary, HearingImpaired};
        let iso = |audio_type| role(&[0x0a, 4, b'e', b'n', b'g', audio_type]);
        assert_eq!(
            [0, 1, 2, 3, 4].map(iso),
            [None, Some(CleanEffects), Some(HearingImpaired), Some(AudioDescription), None]
        );
        // Mixed by the broadcaster or by the receiver, with a language or without.
        let supplementary = |flags| role(&[0x7f, 2, 6, flags]);
        assert_eq!(supplementary(0b1000_0110), Some(AudioDescription));
        assert_eq!(supplementary(0b0000_0110), Some(AudioDescription));
        assert_eq!(
            [0x80 | 2 << 2, 0x80 | 3 << 2, 0x80].map(supplementary),
            [Some(HearingImpaired), Some(AudioDescription), None]
        );
        let named = [0x7f, 5, 6, 0x80 | 1 << 2 | 1, b'f', b'r', b'a'];
        assert_eq!((role(&named), language(&named).as_deref()), (Some(AudioDescription), Some("fra")));
        let ac3 = |tag, component| role(&[tag, 2, 0x80, component]);
        assert_eq!(
            [0x42, 0x52, 0x5a, 0x6a].map(|component| ac3(0x6a, component)),
            [None, Some(AudioDescription), Some(HearingImpaired), Some(Commentary)]
        );
        assert_eq!(ac3(0x7a, 0xd2), Some(AudioDescription));
        assert_eq!(role(&[0x81, 3, 8, 0x3c, 0x45]), Some(AudioDescription));
        // The most specific descriptor counts; truncated ones do not.
        let both = [&[0x0a, 4][..], b"deu", &[0, 0x7f, 2, 6, 0x86]].concat();
        assert_eq!(role(&both), Some(AudioDescription));
        for cut in 0..both.len() {
            assert!(role(&both[..cut]).is_none(), "{cut}");
        }
        assert_eq!(
            [&[0x7f, 0][..], &[0x7f, 1, 6], &[0x6a, 1, 0x80], &[0x6a, 2, 0, 0x52]].map(role),
            [None; 4]
        );
    }

    #[test]
    fn layers_of_mpeg_audio() {
        assert_eq!(mpeg_audio_layer(&[0, 0xff, 0xfd, 0x94, 0]), Some("MP2"));
        assert_eq!(mpeg_audio_layer(&[0xff, 0xfb, 0x90, 0]), Some("MP3"));
        assert_eq!(mpeg_audio_layer(&[0xff, 0xff, 0xff]), None);
        assert_eq!(mpeg_audio_layer(&[]), None);
    }
}

//! Attributes of a title's streams for a master playlist, from the beginning of the title: missing
//! information is not guessed.

use millrace_store::volume::ElementaryStream;

use super::first_pictures::{Captions, can_show_captions};
use super::master::StreamAttributes;
use crate::elementary::{Config, Demux, Pictures, config_of};

/// What one stream is.
enum CodecClass {
    Pictures(Pictures),
    /// RFC 6381 notation, if the codec has one.
    Audio(Option<String>),
    /// Nothing that `CODECS` lists: subtitles, data.
    Other,
    /// Something that it would have to list.
    Unknown,
}

/// Properties of a title's streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Described {
    pictures: Option<Pictures>,
    /// Whether all pictures are known.
    is_known: bool,
    /// Codec as the title names it, and in RFC 6381 notation.
    audio: Vec<(String, Option<String>)>,
    /// `None`: no video stream can be searched for captions.
    pub(crate) captions: Option<Captions>,
    /// Whether each examined segment has everything that a decoder needs before its first picture.
    pub(crate) are_independent: bool,
}

/// Looks at these TS packets, which begin at or before an access point.
pub(crate) fn describe(bytes: &[u8], streams: &[ElementaryStream]) -> Described {
    let mut demux = Demux::new(streams.iter().map(|stream| stream.pid));
    demux.push(0, bytes, |_| true);
    let mut described = Described { is_known: true, are_independent: true, ..Described::default() };
    for stream in streams {
        match look_at(&demux, stream) {
            CodecClass::Pictures(pictures) => {
                described.pictures.get_or_insert(pictures);
            }
            CodecClass::Audio(name) => described.audio.push((stream.codec.clone(), name)),
            CodecClass::Other => {}
            CodecClass::Unknown => described.is_known = false,
        }
        if can_show_captions(&stream.codec) {
            described.captions.get_or_insert_default().look(demux.stream(stream.pid), &stream.codec);
        }
    }
    described
}

/// The audio codecs that a variant lists for a transport stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named<'a> {
    /// The most widely decoded codec. A player takes the audio it can decode from the transport
    /// stream, so a player without the other codecs must not skip the variant.
    MostPlayed,
    /// These codecs, because other variants of the playlist cover the rest.
    These(&'a [&'a str]),
}

impl Described {
    /// The attributes of a variant for the transport stream.
    pub(crate) fn streams(&self, named: Named<'_>) -> StreamAttributes {
        let mut codecs: Vec<&str> = self.pictures.iter().map(|pictures| &pictures.codec[..]).collect();
        let mut is_known = self.is_known;
        let most_played = self.audio.iter().map(|(codec, _)| rank(codec)).min();
        for (codec, name) in &self.audio {
            let is_named = match named {
                Named::MostPlayed => most_played.is_none_or(|least| rank(codec) == least),
                Named::These(codecs) => codecs.contains(&&codec[..]),
            };
            match name {
                _ if !is_named => {}
                // Several streams often have the same codec.
                Some(name) if codecs.contains(&&name[..]) => {}
                Some(name) => codecs.push(name),
                None => is_known = false,
            }
        }
        let pictures = self.pictures.as_ref();
        StreamAttributes {
            codecs: (is_known && !codecs.is_empty()).then(|| codecs.join(",")),
            resolution: pictures.map(|pictures| (pictures.width, pictures.height)),
            frame_rate: pictures.and_then(|pictures| pictures.frame_rate),
            video_range: pictures.and_then(|pictures| pictures.colour?.video_range()),
        }
    }
}

/// Audio codecs of transport streams, most widely decoded by HLS players first, with their RFC 6381
/// names (section 3.3, names of sample entries) if the stream itself need not be parsed.
const AUDIO: [(&str, Option<&str>); 15] = [
    ("AAC", None),
    // ISO/IEC 14496-3 table 1.17: object types 32 to 34.
    ("MP3", Some("mp4a.40.34")),
    ("AC-3", Some("ac-3")),
    ("E-AC-3", Some("ec-3")),
    ("MP2", Some("mp4a.40.33")),
    ("MP1", Some("mp4a.40.32")),
    ("AAC LATM", Some("mp4a.40.2")),
    ("Opus", Some("Opus")),
    ("DTS", Some("dtsc")),
    ("DTS-HD", Some("dtsh")),
    ("TrueHD", Some("mlpa")),
    ("MPEG-H audio", Some("mhm1")),
    ("LPCM", Some("ipcm")),
    ("SMPTE 302M", Some("ipcm")),
    ("MPEG audio", None),
];

fn rank(codec: &str) -> usize {
    AUDIO.iter().position(|(known, _)| *known == codec).unwrap_or(AUDIO.len())
}

/// Whether a stream of this codec is audio.
pub(crate) fn is_audio(codec: &str) -> bool {
    rank(codec) < AUDIO.len()
}

fn look_at(demux: &Demux, stream: &ElementaryStream) -> CodecClass {
    match stream.codec.as_str() {
        codec @ ("H.264" | "H.265" | "AAC") => match config_of(demux.stream(stream.pid), codec) {
            Some(Config::Video(video)) => CodecClass::Pictures(video.pictures),
            Some(Config::Audio(audio)) => CodecClass::Audio(Some(audio.codec())),
            None if codec == "AAC" => CodecClass::Audio(None),
            None => CodecClass::Unknown,
        },
        codec if is_audio(codec) => CodecClass::Audio(AUDIO[rank(codec)].1.map(str::to_owned)),
        // ISO/IEC 13818-1 table 2-34: types that are neither video nor audio.
        _ if matches!(stream.stream_type, 0x05 | 0x0a..=0x0d | 0x15 | 0x86 | 0x90) => CodecClass::Other,
        codec if codec.contains("subtitle") || codec.contains("teletext") || codec.contains("data") => {
            CodecClass::Other
        }
        _ => CodecClass::Unknown,
    }
}

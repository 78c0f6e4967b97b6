//! What a master playlist says of a title's streams, from the beginning of the title: nothing that is not there is guessed.

use millrace_store::volume::ElementaryStream;

use super::master::Streams;
use crate::cmaf::{Config, Demux, Pictures, config_of};

/// What one stream is.
enum Found {
    Pictures(Pictures),
    /// As RFC 6381 spells it.
    Sound(String),
    /// Nothing that `CODECS` lists: subtitles, data.
    Other,
    /// Something that it would have to list.
    Unknown,
}

/// Looks at these TS packets, which begin at or before an access point.
pub(crate) fn describe(bytes: &[u8], streams: &[ElementaryStream]) -> Streams {
    let mut demux = Demux::new(streams.iter().map(|stream| stream.pid));
    demux.push(0, bytes, |_| true);
    let found: Vec<Found> = streams.iter().map(|stream| look_at(&demux, stream)).collect();
    let mut codecs: Vec<&str> = Vec::new();
    let mut is_known = true;
    for found in &found {
        match found {
            Found::Pictures(pictures) => codecs.push(&pictures.codec),
            Found::Sound(codec) => codecs.push(codec),
            Found::Other => {}
            Found::Unknown => is_known = false,
        }
    }
    // Several sounds are often coded alike.
    let mut seen = Vec::new();
    codecs.retain(|codec| {
        !seen.contains(codec) && {
            seen.push(*codec);
            true
        }
    });
    let pictures = found.iter().find_map(|found| match found {
        Found::Pictures(pictures) => Some(pictures),
        _ => None,
    });
    Streams {
        codecs: (is_known && !codecs.is_empty()).then(|| codecs.join(",")),
        resolution: pictures.map(|pictures| (pictures.width, pictures.height)),
        frame_rate: pictures.and_then(|pictures| pictures.frame_rate),
    }
}

fn look_at(demux: &Demux, stream: &ElementaryStream) -> Found {
    let sound = |codec: &str| Found::Sound(codec.to_owned());
    match stream.codec.as_str() {
        "H.264" | "H.265" | "AAC" => match config_of(demux.stream(stream.pid), &stream.codec) {
            Some(Config::Video(video)) => Found::Pictures(video.pictures),
            Some(Config::Audio(audio)) => Found::Sound(audio.codec()),
            None => Found::Unknown,
        },
        // ISO/IEC 14496-3 table 1.17: object types 32 to 34.
        "MP1" => sound("mp4a.40.32"),
        "MP2" => sound("mp4a.40.33"),
        "MP3" => sound("mp4a.40.34"),
        "AC-3" => sound("ac-3"),
        "E-AC-3" => sound("ec-3"),
        // ISO/IEC 13818-1 table 2-34: what is neither pictures nor sound.
        _ if matches!(stream.stream_type, 0x05 | 0x0a..=0x0d | 0x15 | 0x86 | 0x90) => Found::Other,
        codec if codec.contains("subtitle") || codec.contains("teletext") || codec.contains("data") => {
            Found::Other
        }
        _ => Found::Unknown,
    }
}

//! What a master playlist says of a title's streams, from the beginning of the title: nothing that is not there is guessed.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::web::DESCRIBE_STREAM_BYTES;
use millrace_store::volume::ElementaryStream;

use super::master::Streams;
use super::sps::{self, Pictures};
use super::tables::payload;

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
    let found: Vec<Found> = streams.iter().map(|stream| look_at(bytes, stream)).collect();
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

fn look_at(bytes: &[u8], stream: &ElementaryStream) -> Found {
    let pictures = |found: Option<Pictures>| found.map_or(Found::Unknown, Found::Pictures);
    let sound = |codec: &str| Found::Sound(codec.to_owned());
    match stream.codec.as_str() {
        "H.264" => pictures(units(&elementary(bytes, stream.pid)).find_map(|nal| match nal.split_first() {
            Some((header, rest)) if header & 0x1f == 7 => sps::h264(rest),
            _ => None,
        })),
        "H.265" => pictures(units(&elementary(bytes, stream.pid)).find_map(|nal| match nal {
            [header, _, rest @ ..] if header >> 1 & 0x3f == 33 => sps::h265(rest),
            _ => None,
        })),
        "AAC" => adts(&elementary(bytes, stream.pid)).map_or(Found::Unknown, Found::Sound),
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

/// The beginning of an elementary stream: payloads of PES packets (ISO/IEC 13818-1 section 2.4.3.6), from the first that begins here.
fn elementary(bytes: &[u8], pid: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let mut has_begun = false;
    for packet in bytes.chunks_exact(TS_PACKET_BYTES) {
        let is_of = packet[0] == 0x47 && u16::from_be_bytes([packet[1] & 0x1f, packet[2]]) == pid;
        if !is_of || packet[3] & 0xc0 != 0 {
            continue;
        }
        let Some(mut payload) = payload(packet) else { continue };
        if packet[1] & 0x40 != 0 {
            let Some(header) = payload.get(..9).filter(|header| header.starts_with(&[0, 0, 1])) else {
                continue;
            };
            payload = payload.get(9 + usize::from(header[8])..).unwrap_or_default();
            has_begun = true;
        }
        if has_begun {
            out.extend_from_slice(payload);
        }
        if out.len() >= DESCRIBE_STREAM_BYTES {
            break;
        }
    }
    out
}

/// The NAL units behind each start code; the last one may be cut off.
fn units(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut starts = Vec::new();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(3).position(|w| w == [0, 0, 1]) {
        at += found + 3;
        starts.push(at);
    }
    let ends: Vec<usize> = starts.iter().skip(1).map(|start| start - 3).chain([bytes.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| &bytes[start..end])
}

/// The object type of the first frame of AAC in ADTS (ISO/IEC 13818-7 section 6.2), if another frame follows where it ends.
fn adts(bytes: &[u8]) -> Option<String> {
    let is_header = |at: usize| {
        let header = bytes.get(at..at + 7)?;
        let is_sync = header[0] == 0xff && header[1] & 0xf6 == 0xf0 && header[2] >> 2 & 0x0f < 13;
        let length =
            usize::from(header[3] & 3) << 11 | usize::from(header[4]) << 3 | usize::from(header[5] >> 5);
        (is_sync && length > 7).then_some((header[2] >> 6, length))
    };
    let (profile, length) = is_header(0)?;
    is_header(length)?;
    Some(format!("mp4a.40.{}", profile + 1))
}

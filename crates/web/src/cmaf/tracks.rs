//! Maps the streams of each part of a title to tracks. Where the streams change, the video track
//! continues with the video stream in force, and audio streams are matched by PID, language or
//! order.

use std::collections::BTreeSet;

use millrace_store::index::{LayoutStream, TitleIndex};
use millrace_store::volume::TitleInfo;

use crate::elementary::{is_audio, is_video};
use crate::limits::MAX_CMAF_TRACKS;

/// A stream of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartStream {
    pub(crate) pid: u16,
    /// The codec, as the title names it.
    pub(crate) codec: String,
}

/// A track before its streams have been looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sketch {
    /// A unique number: its first PID, if no other track has it.
    pub(crate) id: u16,
    pub(crate) language: Option<String>,
    /// The stream in each part.
    pub(crate) streams: Vec<Option<PartStream>>,
    /// The PID in the last part that has the track.
    pid: u16,
}

/// The layouts of a title. If the index has none, all streams that the tables ever announced count
/// as present throughout.
pub(crate) fn layouts(title: &TitleInfo, index: &TitleIndex) -> Vec<Vec<LayoutStream>> {
    let known: Vec<Vec<LayoutStream>> = index.layouts().map(<[LayoutStream]>::to_vec).collect();
    if !known.is_empty() {
        return known;
    }
    let all = title.streams.iter().map(|stream| LayoutStream {
        pid: stream.pid,
        stream_type: stream.stream_type,
        codec: stream.codec.clone(),
        language: stream.language.clone(),
        ..LayoutStream::default()
    });
    vec![all.collect()]
}

/// Returns the first byte of the unchanged run of a stream that reaches up to the last of these
/// layouts.
pub(crate) fn since(layouts: &[Vec<LayoutStream>], stream: &PartStream) -> Option<u64> {
    let find = |layout: &Vec<LayoutStream>| {
        let found = layout.iter().find(|other| other.pid == stream.pid && other.codec == stream.codec)?;
        Some((found.config, found.byte))
    };
    let (config, byte) = find(layouts.last()?)?;
    let same = layouts.iter().rev().map_while(|layout| find(layout).filter(|(other, _)| *other == config));
    Some(same.last().map_or(byte, |(_, byte)| byte))
}

/// Maps the streams of parts with these layouts to tracks, video first.
pub(crate) fn match_up(layouts: &[Vec<LayoutStream>], in_parts: &[usize]) -> Vec<Sketch> {
    let (mut pictures, mut sounds) = (Vec::new(), Vec::new());
    for (part, layout) in in_parts.iter().enumerate() {
        let Some(layout) = layouts.get(*layout) else { continue };
        let video = layout.iter().filter(|stream| is_video(&stream.codec)).take(1);
        let audio = layout.iter().filter(|stream| is_audio(&stream.codec));
        place(&mut pictures, video, part, in_parts.len());
        place(&mut sounds, audio, part, in_parts.len());
    }
    let mut all: Vec<Sketch> = pictures.into_iter().chain(sounds).take(MAX_CMAF_TRACKS).collect();
    // A PID that is not unique is replaced by a number that is no PID.
    let mut used = BTreeSet::new();
    for sketch in &mut all {
        while !used.insert(sketch.id) {
            sketch.id = sketch.id.wrapping_add(0x2000);
        }
    }
    all
}

/// Assigns the streams of a part to tracks: by PID, then by language, then by order.
fn place<'a>(
    tracks: &mut Vec<Sketch>,
    streams: impl Iterator<Item = &'a LayoutStream>,
    part: usize,
    parts: usize,
) {
    let mut left: Vec<&LayoutStream> = streams.collect();
    let rules: [fn(&Sketch, &LayoutStream) -> bool; 3] = [
        |track, stream| track.pid == stream.pid,
        |track, stream| track.language == stream.language,
        |_, _| true,
    ];
    for rule in rules {
        left.retain(|stream| {
            let found = tracks.iter_mut().find(|track| track.streams[part].is_none() && rule(track, stream));
            let Some(track) = found else { return true };
            track.pid = stream.pid;
            track.streams[part] = Some(PartStream { pid: stream.pid, codec: stream.codec.clone() });
            false
        });
    }
    for stream in left {
        let mut streams = vec![None; parts];
        streams[part] = Some(PartStream { pid: stream.pid, codec: stream.codec.clone() });
        let language = stream.language.clone();
        tracks.push(Sketch { id: stream.pid, language, streams, pid: stream.pid });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(byte: u64, streams: &[(u16, &str, &str)]) -> Vec<LayoutStream> {
        let stream = |&(pid, codec, language): &(u16, &str, &str)| LayoutStream {
            byte,
            pid,
            codec: codec.to_owned(),
            language: Some(language.to_owned()),
            ..LayoutStream::default()
        };
        streams.iter().map(stream).collect()
    }

    /// For each track, its number and its PID in each part.
    fn matched(layouts: &[Vec<LayoutStream>]) -> Vec<(u16, Vec<u16>)> {
        let parts: Vec<usize> = (0..layouts.len()).collect();
        let pids = |sketch: &Sketch| sketch.streams.iter().map(|s| s.as_ref().map_or(0, |s| s.pid)).collect();
        match_up(layouts, &parts).iter().map(|sketch| (sketch.id, pids(sketch))).collect()
    }

    #[test]
    fn match_up_of_other_pids_goes_on_with_the_same_tracks() {
        let found = matched(&[
            layout(0, &[(0x100, "H.264", "und"), (0x101, "AAC", "eng")]),
            layout(9, &[(0x200, "H.265", "und"), (0x201, "AC-3", "deu")]),
        ]);
        assert_eq!(found, [(0x100, vec![0x100, 0x200]), (0x101, vec![0x101, 0x201])]);
    }

    #[test]
    fn match_up_prefers_pid_to_language_to_order() {
        let found = matched(&[
            layout(0, &[(1, "AAC", "eng"), (2, "AAC", "deu"), (3, "AAC", "fra")]),
            layout(9, &[(8, "AAC", "fra"), (2, "AAC", "eng"), (7, "AAC", "ita")]),
        ]);
        assert_eq!(found, [(1, vec![1, 7]), (2, vec![2, 2]), (3, vec![3, 8])]);
    }

    #[test]
    fn match_up_of_further_sound_makes_a_track_with_a_name_of_its_own() {
        let found = matched(&[
            layout(0, &[(1, "AAC", "eng")]),
            layout(7, &[(2, "AAC", "eng")]),
            layout(9, &[(2, "AAC", "eng"), (1, "AAC", "eng"), (5, "MP2", "eng")]),
        ]);
        assert_eq!(found, [(1, vec![1, 2, 2]), (0x2001, vec![0, 0, 1])]);
    }

    #[test]
    fn since_goes_back_while_nothing_changes() {
        let stream = PartStream { pid: 1, codec: "AAC".to_owned() };
        let of = |byte, config| {
            let mut layout = layout(byte, &[(1, "AAC", "eng")]);
            layout[0].config = config;
            layout
        };
        assert_eq!(since(&[of(5, 1), of(7, 2), of(9, 2)], &stream), Some(7));
        assert_eq!(since(&[], &stream), None);
    }
}

//! Content of the pages that come in a segment.

use millrace_ts::teletext::{Decoder, PageContent, Screen};

use super::title::{SubtitlePage, Subtitled};
use crate::elementary::{Demux, read};
use crate::limits::{MADE_LOOK_BYTES, SUBTITLE_TAIL_TICKS};
use crate::site::{SiteError, TitleBytes};

/// Returns, for each track, the pages whose header is in a PES packet that begins in the segment's
/// bytes. So each page belongs to one segment, and the result for one segment needs no others: a
/// page that stays unchanged is found in each segment that carries it.
pub(crate) fn pages_in(
    of: &Subtitled,
    bytes: &mut dyn TitleBytes,
    number: usize,
) -> Result<Vec<Vec<PageContent>>, SiteError> {
    let segment = of.segments.get(number).ok_or(SiteError::NoTitle)?;
    let end = segment.bytes.end;
    // The rest of the last page.
    let part_end = of.segments[of.part(number).end - 1].bytes.end;
    let behind = of.timeline.place(end, SUBTITLE_TAIL_TICKS.cast_signed(), end..part_end);
    let mut pids: Vec<u16> = of.tracks.iter().map(|track| track.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let mut demux = Demux::new(pids.iter().copied());
    read(bytes, segment.bytes.start..behind.min(end + MADE_LOOK_BYTES as u64), |at, piece| {
        demux.push(at, piece, |_| true);
        true
    })?;
    let mut all = vec![Vec::new(); of.tracks.len()];
    pids.iter().for_each(|&pid| decode(of, &demux, pid, end, &mut all));
    Ok(all)
}

/// The same of one stream, up to the PES packets that begin at byte `end`.
fn decode(of: &Subtitled, demux: &Demux, pid: u16, end: u64, all: &mut [Vec<PageContent>]) {
    let stream = demux.stream(pid);
    let is_ours = |track: &&SubtitlePage| track.pid == pid;
    let mut decoder = Decoder::new(of.tracks.iter().filter(is_ours).map(|track| track.page));
    // The decoder gets numbers of PES packets, which carry more information than times.
    let mut take = |screen: Screen| {
        let mark = &stream.marks[screen.time as usize];
        let track = of.tracks.iter().position(|track| track.pid == pid && track.page == screen.page);
        if let Some(track) = track.filter(|_| mark.byte < end) {
            let stamped = mark.stamps.and_then(|(shown, _)| of.timeline.time(mark.byte, shown));
            let time = stamped.unwrap_or_else(|| of.timeline.about(mark.byte));
            PageContent::add(&mut all[track], Screen { time, ..screen });
        }
    };
    let ends = stream.marks.iter().skip(1).map(|mark| mark.at).chain([stream.bytes.len()]);
    for (number, (mark, to)) in (0..).zip(stream.marks.iter().zip(ends)) {
        decoder.push(number, &stream.bytes[mark.at..to], &mut take);
    }
    decoder.finish(&mut take);
}

//! HLS: the media playlist of a title, and its segments.

use std::ops::Range;

use hyper::body::Bytes;
use millrace_core::limits::MAX_AHEAD_MS;
use millrace_store::volume::TitleInfo;

use crate::answer::{Answer, Body};
use crate::conditions::Version;
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::failed;
use crate::file::{MPEG_TS, content_tag, ranged, version_of};
use crate::hls::TitleAnalysis;
use crate::hls::codecs::Described;
use crate::hls::playlist::{self, PlaylistContents};
use crate::hls::segments::CUTS;
use crate::hls::text::Text;
use crate::limits::RECORDED_TARGET_S;
use crate::session;
use crate::site::{OrderedMedia, OrderedSegment};

/// `/titles/NAME/media.m3u8`
///
/// `link` is the suffix that a signed link adds to its addresses; the addresses in the playlist get
/// it too, so that they grant the same access.
pub(crate) async fn media_playlist(routed: RoutedRequest<'_>, title: TitleInfo, link: &str) -> Answer {
    let RoutedRequest { shared, request, .. } = routed;
    let link = link.to_owned();
    let text = move |look: &TitleAnalysis, streams: &Described, title: &TitleInfo| {
        let source = PlaylistContents {
            segments: &look.segments.list[..look.settled],
            first: 0,
            discontinuities: 0,
            // A later segment of a recording may be longer, and this must not change.
            target_s: look.target_s.max(least_target_s(title)),
            is_whole: !title.is_growing(),
            began_unix_ms: title.began_unix_ms,
            are_independent: look.segments.are_independent && streams.are_independent,
            maps: &[],
            are_pictures: false,
        };
        let version = version_of(title, CUTS);
        let write = || {
            Text::with_link(
                playlist::write(&source, |number| format!("hls/{version}/{number}.ts{link}")),
                &link,
            )
        };
        match link.is_empty() {
            true => look.playlist.get_or_init(write).clone(),
            false => write(), // for its holder alone
        }
    };
    let is_growing = title.is_growing();
    let known = shared.looked_at.known(&title);
    if let Some((look, streams)) = known.as_ref().and_then(|look| Some((look, look.known_streams()?))) {
        return match look.settled {
            0 if is_growing => no_segment_yet(),
            _ => text(look, streams, &title).answer(request),
        };
    }
    let work = move |shared: &ServerContext| {
        let look = shared.looked_at.look(&*shared.site, &title)?;
        if look.settled == 0 && is_growing {
            return Ok(None);
        }
        Ok(Some(text(&look, look.streams(&*shared.site, &title)?, &title)))
    };
    match shared.reading(work).await {
        Ok(Some(text)) => text.answer(request),
        Ok(None) => no_segment_yet(),
        Err(error) => failed(&error),
    }
}

/// Least target duration in a playlist: it must not change while a recording grows.
fn least_target_s(title: &TitleInfo) -> u64 {
    if title.began_unix_ms.is_some() { RECORDED_TARGET_S } else { 0 }
}

/// The answer as long as a recording is shorter than its first segment.
pub(crate) fn no_segment_yet() -> Answer {
    Answer::error(503, "the recording has no segment yet").with("Retry-After", "2")
}

/// `/titles/NAME/hls/VERSION/NUMBER.ts`
pub(crate) async fn segment(routed: RoutedRequest<'_>, title: TitleInfo) -> Answer {
    let RoutedRequest { shared, request, found, source } = routed;
    if found.version != version_of(&title, CUTS) {
        return Answer::error(404, "the title has other segments now: read its playlist again");
    }
    let number = found.number;
    let at = number as usize;
    let known = shared.looked_at.known(&title);
    // Behind these a recording has segments that may become longer.
    let known = known.filter(|look| at < look.settled);
    let known = known.and_then(|look| Some((look.known_tables(at)?, look)));
    let found = match known {
        Some((tables, look)) => Ok(Some((look, tables))),
        None => {
            let title = title.clone();
            let work = move |shared: &ServerContext| {
                let look = shared.looked_at.look(&*shared.site, &title)?;
                if at >= look.settled {
                    return Ok(None);
                }
                let tables = look.tables(&*shared.site, at)?;
                Ok(Some((look, tables)))
            };
            shared.reading(work).await
        }
    };
    let (look, tables) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Answer::error(404, "the title has no such segment"),
        Err(error) => return failed(&error),
    };
    let segment = &look.segments.list[at];
    let version = Version {
        tag: format!("\"{}-{CUTS}-{number}\"", content_tag(&title)),
        made_unix_s: Some(title.added_unix_s),
    };
    let headers = vec![
        ("Content-Type", MPEG_TS.to_owned()),
        // The address names the content, so that this is so for ever.
        ("Cache-Control", "public, max-age=31536000, immutable".to_owned()),
    ];
    let start = segment.bytes.start;
    let length = tables.len() as u64 + (segment.bytes.end - start);
    // Players fetch segments ahead of their playback position, and judge the network by how fast
    // these arrive.
    let ahead_ms = u32::try_from(segment.duration.0 / 90).unwrap_or(u32::MAX).min(u32::from(MAX_AHEAD_MS));
    let fetched = OrderedSegment {
        conn: source.id.conn,
        number,
        at: segment.at,
        length: segment.duration,
        session: session::session_of(request.query.as_deref()),
    };
    ranged(request, &version, length, headers, |part| {
        let segment = Some(Box::new(fetched));
        body_of(&title, &tables, start, part, (ahead_ms, segment))
    })
}

/// Bytes `part` of a segment that consists of `tables` and the title's bytes from `start` on.
fn body_of(
    title: &TitleInfo,
    tables: &[u8],
    start: u64,
    part: Range<u64>,
    (ahead_ms, segment): (u32, Option<Box<OrderedSegment>>),
) -> Body {
    let in_front = tables.len() as u64;
    let cut = |at: u64| at.min(in_front) as usize;
    let before = &tables[cut(part.start)..cut(part.end)];
    let bytes = start + part.start.saturating_sub(in_front)..start + part.end.saturating_sub(in_front);
    match bytes.is_empty() {
        true => Body::Bytes(Bytes::copy_from_slice(before)),
        false => Body::Media(OrderedMedia {
            title: title.name.clone(),
            bytes,
            before: before.to_vec(),
            ahead_ms,
            quota: None,
            segment,
        }),
    }
}

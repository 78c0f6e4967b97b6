//! Live titles: `/api/v1/live`, `/live/NAME.ts`, and HLS at `/live/NAME/index.m3u8`, in parts at `/live/NAME/low-latency.m3u8`.

use std::ops::Range;

use millrace_core::limits::MAX_AHEAD_MS;
use millrace_core::limits::web::FAST_START_MS;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::context::RoutedRequest;
use crate::failures::no_title;
use crate::file::MPEG_TS;
use crate::hls::text::Text;
use crate::limits::{LISTED_LIVE_SEGMENTS, MAX_LIVE_WAIT, PART_TICKS};
use crate::request::{Request, RequestId};
use crate::route::{LIVE_PREFIX, ResourceKind, RouteMatch};
use crate::session::session_of;
use crate::site::{
    ALL_THAT_COMES, LiveEdge, LivePart, LivePiece, LiveStatus, LiveWindow, OrderedMedia, OrderedSegment, Site,
};
use crate::viewer::{self, WantedSession};

/// All live titles.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LiveList {
    live: Vec<LiveStatus>,
}

/// `/api/v1/live`
pub(crate) fn list(seen: &SeenBy) -> Answer {
    Answer::json(&LiveList { live: seen.live() })
}

/// `/live/NAME/index.m3u8` and `/live/NAME/media.m3u8`. The first admits a viewer and gives it the address of
/// the second, which players load again and again: it carries the session. `low-latency.m3u8` and `parts.m3u8` likewise.
pub(crate) async fn playlist(routed: RoutedRequest<'_>, seen: &SeenBy) -> Result<Answer, Answer> {
    let found = routed.found;
    if found.route.kind == ResourceKind::LivePartsPlaylist
        && let Some((segment, part)) = wanted_part(routed.request)?
    {
        let is_there = |edge: &LiveEdge| edge.has(segment, part);
        let is_near = wait(seen, &found.name, segment, part, is_there).await.ok_or_else(no_title)?;
        if !is_near {
            return Err(Answer::error(400, "the part is too far ahead; load the playlist without _HLS_msn"));
        }
    }
    let window = window(seen, &found.name).ok_or_else(no_title)?;
    if window.pieces.is_empty() {
        return Err(Answer::error(503, "the live title has no segment yet").with("Retry-After", "2"));
    }
    let wanted = WantedSession {
        title: &found.name,
        mean_rate: window.mean_rate,
        peak_rate: window.peak_rate,
        by_engine: true,
        is_reloaded: true,
    };
    let link = routed.session_link(seen, wanted).await?;
    let text = match found.route.kind {
        ResourceKind::LiveMaster => master_text(&window, "media.m3u8", &link),
        ResourceKind::LivePartsMaster => master_text(&window, "parts.m3u8", &link),
        kind => media_text(window, &link, kind == ResourceKind::LivePartsPlaylist),
    };
    Ok(viewer::for_its_viewer(Text::with_link(text, &link).answer(routed.request), &link))
}

/// The part of a segment that the playlist has to have, or the whole segment.
fn wanted_part(request: &Request) -> Result<Option<(u32, Option<u32>)>, Answer> {
    let number = |name: &str| {
        let mut pairs = request.query.as_deref().unwrap_or_default().split('&');
        let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.parse::<u32>().map_err(|_| Answer::error(400, "not a number"))).transpose()
    };
    match (number("_HLS_msn")?, number("_HLS_part")?) {
        (Some(segment), part) => Ok(Some((segment, part))),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Answer::error(400, "_HLS_part needs _HLS_msn")),
    }
}

/// Waits until there is this part, or whole segment, for [`MAX_LIVE_WAIT`] at most. `false`: it is too far ahead. `None`: there
/// is no such title for this visitor.
async fn wait(
    seen: &SeenBy,
    title: &str,
    segment: u32,
    part: Option<u32>,
    is_there: impl Fn(&LiveEdge) -> bool,
) -> Option<bool> {
    let name = shown(seen, title)?;
    let mut edge = seen.site.live_edge(name)?;
    if !edge.borrow().is_near(segment, part) {
        return Some(false);
    }
    // Without it, because the time is over or the title has ended, the answer is what there is.
    let _ = timeout(MAX_LIVE_WAIT, edge.wait_for(is_there)).await;
    Some(true)
}

fn master_text(window: &LiveWindow, playlist: &str, link: &str) -> String {
    let LiveWindow { mean_rate, peak_rate, .. } = window;
    format!(
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH={},AVERAGE-BANDWIDTH={}\n{playlist}{link}\n",
        peak_rate.0, mean_rate.0
    )
}

/// The newest segments, through which a player can rewind. The list never ends: a source that is silent may resume.
fn media_text(window: LiveWindow, link: &str, has_parts: bool) -> String {
    let LiveWindow {
        version,
        mut breaks_before,
        mut pieces,
        listed,
        growing,
        is_growing_discontinuous,
        longest,
        ..
    } = window;
    // Those that are not listed any more can be fetched as long as they are held.
    let hidden = pieces.len().saturating_sub(listed.max(LISTED_LIVE_SEGMENTS));
    breaks_before += pieces.drain(..hidden).map(|piece| u32::from(piece.is_discontinuous)).sum::<u32>();
    let first = pieces.first().map_or(0, |piece| piece.number);
    let longest = (longest.0.saturating_add(MEDIA_HZ / 2) / MEDIA_HZ).max(1);
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{longest}\n#EXT-X-MEDIA-SEQUENCE:{first}\n\
         #EXT-X-DISCONTINUITY-SEQUENCE:{breaks_before}\n"
    );
    if has_parts {
        let longest_s = MediaTicks(PART_TICKS).as_secs_f64();
        text += &format!(
            "#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK={:.3}\n#EXT-X-PART-INF:PART-TARGET={longest_s:.3}\n",
            3.0 * longest_s
        );
    }
    let parts_text = |number: u32, parts: &[LivePart]| {
        let line = |(at, part): (usize, &LivePart)| {
            let independent = if part.is_independent { ",INDEPENDENT=YES" } else { "" };
            // A part in which the source was silent is shown as no longer than players expect one to be.
            let length_s = part.length.min(MediaTicks(PART_TICKS)).as_secs_f64();
            format!(
                "#EXT-X-PART:DURATION={length_s:.3},URI=\"{version}/{number}/{at}.ts{link}\"{independent}\n"
            )
        };
        parts.iter().enumerate().map(line).collect::<String>()
    };
    let next = pieces.last().map_or(0, |piece| piece.number.wrapping_add(1));
    let mut left: u64 = pieces.iter().map(|piece| piece.length.0).sum();
    for LivePiece { number, length, is_discontinuous, parts, .. } in pieces {
        if is_discontinuous {
            text += "#EXT-X-DISCONTINUITY\n";
        }
        // Parts are listed for three target durations (draft-pantos-hls-rfc8216bis section 6.2.2).
        left -= length.0;
        if has_parts && left < 3 * longest * MEDIA_HZ {
            text += &parts_text(number, &parts);
        }
        text += &format!("#EXTINF:{:.3},\n{version}/{number}.ts{link}\n", length.as_secs_f64());
    }
    if has_parts {
        if is_growing_discontinuous && !growing.is_empty() {
            text += "#EXT-X-DISCONTINUITY\n";
        }
        text += &parts_text(next, &growing);
        text +=
            &format!("#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{version}/{next}/{}.ts{link}\"\n", growing.len());
    }
    text
}

/// `/live/NAME/VERSION/NUMBER.ts`
pub(crate) fn segment(request: &Request, seen: &SeenBy, found: &RouteMatch, id: RequestId) -> Answer {
    let window = window(seen, &found.name).filter(|window| window.version == found.version);
    let piece =
        window.and_then(|window| window.pieces.into_iter().find(|piece| piece.number == found.number));
    let Some(LivePiece { bytes, length, .. }) = piece else {
        return Answer::error(404, "the live title has no such segment, or not any more");
    };
    ordered(request, found, id, bytes, length)
}

/// `/live/NAME/VERSION/NUMBER/PART.ts`. One that a playlist has announced may be asked for before it is complete.
pub(crate) async fn part(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let RoutedRequest { request, found, source, .. } = routed;
    let number = found.number;
    let of_version = || window(seen, &found.name).filter(|window| window.version == found.version);
    if of_version().is_some() {
        // A segment that is complete gets no more parts.
        let is_decided = |edge: &LiveEdge| edge.segment > number || edge.has(number, Some(found.part));
        wait(seen, &found.name, number, Some(found.part), is_decided).await;
    }
    let part = of_version().and_then(|window| {
        let is_growing = window.pieces.last().map_or(0, |piece| piece.number.wrapping_add(1)) == number;
        let pieces = window.pieces.into_iter();
        let parts = match is_growing {
            true => window.growing,
            false => pieces.rev().find(|piece| piece.number == number)?.parts,
        };
        parts.into_iter().nth(found.part as usize)
    });
    match part {
        Some(LivePart { bytes, length, .. }) => ordered(request, found, source.id, bytes, length),
        None => Answer::error(404, "the live title has no such part, or not any more"),
    }
}

/// The order for a part of a live title.
fn ordered(
    request: &Request,
    found: &RouteMatch,
    id: RequestId,
    bytes: Range<u64>,
    length: MediaTicks,
) -> Answer {
    let title = found.name.clone();
    let ahead_ms = u32::try_from(length.0 / 90).unwrap_or(u32::MAX).min(u32::from(MAX_AHEAD_MS));
    let fetched = OrderedSegment {
        conn: id.conn,
        number: found.number,
        // A live title has no beginning to count from.
        at: MediaTicks(0),
        length,
        session: session_of(request.query.as_deref()),
    };
    let segment = Some(Box::new(fetched));
    let body = Body::Media(OrderedMedia { title, bytes, before: Vec::new(), ahead_ms, quota: None, segment });
    let headers =
        vec![("Content-Type", MPEG_TS.to_owned()), ("Cache-Control", "public, max-age=60".to_owned())];
    Answer { status: 200, headers, body }
}

/// The name of a live title that the visitor may know of.
fn shown<'a>(seen: &SeenBy, title: &'a str) -> Option<&'a str> {
    let name = title.strip_prefix(LIVE_PREFIX)?;
    seen.live().iter().any(|live| live.name == name).then_some(name)
}

fn window(seen: &SeenBy, title: &str) -> Option<LiveWindow> {
    seen.site.live_window(shown(seen, title)?)
}

/// `/live/NAME`, where its media can be brought: its state.
pub(crate) fn state(seen: &SeenBy, title: &str) -> Answer {
    let name = title.strip_prefix(LIVE_PREFIX).unwrap_or(title);
    match seen.live().into_iter().find(|live| live.name == name) {
        Some(live) => Answer::json(&live),
        None => no_title(),
    }
}

/// `/live/NAME.ts`: from the last access point on, for as long as the viewer reads.
pub(crate) fn stream(seen: &SeenBy, title: &str) -> Answer {
    let name = title.strip_prefix(LIVE_PREFIX).unwrap_or(title);
    if !seen.live().iter().any(|live| live.name == name) {
        return no_title();
    }
    let body = Body::Media(OrderedMedia {
        title: title.to_owned(),
        bytes: ALL_THAT_COMES,
        before: Vec::new(),
        ahead_ms: FAST_START_MS,
        quota: None,
        segment: None,
    });
    let headers = vec![("Content-Type", MPEG_TS.to_owned()), ("Cache-Control", "no-store".to_owned())];
    Answer { status: 200, headers, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlist_of_live_title_lists_what_will_be_there_and_six_segments_at_least() {
        let piece = |number| LivePiece {
            number,
            bytes: 0..1316,
            length: MediaTicks(2 * MEDIA_HZ),
            is_discontinuous: number % 4 == 1,
            parts: Vec::new(),
        };
        for (listed, first, breaks) in [(0, 14, 4), (6, 14, 4), (9, 11, 3), (20, 0, 0)] {
            let window = LiveWindow { listed, pieces: (0..20).map(piece).collect(), ..LiveWindow::default() };
            let text = media_text(window, "", false);
            assert!(text.contains(&format!("#EXT-X-MEDIA-SEQUENCE:{first}\n")), "{listed}: {text}");
            assert!(text.contains(&format!("#EXT-X-DISCONTINUITY-SEQUENCE:{breaks}\n")), "{listed}: {text}");
            assert_eq!(text.matches(".ts").count(), 20 - first, "{listed}: {text}");
        }
    }
}

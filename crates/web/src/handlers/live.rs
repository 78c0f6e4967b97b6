//! Live titles: `/api/v1/live`, `/live/NAME.ts`, and HLS at `/live/NAME/index.m3u8`.

use millrace_core::limits::MAX_AHEAD_MS;
use millrace_core::limits::web::FAST_START_MS;
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::context::RoutedRequest;
use crate::failures::no_title;
use crate::file::MPEG_TS;
use crate::hls::text::Text;
use crate::limits::LISTED_LIVE_SEGMENTS;
use crate::request::{Request, RequestId};
use crate::route::{LIVE_PREFIX, ResourceKind, RouteMatch};
use crate::session::session_of;
use crate::site::{ALL_THAT_COMES, LivePiece, LiveStatus, LiveWindow, OrderedMedia, OrderedSegment, Site};
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
/// the second, which players load again and again: it carries the session.
pub(crate) async fn playlist(routed: RoutedRequest<'_>, seen: &SeenBy) -> Result<Answer, Answer> {
    let found = routed.found;
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
        ResourceKind::LiveMaster => master_text(&window, &link),
        _ => media_text(window, &link),
    };
    Ok(viewer::for_its_viewer(Text::with_link(text, &link).answer(routed.request), &link))
}

fn master_text(window: &LiveWindow, link: &str) -> String {
    let LiveWindow { mean_rate, peak_rate, .. } = window;
    format!(
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH={},AVERAGE-BANDWIDTH={}\nmedia.m3u8{link}\n",
        peak_rate.0, mean_rate.0
    )
}

/// The newest segments, through which a player can rewind. The list never ends: a source that is silent may resume.
fn media_text(window: LiveWindow, link: &str) -> String {
    let LiveWindow { version, mut breaks_before, mut pieces, listed, .. } = window;
    // Those that are not listed any more can be fetched as long as they are held.
    let hidden = pieces.len().saturating_sub(listed.max(LISTED_LIVE_SEGMENTS));
    breaks_before += pieces.drain(..hidden).map(|piece| u32::from(piece.is_discontinuous)).sum::<u32>();
    let first = pieces.first().map_or(0, |piece| piece.number);
    let longest = pieces
        .iter()
        .map(|piece| piece.length.0.saturating_add(MEDIA_HZ / 2) / MEDIA_HZ)
        .max()
        .unwrap_or(1)
        .max(1);
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:{longest}\n#EXT-X-MEDIA-SEQUENCE:{first}\n\
         #EXT-X-DISCONTINUITY-SEQUENCE:{breaks_before}\n"
    );
    for LivePiece { number, length, is_discontinuous, .. } in pieces {
        if is_discontinuous {
            text += "#EXT-X-DISCONTINUITY\n";
        }
        text += &format!("#EXTINF:{:.3},\n{version}/{number}.ts{link}\n", length.as_secs_f64());
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

fn window(seen: &SeenBy, title: &str) -> Option<LiveWindow> {
    let name = title.strip_prefix(LIVE_PREFIX)?;
    let is_shown = seen.live().iter().any(|live| live.name == name);
    seen.site.live_window(name).filter(|_| is_shown)
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
        };
        for (listed, first, breaks) in [(0, 14, 4), (6, 14, 4), (9, 11, 3), (20, 0, 0)] {
            let window = LiveWindow { listed, pieces: (0..20).map(piece).collect(), ..LiveWindow::default() };
            let text = media_text(window, "");
            assert!(text.contains(&format!("#EXT-X-MEDIA-SEQUENCE:{first}\n")), "{listed}: {text}");
            assert!(text.contains(&format!("#EXT-X-DISCONTINUITY-SEQUENCE:{breaks}\n")), "{listed}: {text}");
            assert_eq!(text.matches(".ts").count(), 20 - first, "{listed}: {text}");
        }
    }
}

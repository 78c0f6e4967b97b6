//! Live titles: `/api/v1/live`, `/live/NAME.ts`, and HLS at `/live/NAME/index.m3u8`.

use millrace_core::limits::MAX_AHEAD_MS;
use millrace_core::limits::web::FAST_START_MS;
use millrace_core::time::MEDIA_HZ;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::failures::no_title;
use crate::file::MPEG_TS;
use crate::hls::text::M3U8;
use crate::limits::LISTED_LIVE_SEGMENTS;
use crate::route::{LIVE_PREFIX, RouteMatch};
use crate::site::{ALL_THAT_COMES, LivePiece, LiveStatus, LiveWindow, OrderedMedia, Site};

/// All live titles.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LiveList {
    live: Vec<LiveStatus>,
}

/// `/api/v1/live`
pub(crate) fn list(seen: &SeenBy) -> Answer {
    Answer::json(&LiveList { live: seen.live() })
}

/// `/live/NAME/index.m3u8`: the newest segments. It never ends: a source that is silent may go on.
pub(crate) fn playlist(seen: &SeenBy, title: &str) -> Answer {
    let Some(LiveWindow { version, mut breaks_before, mut pieces }) = window(seen, title) else {
        return no_title();
    };
    // Those that are not listed any more can be fetched as long as they are held.
    let hidden = pieces.len().saturating_sub(LISTED_LIVE_SEGMENTS);
    breaks_before += pieces.drain(..hidden).map(|piece| u32::from(piece.is_discontinuous)).sum::<u32>();
    let Some(first) = pieces.first().map(|piece| piece.number) else {
        return Answer::error(503, "the live title has no segment yet").with("Retry-After", "2");
    };
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
    let link = seen.link();
    for LivePiece { number, length, is_discontinuous, .. } in pieces {
        if is_discontinuous {
            text += "#EXT-X-DISCONTINUITY\n";
        }
        text += &format!("#EXTINF:{:.3},\n{version}/{number}.ts{link}\n", length.as_secs_f64());
    }
    Answer::new(200, M3U8, text).with("Cache-Control", "no-cache")
}

/// `/live/NAME/VERSION/NUMBER.ts`
pub(crate) fn segment(seen: &SeenBy, found: &RouteMatch) -> Answer {
    let window = window(seen, &found.name).filter(|window| window.version == found.version);
    let piece =
        window.and_then(|window| window.pieces.into_iter().find(|piece| piece.number == found.number));
    let Some(LivePiece { bytes, length, .. }) = piece else {
        return Answer::error(404, "the live title has no such segment, or not any more");
    };
    let title = found.name.clone();
    let ahead_ms = u32::try_from(length.0 / 90).unwrap_or(u32::MAX).min(u32::from(MAX_AHEAD_MS));
    let body =
        Body::Media(OrderedMedia { title, bytes, before: Vec::new(), ahead_ms, quota: None, segment: None });
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

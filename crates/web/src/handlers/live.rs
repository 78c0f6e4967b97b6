//! Live titles: `/api/v1/live`, and `/live/NAME.ts`.

use millrace_core::limits::web::FAST_START_MS;
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::failures::no_title;
use crate::file::MPEG_TS;
use crate::route::LIVE_PREFIX;
use crate::site::{ALL_THAT_COMES, LiveTitle, OrderedMedia, Site};

/// All live titles.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LiveList {
    live: Vec<LiveTitle>,
}

/// `/api/v1/live`
pub(crate) fn list(seen: &SeenBy) -> Answer {
    Answer::json(&LiveList { live: seen.live() })
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

//! `/api/v1/events`: events, as they happen (server-sent events, HTML standard section 9.2).

use std::sync::Arc;

use tokio::time::{MissedTickBehavior, interval};

use crate::answer::{Answer, Body};
use crate::context::ServerContext;
use crate::events::SiteSnapshot;
use crate::limits::{EVENTS_EVERY, RETRY_AFTER_S};
use crate::request::Method;

/// Media type of the format.
pub(crate) const EVENT_STREAM: &str = "text/event-stream";

/// The response.
pub(crate) fn answer(shared: &Arc<ServerContext>, method: Method) -> Answer {
    let headers = vec![
        ("Content-Type", EVENT_STREAM.to_owned()),
        ("Cache-Control", "no-store".to_owned()),
        // nginx would keep it until it has a buffer full.
        ("X-Accel-Buffering", "no".to_owned()),
    ];
    if method == Method::Head {
        return Answer { status: 200, headers, body: Body::None };
    }
    let Some((listener, begins)) = shared.feed.listen() else {
        return Answer::error(503, "too many listen already").with("Retry-After", RETRY_AFTER_S.to_string());
    };
    if begins {
        tokio::spawn(tick(Arc::clone(shared)));
    }
    Answer { status: 200, headers, body: Body::Events(listener) }
}

/// Sends figures every second, and changes of titles and members, for as long as there are
/// listeners.
async fn tick(shared: Arc<ServerContext>) {
    let mut ticks = interval(EVENTS_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ends = shared.ends.clone();
    let mut seen = SiteSnapshot::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = ends.wait_for(|ends| *ends) => return shared.feed.close(),
        }
        // If the control side does not respond, the figures lack its part.
        let summary = shared.reading(|shared| shared.site.summary()).await.unwrap_or_default();
        let news = seen.look(&*shared.site, summary);
        let frames = |left_out| news.into_iter().map(|news| news.leaving_out(left_out).frame()).collect();
        if shared.feed.tick(frames).is_none() {
            return;
        }
    }
}

//! `PUT` and `POST /live/NAME`: a client brings the media of a live title, for as long as it likes.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::{Body, Bytes};
use tokio::time::{sleep, timeout};

use crate::answer::Answer;
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::no_title;
use crate::limits::{LIVE_LOOK_EVERY, RETRY_AFTER_S};
use crate::route::LIVE_PREFIX;
use crate::site::{LiveFeed, LiveRefusal, NotTaken};

/// Answers when the body has ended, or is not taken.
pub(crate) async fn take(
    routed: RoutedRequest<'_>,
    body: &mut (impl Body<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<Answer, Answer> {
    routed.let_in().await?;
    let RoutedRequest { shared, request, found, .. } = routed;
    // A browser adds the password that it knows to what pages of other sites send.
    if request.fields.is_of_other_page {
        return Err(Answer::error(403, "pages of other sites bring no media"));
    }
    if shared.limits.upload_bytes == 0 {
        return Err(Answer::error(403, "this server takes no uploads"));
    }
    let name = found.name.strip_prefix(LIVE_PREFIX).unwrap_or(&found.name);
    let mut feed = shared.site.feed_live(name).map_err(|why| refusal(&why))?;
    feed_all(shared, feed.as_mut(), body, beat).await?;
    feed.finish();
    Ok(Answer::empty(204))
}

/// Takes the body to its end.
async fn feed_all(
    shared: &ServerContext,
    feed: &mut dyn LiveFeed,
    body: &mut (impl Body<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<(), Answer> {
    let mut silent = Duration::ZERO;
    loop {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let frame = timeout(LIVE_LOOK_EVERY, frame).await;
        if *shared.ends.borrow() {
            return Err(Answer::error(503, "the server is ending"));
        }
        let Ok(frame) = frame else {
            feed.look();
            silent += LIVE_LOOK_EVERY;
            if silent < shared.limits.upload_stall {
                continue;
            }
            shared.totals.add(|c| c.connections_too_slow += 1);
            return Err(Answer::error(408, "no media has come for too long; connect again"));
        };
        let Some(frame) = frame else { return Ok(()) };
        // A client that has gone gets no answer.
        let frame = frame.map_err(|error| Answer::error(400, &format!("the media broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        beat();
        let pause = feed.take(&bytes).map_err(|why| not_taken(&why))?;
        if pause > Duration::ZERO {
            sleep(pause).await;
        }
        silent = Duration::ZERO;
    }
}

pub(crate) fn refusal(why: &LiveRefusal) -> Answer {
    match why {
        LiveRefusal::Name(why) => Answer::error(400, why),
        LiveRefusal::InUse => {
            Answer::error(409, "another source feeds this live title; stop it, or choose another name")
        }
        LiveRefusal::NoTitle => no_title(),
        LiveRefusal::Conflict(why) => Answer::error(409, why),
        LiveRefusal::Failed(why) => Answer::error(500, why),
        LiveRefusal::Full(why) => Answer::error(503, why).with("Retry-After", RETRY_AFTER_S.to_string()),
    }
}

fn not_taken(why: &NotTaken) -> Answer {
    Answer::error(415, &why.to_string())
}

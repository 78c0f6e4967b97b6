//! `POST /api/v1/live` and `DELETE /api/v1/live/NAME`: live sources are added and removed while the server runs.

use std::sync::Arc;

use hyper::body::{Body, Bytes};

use crate::answer::Answer;
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::no_title;
use crate::handlers::live_input::refusal;
use crate::handlers::rename::read_change;
use crate::route::LIVE_PREFIX;
use crate::site::{LiveRefusal, NewLiveSource, Site, SiteError};

/// Answers when the source has been added. The body is read only if the visitor has the right to changes.
pub(crate) async fn add(
    routed: RoutedRequest<'_>,
    body: impl Body<Data = Bytes> + Unpin,
) -> Result<Answer, Answer> {
    let visitor = routed.let_in().await?;
    // A page of another site can send other types without asking first, and a browser adds the password that it knows.
    if !routed.request.fields.is_json() {
        return Err(Answer::error(415, "send the source as JSON, with Content-Type: application/json"));
    }
    let bytes = read_change(body, "an address has at most 2 KiB").await?;
    let source: NewLiveSource = serde_json::from_slice(&bytes).map_err(|error| {
        // The position alone: the text around it may have a password.
        let (line, column) = (error.line(), error.column());
        let example = "{\"name\": \"news\", \"url\": \"udp://239.1.1.1:5000\"}";
        Answer::error(
            400,
            &format!("the source, line {line} column {column}: cannot be read; send {example}"),
        )
    })?;
    let name = source.name.clone();
    match routed.shared.reading(move |shared| Ok(shared.site.add_live(source))).await {
        Ok(added) => added.map_err(|why| refusal(&why))?,
        Err(error) => return Err(failed(&error)),
    }
    let place = format!("/api/v1/{LIVE_PREFIX}{name}");
    let added = routed.seen_by(visitor).live().into_iter().find(|live| live.name == name);
    let answer = added.map_or_else(|| Answer::empty(204), |live| Answer::json(&live));
    Ok(Answer { status: 201, ..answer }.with("Location", place))
}

/// The caller has checked the right to remove.
pub(crate) async fn remove(shared: &Arc<ServerContext>, name: &str) -> Answer {
    let name = name.strip_prefix(LIVE_PREFIX).unwrap_or(name).to_owned();
    match shared.reading(move |shared| Ok(shared.site.remove_live(&name))).await {
        Ok(Ok(())) => Answer::empty(204),
        Ok(Err(LiveRefusal::NoTitle)) => no_title(),
        Ok(Err(why)) => refusal(&why),
        Err(error) => failed(&error),
    }
}

fn failed(error: &SiteError) -> Answer {
    Answer::error(500, &error.to_string())
}

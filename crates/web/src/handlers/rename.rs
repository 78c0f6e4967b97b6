//! `PATCH /api/v1/titles/NAME`: changes the display name of a title.

use std::future::poll_fn;
use std::pin::Pin;

use hyper::body::{Body, Bytes};
use millrace_store::volume::title_text;
use tokio::time::timeout;

use super::api::{self, TitleChange};
use crate::answer::Answer;
use crate::context::RoutedRequest;
use crate::failures::no_title;
use crate::limits::{MAX_CHANGE_BYTES, MAX_CHANGE_TIME};
use crate::request::{Method, Request};
use crate::route::{self, RouteMatch};
use crate::site::SiteError;

/// The route of a change, if the request is one.
pub(crate) fn asked_for(request: &Request) -> Option<RouteMatch> {
    let changes = matches!(request.method, Method::Patch | Method::Post);
    let found = if changes { route::find(&request.path) } else { None };
    found.filter(|found| {
        found.route.methods().contains(&request.method)
            && (request.method == Method::Patch || found.route.is_changed_by_post())
    })
}

/// Answers a change. Its body is read only if the visitor may change titles.
pub(crate) async fn take(
    routed: RoutedRequest<'_>,
    body: impl Body<Data = Bytes> + Unpin,
) -> Result<Answer, Answer> {
    let visitor = routed.let_in().await?;
    let bytes = read_change(body, "a display name has at most 512 bytes").await?;
    let title = new_title(&bytes)?;
    let name = routed.found.name.clone();
    let renamed = routed.shared.reading(move |shared| shared.site.rename(&name, &title)).await;
    let renamed = renamed.map_err(|error| match error {
        SiteError::NoTitle | SiteError::Coming(_) => no_title(),
        SiteError::Unreadable(why) => Answer::error(500, &format!("the title cannot be changed: {why}")),
    })?;
    Ok(api::title(&routed.seen_by(visitor), renamed))
}

/// Parses the display name from a request body.
fn new_title(bytes: &[u8]) -> Result<String, Answer> {
    let bad = |what: &str| Answer::error(400, &format!("the change: {what}; send {{\"title\": \"NAME\"}}"));
    let change: TitleChange = serde_json::from_slice(bytes).map_err(|error| bad(&error.to_string()))?;
    match title_text(&change.title) {
        title if title.is_empty() => Err(bad("the title is empty")),
        title => Ok(title),
    }
}

/// Reads the body of a change. `bound` is for who sends one that is too long.
pub(crate) async fn read_change(
    body: impl Body<Data = Bytes> + Unpin,
    bound: &str,
) -> Result<Vec<u8>, Answer> {
    let late = |_| Answer::error(408, "the change does not come; send it again");
    timeout(MAX_CHANGE_TIME, read(body, bound)).await.map_err(late)?
}

/// Reads a body, up to the longest allowed.
async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B, bound: &str) -> Result<Vec<u8>, Answer> {
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|_| Answer::error(400, "the change did not come whole; send it again"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > MAX_CHANGE_BYTES {
            return Err(Answer::error(413, &format!("the change is too long; {bound}")));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_title_is_one_line_and_not_empty() {
        assert_eq!(new_title("{\"title\": \" Война\\nи мир \"}".as_bytes()).unwrap(), "Война и мир");
        for bad in ["", "{}", "[]", "{\"title\": 5}", "{\"title\": \" \\n\"}", "\u{0}"] {
            assert_eq!(new_title(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }
}

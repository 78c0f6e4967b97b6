//! `PUT /titles/NAME`: whether the bytes of a request are taken, and where they go.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Bytes};
use millrace_core::limits::control::CONN_LINGER;
use millrace_core::limits::web::UPLOAD_BUFFER_BYTES;
use millrace_core::units::ByteLen;
use millrace_rights::{Decision, Now, RequestedAction};
use millrace_store::volume::TitleInfo;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::api;
use crate::access::SeenBy;
use crate::answer::Answer;
use crate::context::{RoutedRequest, ServerContext};
use crate::limits::{H2_LOOK, RETRY_AFTER_S};
use crate::request::{Method, Request};
use crate::route::{self, RouteMatch};
use crate::site::NotTaken;
use crate::uploads::{Owner, Stall, UploadFeed, UploadOutcome, UploadRange, check_name};

/// A piece that is put into the queue: several fit into its room.
const PIECE_BYTES: usize = UPLOAD_BUFFER_BYTES / 4;

/// The answer to a PUT without a route. The last part of such a path is usually a file name, which
/// curl appends after the slash.
pub(crate) fn no_address(path: &str) -> Answer {
    let name = path.strip_prefix("/titles/").filter(|name| !name.contains('/'));
    let refused = name.and_then(|name| check_name(&route::decoded(name).unwrap_or_default()).err());
    refused.unwrap_or_else(|| Answer::error(404, "nothing has this address"))
}

/// The address of an upload, if a request is one.
pub(crate) fn asked_for(request: &Request) -> Option<RouteMatch> {
    let brings = matches!(request.method, Method::Put | Method::Post);
    let found = if brings { route::find(&request.path) } else { None };
    found.filter(|found| found.route.methods().contains(&request.method) && !found.route.is_changed_by_post())
}

/// Answers an upload. Its body is not touched, and so no client that waits for 100 (Continue) gets
/// it, before it is clear that the upload may be accepted. `beat` is called whenever a part of it
/// has arrived.
pub(crate) async fn take(
    routed: RoutedRequest<'_>,
    body: &mut (impl Body<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<Answer, Answer> {
    let visitor = routed.let_in().await?;
    let seen = routed.seen_by(visitor);
    let (feed, asked) = admit(routed, &seen, body.size_hint().exact()).await?;
    let outcome = feed_all(routed.shared, feed, &asked, body, beat).await?;
    let title = wait(outcome, beat).await.map_err(|why| refusal(&why))?;
    let address = format!("/titles/{}.ts", title.name);
    Ok(Answer { status: 201, ..api::title(&seen, title) }.with("Location", address))
}

/// Reads the rest of a body whose answer has been given, for a moment: an HTTP/2 stream is reset
/// when its body is no longer read, and some clients take the reset for the answer.
pub(crate) fn let_go(mut body: impl Body<Data = Bytes, Error: Send> + Unpin + Send + 'static) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(timeout(CONN_LINGER, async move {
        while poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_some_and(|frame| frame.is_ok()) {}
    }));
}

/// Checks all that can be checked before the first byte, and gets the upload for this connection.
async fn admit(
    RoutedRequest { shared, request, found, source }: RoutedRequest<'_>,
    seen: &SeenBy,
    length: Option<u64>,
) -> Result<(UploadFeed, UploadRange), Answer> {
    let name = &found.name;
    check_name(name)?;
    let mut asked = UploadRange::read(&request.fields, length)?;
    let replaced = replaced(shared, request, seen, name)?;
    asked.replaces = replaced.as_ref().map(|title| title.id);
    if asked.count == Some(0) {
        return Err(Answer::error(422, "nothing was uploaded"));
    }
    check_size(shared, asked.total.or(asked.end()).unwrap_or(0))?;
    let owner = Owner::new(&seen.visitor, source.peer);
    let mut feed = shared.uploads.claim(name, &owner, &asked, request.fields.if_match.as_deref())?;
    if !feed.is_begun() {
        let looking = Arc::clone(shared);
        let room = move || looking.site.can_take(asked.total);
        let room = tokio::task::spawn_blocking(room).await;
        let unknown = |_| Err(NotTaken::Unavailable("it cannot be seen whether there is room".to_owned()));
        room.unwrap_or_else(unknown).map_err(|why| refusal(&why))?;
        feed.begin(&shared.site, replaced).map_err(|_| {
            let what = "no thread can be had for the upload, or too many that were given up have not ended";
            Answer::error(503, what).with("Retry-After", RETRY_AFTER_S.to_string())
        })?;
    }
    Ok((feed, asked))
}

/// The title that the upload replaces. The request names it by its id, so that it never replaces
/// one that its user has not seen.
fn replaced(
    shared: &ServerContext,
    request: &Request,
    seen: &SeenBy,
    name: &str,
) -> Result<Option<TitleInfo>, Answer> {
    let title = shared.site.title(name);
    let mut parameters = request.query.as_deref().unwrap_or_default().trim_start_matches('?').split('&');
    let Some(id) = parameters.find_map(|pair| pair.strip_prefix("replace=")) else {
        if title.is_none() {
            return Ok(None);
        }
        // A client that asks by the condition gets its status (RFC 9110 section 13.1.2).
        let status = if request.fields.if_none_match.is_some() { 412 } else { 409 };
        let what = "there is a title of this name; replace it by ?replace=ID, remove it first, or choose another name";
        return Err(Answer::error(status, what));
    };
    if title.as_ref().is_some_and(TitleInfo::is_growing) {
        return Err(Answer::error(
            409,
            "the title is being recorded; wait for its end, or choose another name",
        ));
    }
    // Uploading alone never takes anything away.
    if shared.gate.decision(&seen.visitor, RequestedAction::Change, seen.place) != Decision::Allow {
        return Err(Answer::error(
            403,
            "titles are replaced by users who manage, and by programs of the server's machine",
        ));
    }
    let is_named = |title: &TitleInfo| id.parse() == Ok(title.id);
    let gone =
        || Answer::error(412, "the title to replace is not there: it was removed or replaced meanwhile");
    let title = title.filter(is_named).ok_or_else(gone)?;
    // The server would make another title of the file that is still there.
    if title.source.path.ancestors().skip(1).any(|folder| shared.site.is_served_folder(folder)) {
        let what = "the title is made from a file in a folder that the server serves; replace the file there";
        return Err(Answer::error(409, what));
    }
    Ok(Some(title))
}

fn check_size(shared: &ServerContext, bytes: u64) -> Result<(), Answer> {
    let most = shared.limits.upload_bytes;
    if bytes <= most && most > 0 {
        return Ok(());
    }
    if most == 0 {
        return Err(Answer::error(403, "this server takes no uploads"));
    }
    Err(Answer::error(413, &format!("an upload may have {} at most", ByteLen(most))))
}

/// Takes the body to its end; all of the upload has come then.
async fn feed_all(
    shared: &ServerContext,
    mut feed: UploadFeed,
    asked: &UploadRange,
    body: &mut (impl Body<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<oneshot::Receiver<UploadOutcome>, Answer> {
    let mut stall = Stall::new(shared.limits.upload_stall);
    let end = asked.end();
    loop {
        let asked_at = Now::read().mono;
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let Ok(frame) = timeout(stall.left(), frame).await else {
            return Err(too_slow(shared));
        };
        let Some(frame) = frame else { break };
        // A client that has gone gets no answer.
        let frame = frame.map_err(|error| Answer::error(400, &format!("the upload broke off: {error}")))?;
        let Ok(mut bytes) = frame.into_data() else { continue };
        stall.came(Duration::from_nanos(Now::read().mono.ns_since(asked_at)), bytes.len());
        beat();
        let after = feed.received.saturating_add(bytes.len() as u64);
        if let Err(answer) = check_size(shared, after) {
            feed.give_up();
            return Err(answer);
        }
        if end.is_some_and(|end| after > end) {
            return Err(Answer::error(400, "more bytes came than Content-Range names"));
        }
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            sleep(shared.uploads.pace(piece.len())).await;
            if feed.put(piece).await.is_err() {
                return Err(refusal(&feed.why().await));
            }
            beat();
        }
    }
    if !asked.is_rest && feed.total != Some(feed.received) {
        return Err(feed.answer());
    }
    feed.end().ok_or_else(|| Answer::error(500, "the upload is not there any more"))
}

fn too_slow(shared: &ServerContext) -> Answer {
    shared.totals.add(|c| c.connections_too_slow += 1);
    Answer::error(408, "the upload comes too slowly; it can be gone on with")
}

/// Waits until it has been made a title.
async fn wait(mut outcome: oneshot::Receiver<UploadOutcome>, beat: &(dyn Fn() + Sync)) -> UploadOutcome {
    loop {
        match timeout(H2_LOOK, &mut outcome).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(_)) => return Err(NotTaken::Unavailable("the upload was given up".to_owned())),
            Err(_) => beat(),
        }
    }
}

/// Returns the answer for an upload that became no title.
fn refusal(why: &NotTaken) -> Answer {
    let what = why.to_string();
    match why {
        NotTaken::Broken(_) => Answer::error(422, &what),
        NotTaken::OtherKind(_) => Answer::error(415, &what),
        NotTaken::Full(_) => Answer::error(507, &what),
        NotTaken::Unavailable(_) => Answer::error(503, &what).with("Retry-After", RETRY_AFTER_S.to_string()),
    }
}

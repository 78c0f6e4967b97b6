//! Subtitles as files: `/titles/NAME/subtitles/LABEL.vtt`. GET reads the whole file, PUT uploads
//! it, DELETE removes it.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes};
use millrace_core::limits::subtitles::MAX_SUBTITLE_SOURCE_BYTES;
use millrace_core::units::ByteLen;
use millrace_media::subtitles::SubtitleLabel;
use millrace_rights::Now;
use millrace_store::volume::TitleInfo;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::conditions;
use crate::context::{RoutedRequest, ServerContext};
use crate::dispatch::of_whole_title;
use crate::failures::{failed, no_title};
use crate::limits::RETRY_AFTER_S;
use crate::route::RouteMatch;
use crate::site::{NotTaken, SiteError};
use crate::subtitles::text;
use crate::subtitles::vtt::VTT;
use crate::uploads::Stall;

/// The address of a track's file.
pub(crate) fn address(title: &str, label: &SubtitleLabel) -> String {
    format!("/titles/{title}/subtitles/{label}.vtt")
}

fn no_track(label: &SubtitleLabel) -> Answer {
    Answer::error(404, &format!("the title has no subtitles {label}"))
}

/// Parses the label in the last part of a path. Returns also whether the suffix is that of WebVTT.
fn label_of(found: &RouteMatch) -> Result<(SubtitleLabel, bool), Answer> {
    let (name, ending) = found.file.rsplit_once('.').unwrap_or((&found.file, ""));
    if !matches!(ending, "vtt" | "srt") {
        return Err(Answer::error(400, "subtitles end in .vtt or .srt"));
    }
    let label = name
        .parse()
        .map_err(|error: millrace_media::subtitles::NotALabel| Answer::error(400, &error.to_string()))?;
    Ok((label, ending == "vtt"))
}

/// Returns the whole WebVTT of a track.
pub(crate) async fn whole(routed: RoutedRequest<'_>, title: &TitleInfo) -> Answer {
    let RoutedRequest { shared, request, found, .. } = routed;
    let owner = text::owner(&*shared.site, title);
    let label = match label_of(found) {
        Ok((label, true)) => label,
        Ok((_, false)) => return Answer::error(404, "subtitles are kept as WebVTT; ask for .vtt"),
        Err(_) => return Answer::error(404, "nothing has this address"),
    };
    let Some(track) = owner.subtitles.iter().find(|track| track.label == label) else {
        return no_track(&label);
    };
    let tag = format!("\"{}\"", text::version_of(track));
    let file = track.file.clone();
    match shared.reading(move |shared| shared.site.subtitles(&owner, &file)).await {
        Ok(text) => conditions::tagged(request, tag, || Answer::new(200, VTT, text)),
        Err(error) => failed(&error),
    }
}

/// Answers PUT. The body is not read before the upload is allowed.
pub(crate) async fn put(
    routed: RoutedRequest<'_>,
    body: &mut (impl HttpBody<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<Answer, Answer> {
    routed.let_in().await?;
    let RoutedRequest { shared, request, found, .. } = routed;
    let (label, _) = label_of(found)?;
    if request.fields.content_range.is_some() {
        return Err(Answer::error(400, "subtitles are uploaded whole: send no Content-Range"));
    }
    if shared.limits.upload_bytes == 0 {
        return Err(Answer::error(403, "this server takes no uploads"));
    }
    match shared.site.title(&found.name) {
        None => return Err(no_title()),
        Some(title) if title.is_growing() => return Err(of_whole_title()),
        Some(_) => {}
    }
    let busy = || {
        Answer::error(503, "other subtitles are being uploaded")
            .with("Retry-After", RETRY_AFTER_S.to_string())
    };
    let _place = shared.subtitles.uploads.try_acquire().map_err(|_| busy())?;
    let bytes = collect(shared, body, beat).await?;
    let (name, of) = (found.name.clone(), label.clone());
    let taking = Arc::clone(shared);
    let done = tokio::task::spawn_blocking(move || taking.site.put_subtitles(&name, &of, &bytes)).await;
    let unknown = |_| Err(NotTaken::Unavailable("the subtitles cannot be stored now".to_owned()));
    let is_replaced = done.unwrap_or_else(unknown).map_err(|why| refusal(&why))?;
    let status = if is_replaced { 204 } else { 201 };
    Ok(Answer::empty(status).with("Location", address(&found.name, &label)))
}

/// Answers DELETE. The caller has checked the right to delete.
pub(crate) async fn remove(shared: &Arc<ServerContext>, found: &RouteMatch) -> Answer {
    let label = match label_of(found) {
        Ok((label, _)) => label,
        Err(answer) => return answer,
    };
    let (name, of) = (found.name.clone(), label.clone());
    match shared.reading(move |shared| shared.site.remove_subtitles(&name, &of)).await {
        Ok(true) => Answer::empty(204),
        Ok(false) => no_track(&label),
        Err(SiteError::NoTitle | SiteError::Coming(_)) => no_title(),
        // Clients with the right to delete may see the reason.
        Err(SiteError::Unreadable(why)) => {
            Answer::error(500, &format!("the subtitles cannot be removed: {why}"))
        }
    }
}

/// Reads the whole body.
async fn collect(
    shared: &ServerContext,
    body: &mut (impl HttpBody<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Result<Vec<u8>, Answer> {
    let most = MAX_SUBTITLE_SOURCE_BYTES;
    let too_long =
        || Answer::error(413, &format!("a file of subtitles may have {} at most", ByteLen(most as u64)));
    if body.size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let mut stall = Stall::new(shared.limits.upload_stall);
    let mut whole = Vec::new();
    loop {
        let asked_at = Now::read().mono;
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
        let Ok(frame) = timeout(stall.left(), frame).await else {
            shared.totals.add(|c| c.connections_too_slow += 1);
            return Err(Answer::error(408, "the upload comes too slowly"));
        };
        let Some(frame) = frame else { return Ok(whole) };
        let frame = frame.map_err(|error| Answer::error(400, &format!("the upload broke off: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        stall.came(Duration::from_nanos(Now::read().mono.ns_since(asked_at)), bytes.len());
        beat();
        if whole.len() + bytes.len() > most {
            return Err(too_long());
        }
        whole.extend_from_slice(&bytes);
    }
}

/// The answer if subtitles were refused.
fn refusal(why: &NotTaken) -> Answer {
    let what = why.to_string();
    match why {
        NotTaken::Broken(_) | NotTaken::OtherKind(_) => Answer::error(400, &what),
        NotTaken::Full(_) => Answer::error(507, &what),
        NotTaken::Unavailable(_) => Answer::error(503, &what).with("Retry-After", RETRY_AFTER_S.to_string()),
    }
}

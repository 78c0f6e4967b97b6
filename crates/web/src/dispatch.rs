//! Dispatches each request: checks access and calls the handler of its route.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::{Body as HttpBody, Bytes};
use millrace_core::text::Printable;
use millrace_store::volume::TitleInfo;

use crate::access::SeenBy;
use crate::answer::{Answer, Body};
use crate::context::{RoutedRequest, ServerContext};
use crate::failures::{exhausted, no_title};
use crate::handlers::cmaf::TrackFile;
use crate::handlers::master::{self, MasterForm};
use crate::handlers::{
    api, chapters, cmaf, events, guide, hls, live, live_input, live_sources, pictures, recordings, reload,
    rename, status, subtitles, tuner, upload,
};
use crate::memory::Exhausted;
use crate::request::{Method, REQUESTS, Request, RequestSource};
use crate::route::{self, ResourceKind};
use crate::{cors, file, metrics, openapi, page, viewer};

/// Answers a request, which log lines call by its id; for HEAD without the body.
pub(crate) async fn answer(shared: &Arc<ServerContext>, request: &Request, source: RequestSource) -> Answer {
    let turn = shared.clients.turn(source.peer).await;
    // This future is large, so it lives in the heap and only during a turn: connections that wait for one, or write
    // to a client that does not read, do not hold it.
    let answer = turn.take(Box::pin(find_answer(shared, request, source)).as_mut()).await;
    let answer = counted(shared, answer, source.peer);
    log_request(request, source, answer.status);
    answer
}

/// Counts the bytes of a response while any of them are in memory. Replaces it by an error if
/// memory is exhausted.
fn counted(shared: &ServerContext, mut answer: Answer, peer: SocketAddr) -> Answer {
    let counted = match std::mem::replace(&mut answer.body, Body::None) {
        Body::Bytes(bytes) => shared.memory.sends(bytes, false, peer).map(Body::Bytes),
        Body::Kept(bytes) => shared.memory.sends(bytes, true, peer).map(Body::Kept),
        Body::Segment(bytes, sending) => {
            shared.memory.sends(bytes, true, peer).map(|bytes| Body::Segment(bytes, sending))
        }
        other => Ok(other),
    };
    match counted {
        Ok(body) => Answer { body, ..answer },
        Err(Exhausted) => exhausted(),
    }
}

async fn find_answer(shared: &Arc<ServerContext>, request: &Request, source: RequestSource) -> Answer {
    let Some(found) = &route::find(&request.path) else {
        return nowhere(request);
    };
    let routed = RoutedRequest { shared, request, found, source };
    let answer = match request.method {
        Method::Get => answer_to(routed).await,
        Method::Head => answer_to(routed).await.without_body(),
        Method::Options => cors::preflight(found.route),
        Method::Delete if found.route.methods().contains(&Method::Delete) => match routed.let_in().await {
            Ok(_) if found.route.kind == ResourceKind::SubtitleFile => subtitles::remove(shared, found).await,
            Ok(_) if found.route.kind == ResourceKind::LiveRecording => recordings::stop(shared, found),
            Ok(_) if found.route.kind == ResourceKind::ApiLiveTitle => {
                live_sources::remove(shared, &found.name).await
            }
            Ok(_) => api::remove(shared, found.name.clone()).await,
            Err(refused) => refused,
        },
        // Requests with a body do not come here.
        Method::Put | Method::Post | Method::Delete | Method::Patch | Method::Other => {
            let allow = found.route.allow();
            Answer::error(405, &format!("possible here: {allow}")).with("Allow", allow)
        }
    };
    let answer = answer.with("X-Content-Type-Options", "nosniff");
    if found.route.is_shared { cors::allow_all_origins(answer) } else { answer }
}

/// The answer for a path without a route.
fn nowhere(request: &Request) -> Answer {
    match request.method {
        // Applies to the server as a whole (RFC 9110 section 9.3.7).
        Method::Options if request.path == "*" => {
            Answer::new(200, "text/plain", Bytes::new()).with("Allow", route::ALL_METHODS)
        }
        Method::Put => upload::no_address(&request.path),
        _ => Answer::error(404, "nothing has this address"),
    }
}

/// Answers clients that have access, and gives the reason to others.
async fn answer_to(routed: RoutedRequest<'_>) -> Answer {
    let visitor = match routed.let_in().await {
        Ok(visitor) => visitor,
        Err(refused) => return refused,
    };
    let seen = routed.seen_by(visitor);
    let mut answer = look_up(routed, &seen).await;
    if let Body::Media(media) = &mut answer.body {
        media.quota = seen.quota().map(Box::new);
    }
    if routed.shared.gate.is_private() { private(answer) } else { answer }
}

async fn look_up(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let RoutedRequest { shared, request, found, source } = routed;
    match found.route.kind {
        ResourceKind::Page => return page::html(),
        ResourceKind::Style => return page::style(),
        ResourceKind::Script => return page::script(),
        ResourceKind::Icon => return page::icon(),
        ResourceKind::QrCode => return page::qr_code(request),
        ResourceKind::Player => return page::player(request),
        ResourceKind::Playlist => return api::playlist(seen),
        ResourceKind::TvPlaylist => return guide::playlist(routed, seen),
        ResourceKind::Guide => return guide::guide(routed, seen).await,
        ResourceKind::TunerDevice => return tuner::discover(routed, seen),
        ResourceKind::TunerLineup => return tuner::lineup(routed, seen),
        ResourceKind::TunerStatus => return tuner::lineup_status(),
        ResourceKind::ApiTitles => return api::titles(shared, request, seen).await,
        ResourceKind::ApiLive => return live::list(seen),
        ResourceKind::LiveMaster
        | ResourceKind::LivePlaylist
        | ResourceKind::LivePartsMaster
        | ResourceKind::LivePartsPlaylist => {
            return live::playlist(routed, seen).await.unwrap_or_else(|refused| refused);
        }
        ResourceKind::LivePart => return live::part(routed, seen).await,
        ResourceKind::LiveSegment => return live::segment(request, seen, found, source.id),
        ResourceKind::LiveInput | ResourceKind::ApiLiveTitle => return live::state(seen, &found.name),
        ResourceKind::LiveRecording => return recordings::state(shared, found),
        ResourceKind::LiveStream => return live::stream(seen, &found.name),
        ResourceKind::ApiStatus => return status::answer(shared).await,
        ResourceKind::ApiReload => return reload::last(shared),
        ResourceKind::ApiEvents => return events::answer(shared, request.method),
        ResourceKind::ApiUser => return api::user(seen),
        ResourceKind::ApiDescription => return openapi::answer(request),
        ResourceKind::ApiUploads => return Answer::json(&shared.uploads.list(shared.limits.upload_bytes)),
        ResourceKind::Upload => return shared.uploads.state(&found.name),
        ResourceKind::Metrics => return metrics::answer(&*shared.site),
        ResourceKind::Live => return state("ok\n"),
        ResourceKind::Ready if *shared.ends.borrow() => return Answer::error(503, "the server is ending"),
        ResourceKind::Ready => return state("ready\n"),
        _ => {}
    }
    let Some(title) = shared.site.title(&found.name) else { return no_title() };
    let link = &match routed.playlist_link(&title, seen).await {
        Ok(link) => link,
        Err(refused) => return refused,
    };
    let answer = of_title(routed, seen, title, link).await.unwrap_or_else(|refused| refused);
    viewer::for_its_viewer(answer, link)
}

/// The answer with something of a title; addresses in it end with the link.
async fn of_title(
    routed: RoutedRequest<'_>,
    seen: &SeenBy,
    title: TitleInfo,
    link: &str,
) -> Result<Answer, Answer> {
    let RoutedRequest { shared, request, found, .. } = routed;
    Ok(match found.route.kind {
        kind if title.is_growing() && is_of_whole(kind) => of_whole_title(),
        ResourceKind::File => file::answer(request, &title),
        ResourceKind::Cmaf => master::master_playlist(shared, request, title, MasterForm::Made, link).await,
        ResourceKind::Master => master::master_playlist(shared, request, title, MasterForm::Any, link).await,
        ResourceKind::Media => hls::media_playlist(routed, title, link).await,
        ResourceKind::CmafMedia => cmaf::media_playlist(routed, &title, link, false).await?,
        ResourceKind::CmafStills => cmaf::media_playlist(routed, &title, link, true).await?,
        ResourceKind::CmafInit => cmaf::piece(routed, &title, TrackFile::Init, seen).await?,
        ResourceKind::CmafSegment => cmaf::piece(routed, &title, TrackFile::Segment, seen).await?,
        ResourceKind::CmafStill => cmaf::piece(routed, &title, TrackFile::Still, seen).await?,
        ResourceKind::Subtitles
        | ResourceKind::SubtitleSegment
        | ResourceKind::CmafSubtitles
        | ResourceKind::CmafSubtitleSegment => subtitles::answer(routed, &title, link).await?,
        ResourceKind::SubtitleFile => subtitles::whole(routed, &title).await,
        ResourceKind::Chapters => chapters::answer(shared, &title),
        ResourceKind::Poster | ResourceKind::Sprites | ResourceKind::SpritesVtt => {
            pictures::answer(routed, title, link).await
        }
        ResourceKind::Segment => hls::segment(routed, title).await,
        _ => api::title(seen, title),
    })
}

/// The answer for something that only a whole title has.
pub(crate) fn of_whole_title() -> Answer {
    Answer::error(503, "the title is being recorded; this is there when it is complete")
        .with("Retry-After", "60")
}

/// Whether something of a title can be made only when all of the title is there.
fn is_of_whole(kind: ResourceKind) -> bool {
    use ResourceKind::{
        Cmaf, CmafInit, CmafMedia, CmafSegment, CmafStill, CmafStills, CmafSubtitleSegment, CmafSubtitles,
        Poster, Sprites, SpritesVtt, SubtitleSegment, Subtitles,
    };
    let is_cmaf = matches!(kind, Cmaf | CmafInit | CmafMedia | CmafSegment | CmafStill | CmafStills);
    let is_text = matches!(kind, CmafSubtitleSegment | CmafSubtitles | SubtitleSegment | Subtitles);
    is_cmaf || is_text || matches!(kind, Poster | Sprites | SpritesVtt)
}

/// Answers an upload. `beat` is called whenever a part of its body has arrived.
pub(crate) async fn take_upload(
    routed: RoutedRequest<'_>,
    body: &mut (impl HttpBody<Data = Bytes, Error: Display> + Unpin),
    beat: &(dyn Fn() + Sync),
) -> Answer {
    let answer = match routed.found.route.kind {
        ResourceKind::SubtitleFile => subtitles::put(routed, body, beat).await,
        ResourceKind::LiveInput => live_input::take(routed, body, beat).await,
        ResourceKind::LiveRecording => recordings::start(routed, body).await,
        _ => upload::take(routed, body, beat).await,
    };
    logged(routed, answer)
}

/// Answers a change to a title's description, a source for a live title, or a reload of the settings.
pub(crate) async fn take_change(
    routed: RoutedRequest<'_>,
    body: impl HttpBody<Data = Bytes> + Unpin,
) -> Answer {
    let answer = match routed.found.route.kind {
        ResourceKind::ApiLive => live_sources::add(routed, body).await,
        ResourceKind::ApiReload => reload::start(routed, body).await,
        _ => rename::take(routed, body).await,
    };
    logged(routed, answer)
}

/// The answer to a request with a body, whether that was taken or refused.
fn logged(routed: RoutedRequest<'_>, answer: Result<Answer, Answer>) -> Answer {
    let answer = answer.unwrap_or_else(|refused| refused).with("X-Content-Type-Options", "nosniff");
    log_request(routed.request, routed.source, answer.status);
    answer
}

/// Logs one line per request, for users that enable it.
fn log_request(request: &Request, source: RequestSource, status: u16) {
    let RequestSource { peer, id, .. } = source;
    let (method, path) = (request.method.name(), Printable(&request.path));
    tracing::debug!(target: REQUESTS, %id, "{id}: {method} {path} of {peer} answered with {status}");
}

/// Keeps it out of shared caches: they would give it to any client.
fn private(mut answer: Answer) -> Answer {
    for (name, value) in &mut answer.headers {
        if *name == "Cache-Control" {
            *value = value.replace("public", "private");
        }
    }
    answer
}

/// Returns the response to a health check.
fn state(text: &'static str) -> Answer {
    Answer::new(200, "text/plain", text).with("Cache-Control", "no-store")
}

//! `/api/v1`: what there is, as JSON. Fields are added, never changed or taken away: `docs/ref/http.md` describes them.

use std::io::{self, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use millrace_core::limits::web::MEMORY_KEPT_PART;
use millrace_rights::Visitor;
use millrace_store::volume::TitleInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::title::TitleDescription;
use crate::access::SeenBy;
use crate::answer::Answer;
use crate::conditions;
use crate::context::ServerContext;
use crate::failures::{no_title, not_made};
use crate::limits::LEAST_GZIP_BYTES;
use crate::making::NotMade;
use crate::memory::Exhausted;
use crate::request::{Fields, Request};
use crate::site::{Site, SiteError};
use crate::title_list::{List, ListVersion, May};

/// The user that sent the request.
#[derive(Serialize, JsonSchema)]
pub(crate) struct User {
    /// Name of the user whose credentials came with the request.
    user: String,
}

/// All titles.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Titles")]
pub(crate) struct TitleListing {
    titles: Vec<TitleDescription>,
    /// Whether the client may upload: `yes`, `no`, or `sign-in`, if it identifies itself.
    upload: &'static str,
    /// Whether the client may rename and delete titles: `yes`, `no`, or `sign-in`, if it identifies
    /// itself.
    manage: &'static str,
    /// Port of RTSP at this server; null if there is none.
    rtsp_port: Option<u16>,
}

/// What of a title can be changed.
#[derive(Deserialize, Serialize, JsonSchema)]
pub(crate) struct TitleChange {
    /// Its new display name.
    pub(crate) title: String,
}

/// `/api/v1/user`
pub(crate) fn user(seen: &SeenBy) -> Answer {
    match &seen.visitor {
        Visitor::User(name) => Answer::json(&User { user: name.to_string() }),
        Visitor::Anybody | Visitor::Link(_) => Answer::error(404, "this server has no users"),
    }
}

fn make_list(shared: &ServerContext, seen: &SeenBy, may: May) -> Result<List, NotMade> {
    let titles = seen.titles().into_iter().map(|title| TitleDescription::of(seen, title)).collect();
    let (May { upload, manage }, rtsp_port) = (may, seen.rtsp_port());
    let list = TitleListing { titles, upload, manage, rtsp_port };
    let mut text = serde_json::to_vec(&list).map_err(unreadable)?;
    text.push(b'\n');
    let mut tag = blake3::hash(&text).to_hex().to_string();
    tag.truncate(LIST_TAG_DIGITS);
    let gzip = (text.len() >= LEAST_GZIP_BYTES).then(|| compressed(&text)).transpose().map_err(unreadable)?;
    let keep = |bytes: Vec<u8>| {
        let room = shared.room(bytes.len()).map_err(|Exhausted| NotMade::Full)?;
        Ok::<_, NotMade>(room.over(bytes))
    };
    Ok(List { plain: keep(text)?, gzip: gzip.map(keep).transpose()?, tag })
}

/// Digits of a list's hash in its tag: 64 bits.
const LIST_TAG_DIGITS: usize = 16;

fn unreadable(error: impl std::fmt::Display) -> NotMade {
    NotMade::Site(SiteError::Unreadable(error.to_string()))
}

fn compressed(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// `/api/v1/titles`
pub(crate) async fn titles(shared: &Arc<ServerContext>, request: &Request, seen: &SeenBy) -> Answer {
    let may = shared.may(seen);
    let user = match &seen.visitor {
        Visitor::User(name) if !shared.gate.is_open() => Some(Arc::clone(name)),
        // Clients of an open server all see the same list.
        Visitor::User(_) | Visitor::Anybody | Visitor::Link(_) => None,
    };
    let versions = [seen.titles_version(), seen.pictures_version(), shared.gate.version()];
    let cell = shared.lists.cell(ListVersion { versions, user, may });
    let seen = seen.clone();
    let made = cell.get_or_try_init(|| async move {
        // Nested results: `reading` returns store errors, `make` the reason why there is no list.
        let make = move |shared: &ServerContext| Ok(make_list(shared, &seen, may));
        shared.reading(make).await?.map(Arc::new)
    });
    let list = made.await.cloned();
    drop(cell);
    shared.lists.trim(shared.memory.most() / MEMORY_KEPT_PART, |list| list.len());
    let list = match list {
        Ok(list) => list,
        Err(why) => return not_made(&why),
    };
    let gzip = list.gzip.as_ref().filter(|_| takes_gzip(&request.fields));
    let tag = format!("\"{}{}\"", list.tag, if gzip.is_some() { "-gzip" } else { "" });
    let answer = conditions::tagged(request, tag, || {
        let answer = Answer::kept("application/json", gzip.unwrap_or(&list.plain).clone());
        if gzip.is_some() { answer.with("Content-Encoding", "gzip") } else { answer }
    });
    answer.with("Vary", "Accept-Encoding")
}

/// Returns whether the client accepts gzip (RFC 9110 section 12.5.3).
fn takes_gzip(fields: &Fields) -> bool {
    let list = fields.accept_encoding.as_deref().unwrap_or_default();
    list.split(',').any(|item| {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let is_zero = |quality: &str| quality.parse::<f32>().is_ok_and(|quality| quality <= 0.0);
        let is_refused = parts.filter_map(|part| part.strip_prefix("q=")).any(is_zero);
        ["gzip", "x-gzip"].iter().any(|known| name.eq_ignore_ascii_case(known)) && !is_refused
    })
}

/// `/titles.m3u`: all titles as a playlist for players. Its addresses are relative to the playlist,
/// so it works behind any proxy prefix.
pub(crate) fn playlist(seen: &SeenBy) -> Answer {
    let mut text = String::from("#EXTM3U\n");
    for title in seen.titles() {
        let seconds = title.duration.as_secs_f64().round();
        // A display name has no line breaks.
        text += &format!("#EXTINF:{seconds},{}\ntitles/{}/index.m3u8\n", title.display_name(), title.name);
    }
    for live in seen.live() {
        text += &format!("#EXTINF:-1,{}\nlive/{}.ts\n", live.name, live.name);
    }
    Answer::new(200, M3U, text).with("Cache-Control", "no-cache")
}

/// Media type of an M3U playlist that is not HLS.
pub(crate) const M3U: &str = "audio/x-mpegurl; charset=utf-8";

/// `/api/v1/titles/NAME`
pub(crate) fn title(site: &dyn Site, title: TitleInfo) -> Answer {
    Answer::json(&TitleDescription::of(site, title))
}

/// DELETE of `/api/v1/titles/NAME`. The caller has checked the right to delete.
pub(crate) async fn remove(shared: &Arc<ServerContext>, name: String) -> Answer {
    match shared.reading(move |shared| shared.site.remove(&name)).await {
        Ok(()) => Answer::empty(204),
        Err(SiteError::NoTitle | SiteError::Coming(_)) => no_title(),
        // Users with the right to remove titles may learn the reason.
        Err(SiteError::Unreadable(why)) => Answer::error(500, &format!("the title cannot be removed: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_gzip_of_what_clients_say() {
        for (said, takes) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.8", true),
            ("x-gzip", true),
            ("gzip;q=0, br", false),
            ("gzip; q=0.000", false),
            ("br", false),
            ("", false),
            ("*", false),
        ] {
            let mut fields = Fields::default();
            fields.note("Accept-Encoding", said.as_bytes());
            assert_eq!(takes_gzip(&fields), takes, "{said}");
        }
        assert!(!takes_gzip(&Fields::default()));
    }
}

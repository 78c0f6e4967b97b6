//! `/api/v1`: what there is, as JSON. Fields are added, never changed or taken away: `docs/ref/http.md` describes them.

use millrace_rights::Visitor;
use millrace_store::volume::TitleInfo;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::rights::SeenBy;
use crate::site::{PicturesState, Site};
use crate::{cmaf, pictures};

/// Who asks.
#[derive(Serialize, JsonSchema)]
pub(crate) struct User {
    /// Name of the user whose credentials came with the request.
    user: String,
}

/// All titles.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Titles {
    titles: Vec<Title>,
    /// Whether who asks may upload: `yes`, `no`, or `sign-in`, if it says who it is.
    upload: &'static str,
}

/// What of a title can be changed.
#[derive(Deserialize, Serialize, JsonSchema)]
pub(crate) struct TitleChange {
    /// Its new display name.
    pub(crate) title: String,
}

/// A title.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Title {
    /// Unique.
    name: String,
    /// What people call it: any text of one line, not unique.
    title: String,
    /// 32 hexadecimal digits, for ever.
    id: String,
    /// Length of its transport stream.
    bytes: u64,
    duration_s: f64,
    mean_bits_per_s: u64,
    /// Over windows of 1 s.
    peak_bits_per_s: u64,
    is_constant_rate: bool,
    /// When it was added, seconds since 1970.
    added_unix_s: u64,
    streams: Vec<Stream>,
    /// Names of its renditions, the best first, with itself among them; empty if it is the only one.
    renditions: Vec<String>,
    /// Address of the transport stream, from the root of this server.
    file: String,
    /// Address of its playlist.
    hls: String,
    /// Address of the playlist with pictures and each sound apart; null if none of its streams can be had so.
    cmaf: Option<String>,
    /// Address of a picture of it; null if there is none.
    poster: Option<String>,
    /// Address of the list of small pictures for seeking (WebVTT); null if there are none.
    sprites: Option<String>,
    /// `made`, `waiting`, or why there are none.
    pictures: String,
}

/// An elementary stream of a title.
#[derive(Serialize, JsonSchema)]
struct Stream {
    pid: u16,
    /// As ISO/IEC 13818-1 numbers them.
    stream_type: u8,
    /// For people.
    codec: String,
    /// ISO 639-2.
    language: Option<String>,
}

/// `/api/v1/user`
pub(crate) fn user(seen: &SeenBy) -> Answer {
    match &seen.visitor {
        Visitor::User(name) => json(&User { user: name.to_string() }),
        Visitor::Anybody | Visitor::Link(_) => Answer::error(404, "this server has no users"),
    }
}

/// `/api/v1/titles`
pub(crate) fn titles(site: &dyn Site, upload: &'static str) -> Answer {
    json(&Titles { titles: site.titles().into_iter().map(|title| of(site, title)).collect(), upload })
}

/// `/api/v1/titles/NAME`
pub(crate) fn title(site: &dyn Site, title: TitleInfo) -> Answer {
    json(&of(site, title))
}

fn of(site: &dyn Site, title: TitleInfo) -> Title {
    let stream = |stream: millrace_store::volume::ElementaryStream| Stream {
        pid: stream.pid,
        stream_type: stream.stream_type,
        codec: stream.codec,
        language: stream.language,
    };
    let is_apart = title.streams.iter().any(|stream| cmaf::can_have(&stream.codec).is_some());
    let (pictures, addresses) = match site.pictures(&title) {
        PicturesState::Made(about) => ("made".to_owned(), Some(pictures::addresses(&title.name, &about))),
        PicturesState::Waiting => ("waiting".to_owned(), None),
        PicturesState::Never(why) => (why, None),
    };
    let (poster, sprites) = addresses.unzip();
    Title {
        title: title.display_name(),
        poster,
        sprites,
        pictures,
        renditions: site.renditions(&title.name).into_iter().map(|rendition| rendition.name).collect(),
        file: format!("/titles/{}.ts", title.name),
        hls: format!("/titles/{}/index.m3u8", title.name),
        cmaf: is_apart.then(|| format!("/titles/{}/cmaf.m3u8", title.name)),
        id: title.id.to_string(),
        bytes: title.bytes,
        duration_s: title.duration.as_secs_f64(),
        mean_bits_per_s: title.mean_rate.0,
        peak_bits_per_s: title.peak_rate.0,
        is_constant_rate: title.constant_rate,
        added_unix_s: title.added_unix_s,
        streams: title.streams.into_iter().map(stream).collect(),
        name: title.name,
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Answer {
    match serde_json::to_vec(value) {
        Ok(mut text) => {
            text.push(b'\n');
            Answer::new(200, "application/json", text).with("Cache-Control", "no-cache")
        }
        Err(_) => Answer::error(500, "the answer cannot be written as JSON"),
    }
}

//! Every address that is answered, in one table.
//!
//! A path is split at its slashes, then each part is decoded once (RFC 3986 section 2.3: `%62` and
//! `b` are the same), so an encoded slash does not split. A name may have only the characters of
//! title names, so no `..`, slash or NUL ever reaches a title lookup.

use std::borrow::Cow;

use millrace_media::kinds::FILM_EXTENSIONS;

use crate::request::Method;

/// Kind of resource at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    /// A title as a file.
    File,
    /// A live title as a stream that does not end.
    LiveStream,
    /// Its master playlist.
    Master,
    /// Its media playlist.
    Media,
    /// One of its segments.
    Segment,
    /// Its master playlist with segments that are made.
    Cmaf,
    /// A media playlist of those, and one of pictures that stand alone.
    CmafMedia,
    CmafStills,
    /// Their pieces.
    CmafInit,
    CmafSegment,
    CmafStill,
    /// Subtitles, beside the segments that are cut and beside those that are made: a media playlist, and a segment of it.
    Subtitles,
    SubtitleSegment,
    CmafSubtitles,
    CmafSubtitleSegment,
    /// Subtitles stored with a title, as a whole file.
    SubtitleFile,
    /// Its chapters.
    Chapters,
    /// Its poster, the sheet of pictures for seeking, and the list of these pictures.
    Poster,
    Sprites,
    SpritesVtt,
    /// The page, and its parts.
    Page,
    Style,
    Script,
    Icon,
    /// An address as a QR code.
    QrCode,
    /// hls.js, which plays where the browser cannot.
    Player,
    /// The requesting user, as JSON.
    ApiUser,
    /// All titles, as a playlist.
    Playlist,
    /// The same for TV players.
    TvPlaylist,
    /// The programme of channels, for them too.
    Guide,
    /// The live titles as the channels of a tuner: the device, its channels, and its search for them.
    TunerDevice,
    TunerLineup,
    TunerStatus,
    /// The master playlist of a live title, its media playlist, and its segments.
    LiveMaster,
    LivePlaylist,
    LiveSegment,
    /// The same in parts of segments, for players of low-latency HLS.
    LivePartsMaster,
    LivePartsPlaylist,
    LivePart,
    /// Where the media of a live title is brought.
    LiveInput,
    /// A live title is recorded as long as this is there.
    LiveRecording,
    /// All titles, as JSON.
    ApiTitles,
    /// All live titles, as JSON; takes sources of more of them.
    ApiLive,
    /// One of them, as JSON.
    ApiLiveTitle,
    /// One title, as JSON.
    ApiTitle,
    /// The viewers, and the load of the server.
    ApiStatus,
    /// The outcome of the last reload; begins another one.
    ApiReload,
    /// What happens, as it happens.
    ApiEvents,
    /// What all of this is, for programs.
    ApiDescription,
    /// A title that is being uploaded.
    Upload,
    /// All uploads.
    ApiUploads,
    /// All counters.
    Metrics,
    /// Whether the program runs.
    Live,
    /// Whether it serves.
    Ready,
}

/// The right that a client needs for an address (`docs/design/0039-rights.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// None: the address reveals nothing.
    Nothing,
    /// To be a user, whatever that one may.
    SignIn,
    /// To see which titles there are.
    List,
    /// To watch the title that the address names.
    Watch,
    /// To see who else watches, and figures of the server.
    SeeOthers,
    /// To add titles.
    Upload,
}

/// An address, or a family of them.
#[derive(Debug)]
pub(crate) struct Route {
    /// The path; `{name}`, `{version}`, `{file}`, `{track}` and `{number}` stand for one part each.
    pub(crate) path: &'static str,
    pub(crate) kind: ResourceKind,
    /// Its content, for people.
    pub(crate) what: &'static str,
    /// Whether the front parser answers it: what players ask for, again and again on the same connection. The others go to hyper, with their connection.
    pub(crate) is_front: bool,
    /// The right that a client needs for it, with methods that change nothing.
    pub(crate) needs: Needs,
    /// Whether pages from elsewhere may read it.
    pub(crate) is_shared: bool,
}

/// Where the names of live titles begin.
pub(crate) const LIVE_PREFIX: &str = "live/";

/// The methods of all routes, as listed in `Allow`.
pub(crate) const ALL_METHODS: &str = "GET, HEAD, OPTIONS, PUT, POST, PATCH, DELETE";

/// All of them.
pub(crate) const ROUTES: &[Route] = &[
    media("/titles/{name}.ts", ResourceKind::File, "A title as a transport stream"),
    media("/live/{name}.ts", ResourceKind::LiveStream, "A live title, from where it is"),
    own(
        "/live/{name}",
        ResourceKind::LiveInput,
        Needs::Watch,
        "A live title, and where its media is brought",
    ),
    own(
        "/live/{name}/recording",
        ResourceKind::LiveRecording,
        Needs::Upload,
        "The recording of a live title: put to begin it, and deleted to end it",
    ),
    media(
        "/live/{name}/index.m3u8",
        ResourceKind::LiveMaster,
        "HLS: a live title, with a session for its viewer",
    ),
    media("/live/{name}/media.m3u8", ResourceKind::LivePlaylist, "HLS: the newest segments of a live title"),
    media("/live/{name}/{version}/{number}.ts", ResourceKind::LiveSegment, "HLS: a segment of a live title"),
    media(
        "/live/{name}/low-latency.m3u8",
        ResourceKind::LivePartsMaster,
        "Low-latency HLS: a live title, with a session for its viewer",
    ),
    media(
        "/live/{name}/parts.m3u8",
        ResourceKind::LivePartsPlaylist,
        "Low-latency HLS: the newest parts of a live title; waits for parts that a player asks for in advance",
    ),
    media(
        "/live/{name}/{version}/{number}/{part}.ts",
        ResourceKind::LivePart,
        "Low-latency HLS: a part of a segment of a live title",
    ),
    media("/titles/{name}/index.m3u8", ResourceKind::Master, "HLS: the renditions of a title"),
    media("/titles/{name}/media.m3u8", ResourceKind::Media, "HLS: the segments of a title"),
    media("/titles/{name}/hls/{version}/{number}.ts", ResourceKind::Segment, "HLS: a segment"),
    media(
        "/titles/{name}/cmaf.m3u8",
        ResourceKind::Cmaf,
        "HLS with fragmented MP4: the renditions and sounds of a title",
    ),
    media("/titles/{name}/cmaf/{track}.m3u8", ResourceKind::CmafMedia, "CMAF: the segments of a track"),
    media(
        "/titles/{name}/cmaf/{track}/stills.m3u8",
        ResourceKind::CmafStills,
        "CMAF: one picture of each segment",
    ),
    media(
        "/titles/{name}/cmaf/{version}/{track}/init-{number}.mp4",
        ResourceKind::CmafInit,
        "CMAF: what comes before the segments of a part of a title",
    ),
    media(
        "/titles/{name}/cmaf/{version}/{track}/{number}.m4s",
        ResourceKind::CmafSegment,
        "CMAF: a segment of a track",
    ),
    media(
        "/titles/{name}/cmaf/{version}/{track}/still-{number}.m4s",
        ResourceKind::CmafStill,
        "CMAF: the first picture of a segment",
    ),
    media(
        "/titles/{name}/subtitles/{track}.m3u8",
        ResourceKind::Subtitles,
        "HLS: the segments of a page of subtitles",
    ),
    media(
        "/titles/{name}/subtitles/{version}/{track}/{number}.vtt",
        ResourceKind::SubtitleSegment,
        "HLS: a segment of subtitles",
    ),
    media(
        "/titles/{name}/cmaf/subtitles/{track}.m3u8",
        ResourceKind::CmafSubtitles,
        "CMAF: the segments of a page of subtitles",
    ),
    media(
        "/titles/{name}/cmaf/subtitles/{version}/{track}/{number}.vtt",
        ResourceKind::CmafSubtitleSegment,
        "CMAF: a segment of subtitles",
    ),
    Route {
        is_front: false,
        ..media(
            "/titles/{name}/subtitles/{file}",
            ResourceKind::SubtitleFile,
            "Subtitles of a title as WebVTT, whole",
        )
    },
    picture(
        "/titles/{name}/chapters.json",
        ResourceKind::Chapters,
        "The chapters of a title, as HLS has them",
    ),
    picture("/titles/{name}/poster.jpg", ResourceKind::Poster, "A picture of a title"),
    picture("/titles/{name}/sprites.jpg", ResourceKind::Sprites, "Small pictures of a title, for seeking"),
    picture("/titles/{name}/sprites.vtt", ResourceKind::SpritesVtt, "Which of them stands for which time"),
    own("/", ResourceKind::Page, Needs::List, "The page: titles and a player"),
    own("/page.css", ResourceKind::Style, Needs::List, "The page's style"),
    own("/page.js", ResourceKind::Script, Needs::List, "The page's script"),
    own("/icon.svg", ResourceKind::Icon, Needs::List, "The page's icon"),
    own("/qr.svg", ResourceKind::QrCode, Needs::List, "An address as a QR code"),
    own("/hls.js", ResourceKind::Player, Needs::List, "hls.js, with which the page plays"),
    own(
        "/api/v1/user",
        ResourceKind::ApiUser,
        Needs::SignIn,
        "The user whose credentials come with the request",
    ),
    Route {
        is_shared: true,
        ..own("/titles.m3u", ResourceKind::Playlist, Needs::List, "All titles as a playlist")
    },
    Route {
        is_shared: true,
        ..own(
            "/playlist.m3u",
            ResourceKind::TvPlaylist,
            Needs::List,
            "Channels, live titles and titles as a playlist for TV players",
        )
    },
    Route {
        is_shared: true,
        ..own(
            "/guide.xml",
            ResourceKind::Guide,
            Needs::List,
            "The programme of channels for TV players: XMLTV",
        )
    },
    own("/discover.json", ResourceKind::TunerDevice, Needs::List, "HDHomeRun: the server as a tuner"),
    own("/lineup.json", ResourceKind::TunerLineup, Needs::List, "HDHomeRun: live titles as its channels"),
    own("/lineup_status.json", ResourceKind::TunerStatus, Needs::List, "HDHomeRun: its search for channels"),
    Route { is_shared: true, ..own("/api/v1/titles", ResourceKind::ApiTitles, Needs::List, "All titles") },
    Route { is_shared: true, ..own("/api/v1/live", ResourceKind::ApiLive, Needs::List, "All live titles") },
    Route {
        is_shared: true,
        ..own("/api/v1/live/{name}", ResourceKind::ApiLiveTitle, Needs::Watch, "One live title")
    },
    Route {
        is_shared: true,
        ..own("/api/v1/titles/{name}", ResourceKind::ApiTitle, Needs::Watch, "One title")
    },
    own(
        "/api/v1/status",
        ResourceKind::ApiStatus,
        Needs::SeeOthers,
        "Who is watching, and how full the server is",
    ),
    own(
        "/api/v1/reload",
        ResourceKind::ApiReload,
        Needs::SeeOthers,
        "What became of the settings when they were read last; POST has them read again",
    ),
    own(
        "/api/v1/events",
        ResourceKind::ApiEvents,
        Needs::SeeOthers,
        "What happens, as it happens: server-sent events",
    ),
    Route {
        is_shared: true,
        ..own("/api/v1/openapi.json", ResourceKind::ApiDescription, Needs::List, "This description")
    },
    own("/titles/{name}", ResourceKind::Upload, Needs::Upload, "A title that is being uploaded"),
    own("/api/v1/uploads", ResourceKind::ApiUploads, Needs::Upload, "Titles that are being uploaded"),
    own("/metrics", ResourceKind::Metrics, Needs::SeeOthers, "All counters, for Prometheus"),
    own("/healthz", ResourceKind::Live, Needs::Nothing, "Whether the program runs"),
    own("/readyz", ResourceKind::Ready, Needs::Nothing, "Whether it serves"),
];

/// What players ask for.
const fn media(path: &'static str, kind: ResourceKind, what: &'static str) -> Route {
    Route { path, kind, what, needs: Needs::Watch, is_front: true, is_shared: true }
}

/// Returns the route of a resource that is requested once per title.
const fn picture(path: &'static str, kind: ResourceKind, what: &'static str) -> Route {
    Route { is_front: false, ..media(path, kind, what) }
}

/// Returns the route of a resource that is requested now and then, by the page and by operators.
const fn own(path: &'static str, kind: ResourceKind, needs: Needs, what: &'static str) -> Route {
    Route { path, kind, what, needs, is_front: false, is_shared: false }
}

impl Route {
    /// Returns the methods that it supports.
    pub(crate) fn methods(&self) -> &'static [Method] {
        match self.kind {
            ResourceKind::ApiTitle => {
                &[Method::Get, Method::Head, Method::Options, Method::Delete, Method::Patch]
            }
            ResourceKind::ApiLive | ResourceKind::ApiReload => {
                &[Method::Get, Method::Head, Method::Options, Method::Post]
            }
            ResourceKind::ApiLiveTitle => &[Method::Get, Method::Head, Method::Options, Method::Delete],
            ResourceKind::SubtitleFile | ResourceKind::LiveRecording => {
                &[Method::Get, Method::Head, Method::Options, Method::Put, Method::Delete]
            }
            ResourceKind::LiveInput => {
                &[Method::Get, Method::Head, Method::Options, Method::Put, Method::Post]
            }
            ResourceKind::Upload | ResourceKind::File => {
                &[Method::Get, Method::Head, Method::Options, Method::Put]
            }
            _ => &[Method::Get, Method::Head, Method::Options],
        }
    }

    /// Whether POST changes something here, and brings no media.
    pub(crate) fn is_changed_by_post(&self) -> bool {
        matches!(self.kind, ResourceKind::ApiLive | ResourceKind::ApiReload)
    }

    /// The same as `Allow` has it.
    pub(crate) fn allow(&self) -> String {
        self.methods().iter().map(|method| method.name()).collect::<Vec<_>>().join(", ")
    }
}

/// A route, and what its parts are in an address.
#[derive(Clone, Debug)]
pub(crate) struct RouteMatch {
    pub(crate) route: &'static Route,
    /// `{name}`, decoded; of live titles with `live/` before it, as rights and the server know them.
    pub(crate) name: String,
    /// `{version}`.
    pub(crate) version: String,
    /// `{file}`.
    pub(crate) file: String,
    /// `{track}`: a PID.
    pub(crate) track: u16,
    /// `{number}`.
    pub(crate) number: u32,
    /// `{part}`.
    pub(crate) part: u32,
}

/// The route of a path (without its query).
pub(crate) fn find(path: &str) -> Option<RouteMatch> {
    ROUTES.iter().find_map(|route| {
        let (version, file) = (String::new(), String::new());
        let mut found =
            RouteMatch { route, name: String::new(), version, file, track: 0, number: 0, part: 0 };
        let (mut wanted, mut parts) = (route.path.split('/'), path.split('/'));
        loop {
            match (wanted.next(), parts.next()) {
                (None, None) if route.kind == ResourceKind::Upload => return Some(found.without_extension()),
                (None, None) => return Some(found.into_live()),
                (Some(wanted), Some(part)) => take(wanted, &decoded(part)?, &mut found)?,
                _ => return None,
            }
        }
    })
}

impl RouteMatch {
    fn into_live(mut self) -> Self {
        if self.route.path.starts_with("/live/") || self.route.kind == ResourceKind::ApiLiveTitle {
            self.name.insert_str(0, LIVE_PREFIX);
        }
        self
    }

    /// The name without the extension of a film: curl puts `film.mkv` behind a slash.
    fn without_extension(mut self) -> Self {
        if let Some((stem, extension)) = self.name.rsplit_once('.')
            && FILM_EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str())
        {
            self.name = stem.to_owned();
        }
        self
    }
}

/// Matches one part of a path.
fn take(wanted: &str, part: &str, found: &mut RouteMatch) -> Option<()> {
    let Some((before, (place, after))) =
        wanted.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    else {
        return (wanted == part).then_some(());
    };
    let value = part.strip_prefix(before)?.strip_suffix(after)?;
    match place {
        "name" => found.name = name(value)?,
        "version" => found.version = name(value)?,
        "file" => found.file = name(value)?,
        "track" => found.track = u16::try_from(number(value)?).ok()?,
        "part" => found.part = number(value)?,
        _ => found.number = number(value)?,
    }
    Some(())
}

/// A number in its one spelling, so that a segment has one address.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// Decodes a part of a path; `None` if its percent-encoding is invalid.
pub(crate) fn decoded(part: &str) -> Option<Cow<'_, str>> {
    if !part.contains('%') {
        return Some(Cow::Borrowed(part));
    }
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        bytes.push(match first {
            b'%' => {
                let digits = behind.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
                rest = &behind[2..];
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

/// Returns the name of a title; `None` if no title can have this name.
fn name(name: &str) -> Option<String> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    (!name.is_empty() && !name.starts_with('.') && name.bytes().all(is_allowed)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_they_are() {
        for (path, expected) in [
            ("/titles/film.ts", Some("film")),
            ("/titles/film@540p.ts", Some("film@540p")),
            ("/titles/film%40540p.ts", Some("film@540p")),
            ("/titles/%66il%6D%2ets", Some("film")),
            ("/%74itles/film.ts", Some("film")),
            ("/titles/film%2540540p.ts", None),
            ("/titles%2ffilm.ts", None),
            ("/titles/film%2.ts", None),
            ("/titles/film%", None),
            ("/titles/fi%ffm.ts", None),
            ("/titles/fi%C3%BClm.ts", None),
            ("/titles/a.b_c-1.ts", Some("a.b_c-1")),
            ("/titles/film", None), // an upload
            ("/titles/.ts", None),
            ("/titles/..ts", None),
            ("/titles/../film.ts", None),
            ("/titles/%2e%2e/film.ts", None),
            ("/titles/..%2ffilm.ts", None),
            ("/titles/a%2fb.ts", None),
            ("/titles/film%00.ts", None),
            ("/titles/film.ts/", None),
            ("//titles/film.ts", None),
            ("titles/film.ts", None),
            ("/titles/fi\u{fc}lm.ts", None),
            ("/titles/film.TS", None),
            ("", None),
        ] {
            let found = find(path).filter(|found| found.route.kind == ResourceKind::File);
            assert_eq!(found.as_ref().map(|found| found.name.as_str()), expected, "{path}");
        }
    }

    #[test]
    fn number_accepts_only_canonical_decimal() {
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("17"), Some(17));
        for text in ["", "+1", "01", "-1", "1e3", "99999999999", "0x1"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn route_paths_are_unique() {
        let paths: Vec<_> = ROUTES
            .iter()
            .map(|r| {
                r.path
                    .replace("{name}", "n")
                    .replace("{version}", "v")
                    .replace("{file}", "de.vtt")
                    .replace("{track}", "2")
                    .replace("{number}", "1")
                    .replace("{part}", "3")
            })
            .collect();
        for (path, route) in paths.iter().zip(ROUTES) {
            assert_eq!(find(path).unwrap().route.path, route.path);
            assert_eq!(paths.iter().filter(|other| *other == path).count(), 1);
        }
    }
}

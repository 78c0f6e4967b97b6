//! Handlers: each answers the requests of some routes. Access was checked before, unless the
//! request has a body.
//!
//! | module | answers |
//! | --- | --- |
//! | `api` | `/api/v1`: the list of titles, and each title |
//! | `title` | a title as the API describes it |
//! | `guide` | lists for TV players: the playlist and the guide |
//! | `live` | live titles: the list, and each as a stream |
//! | `reload` | has the settings read again |
//! | `live_sources` | live sources that are added and removed |
//! | `live_input` | media that clients bring for live titles |
//! | `status` | the state of the server |
//! | `events` | events, for as long as a client reads them |
//! | `master` | master playlists: the forms in which a title is offered |
//! | `hls` | media playlists and segments of the transport stream |
//! | `cmaf` | the same as fragmented MP4 |
//! | `subtitles` | the same for subtitles; subtitles as files |
//! | `pictures` | posters, and pictures for seeking |
//! | `upload` | uploads of titles |
//! | `tuner` | live titles as the channels of an HDHomeRun tuner |
//! | `recordings` | live titles that are recorded |
//! | `rename` | changes of display names |

pub(crate) mod api;
pub(crate) mod chapters;
pub(crate) mod cmaf;
pub(crate) mod events;
pub(crate) mod guide;
pub(crate) mod hls;
pub(crate) mod live;
pub(crate) mod live_input;
pub(crate) mod live_sources;
pub(crate) mod master;
pub(crate) mod pictures;
pub(crate) mod recordings;
pub(crate) mod reload;
pub(crate) mod rename;
pub(crate) mod status;
pub(crate) mod subtitles;
pub(crate) mod title;
pub(crate) mod tuner;
pub(crate) mod upload;

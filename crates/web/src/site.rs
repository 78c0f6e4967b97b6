//! Services that the web side needs from the server: titles, their bytes sent by an engine,
//! figures.

use std::any::Any;
use std::io::Read;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::counters::CounterSample;
use millrace_core::ids::ViewerSession;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_media::subtitles::SubtitleLabel;
use millrace_rights::Quota;
use millrace_store::index::TitleIndex;
use millrace_store::pictures::{About, Pictures};
use millrace_store::volume::TitleInfo;
use millrace_store::volume::UploadNames;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{oneshot, watch};

pub use crate::guide::{ChannelGuide, GuideProgramme};
pub use crate::live::{
    LiveCast, LiveEdge, LivePart, LivePiece, LiveRecording, LiveRefusal, LiveStatus, LiveWindow,
    NewLiveSource, PlayedChannel, RecordingRefusal, RecordingWish, SkippedItem,
};
use crate::outcome::OrderDone;
use crate::reload::ReloadReport;
use crate::status::Status;

/// The server, as the web side sees it. Called from the web side's threads.
pub trait Site: Send + Sync + 'static {
    /// All titles that can be asked for, by name, without those that were made of others. From memory.
    fn titles(&self) -> Vec<TitleInfo>;

    /// The title of this name, also one that was made of another (`film@540p`). From memory.
    fn title(&self, name: &str) -> Option<TitleInfo>;

    /// The live titles, by name. From memory.
    fn live(&self) -> Vec<LiveStatus> {
        Vec::new()
    }

    /// A number of this server: the same after a restart.
    fn server_id(&self) -> [u8; 16] {
        [0; 16]
    }

    /// The programmes of channels. Reads files: call it where waiting is allowed.
    fn guide(&self) -> Arc<[ChannelGuide]> {
        Arc::default()
    }

    /// The segments of the live title of this name. From memory.
    fn live_window(&self, _name: &str) -> Option<LiveWindow> {
        None
    }

    /// How far the segments of the live title of this name have grown, now and from now on.
    fn live_edge(&self, _name: &str) -> Option<watch::Receiver<LiveEdge>> {
        None
    }

    /// Adds a source for a live title, and keeps it for the next start. Opens sockets and writes files: call it where waiting is allowed.
    ///
    /// # Errors
    /// Why not.
    fn add_live(&self, _source: NewLiveSource) -> Result<(), LiveRefusal> {
        Err(LiveRefusal::Full("this server takes no live sources".to_owned()))
    }

    /// Removes a source that was added, and ends its title. Writes files: call it where waiting is allowed.
    ///
    /// # Errors
    /// Why not.
    fn remove_live(&self, _name: &str) -> Result<(), LiveRefusal> {
        Err(LiveRefusal::NoTitle)
    }

    /// Starts or resumes the input of a live title from a client.
    ///
    /// # Errors
    /// Why not.
    fn feed_live(&self, _name: &str) -> Result<Box<dyn LiveFeed>, LiveRefusal> {
        Err(LiveRefusal::Full("this server takes no live sources".to_owned()))
    }

    /// Begins to record a live title. Reads files: call it where waiting is allowed.
    ///
    /// # Errors
    /// Why not.
    fn record_live(&self, _name: &str, _wish: RecordingWish) -> Result<LiveRecording, RecordingRefusal> {
        Err(RecordingRefusal::NoSource)
    }

    /// Ends the recording of a live title: it becomes a title within moments.
    ///
    /// # Errors
    /// Why not.
    fn stop_recording(&self, _name: &str) -> Result<LiveRecording, RecordingRefusal> {
        Err(RecordingRefusal::NotRecorded)
    }

    /// The renditions of a title, the best first, itself among them; empty if it is the only one. From memory.
    fn renditions(&self, name: &str) -> Vec<TitleInfo>;

    /// The index of a title. Reads files: call it where waiting is allowed.
    ///
    /// # Errors
    /// The title is gone, or its files cannot be read.
    fn index(&self, name: &str) -> Result<Arc<TitleIndex>, SiteError>;

    /// Bytes of a title's transport stream, to look into: its tables, its first pictures. Reads files: call it where waiting is allowed, and for
    /// little.
    ///
    /// # Errors
    /// The title is gone, has no such bytes, or its files cannot be read.
    fn read(&self, name: &str, from: u64, out: &mut [u8]) -> Result<(), SiteError>;

    /// A title opened to read more of it. Reads files: call it where waiting is allowed.
    ///
    /// # Errors
    /// The title is gone, or its files cannot be opened.
    fn open<'a>(&'a self, name: &'a str) -> Result<Box<dyn TitleBytes + 'a>, SiteError> {
        Ok(Box::new(ByName { site: self, name }))
    }

    /// Returns whether a title of this many bytes, if known, could be stored now. Accesses disks:
    /// call it where blocking is allowed.
    ///
    /// # Errors
    /// Why not.
    fn can_take(&self, _bytes: Option<u64>) -> Result<(), NotTaken> {
        Err(NotTaken::Unavailable("this server takes no uploads".to_owned()))
    }

    /// Makes a title of the film that is read from `bytes`, and waits for them as long as they take:
    /// call it on a thread of its own. The title can be requested when this returns. It takes the
    /// place of `replaced`, which stays as it is until then, and gets its name and display name.
    ///
    /// # Errors
    /// Why none came of it. Nothing is left of it then.
    fn take_in(
        &self,
        _upload: UploadNames<'_>,
        _replaced: Option<&TitleInfo>,
        _bytes: &mut dyn Read,
    ) -> Result<TitleInfo, NotTaken> {
        Err(NotTaken::Unavailable("this server takes no uploads".to_owned()))
    }

    /// Returns the WebVTT of subtitles stored with a title, by file name. Reads a file: call it
    /// where blocking is allowed.
    ///
    /// # Errors
    /// The title or the file is gone, or cannot be read.
    fn subtitles(&self, _title: &TitleInfo, _file: &str) -> Result<String, SiteError> {
        Err(SiteError::NoTitle)
    }

    /// Stores subtitles with a title, replacing those with the same label. Returns whether it
    /// replaced any. Writes files: call it where blocking is allowed.
    ///
    /// # Errors
    /// Why the subtitles were refused. The title is then unchanged.
    fn put_subtitles(&self, _name: &str, _label: &SubtitleLabel, _bytes: &[u8]) -> Result<bool, NotTaken> {
        Err(NotTaken::Unavailable("this server takes no uploads".to_owned()))
    }

    /// Removes subtitles of a title. Returns whether there were any. Writes files: call it where
    /// blocking is allowed.
    ///
    /// # Errors
    /// There is no such title, or the subtitles cannot be removed.
    fn remove_subtitles(&self, _name: &str, _label: &SubtitleLabel) -> Result<bool, SiteError> {
        Err(SiteError::NoTitle)
    }

    /// Whether the server serves all of this directory: its name does not distinguish titles.
    fn is_served_folder(&self, folder: &Path) -> bool;

    /// Where the copy of a title of the library is (`serve --library`); `None`: it is no title of a library. From memory.
    fn library_copy(&self, _title: &TitleInfo) -> Option<LibraryCopy> {
        None
    }

    /// Returns the state of a title's poster and pictures for seeking. From memory; a call makes
    /// pending pictures be made sooner.
    fn pictures(&self, _title: &TitleInfo) -> PicturesState {
        PicturesState::Never("this server makes no pictures".to_owned())
    }

    /// A title's pictures. Reads a file: call it where waiting is allowed.
    ///
    /// # Errors
    /// There are none any more.
    fn read_pictures(&self, _title: &TitleInfo) -> Result<Pictures, SiteError> {
        Err(SiteError::NoTitle)
    }

    /// Asks an engine to send bytes of a title, at the title's pace, counted by admission like any
    /// viewer. Returns at once; `order.done` receives the outcome.
    fn send(&self, order: Order);

    /// Takes over a connection that tunnels RTSP over HTTP. Returns at once.
    fn take_tunnel(&self, tunnel: TunnelConn) {
        drop(tunnel); // a site without RTSP: its viewer sees the end of it
    }

    /// Asks whether a viewer may have a segment that the web side makes of a title; admission
    /// counts it as it counts streams. Returns at once; `fetch.done` receives the answer.
    fn fetch(&self, fetch: Fetch) {
        let _ = fetch.done.send(Ok(()));
    }

    /// Whether viewers of playlists get sessions ([`Site::admit_viewer`]).
    fn has_viewer_sessions(&self) -> bool {
        false
    }

    /// Asks for the session of a viewer that wants a playlist: the one that its request carries, or
    /// a new one if there is room for it. Returns at once; `admission.done` receives the answer.
    fn admit_viewer(&self, admission: ViewerAdmission) {
        let _ = admission.done.send(Ok(None)); // a site that counts segments alone
    }

    /// How the server is. May wait, a second at most: call it where waiting is allowed.
    ///
    /// # Errors
    /// The server does not answer.
    fn status(&self) -> Result<Status, SiteError>;

    /// The same without sessions and refusals, for clients that poll every second. May block as
    /// long.
    ///
    /// # Errors
    /// The server does not answer.
    fn summary(&self) -> Result<Status, SiteError> {
        self.status()
    }

    /// Removes a title; its current viewers can watch it to its end. Writes files: call it where
    /// blocking is allowed.
    ///
    /// # Errors
    /// There is no such title, or it cannot be removed.
    fn remove(&self, name: &str) -> Result<(), SiteError>;

    /// Changes the display name of a title; its name stays. Writes files: call it where blocking is
    /// allowed.
    ///
    /// # Errors
    /// There is no such title, or it cannot be changed.
    fn rename(&self, _name: &str, _title: &str) -> Result<TitleInfo, SiteError> {
        Err(SiteError::Unreadable("this server changes no titles".to_owned()))
    }

    /// Has the settings read again; returns at once, and the receiver gets the outcome. `None`: too many callers wait.
    fn reload(&self) -> Option<oneshot::Receiver<Arc<ReloadReport>>> {
        None
    }

    /// The outcome of the last reload. From memory.
    fn last_reload(&self) -> Arc<ReloadReport> {
        Arc::default()
    }

    /// The port of the RTSP server.
    fn rtsp_port(&self) -> Option<u16> {
        None
    }

    /// Another number whenever titles may have come or gone. From memory.
    fn titles_version(&self) -> u64;

    /// A number that changes whenever [`Site::pictures`] of a title may have changed. From memory.
    fn pictures_version(&self) -> u64;

    /// All counters of the server, one after the other.
    fn counters(&self, visit: &mut dyn FnMut(CounterSample<'_>));
}

/// Input of a live title from a client. Dropping it means that the connection broke; the client may reconnect.
pub trait LiveFeed: Send {
    /// Takes the next bytes; returns how long to wait before more are read.
    ///
    /// # Errors
    /// They are not MPEG-TS.
    fn take(&mut self, bytes: &[u8]) -> Result<Duration, NotTaken>;

    /// To be called every now and then while nothing comes.
    fn look(&mut self);

    /// The client has ended the title.
    fn finish(self: Box<Self>);
}

/// Bytes of a title, in the order in which they are asked for.
pub trait TitleBytes {
    /// Reads bytes from `from` on.
    ///
    /// # Errors
    /// The title has no such bytes, or its files cannot be read.
    fn read(&mut self, from: u64, out: &mut [u8]) -> Result<(), SiteError>;
}

/// Opens the title for each read.
struct ByName<'a, S: ?Sized> {
    site: &'a S,
    name: &'a str,
}

impl<S: Site + ?Sized> TitleBytes for ByName<'_, S> {
    fn read(&mut self, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        self.site.read(self.name, from, out)
    }
}

/// Why a part of a title is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SiteError {
    /// There is no such title, or not any more.
    #[error("no such title")]
    NoTitle,
    /// It is in the library, and is fetched first; with its progress, for viewers.
    #[error("{0}")]
    Coming(String),
    /// Its files cannot be read: for the log, not for viewers.
    #[error("{0}")]
    Unreadable(String),
}

/// Where the copy of a title of the library is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LibraryCopy {
    /// `remote`: in the library only, fetched when it is played; `waiting` or `fetching`; `failed`: fetching is tried again; `cached`: here, until
    /// its space is needed.
    pub state: &'static str,
    /// Share of it that is here, in percent.
    pub percent: u8,
}

/// State of a title's pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PicturesState {
    /// They are there.
    Made(Arc<About>),
    /// They are still to be made.
    Waiting,
    /// They cannot be made now, for this reason, and are tried again.
    Delayed(String),
    /// There will be none, for this reason.
    Never(String),
}

/// Why an upload became no title, for whoever uploads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// It is no stream that can be played, or it did not come whole.
    #[error("{0}")]
    Broken(String),
    /// It is not a transport stream at all.
    #[error("{0}")]
    OtherKind(String),
    /// There is no room for it.
    #[error("{0}")]
    Full(String),
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
}

/// A connection on which bytes of a title are sent.
#[derive(Debug)]
pub enum OrderSocket {
    /// A viewer's own connection, in plain HTTP/1.1. With an order it is one more descriptor of it: the web side keeps the connection,
    /// and neither reads nor writes until the order is done.
    Viewer(std::net::TcpStream),
    /// The far end of a pair whose other end the web side reads: for TLS and HTTP/2.
    Inside(UnixStream),
    /// A viewer's own connection, in plain HTTP/1.1, that another TCP carries: by the name that it came with ([`Carried`](crate::Carried)). The web side
    /// has it, reads it and may close it; until the order is done it does not write to it.
    Carried(Arc<dyn Any + Send + Sync>),
}

/// One of the two connections of an RTSP session over HTTP.
#[derive(Debug)]
pub struct TunnelConn {
    /// The socket, without TLS: the viewer's own connection, or one end of a socket pair.
    pub socket: OrderSocket,
    /// Bytes already read from the connection, starting with its first request.
    pub read: Vec<u8>,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Local address of the connection, if known.
    pub local: Option<SocketAddr>,
    /// Whether the connection uses TLS.
    pub is_encrypted: bool,
}

/// Bytes of a title to be sent to a viewer.
#[derive(Debug)]
pub struct Order {
    /// Where they go. It does not block.
    pub socket: OrderSocket,
    /// Who gets them: room is counted for this address.
    pub peer: SocketAddr,
    /// The bytes.
    pub media: OrderedMedia,
    /// What log lines call it: the id of the request.
    pub label: String,
    /// The name that the viewer's program gives itself.
    pub agent: Option<String>,
    /// Told once, when the socket is dropped.
    pub done: OrderDone,
}

/// Bytes of a title in a response. They go through the order unchanged to the engine that sends
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedMedia {
    /// The title's name ([`Site::title`]).
    pub title: String,
    /// Which bytes of its transport stream; not empty, and within it. [`ALL_THAT_COMES`]: a live title from its last access point on.
    pub bytes: Range<u64>,
    /// Bytes sent before them: the head of the response, tables of a segment. At most
    /// [`MAX_ORDER_HEAD_BYTES`](millrace_core::limits::web::MAX_ORDER_HEAD_BYTES).
    pub before: Vec<u8>,
    /// Media that may be sent as fast as the viewer takes it before the title's pace sets in, in milliseconds.
    pub ahead_ms: u32,
    /// What its user may have; filled in once the client is known.
    pub quota: Option<Box<Quota>>,
    /// The segment that the bytes belong to: the viewer is counted, from one segment to the next,
    /// rather than the bytes sent.
    pub segment: Option<Box<OrderedSegment>>,
}

/// The bytes of a live title.
pub const ALL_THAT_COMES: Range<u64> = 0..u64::MAX;

impl OrderedMedia {
    /// Whether it ends only with its source, or its viewer.
    pub fn is_endless(&self) -> bool {
        self.bytes == ALL_THAT_COMES
    }

    /// `None`: it is endless.
    pub(crate) fn length(&self) -> Option<u64> {
        (!self.is_endless()).then(|| self.before.len() as u64 + (self.bytes.end - self.bytes.start))
    }
}

/// One segment of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedSegment {
    /// The connection that carries the request; an HTTP/2 connection carries several requests.
    pub conn: u64,
    /// Which one.
    pub number: u32,
    /// Where in the title it begins.
    pub at: MediaTicks,
    /// Its length.
    pub length: MediaTicks,
    /// The session that the request carries, whether or not it still exists.
    pub session: Option<ViewerSession>,
}

/// A viewer that wants a playlist.
#[derive(Debug)]
pub struct ViewerAdmission {
    /// The viewer: capacity is counted for this address.
    pub peer: SocketAddr,
    /// The label in log lines: the id of the request.
    pub label: String,
    /// The name that the viewer's program gives itself.
    pub agent: Option<String>,
    /// The title.
    pub title: String,
    /// The mean bit rate to reserve: that of the best rendition in the playlist.
    pub mean_rate: BitRate,
    /// Its highest second.
    pub peak_rate: BitRate,
    /// Whether engines send its segments, rather than the web side.
    pub by_engine: bool,
    /// The limits of its user.
    pub quota: Option<Quota>,
    /// The session that its request carries.
    pub session: Option<ViewerSession>,
    /// Whether a session that has ended begins again under its name: players of a live title reload
    /// the same address for as long as they play.
    pub is_reloaded: bool,
    /// Receives the session for the addresses in the playlist, or why the viewer is refused;
    /// `None`: the addresses carry none. Dropped: the server is ending.
    pub done: oneshot::Sender<Result<Option<ViewerSession>, DeliveryRefusal>>,
}

/// A segment of a title that the web side makes and a viewer wants.
#[derive(Debug)]
pub struct Fetch {
    /// Who gets it: room is counted for this address.
    pub peer: SocketAddr,
    /// What log lines call it: the id of the request.
    pub label: String,
    /// The name that the viewer's program gives itself.
    pub agent: Option<String>,
    /// The title.
    pub title: TitleInfo,
    /// What its user may have.
    pub quota: Option<Quota>,
    /// The segment.
    pub segment: OrderedSegment,
    /// It is of a sound of this bit rate, which is fetched apart: by who fetches the pictures too, or by who only listens.
    pub sound: Option<BitRate>,
    /// Told once; dropped: no.
    pub done: oneshot::Sender<Result<(), DeliveryRefusal>>,
    /// If the viewer may have it: reports the part taken, when the transfer is over. Dropped:
    /// nothing.
    pub over: oneshot::Receiver<DeliveredAmount>,
}

/// The amount that a viewer has taken of a segment made by the web side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveredAmount {
    /// Bytes that its kernel or ours has.
    pub bytes: u64,
    /// Whether that is all it asked for; otherwise it was cut off.
    pub is_whole: bool,
}

/// What became of an [`Order`]. No engine writes to its connection any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Everything has been sent, and the viewer's kernel or ours has it. The connection can be used further.
    Sent,
    /// Nothing has been sent, and `before` has not either.
    Refused(DeliveryRefusal),
    /// The connection is over: the viewer has gone, or the title cannot be read any further.
    Broken,
}

/// Why nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryRefusal {
    /// A resource is used up; names it, for viewers. Worth trying again later.
    Full(String),
    /// The title is gone, or has no such bytes.
    Gone,
    /// The title cannot be read at the moment; states the cause as far as viewers may know it.
    Broken(String),
}

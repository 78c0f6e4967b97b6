//! Requests of viewers for a stream, and the answers to them.

use millrace_core::ids::ViewerSession;
use millrace_core::time::MediaTicks;
use millrace_rights::Quota;

use super::keys::{ConnKey, StreamKey, StreamPath};
use super::matrix::FecWish;
use super::ports::TitleEntry;
use super::refusal::FecRefusal;
use super::rendition::RenditionWish;
use crate::admission::Demand;

/// A viewer's request.
#[derive(Debug)]
pub struct StreamRequest {
    /// Whether it has a stream already.
    pub which: Which,
    /// The viewer: packets by UDP go to its address, and it is that which room is counted for.
    pub viewer: std::net::SocketAddr,
    /// The connection of the request.
    pub conn: Option<ConnKey>,
    /// The title.
    pub entry: TitleEntry,
    /// How packets are to reach the viewer.
    pub path: StreamPath,
    /// The requested FEC beside them.
    pub fec: FecWish,
    /// The requested rendition; `None`: not specified.
    pub rendition: Option<RenditionWish>,
    /// What its user may have.
    pub quota: Option<Quota>,
    /// It is one segment of many: its viewer holds room, from one to the next.
    pub segment: Option<FetchedSegment>,
}

/// The stream that is asked for.
#[derive(Debug)]
pub enum Which {
    /// One more.
    New {
        /// What log lines call it.
        label: String,
        /// The name that the viewer's program gives itself.
        agent: Option<String>,
    },
    /// This one, which does not play: it keeps its name and its place in the title, and gets another path.
    Moved(StreamKey),
}

/// A stream that may play when there is room.
#[derive(Debug)]
pub struct Admitted {
    /// Its name.
    pub stream: StreamKey,
    /// Whether it gets FEC; `None`: not specified.
    pub fec: Option<Result<(), FecRefusal>>,
}

/// A segment of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchedSegment {
    /// The connection of the request, under the name that its owner gives it.
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

/// The engine and the bit rate of a stream that can be admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPlacement {
    pub(super) engine: usize,
    pub(super) rate: u64,
    /// The viewer that holds room for it, if it is a segment.
    pub(super) fetcher: Option<u64>,
}

/// Who would send something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// This engine, with the load to send; `None` if no engine has a free place.
    Engine(Option<usize>, Demand),
    /// None.
    Web,
}

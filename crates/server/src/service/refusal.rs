//! Reasons for refusals: which resource is full, and the remedy.

use millrace_core::units::BitRate;

use super::exhausted::Exhausted;
use super::ports::Rendition;
use crate::admission::Full;

/// Why a viewer's request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server stops.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Something is used up.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// Another viewer at the same address receives on this UDP port.
    #[error(
        "another session from this address uses UDP port {0}; choose other ports, or RTP/AVP/TCP interleaved"
    )]
    PortInUse(u16),
    /// Too much of the title is lost; names the loss.
    #[error("{0}")]
    MembersLost(String),
    /// The title lacks something that the transformation needs; names it.
    #[error("{0}")]
    Unfit(String),
    /// The title is not here: it is fetched first; with its progress.
    #[error("{0}")]
    Coming(String),
    /// Parts of the title are being opened; repeat the same request when
    /// [`super::Service::take_openings`] names its connection.
    #[error("the title is being opened")]
    Opening,
    /// The disks of the title do not answer, or not in time.
    #[error("the title's disks do not respond")]
    TimedOut,
    /// The title's files are damaged (the reason is in the log).
    #[error("the title cannot be played now")]
    Broken,
    /// There is no such stream, or no such connection, any more.
    #[error("the stream has ended")]
    Gone,
    /// An earlier request is still being carried out.
    #[error("the stream is still processing an earlier request")]
    Busy,
    /// The machine has become too slow: the stream is about to end.
    #[error("the server is overloaded, and ends this stream")]
    Ending,
    /// Nothing lies between start and end.
    #[error("the range must end after its start")]
    EmptyRange,
    /// The range begins at a time of day at which nothing of the title was recorded.
    #[error("the title has nothing of that time of day; Media-Range has what there is")]
    OutsideRange,
    /// The range is of the time of day, and the title's is not known.
    #[error("the title's time of day is not known; name the range in npt")]
    NoClock,
    /// The title has been played to its end.
    #[error("the end has been reached")]
    EndReached,
    /// The request was to play it backwards from its beginning.
    #[error("the beginning has been reached")]
    BeginningReached,
    /// There is nothing that shows the title backwards.
    #[error("the title cannot be played backwards")]
    NoReverse,
    /// There is one bit rate only.
    #[error("the title has no renditions")]
    NoRenditions,
    /// It has no such rendition.
    #[error("the title has no such rendition; there are {there}")]
    NoRendition {
        /// Their names.
        there: String,
    },
    /// The stream must keep the rendition that it is being sent.
    #[error("the rendition cannot be changed now: {0}")]
    RenditionHeld(&'static str),
    /// No packet lies between start and end.
    #[error("there is nothing left to play")]
    NothingLeft,
    /// Other FEC is not available.
    #[error(transparent)]
    Fec(#[from] FecRefusal),
    /// There is no cast for this viewer.
    #[error(transparent)]
    Multicast(#[from] MulticastRefusal),
}

/// Why a viewer cannot listen to a cast.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MulticastRefusal {
    /// The operator has given no groups.
    #[error("this server sends to no multicast groups (--multicast); ask for unicast")]
    Disabled,
    /// The title is stored, and each viewer sees it from its beginning.
    #[error("multicast is for channels and live titles; ask for unicast")]
    Stored,
    /// There are groups of the other family alone.
    #[error("this server has no {0} groups (--multicast); ask for unicast")]
    Family(&'static str),
    /// All groups are used.
    #[error("the {groups} multicast groups of this server are in use (--multicast); ask for unicast")]
    Used {
        /// How many there are.
        groups: u32,
    },
}

impl Refusal {
    /// There are only these.
    pub fn no_rendition(there: &[Rendition]) -> Self {
        let names: Vec<_> = there.iter().map(|rendition| rendition.name.to_string()).collect();
        Self::NoRendition { there: names.join(", ") }
    }

    /// Whether something that has a lower bit rate may not meet it.
    pub(super) fn is_of_rate(&self) -> bool {
        matches!(self, Self::Exhausted(what) if what.is_of_rate())
    }

    /// Whether the title itself cannot be opened, as things are.
    pub(super) fn is_of_title(&self) -> bool {
        matches!(self, Self::Broken | Self::Unfit(_) | Self::TimedOut | Self::MembersLost(_))
    }

    /// Returns the exhausted resource, if that is the reason.
    pub fn resource(&self) -> Option<&'static str> {
        if let Self::Exhausted(what) = self { Some(what.resource()) } else { None }
    }
}

/// Why a viewer cannot have FEC, or other FEC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FecRefusal {
    /// Its wish has no meaning.
    #[error("ask for xor, all or off")]
    NotUnderstood,
    /// Its packets go through a connection.
    #[error("FEC is available over UDP only")]
    UdpOnly,
    /// Its packets have no sequence numbers to name them by.
    #[error("FEC is available over RTP only")]
    RtpOnly,
    /// The title has none.
    #[error("the title is stored without parity")]
    NoParity,
    /// The operator does not want it.
    #[error("this server sends no FEC (--fec)")]
    Disabled,
    /// Its ports follow that of the media.
    #[error("its ports would be beyond 65535")]
    NoPorts,
    /// Something else goes there.
    #[error("port {0} is in use by another stream")]
    PortInUse(u16),
    /// As much is sent as the operator allows.
    #[error("{used} of {max} in use, {more} more for FEC (--max-rate)")]
    Rate {
        /// By all.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// For this FEC.
        more: BitRate,
    },
    /// As much is sent to its address as one may have.
    #[error("{used} of {max} that one address may have in use, {more} more for FEC (--share-per-address)")]
    AddressRate {
        /// By all streams at the address.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// For this FEC.
        more: BitRate,
    },
    /// As much is sent to its user as it may have.
    #[error("{used} of {max} that this user may have in use, {more} more for FEC (millrace user limit)")]
    UserRate {
        /// By all its streams.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// For this FEC.
        more: BitRate,
    },
    /// Cores, disks, cache or links are seen to be full.
    #[error("{0}")]
    Full(Full),
    /// The stream's engine has no free place.
    #[error("the engine has no free stream (--max-streams)")]
    EngineStreams,
    /// The parity's files are damaged (the reason is in the log).
    #[error("the title's parity cannot be read now")]
    Broken,
    /// The rendition to send is not the title itself.
    #[error("FEC is available for the title itself, not for its other renditions")]
    Rendition,
    /// It was admitted without a wish for FEC: its title's packets may not be those that parity protects.
    #[error("the session was set up without FEC")]
    NotAsked,
}

/// Why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnRefusal {
    /// Too many in all.
    #[error("all connections are in use; try again later")]
    Full,
    /// Too many of one address.
    #[error("too many connections from this address (--max-connections-per-address)")]
    Address,
    /// The server stops.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl ConnRefusal {
    /// For the log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Full => "too many connections",
            Self::Address => "too many connections from this address",
            Self::ShuttingDown => "shutting down",
        }
    }
}

//! What viewers can use up, and of whose share.

use millrace_core::units::BitRate;

use crate::admission::Full;

/// Whose share of a resource is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareScope {
    /// The server's, by all viewers together.
    Server,
    /// That of one connection.
    Connection,
    /// That of one client address.
    Address,
    /// That of one title.
    Title,
    /// That of one user.
    User,
    /// The measured capacity of the machine.
    Machine,
}

/// Something that is used up. A viewer that comes later may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// The connection has made too many streams.
    #[error("too many sessions on this connection; tear one down")]
    ConnectionSessions,
    /// The address has too many streams, playing or not.
    #[error("too many sessions from this address (--max-connections-per-address)")]
    AddressSessions,
    /// Too many viewers at the address have a playlist and no segment yet.
    #[error(
        "all {max} viewers that one address may begin at a time have begun; fetch a segment, or try again later"
    )]
    AddressBeginnings {
        /// How many.
        max: usize,
    },
    /// The table of streams is full.
    #[error("all {max} sessions are in use (--max-streams)")]
    Sessions {
        /// Its size.
        max: usize,
    },
    /// As many play as the operator allows.
    #[error("all {max} streams are in use (--max-streams)")]
    Streams {
        /// How many.
        max: usize,
    },
    /// As much is played as the operator allows.
    #[error("{used} of {max} in use, {more} more asked (--max-rate)")]
    Rate {
        /// By others.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// By this one.
        more: BitRate,
    },
    /// As many play at this address as one may have.
    #[error("all {max} streams that one address may have are in use (--share-per-address)")]
    AddressStreams {
        /// How many.
        max: u64,
    },
    /// As many play at this address as the operator allows one.
    #[error("all {max} streams that one address may have are in use (--streams-per-address)")]
    AddressStreamLimit {
        /// How many.
        max: usize,
    },
    /// As much is played at this address as one may have.
    #[error("{used} of {max} that one address may have in use, {more} more asked (--share-per-address)")]
    AddressRate {
        /// By others at the address.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// By this one.
        more: BitRate,
    },
    /// As many watch the title as one may have.
    #[error("all {max} streams that this title may have are in use (--max-streams-per-title)")]
    TitleStreams {
        /// How many.
        max: usize,
    },
    /// As many play for the user as it may have.
    #[error("all {max} streams that this user may have are in use (millrace user limit)")]
    UserStreams {
        /// How many.
        max: u32,
    },
    /// As much is played for the user as it may have.
    #[error("{used} of {max} that this user may have in use, {more} more asked (millrace user limit)")]
    UserRate {
        /// By its other streams.
        used: BitRate,
        /// Allowed.
        max: BitRate,
        /// By this one.
        more: BitRate,
    },
    /// Cores, disks, cache or links are seen to be full.
    #[error("{0}")]
    Full(Full),
    /// No engine that could send it has a free place.
    #[error("the engine has no free stream (--max-streams)")]
    EngineStreams,
    /// The engine can write to no more connections.
    #[error("all interleaved connections of the engine are in use (--engines)")]
    EngineConnections,
    /// Too many titles are being opened, so this opening did not begin.
    #[error("too many titles are being opened now")]
    Openings,
    /// Too many titles are open in the cache (the log names it).
    #[error("the title cannot be played now")]
    OpenTitles,
}

impl Exhausted {
    /// The resource, in words.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConnectionSessions => "sessions of the connection",
            Self::AddressSessions => "sessions of the address",
            Self::AddressBeginnings { .. } => "beginnings of the address",
            Self::Sessions { .. } => "sessions",
            Self::Streams { .. } => "streams",
            Self::Rate { .. } => "bit rate",
            Self::AddressStreams { .. } | Self::AddressStreamLimit { .. } => "streams of the address",
            Self::AddressRate { .. } => "bit rate of the address",
            Self::TitleStreams { .. } => "streams of the title",
            Self::UserStreams { .. } => "streams of the user",
            Self::UserRate { .. } => "bit rate of the user",
            Self::Full(full) => full.resource().name(),
            Self::EngineStreams => "streams of the engine",
            Self::EngineConnections => "connections of the engine",
            Self::OpenTitles => "open titles",
            Self::Openings => "openings of titles",
        }
    }

    /// Whose share of it.
    pub fn scope(self) -> ShareScope {
        match self {
            Self::ConnectionSessions => ShareScope::Connection,
            Self::AddressSessions
            | Self::AddressBeginnings { .. }
            | Self::AddressStreams { .. }
            | Self::AddressStreamLimit { .. }
            | Self::AddressRate { .. } => ShareScope::Address,
            Self::TitleStreams { .. } => ShareScope::Title,
            Self::UserStreams { .. } | Self::UserRate { .. } => ShareScope::User,
            Self::Full(_) => ShareScope::Machine,
            Self::Sessions { .. }
            | Self::Streams { .. }
            | Self::Rate { .. }
            | Self::EngineStreams
            | Self::EngineConnections
            | Self::OpenTitles
            | Self::Openings => ShareScope::Server,
        }
    }

    /// Whether it is room to play, and not only a place in a table that empties by itself.
    pub fn is_room_to_play(self) -> bool {
        match self {
            Self::ConnectionSessions | Self::AddressSessions | Self::OpenTitles | Self::Openings => false,
            Self::Sessions { .. }
            | Self::Streams { .. }
            | Self::Rate { .. }
            | Self::AddressBeginnings { .. }
            | Self::AddressStreams { .. }
            | Self::AddressStreamLimit { .. }
            | Self::AddressRate { .. }
            | Self::TitleStreams { .. }
            | Self::UserStreams { .. }
            | Self::UserRate { .. }
            | Self::Full(_)
            | Self::EngineStreams
            | Self::EngineConnections => true,
        }
    }

    /// Whether something that has a lower bit rate may not meet it.
    pub(super) fn is_of_rate(self) -> bool {
        let is_full = matches!(self, Self::Full(Full::Processor { .. } | Full::Link { .. }));
        is_full || matches!(self, Self::Rate { .. } | Self::AddressRate { .. } | Self::UserRate { .. })
    }
}

//! The tables of casts and of the viewers that listen to them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;
use millrace_rights::Quota;

use super::counted::CountedViewer;
use super::groups::GroupAddress;
use super::keys::{ConnKey, StreamKey};
use super::stream::{EndReason, Totals};

/// A title and the family of its group: each has at most one cast.
pub(super) type CastKey = (TitleId, bool);

/// The group of a title, and the stream to it.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) title: String,
    pub(super) to: GroupAddress,
    /// The RTP source of its packets.
    pub(super) ssrc: u32,
    /// What sends it; `None`: nothing is sent.
    pub(super) stream: Option<StreamKey>,
    /// Why receivers get nothing although a viewer plays it.
    pub(super) trouble: Option<String>,
    /// When it is tried again, if nothing is sent.
    pub(super) retry_at: Instant,
}

/// A viewer of a cast. Its name is one of those that streams have: protocols need not tell them apart.
#[derive(Debug)]
pub struct Listener {
    pub(super) key: StreamKey,
    pub(super) cast: CastKey,
    pub(super) label: Box<str>,
    pub(super) title: String,
    pub(super) viewer: SocketAddr,
    pub(super) quota: Option<Quota>,
    pub(super) rate: u64,
    /// The connection it was made on, while that is open.
    pub(super) owner: Option<ConnKey>,
    pub(super) started: Instant,
    pub(super) last_heard: Instant,
    pub(super) is_playing: bool,
    /// It is counted for its user, its title and its address.
    pub(super) is_reserved: bool,
    /// Since when it has not played, while it does not.
    pub(super) idle_since: Instant,
}

impl Listener {
    /// Its name.
    pub fn key(&self) -> StreamKey {
        self.key
    }

    /// What log lines call it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The title that it listens to.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The viewer.
    pub fn viewer(&self) -> SocketAddr {
        self.viewer
    }

    /// Bits a second of the title.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// When it was admitted.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether it wants packets.
    pub fn is_playing(&self) -> bool {
        self.is_playing
    }

    pub(super) fn counted(&self) -> CountedViewer<'_> {
        CountedViewer { title: &self.title, quota: self.quota.as_ref(), rate: self.rate, player: None }
    }
}

/// A cast with viewers, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastStatus {
    /// The title.
    pub title: String,
    /// Its group.
    pub to: GroupAddress,
    /// The RTP source of its packets.
    pub ssrc: u32,
    /// Time to live.
    pub ttl: u8,
    /// Its viewers.
    pub listeners: usize,
    /// Whether any of them plays it, and packets leave.
    pub is_sending: bool,
    /// Why receivers get nothing although a viewer plays it.
    pub trouble: Option<String>,
}

/// News of a cast.
#[derive(Clone, Debug, PartialEq)]
pub enum CastNotice {
    /// An engine is to send it.
    Began {
        /// The title.
        title: String,
        /// The group.
        to: SocketAddr,
        /// The engine.
        engine: usize,
    },
    /// The engine has forgotten it.
    Ended {
        /// The title.
        title: String,
        /// The group.
        to: SocketAddr,
        /// Why.
        reason: EndReason,
        /// Nanoseconds from its begin to its end.
        lasted_ns: u64,
        /// Totals of the data sent.
        totals: Option<Totals>,
    },
    /// Nothing of it leaves.
    Stopped {
        /// The title.
        title: String,
        /// The group.
        to: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Packets leave again.
    Resumed {
        /// The title.
        title: String,
        /// The group.
        to: SocketAddr,
    },
}

impl CastNotice {
    /// Whether something of the server failed.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Stopped { .. } => true,
            Self::Ended { reason, .. } => reason.is_failure(),
            Self::Began { .. } | Self::Resumed { .. } => false,
        }
    }
}

impl fmt::Display for CastNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Began { title, to, engine } => write!(f, "cast of {title} to {to} begins, engine {engine}"),
            Self::Ended { title, to, reason, lasted_ns, totals } => {
                let (s, tenths) = (lasted_ns / 1_000_000_000, lasted_ns / 100_000_000 % 10);
                write!(f, "cast of {title} to {to} ended: {reason}, after {s}.{tenths} s")?;
                let Some(Totals { packets, bytes, unreachable, late }) = totals else { return Ok(()) };
                write!(f, ", {packets} packets, {bytes} bytes, {unreachable} refused, {late} late")
            }
            Self::Stopped { title, to, reason } => {
                write!(
                    f,
                    "cast of {title} to {to}: cannot send: {reason}; check the interface and the route to the group"
                )
            }
            Self::Resumed { title, to } => write!(f, "cast of {title} to {to}: sends again"),
        }
    }
}

/// All casts and listeners.
#[derive(Debug, Default)]
pub(super) struct CastTable {
    /// Titles that have a group, also while nothing is sent. At most two for each live title, and those that are listened to.
    pub(super) casts: BTreeMap<CastKey, Cast>,
    listeners: HashMap<StreamKey, Listener>,
}

impl CastTable {
    pub(super) fn listener(&self, key: StreamKey) -> Option<&Listener> {
        self.listeners.get(&key)
    }

    pub(super) fn listener_mut(&mut self, key: StreamKey) -> Option<&mut Listener> {
        self.listeners.get_mut(&key)
    }

    pub(super) fn insert(&mut self, listener: Listener) {
        self.listeners.insert(listener.key, listener);
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<Listener> {
        self.listeners.remove(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// All listeners, the oldest first.
    pub(super) fn in_order(&self) -> Vec<&Listener> {
        let mut listeners: Vec<_> = self.listeners.values().collect();
        listeners.sort_unstable_by_key(|listener| listener.key);
        listeners
    }

    pub(super) fn of_cast(&self, cast: CastKey) -> impl Iterator<Item = &Listener> {
        self.listeners.values().filter(move |listener| listener.cast == cast)
    }

    /// Whether a viewer wants packets of this cast.
    pub(super) fn is_wanted(&self, cast: CastKey) -> bool {
        self.of_cast(cast).any(|listener| listener.is_playing)
    }

    /// The cast that this stream sends.
    pub(super) fn sent_by(&mut self, stream: StreamKey) -> Option<(CastKey, &mut Cast)> {
        let mut casts = self.casts.iter_mut().map(|(key, cast)| (*key, cast));
        casts.find(|(_, cast)| cast.stream == Some(stream))
    }

    /// The only listener at this address to packets of this source, if there is exactly one.
    pub(super) fn only_listener(&self, ip: IpAddr, ssrc: u32) -> Option<StreamKey> {
        let mut fitting = self.listeners.values().filter(|listener| {
            listener.viewer.ip() == ip && self.casts.get(&listener.cast).is_some_and(|cast| cast.ssrc == ssrc)
        });
        match (fitting.next(), fitting.next()) {
            (Some(listener), None) => Some(listener.key),
            _ => None,
        }
    }
}

//! The operator's settings, whatever the protocol, and the defaults.

use millrace_core::limits;
use millrace_core::units::BitRate;

use super::groups::MulticastGroups;
use super::packet_size::{PacketSizes, PathMtu, kernel_path_mtu};
use crate::admission::AdmissionConfig;

/// Settings of the service.
#[derive(Clone, Debug)]
pub struct ServiceConfig {
    /// Engines.
    pub engines: usize,
    /// Streams in each engine.
    pub streams_per_engine: usize,
    /// Connections that each engine can write to.
    pub conns_per_engine: usize,
    /// Ceiling of all streams together: sessions that play, or have paused only just now.
    pub max_streams: usize,
    /// Sessions at once, whether they play or not; more than `max_streams`.
    pub max_sessions: usize,
    /// Share of `max_streams` and of `max_rate` that one IPv4 address or one IPv6 /64 may have, in percent. One stream it always
    /// may have.
    pub address_share_percent: u8,
    /// Streams at once of one IPv4 address or one IPv6 /64; `None`: its share of `max_streams`.
    pub max_streams_per_address: Option<usize>,
    /// Streams at once of one title, including those of titles made from it; `None`: only the limit
    /// for all titles counts.
    pub max_streams_per_title: Option<usize>,
    /// How long a session that has paused, or has come to the end, keeps its stream and its bit rate.
    pub pause_reservation_ns: u64,
    /// Ceiling of the bit rates of these streams together; `None`: only their number counts.
    pub max_rate: Option<BitRate>,
    /// Admission below these ceilings.
    pub admission: AdmissionConfig,
    /// Which rate of a title counts against `max_rate`.
    pub rate_basis: RateBasis,
    /// Connections at once.
    pub max_connections: usize,
    /// Connections at once from one IPv4 address or one IPv6 /64.
    pub max_connections_per_address: usize,
    /// Sessions at once of one IPv4 address or one IPv6 /64: sessions by UDP outlive their connection.
    pub max_sessions_per_address: usize,
    /// Sessions at once that were made on one connection.
    pub max_sessions_per_connection: usize,
    /// Packet sizes that viewers by UDP may get, by the MTU of their path.
    pub packet_sizes: PacketSizes,
    /// Viewers may have FEC.
    pub fec: bool,
    /// Media that is sent ahead to viewers by a connection when they begin to play, in milliseconds.
    pub fast_start_ms: u16,
    /// Of titles with renditions, the server chooses the one that is sent, for sessions that name none.
    pub adapt: bool,
    /// Groups for casts that viewers start; `None`: viewers cannot start any.
    pub multicast: Option<MulticastGroups>,
    /// Where the MTU of a path is looked up.
    pub path_mtu: PathMtu,
}

impl ServiceConfig {
    /// Takes the settings that may change while viewers are served from `new`: those that are looked up when they are needed, and
    /// that no table was sized by. What runs goes on; the next viewer is judged by them.
    pub fn set_limits(&mut self, new: &Self) {
        self.max_streams = new.max_streams;
        self.max_rate = new.max_rate;
        self.max_streams_per_title = new.max_streams_per_title;
        self.address_share_percent = new.address_share_percent;
        self.max_streams_per_address = new.max_streams_per_address;
        self.pause_reservation_ns = new.pause_reservation_ns;
        self.fast_start_ms = new.fast_start_ms;
        self.packet_sizes = new.packet_sizes.clone();
        self.adapt = new.adapt;
        self.admission.max_busy_permille = new.admission.max_busy_permille;
        self.admission.link_rate = new.admission.link_rate;
        self.admission.overload = new.admission.overload;
    }
}

/// Which bit rate admission counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateBasis {
    /// The mean: peaks of many viewers even out.
    #[default]
    Mean,
    /// The highest second: never too much, even if all viewers peak at once.
    Peak,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            engines: 1,
            streams_per_engine: limits::DEFAULT_STREAMS_PER_ENGINE,
            conns_per_engine: limits::MAX_CONNS_PER_ENGINE,
            max_streams: limits::DEFAULT_STREAMS_PER_ENGINE,
            max_sessions: crate::limits::session_table_size(limits::DEFAULT_STREAMS_PER_ENGINE),
            address_share_percent: crate::limits::DEFAULT_ADDRESS_SHARE_PERCENT,
            max_streams_per_address: None,
            max_streams_per_title: None,
            pause_reservation_ns: crate::limits::DEFAULT_PAUSE_RESERVATION_NS,
            max_rate: None,
            admission: AdmissionConfig::off(),
            rate_basis: RateBasis::default(),
            max_connections: crate::limits::MAX_RTSP_CONNECTIONS,
            max_connections_per_address: crate::limits::MAX_CONNECTIONS_PER_ADDRESS,
            max_sessions_per_address: crate::limits::MAX_CONNECTIONS_PER_ADDRESS,
            max_sessions_per_connection: crate::limits::MAX_SESSIONS_PER_CONNECTION,
            packet_sizes: PacketSizes::default(),
            fec: true,
            fast_start_ms: crate::limits::DEFAULT_FAST_START_MS,
            adapt: true,
            multicast: None,
            path_mtu: kernel_path_mtu,
        }
    }
}

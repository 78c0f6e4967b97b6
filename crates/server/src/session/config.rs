//! The operator's choices for RTSP, and their defaults.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::source::SourceTable;
use millrace_rights::Gate;

use crate::service::{ServiceConfig, kernel_source};

/// Settings of the RTSP server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The limits and other settings of the service.
    pub service: ServiceConfig,
    /// `Server` header.
    pub name: String,
    /// Announced session time-out. Rounded down to seconds, at least one.
    pub session_timeout_ns: u64,
    /// How much later than announced a session is dropped.
    pub session_slack_ns: u64,
    /// Time for a message that has begun, and for the first one on a connection.
    pub header_timeout_ns: u64,
    /// The server's UDP ports (RTP, RTCP) for viewers with IPv4; `None`: they get TCP only.
    pub ports_v4: Option<(u16, u16)>,
    /// The same for IPv6.
    pub ports_v6: Option<(u16, u16)>,
    /// Source addresses that engines use for viewers whose route would use another one.
    pub sources: Arc<SourceTable>,
    /// Returns the source address that the route to a viewer uses.
    pub route_source: fn(SocketAddr) -> Option<IpAddr>,
    /// Unix time minus monotonic time, for the `Date` header.
    pub wall_offset_ns: u64,
    /// Viewing access; `None`: all viewers.
    pub gate: Option<Arc<Gate>>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            service: ServiceConfig::default(),
            name: concat!("millrace/", env!("CARGO_PKG_VERSION")).to_owned(),
            session_timeout_ns: crate::limits::DEFAULT_SESSION_TIMEOUT_NS,
            session_slack_ns: crate::limits::SESSION_TIMEOUT_SLACK_NS,
            header_timeout_ns: crate::limits::RTSP_HEADER_TIMEOUT_NS,
            ports_v4: None,
            ports_v6: None,
            sources: Arc::default(),
            route_source: kernel_source,
            wall_offset_ns: 0,
            gate: None,
        }
    }
}

impl ServerConfig {
    /// The announced time-out in whole seconds.
    pub fn session_timeout_s(&self) -> u64 {
        (self.session_timeout_ns / 1_000_000_000).max(1)
    }
}

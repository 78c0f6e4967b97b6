//! Names of connections and streams, and the path of packets between them.

use std::fmt;

use millrace_core::dest::Dest;

/// A connection, for as long as the server runs: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey(pub u64);

impl fmt::Display for ConnKey {
    /// As log lines call it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn-{}", self.0)
    }
}

/// A stream, for as long as the server runs: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(pub u64);

/// How packets reach the viewer. The engine's is the same, but for the name of the connection.
pub type StreamPath = Dest<ConnKey>;

/// UDP ports of the viewer at which it gets something, each once.
pub(super) fn ports_of(path: StreamPath) -> impl Iterator<Item = u16> {
    let (media, rtcp) = match path {
        StreamPath::Udp { port, rtcp_port, .. } => (Some(port), rtcp_port),
        StreamPath::Multicast { .. } | StreamPath::Interleaved { .. } | StreamPath::Bytes { .. } => {
            (None, None)
        }
    };
    media.into_iter().chain(rtcp.filter(|_| rtcp != media))
}

//! RTSP in HTTP in the session server: the GET is a viewer's connection like any other, and the
//! POST is a connection without messages.

use std::net::IpAddr;

use super::server::{Output, Server};
use crate::rtsp::tunnel;
use crate::service::{ConnKey, ServiceEvent};

impl Server {
    /// Properties that both halves of a tunnel must share: the viewer's address, and whether the
    /// connection uses TLS.
    pub fn tunnel_end(&self, conn: ConnKey) -> Option<(IpAddr, bool)> {
        self.conns.get(&conn).map(|conn| (conn.peer.ip(), conn.is_encrypted))
    }

    /// Whether the connection has received a message yet.
    pub fn has_spoken(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.last_message.is_some())
    }

    /// Responds to the GET that opens a tunnel. Requests arrive on another connection; replies and
    /// media leave on this one.
    pub fn tunnel_opened(&mut self, conn: ConnKey) {
        self.outputs.push_back(Output::Reply { conn, bytes: tunnel::OPENED.to_vec() });
    }

    /// Marks the connection as the POST of a tunnel; it ends with the tunnel.
    pub fn tunnel_joined(&mut self, conn: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            (conn.is_post, conn.begun) = (true, None);
        }
    }

    /// Refuses half of a tunnel: sends one HTTP response, then closes the connection.
    pub fn refuse_tunnel(&mut self, conn: ConnKey, status: u16, what: &'static str) {
        let Some(peer) = self.conns.get(&conn).filter(|conn| !conn.closing).map(|conn| conn.peer) else {
            return;
        };
        self.tell(ServiceEvent::BadMessage { peer, protocol: "RTSP in HTTP", what });
        self.outputs.push_back(Output::Reply { conn, bytes: tunnel::refused(status, what) });
        self.close(conn);
    }
}

//! RTSP in HTTP, as far as the session server is concerned: the GET is the viewer's connection like any other, and the POST one on which nothing is spoken.

use std::net::IpAddr;

use super::server::{Output, Server};
use crate::rtsp::tunnel;
use crate::service::{ConnKey, Event};

impl Server {
    /// Which halves may belong together: the address of the viewer, and whether the connection came by TLS.
    pub fn tunnel_end(&self, conn: ConnKey) -> Option<(IpAddr, bool)> {
        self.conns.get(&conn).map(|conn| (conn.peer.ip(), conn.is_encrypted))
    }

    /// Whether anything has been spoken on the connection yet.
    pub fn has_spoken(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.last_message.is_some())
    }

    /// The connection is a GET: requests come by another, replies and media go by this.
    pub fn tunnel_opened(&mut self, conn: ConnKey) {
        self.outputs.push_back(Output::Reply { conn, bytes: tunnel::OPENED.to_vec() });
    }

    /// The connection is the POST of another, with which it ends.
    pub fn tunnel_joined(&mut self, conn: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            (conn.is_post, conn.begun) = (true, None);
        }
    }

    /// The connection is half of a tunnel that cannot be: one answer in HTTP, then it is closed.
    pub fn refuse_tunnel(&mut self, conn: ConnKey, status: u16, what: &'static str) {
        let Some(peer) = self.conns.get(&conn).filter(|conn| !conn.closing).map(|conn| conn.peer) else {
            return;
        };
        self.tell(Event::BadMessage { peer, protocol: "RTSP in HTTP", what });
        self.outputs.push_back(Output::Reply { conn, bytes: tunnel::refused(status, what) });
        self.close(conn);
    }
}

//! RTSP in HTTP in the session server: the GET is a viewer's connection like any other, and the
//! POST is a connection without messages.

use super::server::{Output, RtspFace};
use crate::rtsp::tunnel;
use crate::service::{ConnKey, ServiceEvent};

impl RtspFace<'_> {
    /// Responds to the GET that opens a tunnel. Requests arrive on another connection; replies and
    /// media leave on this one.
    pub fn tunnel_opened(&mut self, conn: ConnKey) {
        self.outputs.push_back(Output::Reply { conn, bytes: tunnel::OPENED.to_vec() });
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

//! The log line of a request that was turned down: without it an operator never learns why a player shows nothing.

use rtsp_types::headers::{RANGE, SESSION};

use super::notice::Notice;
use super::server::{ConnKey, Server, SessionKey, header};
use crate::rtsp::{Reply, Request, target};

/// Characters of what a viewer has sent that are written into a log line.
const MAX_QUOTED: usize = 120;

impl Server {
    /// Reports a reply that refuses the request, unless that has been done.
    pub(super) fn log_refusal(&mut self, conn: ConnKey, request: &Request, reply: &Reply) {
        if reply.code() < 400 || reply.is_logged() {
            return;
        }
        let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) else { return };
        let named = header(request, &SESSION).and_then(|id| self.by_id.get(id.split(';').next()?.trim()));
        let title = match named.and_then(|key| self.sessions.get(key)) {
            Some(session) => session.entry.name.clone(),
            None => request.request_uri().and_then(target::parse).map(|t| t.title).unwrap_or_default(),
        };
        let method: &str = request.method().into();
        let mut reason = format!("{method}: {}", reply.reason());
        if reply.code() == 457
            && let Some(range) = header(request, &RANGE)
        {
            reason = format!("{reason} (Range: {range})");
        }
        let title = if title.is_empty() { "/".to_owned() } else { printable(&title) };
        self.notice(Notice::Refused { peer, title, status: reply.code(), reason: printable(&reason) });
    }

    /// The reply to a PLAY whose range holds no packet, found out when its stream stood still.
    pub(super) fn nothing_left(&mut self, key: SessionKey) -> Reply {
        let reply = Reply::error(457, "there is nothing left to play").logged();
        if let Some(session) = self.sessions.get(&key) {
            let (peer, title) = (session.peer, session.entry.name.clone());
            let reason = format!("PLAY: {}", reply.reason());
            self.notice(Notice::Refused { peer, title, status: reply.code(), reason });
        }
        self.with_session(reply, Some(key))
    }
}

/// What a viewer has sent, so that it cannot write lines of its own into a log.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(MAX_QUOTED).map(shown).collect()
}

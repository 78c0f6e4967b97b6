//! Viewing access: how a request maps to the terms of rights, and how RTSP asks players to identify
//! themselves (RFC 2326 section 14, RFC 7616).
//!
//! A connection remembers its admitted visitor. Players send their credentials with every request,
//! but a signed link stands in the URL of DESCRIBE alone.

use millrace_core::limits::rights::FAILURE_RETRY_S;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_rights::{
    AccessRequest, AccessVerdict, Advice, DigestOf, Now, Question, RequestOrigin, RequestedAction,
};
use rtsp_types::headers::{AUTHORIZATION, RETRY_AFTER};
use rtsp_types::{Method, Url};

use super::server::{Output, RtspFace, header};
use super::state::ReceivedRequest;
use crate::rtsp::{Reply, RtspRequest, target};
use crate::service::{ConnKey, StreamKey};

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessStage {
    /// It has just come.
    New,
    /// The password that it shows has been checked.
    Checked,
    /// It was let in, and has waited for something since. Its credentials must not be checked
    /// twice: an answer to a challenge is valid once.
    LetIn,
}

/// Whether a request is carried out.
pub(super) enum LetIn {
    Yes,
    No(Reply),
    /// When its password has been checked.
    Later,
}

impl RtspFace<'_> {
    /// Carries on with the request that waits on this connection: its password has been checked, or
    /// its webhook question answered.
    pub fn password_checked(&mut self, now: Instant, conn: ConnKey) {
        let Some(state) = self.conns.get_mut(&conn).filter(|conn| conn.is_checking) else { return };
        let question = state.question.take();
        let Some(request) = self.take_waiting(conn) else { return };
        let advised = self.config.gate.as_ref().and_then(|gate| gate.advised());
        let received = ReceivedRequest { now, conn, request: &request };
        let Some((question, advised)) = question.zip(advised) else {
            return self.carry_out(received, AccessStage::Checked);
        };
        match against(advised.look_again(self.time(now), &question)) {
            None => self.carry_out(received, AccessStage::LetIn),
            Some(reply) => self.answer(received, &reply),
        }
    }

    fn time(&self, now: Instant) -> Now {
        Now { mono: now, unix_s: now.0.saturating_add(self.config.wall_offset_ns) / NS_PER_S }
    }

    /// Asks the operator's program about a session that is about to begin, in addition to the
    /// rights. The program is not asked about titles that do not exist, because a client could
    /// invent any number of them.
    fn advice(&mut self, now: Now, key: ConnKey, request: &RtspRequest, what: RequestedAction<'_>) -> LetIn {
        let mut begins = matches!(request.method(), Method::Describe | Method::Setup);
        if let RequestedAction::Watch(title) = what {
            begins &= self.service.find(title).is_some_and(|entry| !entry.is_made);
        }
        let advised = self.config.gate.as_ref().and_then(|gate| gate.advised());
        let (RequestedAction::Watch(title), true, Some(advised), Some(conn)) =
            (what, begins, advised, self.conns.get_mut(&key))
        else {
            return LetIn::Yes;
        };
        let question = Question::of(&conn.visitor, title, conn.peer.ip());
        match advised.look(now, &question) {
            Some(advice) => against(advice).map_or(LetIn::Yes, LetIn::No),
            None => {
                (conn.waiting, conn.is_checking) = (Some(Box::new(request.clone())), true);
                conn.question = Some(question.clone());
                self.outputs.push_back(Output::Ask { conn: key, question });
                LetIn::Later
            }
        }
    }

    /// Whether a request may be carried out.
    pub(super) fn let_in(&mut self, received: ReceivedRequest<'_>, stage: AccessStage) -> LetIn {
        let ReceivedRequest { now, conn: key, request } = received;
        let Some(gate) = self.config.gate.clone().filter(|_| stage != AccessStage::LetIn) else {
            return LetIn::Yes;
        };
        let Some(conn) = self.conns.get(&key) else { return LetIn::Later };
        let now = self.time(now);
        let session = self.session_of(request).ok().flatten();
        let of_session = session.and_then(|key| self.service.title_of(key)).map(str::to_owned);
        let of_url = request.request_uri().and_then(title);
        let title_asked = title_asked(request, of_url.as_deref(), of_session.as_deref());
        let what = match (request.method(), title_asked) {
            (Method::Options, _) => RequestedAction::Nothing,
            (_, Some(title)) => RequestedAction::Watch(title),
            (_, None) => RequestedAction::List,
        };
        let is_uri = |uri: &str| uri_title(uri) == of_url;
        let asked = AccessRequest {
            what,
            // Nothing is changed by RTSP that others see.
            place: RequestOrigin::Elsewhere,
            address: conn.peer.ip(),
            authorization: header(request, &AUTHORIZATION),
            query: request.request_uri().and_then(Url::query),
            digest: Some(DigestOf { method: request.method().into(), is_uri: &is_uri }),
            before: Some((&conn.visitor, session.is_some() && *request.method() != Method::Describe)),
            is_again: stage == AccessStage::Checked,
        };
        let client = asked.address;
        let visitor = match gate.ask(now, &asked) {
            AccessVerdict::Allow(visitor) => visitor,
            AccessVerdict::Check(check) => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    (conn.waiting, conn.is_checking) = (Some(Box::new(request.clone())), true);
                }
                self.outputs.push_back(Output::Check { conn: key, check });
                return LetIn::Later;
            }
            other => {
                let challenges = |is_stale| gate.rtsp_challenges(client, now, is_stale);
                return LetIn::No(self.turned_away(&challenges, &other, session));
            }
        };
        // A session is not another title's by a URL that names this one.
        let is_other = of_session.as_deref().is_some_and(|title| !gate.may_watch(&visitor, title));
        if is_other && what != RequestedAction::Nothing {
            return LetIn::No(Reply::error(403, millrace_rights::Reason::NotThisTitle));
        }
        if let Some(conn) = self.conns.get_mut(&key)
            && visitor != millrace_rights::Visitor::Anybody
        {
            conn.visitor = visitor;
        }
        self.advice(now, key, request, what)
    }

    fn turned_away(
        &self,
        challenges: &dyn Fn(bool) -> Vec<String>,
        verdict: &AccessVerdict,
        session: Option<StreamKey>,
    ) -> Reply {
        let reply = match verdict {
            AccessVerdict::Ask { is_wrong, is_stale } => {
                let reply = match (is_wrong, is_stale) {
                    // The challenge that every player gets at first, and again now and then, does
                    // not belong in the log.
                    (false, _) | (_, true) => Reply::status(401).logged(),
                    (true, false) => Reply::error(401, "name or password is wrong"),
                };
                reply.challenges(challenges(*is_stale))
            }
            AccessVerdict::Refuse(reason) => Reply::error(403, reason),
            AccessVerdict::TooMany => {
                Reply::error(503, "too many wrong passwords have come from this address")
                    .header(RETRY_AFTER, FAILURE_RETRY_S.to_string())
            }
            AccessVerdict::Allow(_) | AccessVerdict::Check(_) | AccessVerdict::Busy => {
                Reply::error(503, "too many passwords wait to be checked").header(RETRY_AFTER, "5")
            }
        };
        self.with_session(reply, session)
    }
}

/// Returns the reply to a viewer that may not watch.
fn against(advice: Advice) -> Option<Reply> {
    match advice {
        Advice::Allow => None,
        Advice::Refuse => Some(Reply::error(403, millrace_rights::Reason::Advised)),
        Advice::Unanswered => {
            let reply = Reply::error(503, "this server's webhook does not answer");
            Some(reply.header(RETRY_AFTER, "5"))
        }
        Advice::Crowded => {
            let reply = Reply::error(503, "too many questions to this server's webhook are under way");
            Some(reply.header(RETRY_AFTER, "5"))
        }
    }
}

/// The title that is decided about: that of the session, if the request only goes on with one.
fn title_asked<'a>(
    request: &RtspRequest,
    of_url: Option<&'a str>,
    of_session: Option<&'a str>,
) -> Option<&'a str> {
    let begins = matches!(request.method(), Method::Describe | Method::Setup);
    let first = if begins { of_url.or(of_session) } else { of_session.or(of_url) };
    first.filter(|title| !title.is_empty())
}

/// The title that a URL names; empty for the root.
fn title(url: &Url) -> Option<String> {
    target::parse(url).map(|target| target.title)
}

/// The same of a URL as players put it into their answers: whole, or its path.
fn uri_title(uri: &str) -> Option<String> {
    match Url::parse(uri) {
        Ok(url) => title(&url),
        Err(_) => title(&Url::parse("rtsp://host/").ok()?.join(uri).ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_title_of_digest_uri_returns_title_name() {
        for uri in
            ["rtsp://h:8554/film", "rtsp://h/film/track1", "rtsp://h/film/?x=1", "/film", "/film/track1/"]
        {
            assert_eq!(uri_title(uri).as_deref(), Some("film"), "{uri}");
        }
        assert_eq!(uri_title("rtsp://h/other").as_deref(), Some("other"));
        assert_eq!(uri_title("rtsp://h").as_deref(), Some(""));
        assert_eq!(uri_title("/").as_deref(), Some(""));
    }
}

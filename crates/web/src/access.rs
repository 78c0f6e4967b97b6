//! Access control: expresses a request in terms of rights, and their decision in terms of HTTP.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use millrace_core::counters::CounterSample;
use millrace_core::limits::rights::FAILURE_RETRY_S;
use millrace_rights::{
    AccessRequest, AccessVerdict, Advice, Decision, Gate, Now, Question, Quota, Reason, RequestOrigin,
    RequestedAction, Visitor,
};
use millrace_store::index::TitleIndex;
use millrace_store::pictures::Pictures;
use millrace_store::volume::TitleInfo;
use millrace_store::volume::UploadNames;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::context::{RoutedRequest, ServerContext};
use crate::limits::RETRY_AFTER_S;
use crate::request::{Fields, Method, RequestSource};
use crate::route::{LIVE_PREFIX, Needs, ResourceKind, RouteMatch};
use crate::site::{LibraryCopy, LiveStatus, NotTaken, Order, PicturesState, Site, SiteError};
use crate::status::Status;
use crate::title_list::May;

impl RoutedRequest<'_> {
    /// Returns the visitor if access is granted, otherwise the response. Waits for password checks,
    /// and for the adviser asked in addition to the rights.
    pub(crate) async fn let_in(self) -> Result<Visitor, Answer> {
        let visitor = self.by_rights().await?;
        let Self { shared, request, found, source } = self;
        let RequestedAction::Watch(title) = what(request.method, found) else { return Ok(visitor) };
        // The library shows the posters of all titles: it would be a question for each.
        if found.route.kind == ResourceKind::Poster {
            return Ok(visitor);
        }
        let Some(advised) = shared.gate.advised() else { return Ok(visitor) };
        // A client could invent any number of titles, so only existing ones are worth a call to the
        // webhook.
        let is_live = |name| shared.site.live().iter().any(|live| live.name == name);
        if shared.site.title(title).is_none() && !title.strip_prefix(LIVE_PREFIX).is_some_and(is_live) {
            return Ok(visitor);
        }
        let question = Question::of(&visitor, title, source.peer.ip());
        let mut advice = advised.look(Now::read(), &question);
        if advice.is_none() {
            let (done, told) = oneshot::channel();
            let tell = move || {
                // The viewer may have gone meanwhile.
                let _ = done.send(());
            };
            advised.ask(question.clone(), Box::new(tell));
            // Whether it was answered is seen in a moment.
            let _ = told.await;
            advice = Some(advised.look_again(Now::read(), &question));
        }
        let later = |what| Answer::error(503, what).with("Retry-After", RETRY_AFTER_S.to_string());
        match advice {
            Some(Advice::Allow) => Ok(visitor),
            Some(Advice::Refuse) => Err(Answer::error(403, &Reason::Advised.to_string())),
            Some(Advice::Unanswered) => Err(later("this server's webhook does not answer")),
            Some(Advice::Crowded) | None => {
                Err(later("too many questions to this server's webhook are under way"))
            }
        }
    }

    /// The same by rights alone.
    async fn by_rights(self) -> Result<Visitor, Answer> {
        let Self { shared, request, found, source: RequestSource { peer, .. } } = self;
        let mut is_again = false;
        loop {
            let verdict = {
                let asked = AccessRequest {
                    what: what(request.method, found),
                    place: place(&request.fields, peer),
                    address: peer.ip(),
                    authorization: request.fields.authorization.as_deref(),
                    query: request.query.as_deref(),
                    digest: None,
                    before: None,
                    is_again,
                };
                shared.gate.ask(Now::read(), &asked)
            };
            match verdict {
                AccessVerdict::Allow(visitor) => return Ok(visitor),
                AccessVerdict::Check(check) => {
                    let (done, told) = oneshot::channel();
                    shared.gate.check(
                        check,
                        Box::new(move || {
                            // The viewer may have gone meanwhile.
                            let _ = done.send(());
                        }),
                    );
                    // Whether it was made or dropped is seen in a moment.
                    let _ = told.await;
                    is_again = true;
                }
                other => return Err(shared.turned_away(&other)),
            }
        }
    }

    /// Returns the site as a visitor that was let in sees it.
    pub(crate) fn seen_by(self, visitor: Visitor) -> SeenBy {
        let Self { shared, request, source, .. } = self;
        let place = place(&request.fields, source.peer);
        SeenBy { site: Arc::clone(&shared.site), gate: Arc::clone(&shared.gate), visitor, place }
    }
}

impl ServerContext {
    /// Whether a visitor may upload, and may rename and delete titles: `yes`, `no`, or `sign-in`
    /// (after signing in).
    pub(crate) fn may(&self, seen: &SeenBy) -> May {
        let word = |what| match self.gate.decision(&seen.visitor, what, seen.place) {
            Decision::Allow => "yes",
            Decision::Ask => "sign-in",
            Decision::Refuse(_) => "no",
        };
        let upload = if self.limits.upload_bytes == 0 { "no" } else { word(RequestedAction::Upload) };
        May { upload, manage: word(RequestedAction::Change) }
    }

    fn turned_away(&self, verdict: &AccessVerdict) -> Answer {
        match verdict {
            AccessVerdict::Ask { is_wrong, .. } => {
                let what = match is_wrong {
                    true => "name and password, or the token, are wrong",
                    false => "this is for users of the server: sign in",
                };
                let challenges = self.gate.http_challenges();
                challenges
                    .into_iter()
                    .fold(Answer::error(401, what), |answer, asked| answer.with("WWW-Authenticate", asked))
            }
            AccessVerdict::Refuse(reason) => Answer::error(403, &reason.to_string()),
            AccessVerdict::TooMany => {
                Answer::error(429, "too many wrong passwords or tokens have come from this address")
                    .with("Retry-After", FAILURE_RETRY_S.to_string())
            }
            AccessVerdict::Allow(_) | AccessVerdict::Check(_) | AccessVerdict::Busy => {
                Answer::error(503, "too many passwords wait to be checked")
                    .with("Retry-After", RETRY_AFTER_S.to_string())
            }
        }
    }
}

fn what(method: Method, found: &RouteMatch) -> RequestedAction<'_> {
    match (method, found.route.needs) {
        // The server connects to the address of a source, which may be within its own network.
        (Method::Post, _) if found.route.is_changed_by_post() => RequestedAction::Change,
        (Method::Put | Method::Post, _) if found.route.methods().contains(&method) => RequestedAction::Upload,
        // The right to begin a recording is enough to end it.
        (Method::Delete, Needs::Upload) if found.route.kind == ResourceKind::LiveRecording => {
            RequestedAction::Upload
        }
        // Whatever it would do, it would change something.
        (Method::Put | Method::Post | Method::Delete | Method::Patch | Method::Other, _) => {
            RequestedAction::Change
        }
        (_, Needs::Nothing) => RequestedAction::Nothing,
        (_, Needs::SignIn) => RequestedAction::SignIn,
        (_, Needs::List) => RequestedAction::List,
        (_, Needs::Watch) => RequestedAction::Watch(&found.name),
        (_, Needs::SeeOthers) => RequestedAction::SeeOthers,
        (_, Needs::Upload) => RequestedAction::Upload,
    }
}

/// Whether the request comes from a program on this machine itself. A page of another site in a
/// local browser does not count: neither if it is a cross-site request (`Origin`,
/// `Sec-Fetch-Site`), nor if its host name was made to resolve to this server (`Host`).
fn place(fields: &Fields, peer: SocketAddr) -> RequestOrigin {
    let host = fields.host.as_deref();
    let of_page = |origin: &str| {
        let origin = origin.split_once("://").map(|(_, authority)| authority);
        origin.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
    };
    let is_here = peer.ip().to_canonical().is_loopback()
        && !fields.is_forwarded
        && !fields.is_of_other_page
        && host.is_none_or(is_this_machine)
        && fields.origin.as_deref().is_none_or(of_page);
    if is_here { RequestOrigin::Here } else { RequestOrigin::Elsewhere }
}

/// Whether a host, perhaps with a port, can only be this machine.
fn is_this_machine(host: &str) -> bool {
    if let Ok(address) = host.parse::<SocketAddr>() {
        return address.ip().to_canonical().is_loopback();
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_loopback = address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    is_loopback || name.eq_ignore_ascii_case("localhost")
}

/// A live title that a visitor may watch.
pub(crate) struct LiveName {
    pub(crate) name: String,
    /// Whether it plays stored titles.
    pub(crate) is_channel: bool,
}

/// The site as a visitor sees it: without the titles that it may not watch.
#[derive(Clone)]
pub(crate) struct SeenBy {
    pub(crate) site: Arc<dyn Site>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) visitor: Visitor,
    /// Where it asks from.
    pub(crate) place: RequestOrigin,
}

impl SeenBy {
    /// What stands behind the addresses that this visitor is given.
    pub(crate) fn link(&self) -> String {
        match &self.visitor {
            Visitor::Link(link) => format!("?{}", link.query()),
            Visitor::Anybody | Visitor::User(_) => String::new(),
        }
    }

    /// What its user may have.
    pub(crate) fn quota(&self) -> Option<Quota> {
        self.gate.quota(&self.visitor)
    }

    fn may_watch(&self, title: &TitleInfo) -> bool {
        self.may_watch_name(&title.name)
    }

    /// Whether it may watch a title of this name, if there is one.
    pub(crate) fn may_watch_name(&self, name: &str) -> bool {
        self.gate.may_watch(&self.visitor, name)
    }

    /// The live titles that it may watch, channels first.
    pub(crate) fn live_names(&self) -> Vec<LiveName> {
        let live = self.site.live().into_iter();
        let live = live.map(|live| LiveName { is_channel: live.channel.is_some(), name: live.name });
        let mut live: Vec<_> =
            live.filter(|live| self.may_watch_name(&format!("{LIVE_PREFIX}{}", live.name))).collect();
        live.sort_by_key(|live| !live.is_channel);
        live
    }
}

impl Site for SeenBy {
    fn titles(&self) -> Vec<TitleInfo> {
        let mut titles = self.site.titles();
        titles.retain(|title| self.may_watch(title));
        titles
    }

    fn title(&self, name: &str) -> Option<TitleInfo> {
        self.site.title(name).filter(|title| self.may_watch(title))
    }

    fn live(&self) -> Vec<LiveStatus> {
        let mut live = self.site.live();
        live.retain(|live| self.may_watch_name(&format!("{LIVE_PREFIX}{}", live.name)));
        // Paths, addresses and causes of failures are for the server's operators.
        if self.gate.decision(&self.visitor, RequestedAction::SeeOthers, self.place) != Decision::Allow {
            live.iter_mut().for_each(LiveStatus::leave_details_out);
        }
        live
    }

    fn rtsp_port(&self) -> Option<u16> {
        self.site.rtsp_port()
    }

    fn renditions(&self, name: &str) -> Vec<TitleInfo> {
        let mut titles = self.site.renditions(name);
        titles.retain(|title| self.may_watch(title));
        titles
    }

    fn index(&self, name: &str) -> Result<Arc<TitleIndex>, SiteError> {
        self.site.index(name)
    }

    fn read(&self, name: &str, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        self.site.read(name, from, out)
    }

    fn is_served_folder(&self, folder: &Path) -> bool {
        self.site.is_served_folder(folder)
    }

    fn library_copy(&self, title: &TitleInfo) -> Option<LibraryCopy> {
        self.site.library_copy(title)
    }

    fn pictures(&self, title: &TitleInfo) -> PicturesState {
        self.site.pictures(title)
    }

    fn read_pictures(&self, title: &TitleInfo) -> Result<Pictures, SiteError> {
        self.site.read_pictures(title)
    }

    fn can_take(&self, bytes: Option<u64>) -> Result<(), NotTaken> {
        self.site.can_take(bytes)
    }

    fn take_in(
        &self,
        upload: UploadNames<'_>,
        replaced: Option<&TitleInfo>,
        bytes: &mut dyn Read,
    ) -> Result<TitleInfo, NotTaken> {
        self.site.take_in(upload, replaced, bytes)
    }

    fn send(&self, order: Order) {
        self.site.send(order);
    }

    fn status(&self) -> Result<Status, SiteError> {
        self.site.status()
    }

    fn summary(&self) -> Result<Status, SiteError> {
        self.site.summary()
    }

    fn remove(&self, name: &str) -> Result<(), SiteError> {
        self.site.remove(name)
    }

    fn rename(&self, name: &str, title: &str) -> Result<TitleInfo, SiteError> {
        self.site.rename(name, title)
    }

    fn titles_version(&self) -> u64 {
        self.site.titles_version()
    }

    fn pictures_version(&self) -> u64 {
        self.site.pictures_version()
    }

    fn counters(&self, visit: &mut dyn FnMut(CounterSample<'_>)) {
        self.site.counters(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(peer: &str, lines: &[(&str, &str)]) -> RequestOrigin {
        let mut fields = Fields::default();
        lines.iter().for_each(|(name, value)| fields.note(name, value.as_bytes()));
        place(&fields, peer.parse().unwrap())
    }

    #[test]
    fn local_request_with_local_host_is_here() {
        let here = "127.0.0.1:5000";
        assert_eq!(asked(here, &[]), RequestOrigin::Here);
        for host in ["localhost", "LocalHost:8080", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080"] {
            assert_eq!(asked(here, &[("Host", host)]), RequestOrigin::Here, "{host}");
            assert_eq!(asked("[::ffff:127.0.0.1]:1", &[("Host", host)]), RequestOrigin::Here, "{host}");
            assert_eq!(asked("192.0.2.1:1", &[("Host", host)]), RequestOrigin::Elsewhere, "{host}");
        }
        let own = [("Host", "localhost:8080"), ("Origin", "http://localhost:8080")];
        assert_eq!(asked(here, &own), RequestOrigin::Here);
    }

    #[test]
    fn local_request_by_proxy_or_foreign_page_is_elsewhere() {
        let here = "[::1]:5000";
        for host in
            ["tv.example", "127.0.0.1.example:80", "localhost.example", "example:localhost", "", "0.0.0.0"]
        {
            assert_eq!(asked(here, &[("Host", host)]), RequestOrigin::Elsewhere, "{host}");
        }
        for name in [
            "Forwarded",
            "Via",
            "X-Forwarded-For",
            "X-Forwarded-Host",
            "X-Forwarded-Proto",
            "x-forwarded-whatever",
            "x-real-ip",
            "CF-Connecting-IP",
            "True-Client-IP",
            "X-Client-IP",
            "X-Envoy-External-Address",
        ] {
            assert_eq!(
                asked(here, &[("Host", "localhost"), (name, "x")]),
                RequestOrigin::Elsewhere,
                "{name}"
            );
        }
        for (site, place) in [
            ("cross-site", RequestOrigin::Elsewhere),
            ("same-site", RequestOrigin::Elsewhere),
            ("none, cross-site", RequestOrigin::Elsewhere),
            ("same-origin", RequestOrigin::Here),
            ("none", RequestOrigin::Here),
        ] {
            assert_eq!(asked(here, &[("Host", "localhost"), ("Sec-Fetch-Site", site)]), place, "{site}");
        }
        for origin in ["null", "https://example.org", "http://localhost:81", "http://localhost.example"] {
            let lines = [("Host", "localhost:80"), ("Origin", origin)];
            assert_eq!(asked(here, &lines), RequestOrigin::Elsewhere, "{origin}");
        }
    }
}

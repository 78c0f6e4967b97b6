//! Sessions of viewers that fetch playlists and segments: one is carried by the query of every
//! address in a playlist, so that viewers behind one address are counted one by one, and a viewer
//! that was admitted is not refused in the middle of a title.
//!
//! ```text
//!   playlist ?session=S ─► S goes on, or a new session ─► 503, or a playlist with ?session=
//!   segment  ?session=S ─► goes to the service with the order; unknown ones are ignored there
//! ```

use millrace_core::ids::ViewerSession;
use millrace_core::units::BitRate;
use millrace_store::volume::TitleInfo;

use crate::access::SeenBy;
use crate::answer::Answer;
use crate::context::RoutedRequest;
use crate::failures::not_sent;
use crate::handlers::master::browsers_play_stored;
use crate::request::Method;
use crate::route::ResourceKind;
use crate::session::{session_of, session_of_tag, suffix};
use crate::site::{DeliveryRefusal, ViewerAdmission};

/// Stands for a session where none is admitted: the header of a HEAD response has the length that
/// the playlist would have.
const UNADMITTED: ViewerSession = ViewerSession(0);

/// The title of a session, and the rates to reserve.
pub(crate) struct WantedSession<'a> {
    pub(crate) title: &'a str,
    /// The mean bit rate to reserve.
    pub(crate) mean_rate: BitRate,
    /// Its highest second.
    pub(crate) peak_rate: BitRate,
    /// Whether engines send its segments, rather than the web side.
    pub(crate) by_engine: bool,
    /// Whether players load the playlist again and again.
    pub(crate) is_reloaded: bool,
}

impl RoutedRequest<'_> {
    /// The end of the addresses in a playlist of this kind: the signed link that gives the
    /// visitor access, and the viewer's session. Admits the viewer if the request carries none.
    pub(crate) async fn playlist_link(self, title: &TitleInfo, seen: &SeenBy) -> Result<String, Answer> {
        let link = seen.link();
        let kind = self.found.route.kind;
        let carried = session_of(self.request.query.as_deref());
        let by_engine = match kind {
            ResourceKind::Media => true,
            ResourceKind::Master => title.is_growing() || browsers_play_stored(&title.streams),
            ResourceKind::Cmaf | ResourceKind::CmafMedia => false,
            // Pictures and subtitles are not counted, so they begin no session.
            ResourceKind::CmafStills | ResourceKind::Subtitles | ResourceKind::CmafSubtitles => {
                return Ok(carried.map_or_else(|| link.clone(), |session| suffix(&link, session)));
            }
            _ => return Ok(link),
        };
        let is_master = matches!(kind, ResourceKind::Master | ResourceKind::Cmaf);
        let listed = if is_master { self.shared.site.renditions(&title.name) } else { Vec::new() };
        let all = || listed.iter().chain([title]);
        let wanted = WantedSession {
            title: &title.name,
            // A player may change to any of them, and must not be refused then.
            mean_rate: all().map(|title| title.mean_rate).max().unwrap_or(title.mean_rate),
            peak_rate: all().map(|title| title.peak_rate).max().unwrap_or(title.peak_rate),
            by_engine,
            is_reloaded: title.is_growing(),
        };
        self.session_link(seen, wanted).await
    }

    /// The same for a viewer whose title is known to need a session.
    pub(crate) async fn session_link(
        self,
        seen: &SeenBy,
        wanted: WantedSession<'_>,
    ) -> Result<String, Answer> {
        let Self { shared, request, source, .. } = self;
        let link = seen.link();
        let of_tag = || session_of_tag(request.fields.if_none_match.as_deref());
        let session = session_of(request.query.as_deref()).or_else(of_tag);
        if request.method == Method::Head {
            let session = shared.site.has_viewer_sessions().then(|| session.unwrap_or(UNADMITTED));
            return Ok(session.map_or_else(|| link.clone(), |session| suffix(&link, session)));
        }
        let WantedSession { title, mean_rate, peak_rate, by_engine, is_reloaded } = wanted;
        let (done, told) = tokio::sync::oneshot::channel();
        shared.site.admit_viewer(ViewerAdmission {
            peer: source.peer,
            label: source.id.to_string(),
            agent: request.fields.agent(),
            title: title.to_owned(),
            mean_rate,
            peak_rate,
            by_engine,
            quota: seen.quota(),
            // A name that HEAD gives stands for no viewer.
            session: session.filter(|session| *session != UNADMITTED),
            is_reloaded,
            done,
        });
        let ending = || DeliveryRefusal::Full("the server is ending".to_owned());
        match told.await.unwrap_or_else(|_| Err(ending())) {
            Ok(session) => Ok(session.map_or_else(|| link.clone(), |session| suffix(&link, session))),
            Err(why) => Err(not_sent(&why)),
        }
    }
}

/// Keeps a playlist with a session out of shared caches: another viewer would get the session.
pub(crate) fn for_its_viewer(mut answer: Answer, link: &str) -> Answer {
    if session_of(Some(link)).is_some() {
        for (name, value) in &mut answer.headers {
            if *name == "Cache-Control" && value == "no-cache" {
                "private, no-cache".clone_into(value);
            }
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlist_with_session_is_private() {
        let answer = || Answer::empty(304).with("Cache-Control", "no-cache");
        let with = for_its_viewer(answer(), &suffix("", ViewerSession(1)));
        assert_eq!(with.headers, [("Cache-Control", "private, no-cache".to_owned())]);
        assert_eq!(for_its_viewer(answer(), "?until=1&sign=x").headers, answer().headers);
    }
}

//! DESCRIBE (RFC 2326 section 10.2).

use rtsp_types::headers::{ACCEPT, CONTENT_BASE, CONTENT_TYPE};

use super::fec::wish;
use super::play::{late_end, understands_clock};
use super::refusal::refusal_reply;
use super::rendition;
use super::server::RtspFace;
use super::state::ReceivedRequest;
use crate::rtsp::{Reply, target};
use crate::sdp;
use crate::service::{ConnKey, FecWish, GroupAddress, TitleEntry};

impl RtspFace<'_> {
    pub(super) fn describe(&mut self, received: ReceivedRequest<'_>) -> Result<Reply, Reply> {
        let ReceivedRequest { now, conn, request } = received;
        if request.header(&ACCEPT).is_some_and(|value| !accepts_sdp(value.as_str())) {
            return Err(Reply::error(406, "titles are described as application/sdp"));
        }
        let url = request.request_uri().ok_or_else(|| Reply::status(400))?;
        let (target, entry) = self.named(now, conn, url)?;
        self.refuse_if_lost(conn, &entry)?;
        let entry = TitleEntry { fec: entry.fec.filter(|_| self.config.service.fec), ..entry };
        let local = self.conns.get(&conn).map(|conn| conn.local).ok_or_else(|| Reply::status(500))?;
        let renditions = self.service.renditions(&entry);
        let rendition = rendition::wish(request).map(|wish| rendition::described(&wish, &renditions));
        let rendition = rendition.transpose().map_err(|refusal| refusal_reply(&refusal))?;
        let fec = match wish(request) {
            FecWish::Mode(mode) => Some(mode),
            FecWish::Silent | FecWish::Unclear => None,
        };
        let group = match target::query(url, target::MULTICAST) {
            Some(_) => Some(self.described_group(conn, &entry)?),
            None => None,
        };
        let asked = sdp::UrlOptions {
            fec,
            rendition,
            late_end: late_end(request),
            group,
            clock: understands_clock(request),
        };
        Ok(Reply::ok()
            .header(CONTENT_BASE, target::base(url, &target))
            .header(CONTENT_TYPE, "application/sdp")
            .body(sdp::describe(&entry, local.ip(), &renditions, &asked)))
    }
}

impl RtspFace<'_> {
    /// The group that SETUP will name, with its time to live.
    fn described_group(&mut self, conn: ConnKey, entry: &TitleEntry) -> Result<(GroupAddress, u8), Reply> {
        let is_v4 = self.conns.get(&conn).is_some_and(|conn| conn.peer.is_ipv4());
        let group = self.service.group_of(entry, is_v4).map_err(|refusal| refusal_reply(&refusal.into()))?;
        Ok((group, self.config.service.multicast.as_ref().map_or(0, |groups| groups.ttl)))
    }
}

/// Whether a list of media ranges lets SDP through (RFC 2326 section 12.1, RFC 2068 section 14.1).
fn accepts_sdp(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let refused = parts.any(|part| {
            part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()).is_some_and(|q| q <= 0.0)
        });
        matches!(kind.as_str(), "application/sdp" | "application/*" | "*/*" | "*") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::accepts_sdp;

    #[test]
    fn media_ranges() {
        for yes in ["application/sdp", "text/html, application/SDP;q=0.5", "*/*", "application/*;level=2"] {
            assert!(accepts_sdp(yes), "{yes}");
        }
        for no in ["application/rtsl", "application/sdp;q=0", "", "text/*"] {
            assert!(!accepts_sdp(no), "{no}");
        }
    }
}

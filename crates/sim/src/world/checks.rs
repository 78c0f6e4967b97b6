//! The invariants of a world: what the service reports, and what is left at the end.

use std::net::SocketAddr;

use millrace_offload::command::FailReason;
use millrace_server::service::{ConnKey, EndReason, FecChange, Playing, ServiceEvent};

use super::SimWorld;
use crate::http_viewer::ReceivedAmount;
use crate::network::MediaAddress;
use crate::viewer::{FEC_PORT, SimViewer};

impl SimWorld<'_> {
    pub(super) fn take_events(&mut self) -> Result<(), String> {
        for event in self.host.take_happened() {
            self.note_event(&event);
            self.shares.take(&event)?;
            match event {
                ServiceEvent::ConnectionOpened { conn, peer } => _ = self.conns.insert(conn, peer),
                ServiceEvent::Ended { conn: Some(conn), reason: EndReason::TablesFull, .. } => {
                    self.excuse_idle(conn);
                }
                ServiceEvent::Started { .. } => self.summary.sessions += 1,
                ServiceEvent::Fec { session, change: FecChange::Granted, .. } => self.grant_fec(&session),
                ServiceEvent::Fec { .. } => self.has_less_fec = true,
                ServiceEvent::Playing(Playing { without_fec: Some(_), .. }) => self.has_less_fec = true,
                ServiceEvent::Sent { packets, .. } => self.reported_packets += packets,
                ServiceEvent::Closed { session, peer, reason, totals, .. } => {
                    self.check_closed(&session, peer, reason)?;
                    if let Some(totals) = totals {
                        self.check_totals(peer, totals.packets, totals.bytes)?;
                    }
                }
                ServiceEvent::Delivered { peer, totals: Some(totals), .. } => {
                    self.check_delivered(peer, totals.bytes)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Full tables have ended a session. `Closed` follows when its engine has had a turn, which may
    /// be after the answer to the next request.
    fn excuse_idle(&mut self, conn: ConnKey) {
        let peer = self.conns.get(&conn).copied();
        let is_idle = |viewer: &&mut SimViewer| Some(viewer.peer()) == peer && !viewer.plays();
        if let Some(viewer) = self.viewers.iter_mut().find(is_idle) {
            viewer.faults_of_its_own.push("did not play while others came");
        }
    }

    fn grant_fec(&mut self, session: &str) {
        let peer = self.shares.peer_of(session);
        if let Some(viewer) = self.viewers.iter_mut().find(|viewer| Some(viewer.peer()) == peer) {
            viewer.fec.is_granted = true;
        }
    }

    /// Compares what viewers are receiving with their limits. Those that what was lost has ended may
    /// not know it.
    pub(super) fn check_shares(&self) -> Result<(), String> {
        let excuses = self.excuses();
        if excuses.is_lost || excuses.was_lost {
            return Ok(());
        }
        let by_rtsp = self.viewers.iter().filter(|viewer| viewer.receives()).map(SimViewer::peer);
        let by_http = self.http.iter().filter(|viewer| viewer.receives()).map(|viewer| viewer.address);
        self.shares.check_received(self.scenario, &by_rtsp.chain(by_http).collect::<Vec<_>>())
    }

    /// Compares the server's count for the orders of a viewer with the bytes that were sent: the next
    /// order may be under way when the engine forgets the one before.
    fn check_delivered(&mut self, peer: SocketAddr, bytes: u64) -> Result<(), String> {
        let Some(viewer) = self.http.iter().find(|viewer| viewer.address == peer) else {
            return Err(format!("an order of {peer}, where no viewer is"));
        };
        let number = viewer.number;
        let delivered = self.delivered.entry(number).or_default();
        *delivered += bytes;
        let sent = self.network.lock().sent.get(&MediaAddress::Bytes(number)).copied().unwrap_or_default();
        if *delivered > sent.bytes {
            return Err(format!(
                "viewer {number} by HTTP: the server counts {delivered} bytes, and sent {sent:?}"
            ));
        }
        Ok(())
    }

    fn note_event(&mut self, event: &ServiceEvent) {
        self.say(|| format!("{event:?}"));
        let text = format!("{} {event:?}", self.now.0);
        for byte in text.bytes() {
            // FNV-1a.
            self.summary.digest = (self.summary.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Checks the reason for which a session has ended.
    fn check_closed(&mut self, session: &str, peer: SocketAddr, reason: EndReason) -> Result<(), String> {
        let is_lost = self.excuses().is_lost;
        let Some(viewer) = self.viewers.iter_mut().find(|viewer| viewer.ip == peer.ip()) else {
            return Err(format!("session {session} of {peer}, where no viewer is"));
        };
        let own = !viewer.faults_of_its_own.is_empty();
        let is_allowed = match reason {
            EndReason::TornDown => viewer.is_over() || own || viewer.session.is_some(),
            EndReason::Expired => own || is_lost || viewer.is_over(),
            EndReason::Disconnected => own || is_lost || viewer.is_over(),
            EndReason::Failed(FailReason::ReadError(_)) => is_lost,
            EndReason::Failed(FailReason::SlowReader) => own || is_lost,
            EndReason::Failed(FailReason::ConnectionClosed(_)) => own || viewer.is_over(),
            EndReason::TablesFull => {
                viewer.faults_of_its_own.push("did not play while others came");
                !viewer.plays()
            }
            _ => false,
        };
        self.summary.failed += u64::from(matches!(reason, EndReason::Failed(_)));
        match is_allowed {
            true => Ok(()),
            false => Err(format!(
                "session {session} of viewer {} ended without a reason: {reason}; it {:?}",
                viewer.number, viewer.faults_of_its_own
            )),
        }
    }

    /// Compares the server's count for a session with the packets that were sent.
    fn check_totals(&self, peer: SocketAddr, packets: u64, bytes: u64) -> Result<(), String> {
        let Some(viewer) = self.viewers.iter().find(|viewer| viewer.ip == peer.ip()) else { return Ok(()) };
        let sent = self.network.lock().sent.get(&viewer.media_address()).copied().unwrap_or_default();
        // One that went over to another engine is counted in its last place.
        let is_whole = self.scenario.server.engines == 1;
        if (is_whole && (sent.packets, sent.bytes) != (packets, bytes)) || packets > sent.packets {
            return Err(format!(
                "viewer {}: the server counts {packets} packets, {bytes} bytes, and sent {sent:?}",
                viewer.number
            ));
        }
        Ok(())
    }

    /// Nothing is left, and everything adds up.
    pub(super) fn check_end(&mut self) -> Result<(), String> {
        let arena = &self.host.arena;
        let leased: Vec<_> = (0..arena.extents()).filter(|&extent| arena.leases(extent) > 0).collect();
        if !leased.is_empty() {
            return Err(format!("extents {leased:?} are leased, and no viewer is left"));
        }
        self.check_durable()?;
        self.check_web()?;
        let is_media = |address: &MediaAddress| !matches!(address, MediaAddress::Udp(_, FEC_PORT));
        let network = self.network.lock();
        let sent = network.sent.iter().filter(|(address, _)| is_media(address));
        let sent = sent.map(|(_, sent)| sent.packets).sum();
        drop(network);
        self.summary.fec_packets = self.viewers.iter().map(|viewer| viewer.fec.packets).sum();
        self.summary.late_leases = self.host.late_leases();
        self.summary.refused_users = self.shares.refused_users;
        self.check_refusals()?;
        self.summary.packets = sent;
        // A server that is killed takes with it the count of its last runs.
        if self.starts == 0 && self.reported_packets != sent {
            return Err(format!("{sent} packets were sent, and {} reported", self.reported_packets));
        }
        Ok(())
    }

    /// Nothing is refused where everybody has room.
    fn check_refusals(&self) -> Result<(), String> {
        let server = &self.scenario.server;
        // FEC has a place beside its media, and a viewer of segments has one that it keeps for a while.
        let viewers = self.scenario.viewers.len() * 2 + self.scenario.http.len() * 2;
        let places = server.max_streams.min(server.streams_per_engine);
        let has_limits = server.address_share_percent < 100 || !self.scenario.users.is_empty();
        let has_room = viewers <= places && !has_limits && self.starts == 0;
        match self.summary.refused {
            refused @ 1.. if has_room => Err(format!("{refused} requests were refused, and there was room")),
            _ => Ok(()),
        }
    }

    /// The counters of service and web side equal the viewers' own.
    fn check_web(&self) -> Result<(), String> {
        for viewer in self.http.iter().filter(|_| self.starts == 0) {
            let sent = self.network.lock().sent.get(&MediaAddress::Bytes(viewer.number)).copied();
            let (sent, delivered) = (sent.unwrap_or_default(), self.delivered.get(&viewer.number));
            if delivered.copied().unwrap_or_default() != sent.bytes {
                let number = viewer.number;
                return Err(format!(
                    "viewer {number} by HTTP: {delivered:?} bytes are counted, and {sent:?} sent"
                ));
            }
        }
        let counted = self.host.web_counters();
        let mut seen = ReceivedAmount::default();
        for viewer in &self.http {
            seen.media_bytes += viewer.received.media_bytes;
            seen.media_answers += viewer.received.media_answers;
            seen.cut += viewer.received.cut;
        }
        let sent = counted.media_orders - counted.media_refused - counted.media_broken;
        // Bytes on their way to a viewer that goes are counted and not seen, and a server that is
        // killed takes its counters with it.
        let is_exact = self.http.iter().all(|viewer| viewer.faults_of_its_own.is_empty());
        let is_right = match (is_exact, self.starts) {
            (true, 0) => {
                (counted.media_bytes, sent, counted.media_broken)
                    == (seen.media_bytes, seen.media_answers, seen.cut)
            }
            (false, 0) => counted.media_bytes >= seen.media_bytes && sent >= seen.media_answers,
            _ => true,
        };
        if is_right {
            Ok(())
        } else {
            Err(format!("the web side counts {counted:?}, and viewers saw {seen:?}"))
        }
    }
}

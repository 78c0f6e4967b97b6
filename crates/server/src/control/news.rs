//! Events of viewers, for the listeners at the web side.

use millrace_web::{Feed, SiteEvent};

use super::refusals;
use crate::service::ServiceEvent;

/// Tells listeners, if the event is for them.
pub(super) fn tell(feed: &Feed, event: &ServiceEvent) {
    match event {
        ServiceEvent::Started { .. }
        | ServiceEvent::Closed { .. }
        | ServiceEvent::FetchBegan { .. }
        | ServiceEvent::FetchEnded { .. } => feed.tell(|| of_session(event)),
        event if refusals::is_refusal(event) => {
            feed.tell(|| SiteEvent::Refusal { what: refusals::words(event) })
        }
        _ => {}
    }
}

fn of_session(event: &ServiceEvent) -> SiteEvent {
    match event {
        ServiceEvent::Started { session, title, peer, transport, agent, .. } => SiteEvent::SessionBegun {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            transport: transport.clone(),
            agent: agent.clone(),
        },
        ServiceEvent::Closed { session, title, peer, reason, lasted_ns, totals, .. } => {
            SiteEvent::SessionEnded {
                session: session.clone(),
                title: title.clone(),
                peer: peer.to_string(),
                reason: reason.to_string(),
                lasted_s: *lasted_ns as f64 / 1e9,
                packets: totals.map(|totals| totals.packets),
                late_packets: totals.map(|totals| totals.late),
            }
        }
        ServiceEvent::FetchBegan { session, title, peer, agent } => SiteEvent::SessionBegun {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            transport: "segments".to_owned(),
            agent: agent.clone(),
        },
        ServiceEvent::FetchEnded { session, title, peer, reason, lasted_ns } => SiteEvent::SessionEnded {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            reason: reason.to_string(),
            lasted_s: *lasted_ns as f64 / 1e9,
            packets: None,
            late_packets: None,
        },
        other => SiteEvent::Refusal { what: refusals::words(other) },
    }
}

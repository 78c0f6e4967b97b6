//! Events of viewers, for the listeners at the web side.

use millrace_web::{Feed, News};

use super::refusals;
use crate::service::Event;

/// Tells listeners, if the event is for them.
pub(super) fn tell(feed: &Feed, event: &Event) {
    match event {
        Event::Started { .. }
        | Event::Closed { .. }
        | Event::FetchBegan { .. }
        | Event::FetchEnded { .. } => feed.tell(|| of_session(event)),
        event if refusals::is_refusal(event) => feed.tell(|| News::Refusal { what: refusals::words(event) }),
        _ => {}
    }
}

fn of_session(event: &Event) -> News {
    match event {
        Event::Started { session, title, peer, transport, agent, .. } => News::SessionBegun {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            transport: transport.clone(),
            agent: agent.clone(),
        },
        Event::Closed { session, title, peer, reason, lasted_ns, totals, .. } => News::SessionEnded {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            reason: reason.to_string(),
            lasted_s: *lasted_ns as f64 / 1e9,
            packets: totals.map(|totals| totals.packets),
            late_packets: totals.map(|totals| totals.late),
        },
        Event::FetchBegan { session, title, peer, agent } => News::SessionBegun {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            transport: "segments".to_owned(),
            agent: agent.clone(),
        },
        Event::FetchEnded { session, title, peer, reason, lasted_ns } => News::SessionEnded {
            session: session.clone(),
            title: title.clone(),
            peer: peer.to_string(),
            reason: reason.to_string(),
            lasted_s: *lasted_ns as f64 / 1e9,
            packets: None,
            late_packets: None,
        },
        other => News::Refusal { what: refusals::words(other) },
    }
}

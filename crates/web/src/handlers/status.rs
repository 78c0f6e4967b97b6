//! `/api/v1/status`: the state of the server, for its operator. It shows the viewers and their
//! titles, so it is for this machine only.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::Answer;
use crate::context::ServerContext;
use crate::events;
use crate::limits::MAX_SESSIONS_SHOWN;
use crate::site::Site;
use crate::status::Status;

/// Figures from the counters, besides the status.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "Figures")]
struct StatusFigures {
    /// Streams that are being sent, by RTSP and HTTP.
    streams: u64,
    /// Media sent since the start: a client that asks twice can compute the bit rate.
    sent_bytes: u64,
    packets: u64,
    late_packets: u64,
    late_max_s: f64,
    sessions_left_out: usize,
}

/// How the server is.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Status")]
pub(crate) struct Whole {
    #[serde(flatten)]
    figures: StatusFigures,
    #[serde(flatten)]
    status: Status,
}

/// `/api/v1/status`
pub(crate) async fn answer(shared: &Arc<ServerContext>) -> Answer {
    match shared.reading(|shared| shared.site.status()).await {
        Ok(status) => with_figures(&*shared.site, status),
        Err(error) => Answer::error(503, &error.to_string()),
    }
}

fn with_figures(site: &dyn Site, mut status: Status) -> Answer {
    let mut figures = StatusFigures::default();
    for engine in events::sums(site).into_values() {
        figures.streams += engine.streams;
        figures.sent_bytes += engine.bytes;
        figures.packets += engine.packets;
        figures.late_packets += engine.late;
        figures.late_max_s = figures.late_max_s.max(engine.late_max_ns as f64 / 1e9);
    }
    figures.sessions_left_out = status.sessions.len().saturating_sub(MAX_SESSIONS_SHOWN);
    // The newest: whoever looks has just heard of them.
    status.sessions.drain(..figures.sessions_left_out);
    Answer::json(&Whole { figures, status })
}

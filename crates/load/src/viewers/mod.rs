//! Viewers: over RTSP, over HTTP, and listeners.
//!
//! | module | holds |
//! | --- | --- |
//! | `rtsp` | a viewer of a title over RTSP |
//! | `web` | one of a file or of HLS, with its connection |
//! | `listener` | a stream that a sender sends without a request |

mod listener;
mod rtsp;
mod web;

use millrace_core::time::Instant;

use crate::plan::LoadPlan;
use crate::target::{LoadTarget, Seat};
use crate::viewer::{LoadViewer, ViewerContext};
use listener::Listener;
use rtsp::RtspViewer;
use web::WebViewer;

/// A viewer of the title of this seat begins: opens its first socket.
///
/// # Errors
/// Why it cannot, in words without numbers that vary.
pub(crate) fn open_viewer(
    plan: &LoadPlan,
    seat: Seat,
    now: Instant,
    lent: &mut ViewerContext<'_>,
) -> Result<Box<dyn LoadViewer>, String> {
    Ok(match &plan.targets[seat.title] {
        LoadTarget::Rtsp { url, server } => Box::new(RtspViewer::new(plan, seat, url, *server, now, lent)?),
        LoadTarget::Web { url, hosts } => Box::new(WebViewer::new(plan, seat, url, hosts, now, lent)?),
        LoadTarget::Listen(url) => Box::new(Listener::new(plan, seat, url, now, lent)?),
    })
}

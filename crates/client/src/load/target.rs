//! What there is to watch, and which viewer watches it.

use std::net::{IpAddr, SocketAddr};

use millrace_core::time::Instant;

use super::Plan;
use super::rtsp::RtspViewer;
use super::viewer::{Lent, Viewer};
use crate::error::ClientError;
use crate::net::resolve;
use crate::url::RtspUrl;

/// Something to watch.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// A film of an RTSP server, with an address of its host.
    Rtsp { url: RtspUrl, server: SocketAddr },
}

/// Who begins to watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// Number of the viewer, from 0.
    pub(super) index: u32,
    /// What it watches: a place in [`Plan::targets`].
    pub(super) title: usize,
}

impl Target {
    /// Reads a target and finds its host's address, of the family of `local` if that is given.
    pub(super) fn parse(text: &str, local: Option<IpAddr>) -> Result<Self, ClientError> {
        let scheme = text.trim().split("://").next().unwrap_or_default().to_ascii_lowercase();
        match scheme.as_str() {
            _ if !text.contains("://") => Self::rtsp(text, local), // says what is wrong
            "rtsp" | "rtspt" | "rtspu" | "rtsps" => Self::rtsp(text, local),
            _ => Err(ClientError::Url { given: text.to_owned(), why: "the scheme is not rtsp" }),
        }
    }

    fn rtsp(text: &str, local: Option<IpAddr>) -> Result<Self, ClientError> {
        let url = RtspUrl::parse(text)?;
        let server = resolve(url.host(), url.port(), local)?
            .first()
            .copied()
            .ok_or_else(|| ClientError::Url { given: text.to_owned(), why: "its host has no address" })?;
        Ok(Self::Rtsp { url, server })
    }

    /// A viewer of this target begins: opens its first socket.
    ///
    /// # Errors
    /// Why it cannot, in words without numbers that vary.
    pub(super) fn viewer(
        &self,
        plan: &Plan,
        seat: Seat,
        now: Instant,
        lent: &mut Lent<'_>,
    ) -> Result<Box<dyn Viewer>, String> {
        Ok(match self {
            Self::Rtsp { url, server } => Box::new(RtspViewer::new(plan, seat, url, *server, now, lent)?),
        })
    }

    /// For reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Rtsp { url, .. } => url.to_string(),
        }
    }
}

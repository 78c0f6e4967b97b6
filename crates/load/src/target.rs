//! What there is to watch, and which viewer watches it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_client::error::ClientError;
use millrace_client::listen::ListenUrl;
use millrace_client::net::resolve;
use millrace_client::url::RtspUrl;

use crate::web::Hosts;
use crate::web::address::HttpUrl;

/// A source of media to receive.
#[derive(Clone, Debug)]
pub(super) enum LoadTarget {
    /// A title of an RTSP server, with an address of its host.
    Rtsp { url: RtspUrl, server: SocketAddr },
    /// A file or an HLS title of an HTTP server.
    Web { url: HttpUrl, hosts: Arc<Hosts> },
    /// A stream that a sender sends here.
    Listen(ListenUrl),
}

/// The viewer that begins to watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    /// Number of the viewer, from 0.
    pub(super) index: u32,
    /// The title it watches: an index into the targets of the load.
    pub(super) title: usize,
}

impl LoadTarget {
    /// Reads a target and finds its host's address, of the family of `local` if that is given.
    pub(super) fn parse(text: &str, local: Option<IpAddr>) -> Result<Self, ClientError> {
        let scheme = text.trim().split("://").next().unwrap_or_default().to_ascii_lowercase();
        match scheme.as_str() {
            _ if !text.contains("://") => Self::rtsp(text, local), // says what is wrong
            "rtsp" | "rtspt" | "rtspu" | "rtsps" => Self::rtsp(text, local),
            "http" | "https" => Self::web(text, local),
            "udp" | "rtp" => ListenUrl::parse(text)
                .map(Self::Listen)
                .map_err(|why| ClientError::Target { given: text.to_owned(), why }),
            _ => {
                let why = "the scheme is not rtsp, http, udp or rtp";
                Err(ClientError::Target { given: text.to_owned(), why })
            }
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

    fn web(text: &str, local: Option<IpAddr>) -> Result<Self, ClientError> {
        let url = HttpUrl::parse(text).map_err(|why| ClientError::Target { given: text.to_owned(), why })?;
        let hosts = Arc::new(Hosts::default());
        hosts.first(&url, local)?;
        Ok(Self::Web { url, hosts })
    }

    /// For reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Rtsp { url, .. } => url.to_string(),
            Self::Web { url, .. } => url.to_string(),
            Self::Listen(url) => url.to_string(),
        }
    }
}

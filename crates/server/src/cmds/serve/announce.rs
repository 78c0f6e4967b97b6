//! `--sap`: the thread that announces casts.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;

use super::ServeArgs;
use super::worker::Worker;
use crate::cast::sap::{AnnouncedCast, Announcer, SapMessage};
use crate::cast::sender::source_of;
use crate::cast::{CastSender, CastUrl, PacedSink};
use crate::control::Asker;
use crate::limits::cast::SAP_LOOK;
use crate::live::address::LiveTransport;
use crate::service::CastStatus;

/// Announces the RTP outputs of channels, and casts that viewers have started.
struct SapThread {
    outputs: Vec<AnnouncedCast>,
    interface: Option<String>,
    asker: Asker,
    announcer: Announcer,
    /// The last message could not be sent.
    has_failed: bool,
}

impl ServeArgs {
    /// Starts the thread, if announcements are wanted.
    pub(super) fn announce(&self, asker: Asker) -> anyhow::Result<Option<Worker>> {
        if !self.sap {
            return Ok(None);
        }
        let urls = self.channels.iter().flat_map(|channel| channel.to.iter().map(|url| (&channel.name, url)));
        let groups = urls.filter(|(_, url)| url.is_multicast() && url.transport == LiveTransport::Rtp);
        let outputs = groups.zip(1..).map(|((name, url), id)| AnnouncedCast {
            name: name.clone(),
            url: url.clone(),
            id,
        });
        let interface = self.multicast.as_ref().and_then(|groups| groups.interface.clone());
        let (announcer, has_failed) = (Announcer::default(), false);
        let mut thread = SapThread { outputs: outputs.collect(), interface, asker, announcer, has_failed };
        let worker = Worker::start("sap", move |stop: &std::sync::Arc<AtomicBool>| {
            while !stop.load(Ordering::Relaxed) {
                thread.look(MonotonicClock.now());
                std::thread::park_timeout(SAP_LOOK);
            }
            let over = thread.announcer.end();
            thread.send(&over);
        });
        Ok(Some(worker.context("thread of announcements")?))
    }
}

impl SapThread {
    fn look(&mut self, now: Instant) {
        let started = self.asker.casts();
        let started = started.iter().filter(|cast| cast.is_sending).filter_map(|cast| self.announced(cast));
        let casts: Vec<_> = self.outputs.iter().cloned().chain(started).collect();
        let due = self.announcer.look(now, &casts);
        self.send(&due);
    }

    fn announced(&self, cast: &CastStatus) -> Option<AnnouncedCast> {
        let to = SocketAddr::new(cast.to.group, cast.to.port);
        let interface = self.interface.as_ref().map(|name| format!("&iface={name}")).unwrap_or_default();
        let url = format!("rtp://{to}?ttl={}{interface}", cast.ttl).parse().ok()?;
        Some(AnnouncedCast { name: cast.title.clone(), url, id: cast.ssrc })
    }

    fn send(&mut self, messages: &[SapMessage]) {
        for message in messages {
            let sent = send_one(message);
            if let Err(error) = &sent
                && !self.has_failed
            {
                tracing::warn!("announcement of {}: {error}; check the interface and the route", message.url);
            }
            self.has_failed = sent.is_err();
        }
    }
}

/// By a socket of its own: messages are minutes apart.
fn send_one(message: &SapMessage) -> anyhow::Result<()> {
    let interface = message.url.interface.as_ref().map(|name| format!("&iface={name}")).unwrap_or_default();
    // Time to live of announcements: RFC 2974 section 3.
    let url: CastUrl = format!("udp://{}?ttl=255{interface}", message.group()).parse()?;
    let mut sender = CastSender::open(&url)?;
    let bytes = message.to_bytes(source_of(&url)?);
    let now = MonotonicClock.now();
    sender.datagram(now, 0, &bytes);
    sender.flush(now);
    sender.take_error().map_or(Ok(()), |error| Err(error.into()))
}

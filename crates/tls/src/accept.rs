//! Handshakes: so many at once, each within its time. When there are too many the oldest is given up, so that clients that stall keep nobody out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_core::limits::tls::{HANDSHAKE_TIME, MAX_HANDSHAKES};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificates::{CertificateError, Certificates};
use crate::totals::Totals;

/// Answers handshakes.
#[derive(Clone)]
pub struct Acceptor {
    tls: TlsAcceptor,
    under_way: Arc<Mutex<UnderWay>>,
    limit: Duration,
    pub(crate) totals: Arc<Totals>,
}

/// Handshakes under way, the oldest first, each with what ends it when it is dropped.
#[derive(Default)]
struct UnderWay {
    next: u64,
    all: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A place among them.
struct Place<'a> {
    under_way: &'a Mutex<UnderWay>,
    number: u64,
}

impl Acceptor {
    /// With these certificates, and with these protocols offered above TLS (ALPN); none: no such choice is made.
    ///
    /// # Errors
    /// The library cannot be set up.
    pub fn new(
        certificates: &Arc<Certificates>,
        protocols: &[&str],
        totals: &Arc<Totals>,
    ) -> Result<Self, CertificateError> {
        let tls = TlsAcceptor::from(certificates.server_config(protocols)?);
        Ok(Self { tls, under_way: Arc::default(), limit: HANDSHAKE_TIME, totals: Arc::clone(totals) })
    }

    /// Answers a client's handshake; `None`, counted: nothing came of it.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<TlsStream<S>> {
        let (place, given_up) = self.begin();
        let done = tokio::select! {
            done = timeout(self.limit, self.tls.accept(stream)) => Some(done),
            _ = given_up => None,
        };
        drop(place);
        let (counted, stream) = match done {
            Some(Ok(Ok(stream))) => (Counted::Done, Some(stream)),
            Some(Ok(Err(error))) => {
                tracing::debug!(%error, "TLS: a handshake failed");
                (Counted::Failed, None)
            }
            Some(Err(_)) => (Counted::TooSlow, None),
            None => (Counted::Dropped, None),
        };
        self.totals.add(|c| match counted {
            Counted::Done => c.handshakes += 1,
            Counted::Failed => c.handshakes_failed += 1,
            Counted::TooSlow => c.handshakes_too_slow += 1,
            Counted::Dropped => c.handshakes_dropped += 1,
        });
        stream
    }

    /// A place for one more, and what says that it was given up for newer ones.
    fn begin(&self) -> (Place<'_>, oneshot::Receiver<()>) {
        let (ends, given_up) = oneshot::channel();
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if under_way.all.len() >= MAX_HANDSHAKES {
            under_way.all.pop_first();
        }
        let number = under_way.next;
        under_way.next += 1;
        under_way.all.insert(number, ends);
        (Place { under_way: &self.under_way, number }, given_up)
    }
}

/// How a handshake is counted.
#[derive(Clone, Copy)]
enum Counted {
    Done,
    Failed,
    TooSlow,
    Dropped,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).all.remove(&self.number);
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

#[cfg(test)]
#[path = "accept_tests.rs"]
mod tests;

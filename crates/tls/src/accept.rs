//! Handshakes, limited in number and in time. At the limit, the server gives up one of the client
//! with the most in progress, so that stalling clients keep no other client out, however slow its
//! network is.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_core::address::network_of;
use rustls::ServerConfig;
use rustls::server::Acceptor as HelloReader;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::certificates::{CertificateError, Certificates};
use crate::limits::{HANDSHAKE_TIME, MAX_HANDSHAKES, SILENT_HANDSHAKE_WEIGHT};
use crate::totals::Totals;

/// Answers handshakes.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    under_way: Arc<Mutex<UnderWay>>,
    limit: Duration,
    pub(crate) totals: Arc<Totals>,
}

/// Handshakes in progress, by client.
#[derive(Default)]
struct UnderWay {
    next: u64,
    count: usize,
    clients: HashMap<IpAddr, ClientHandshakes>,
}

/// Handshakes of one client, the oldest first. Dropping a sender ends its handshake.
#[derive(Default)]
struct ClientHandshakes {
    /// Handshakes without a whole ClientHello.
    silent: BTreeMap<u64, oneshot::Sender<()>>,
    /// Handshakes with a whole ClientHello.
    begun: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The slot of a pending handshake; released when it is dropped.
struct HandshakeSlot<'a> {
    under_way: &'a Mutex<UnderWay>,
    client: IpAddr,
    number: u64,
}

impl ClientHandshakes {
    fn is_empty(&self) -> bool {
        self.silent.is_empty() && self.begun.is_empty()
    }

    /// The weight of its handshakes, and a number that is higher the older the handshake is that
    /// would be given up.
    fn weight(&self) -> (usize, u64) {
        let oldest = self.silent.keys().next().or_else(|| self.begun.keys().next());
        let weight = self.silent.len() * SILENT_HANDSHAKE_WEIGHT + self.begun.len();
        (weight, oldest.map_or(0, |oldest| u64::MAX - oldest))
    }
}

impl UnderWay {
    fn begin(&mut self, client: IpAddr) -> (u64, oneshot::Receiver<()>) {
        if self.count >= MAX_HANDSHAKES {
            self.give_one_up();
        }
        let (ends, given_up) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        self.count += 1;
        self.clients.entry(client).or_default().silent.insert(number, ends);
        (number, given_up)
    }

    /// Gives up a handshake of the client with the greatest weight: its oldest without a
    /// ClientHello, or else its oldest. Among clients of equal weight, the oldest handshake goes.
    fn give_one_up(&mut self) {
        let heaviest = self.clients.iter().max_by_key(|(_, held)| held.weight()).map(|(client, _)| *client);
        let Some(client) = heaviest else { return };
        let Some(held) = self.clients.get_mut(&client) else { return };
        if held.silent.pop_first().or_else(|| held.begun.pop_first()).is_some() {
            self.count -= 1;
        }
        self.forget_if_empty(client);
    }

    /// Records that a whole ClientHello has arrived.
    fn has_begun(&mut self, client: IpAddr, number: u64) {
        let Some(held) = self.clients.get_mut(&client) else { return };
        if let Some(ends) = held.silent.remove(&number) {
            held.begun.insert(number, ends);
        }
    }

    fn end(&mut self, client: IpAddr, number: u64) {
        let Some(held) = self.clients.get_mut(&client) else { return };
        if held.silent.remove(&number).or_else(|| held.begun.remove(&number)).is_some() {
            self.count -= 1;
        }
        self.forget_if_empty(client);
    }

    fn forget_if_empty(&mut self, client: IpAddr) {
        if self.clients.get(&client).is_some_and(ClientHandshakes::is_empty) {
            self.clients.remove(&client);
        }
    }
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
        let config = certificates.server_config(protocols)?;
        Ok(Self { config, under_way: Arc::default(), limit: HANDSHAKE_TIME, totals: Arc::clone(totals) })
    }

    /// Performs the handshake of a client at this address. A failed handshake is counted and
    /// returns `None`.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        peer: IpAddr,
    ) -> Option<TlsStream<S>> {
        let client = network_of(peer);
        let (number, given_up) = lock(&self.under_way).begin(client);
        let place = HandshakeSlot { under_way: &self.under_way, client, number };
        let done = tokio::select! {
            done = timeout(self.limit, self.shake_hands(stream, &place)) => Some(done),
            _ = given_up => None,
        };
        drop(place);
        let (counted, stream) = match done {
            Some(Ok(Ok(stream))) => (HandshakeOutcome::Done, Some(stream)),
            Some(Ok(Err(error))) => {
                tracing::debug!(%error, "TLS: a handshake failed");
                (HandshakeOutcome::Failed, None)
            }
            Some(Err(_)) => (HandshakeOutcome::TooSlow, None),
            None => (HandshakeOutcome::Dropped, None),
        };
        self.totals.add(|c| match counted {
            HandshakeOutcome::Done => c.handshakes += 1,
            HandshakeOutcome::Failed => c.handshakes_failed += 1,
            HandshakeOutcome::TooSlow => c.handshakes_too_slow += 1,
            HandshakeOutcome::Dropped => c.handshakes_dropped += 1,
        });
        stream
    }

    async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        place: &HandshakeSlot<'_>,
    ) -> io::Result<TlsStream<S>> {
        let begun = LazyConfigAcceptor::new(HelloReader::default(), stream).await?;
        lock(place.under_way).has_begun(place.client, place.number);
        begun.into_stream(Arc::clone(&self.config)).await
    }
}

fn lock(under_way: &Mutex<UnderWay>) -> MutexGuard<'_, UnderWay> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a handshake is counted.
#[derive(Clone, Copy)]
enum HandshakeOutcome {
    Done,
    Failed,
    TooSlow,
    Dropped,
}

impl Drop for HandshakeSlot<'_> {
    fn drop(&mut self) {
        lock(self.under_way).end(self.client, self.number);
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

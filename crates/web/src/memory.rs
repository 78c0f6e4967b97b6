//! Memory for HTTP responses: one budget for all of them. When it runs short, each client is
//! limited to its share.
//!
//! Bytes count while any part of them is in memory: in a cache, a response or an HTTP/2 queue.
//! Bytes that a response shares with a cache count once for the server, and also for the client
//! that they are sent to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use millrace_core::address::network_of;
use millrace_core::limits::web::MEMORY_SHORT_PART;

use crate::limits::{MEMORY_CLIENT_PART, SMALL_REPLY_BYTES};
use crate::totals::Totals;

/// The memory budget for responses.
#[derive(Clone, Debug)]
pub(crate) struct ResponseMemory(Arc<MemoryBudget>);

#[derive(Debug)]
struct MemoryBudget {
    most: usize,
    held: Mutex<HeldBytes>,
    totals: Arc<Totals>,
}

/// Bytes held in total and for each client.
#[derive(Debug, Default)]
struct HeldBytes {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// Error: the budget or the client's share of it is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// A reservation from the budget, released when dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    inner: Arc<MemoryBudget>,
    bytes: usize,
    /// The client that is charged, and the bytes charged to it.
    client: Option<(IpAddr, usize)>,
}

/// Bytes with their reservation.
struct ReservedBytes {
    bytes: Bytes,
    _hold: Hold,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ResponseMemory {
    pub(crate) fn new(most: usize, totals: &Arc<Totals>) -> Self {
        Self(Arc::new(MemoryBudget { most, held: Mutex::default(), totals: Arc::clone(totals) }))
    }

    /// The size of the budget.
    pub(crate) fn most(&self) -> usize {
        self.0.most
    }

    /// Reserves memory for the server itself.
    pub(crate) fn take(&self, bytes: usize) -> Result<Hold, Exhausted> {
        self.hold(bytes, None)
    }

    /// Reserves memory on behalf of a client.
    pub(crate) fn take_for(&self, peer: SocketAddr, bytes: usize) -> Result<Hold, Exhausted> {
        self.hold(bytes, Some((network_of(peer.ip()), bytes)))
    }

    /// Charges bytes to the client that receives them. The server is charged too, unless they are
    /// `kept`: counted by a cache already, or part of the program.
    pub(crate) fn sends(&self, bytes: Bytes, is_kept: bool, peer: SocketAddr) -> Result<Bytes, Exhausted> {
        if bytes.len() <= SMALL_REPLY_BYTES {
            return Ok(bytes);
        }
        let of_server = if is_kept { 0 } else { bytes.len() };
        let hold = self.hold(of_server, Some((network_of(peer.ip()), bytes.len())))?;
        Ok(hold.over(bytes))
    }

    fn hold(&self, bytes: usize, client: Option<(IpAddr, usize)>) -> Result<Hold, Exhausted> {
        let MemoryBudget { most, totals, .. } = &*self.0;
        let mut held = self.0.lock();
        let after = held.all.saturating_add(bytes);
        let is_short = after > most / MEMORY_SHORT_PART;
        let is_over_share = client.is_some_and(|(client, more)| {
            let has = held.by_client.get(&client).copied().unwrap_or(0);
            is_short && has > 0 && has.saturating_add(more) > most / MEMORY_CLIENT_PART
        });
        if after > *most || is_over_share {
            drop(held);
            totals.add(|c| c.memory_exhausted += 1);
            return Err(Exhausted);
        }
        held.all = after;
        if let Some((client, more)) = client {
            *held.by_client.entry(client).or_default() += more;
        }
        totals.add(|c| c.memory_held_bytes = after as u64);
        drop(held);
        Ok(Hold { inner: Arc::clone(&self.0), bytes, client })
    }
}

impl MemoryBudget {
    fn lock(&self) -> MutexGuard<'_, HeldBytes> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hold {
    /// Holds the reservation while any part of these bytes is in memory.
    pub(crate) fn over(self, bytes: impl Into<Bytes>) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes: bytes.into(), _hold: self })
    }

    /// Splits off a reservation of up to `bytes`, charged to no client.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { inner: Arc::clone(&self.inner), bytes, client: None }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.inner.lock();
        held.all -= self.bytes;
        if let Some((client, bytes)) = self.client
            && let Some(has) = held.by_client.get_mut(&client)
        {
            *has -= bytes;
            if *has == 0 {
                held.by_client.remove(&client);
            }
        }
        let all = held.all as u64;
        self.inner.totals.add(|c| c.memory_held_bytes = all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    fn peer(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 5000))
    }

    fn memory() -> (ResponseMemory, Arc<Totals>) {
        let totals = Arc::<Totals>::default();
        (ResponseMemory::new(MOST, &totals), totals)
    }

    fn held(memory: &ResponseMemory) -> (usize, usize) {
        let held = memory.0.lock();
        (held.all, held.by_client.len())
    }

    #[test]
    fn sends_counts_bytes_until_their_last_part_is_gone() {
        let (memory, totals) = memory();
        let bytes = memory.sends(vec![7; 10_000].into(), false, peer(1)).unwrap();
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!((held(&memory), &part[..]), ((10_000, 1), &[7; 10][..]));
        assert_eq!(totals.read().memory_held_bytes, 10_000);
        drop(part);
        assert_eq!((held(&memory), totals.read().memory_held_bytes), ((0, 0), 0));
        // The cache has reserved its own bytes.
        let kept = memory.take(10_000).unwrap().over(vec![1; 10_000]);
        let sent = [1, 1, 2].map(|host| memory.sends(kept.clone(), true, peer(host)).unwrap());
        assert_eq!(held(&memory), (10_000, 2));
        drop(kept);
        assert_eq!(held(&memory), (10_000, 2));
        drop(sent);
        assert_eq!(held(&memory), (0, 0));
    }

    #[test]
    fn take_for_one_client_leaves_room_for_others() {
        let (memory, totals) = memory();
        let piece = MOST / 64;
        let take_all = |host: u8| -> Vec<Hold> {
            std::iter::from_fn(|| memory.take_for(peer(host), piece).ok()).collect()
        };
        // While memory is not short, a client is not limited to its share.
        let first = take_all(1);
        assert_eq!(first.len() * piece, MOST / MEMORY_SHORT_PART);
        // When memory is short, a client gets only its share.
        let second = take_all(2);
        assert_eq!(second.len() * piece, MOST / MEMORY_CLIENT_PART);
        let third = memory.take_for(peer(3), MOST / 4).unwrap();
        drop((first, second));
        drop(third);
        assert_eq!(held(&memory), (0, 0));
        let all: Vec<_> = (0..=255).map(take_all).collect();
        assert_eq!(held(&memory).0, MOST);
        assert!(memory.take(1).is_err() && totals.read().memory_exhausted > 0);
        drop(all);
        assert_eq!((held(&memory), totals.read().memory_held_bytes), ((0, 0), 0));
    }

    #[test]
    fn split_parts_are_given_back_each_by_itself() {
        let (memory, _) = memory();
        let mut hold = memory.take(1000).unwrap();
        let part = hold.split(400).over(vec![0; 400]);
        drop(hold);
        assert_eq!(held(&memory).0, 400);
        drop(part);
        assert_eq!(held(&memory).0, 0);
    }
}

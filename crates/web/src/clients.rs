//! Open connections, and the share of each client: a number of connections, and a number of
//! requests that are worked for at a time.
//!
//! All connections are tasks of one thread, which runs those that are ready one after the other, and
//! has files read by other threads in the order in which it asks. A client with a thousand busy
//! connections would have a thousand tasks in front of anybody else's in both places, so its other
//! requests wait here.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::address::network_of;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::limits::{CLIENT_TURNS, TURN_TIME};
use crate::totals::Totals;

/// Open connections.
#[derive(Debug)]
pub(crate) struct Clients {
    open: Mutex<OpenConnections>,
    /// Notified when the last connection has closed.
    closed: Notify,
    totals: Arc<Totals>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_client: HashMap<IpAddr, ClientUsage>,
}

#[derive(Debug)]
struct ClientUsage {
    connections: usize,
    turns: Arc<Semaphore>,
}

/// A place among the open connections; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    clients: Arc<Clients>,
    address: IpAddr,
    /// It is of a request: the connection is that of a proxy, and counted there.
    is_behind_proxy: bool,
}

/// The right to be worked for.
#[derive(Debug)]
pub(crate) struct WorkPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Clients {
    pub(crate) fn new(totals: &Arc<Totals>) -> Arc<Self> {
        let (open, closed) = (Mutex::default(), Notify::new());
        Arc::new(Self { open, closed, totals: Arc::clone(totals) })
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        loop {
            let closed = self.closed.notified();
            if self.open().all == 0 {
                return;
            }
            closed.await;
        }
    }

    /// Lets a connection in; `None`, counted, if there are `most` already, or `most_of_client` from
    /// its address.
    pub(crate) fn admit(
        self: &Arc<Self>,
        peer: SocketAddr,
        most: usize,
        most_of_client: usize,
    ) -> Option<ConnectionSlot> {
        let address = network_of(peer.ip());
        let mut open = self.open();
        if open.all >= most {
            self.totals.add(|c| c.connections_refused += 1);
            return None;
        }
        if !open.enter(address, most_of_client) {
            self.totals.add(|c| c.connections_refused_address += 1);
            return None;
        }
        open.all += 1;
        self.totals.add(|c| {
            c.connections_accepted += 1;
            c.connections += 1;
        });
        Some(ConnectionSlot { clients: Arc::clone(self), address, is_behind_proxy: false })
    }

    /// Lets a request in that a proxy brings for its client; `None`, counted, if `most_of_client` are under way for its address.
    pub(crate) fn admit_behind_proxy(
        self: &Arc<Self>,
        client: SocketAddr,
        most_of_client: usize,
    ) -> Option<ConnectionSlot> {
        let address = network_of(client.ip());
        if !self.open().enter(address, most_of_client) {
            self.totals.add(|c| c.connections_refused_address += 1);
            return None;
        }
        Some(ConnectionSlot { clients: Arc::clone(self), address, is_behind_proxy: true })
    }

    /// Waits for a turn. A client without other requests waits only until the sockets have been
    /// looked at.
    pub(crate) async fn turn(&self, peer: SocketAddr) -> WorkPermit {
        let turns = {
            let open = self.open();
            open.by_client.get(&network_of(peer.ip())).map(|client| Arc::clone(&client.turns))
        };
        let permit = match turns {
            // The semaphore is never closed.
            Some(turns) => turns.acquire_owned().await.ok(),
            None => None,
        };
        // The runtime continues this task after its next look at the sockets: permits that are used
        // in between are bounded by their number.
        yield_now().await;
        WorkPermit { _permit: permit }
    }
}

impl OpenConnections {
    /// Counts one more of a client, unless it has `most`.
    fn enter(&mut self, address: IpAddr, most: usize) -> bool {
        let client = self
            .by_client
            .entry(address)
            .or_insert_with(|| ClientUsage { connections: 0, turns: Arc::new(Semaphore::new(CLIENT_TURNS)) });
        let has_room = client.connections < most;
        client.connections += usize::from(has_room);
        has_room
    }
}

impl WorkPermit {
    /// Runs `work`. The turn is over when it is done, or after [`TURN_TIME`]: others of this client
    /// must not wait for a disk or a webhook too.
    pub(crate) async fn take<T>(self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        if let Ok(done) = timeout(TURN_TIME, work.as_mut()).await {
            return done;
        }
        drop(self);
        work.await
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.clients.open();
        if let Some(client) = open.by_client.get_mut(&self.address) {
            client.connections -= 1;
            if client.connections == 0 {
                open.by_client.remove(&self.address);
            }
        }
        if self.is_behind_proxy {
            return;
        }
        open.all -= 1;
        if open.all == 0 {
            self.clients.closed.notify_waiters();
        }
        self.clients.totals.add(|c| c.connections -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::pending;
    use std::pin::pin;
    use std::rc::Rc;

    use std::time::Instant;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    fn peer(host: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, host], 5000))
    }

    #[test]
    fn admit_counts_for_each_client_and_for_all() {
        let totals = Arc::<Totals>::default();
        let clients = Clients::new(&totals);
        let places = [1, 1, 1, 2, 2].map(|host| clients.admit(peer(host), 3, 2));
        assert_eq!(places.each_ref().map(Option::is_some), [true, true, false, true, false]);
        let counted = totals.read();
        assert_eq!((counted.connections, counted.connections_accepted), (3, 3));
        assert_eq!((counted.connections_refused_address, counted.connections_refused), (1, 1));
        drop(places);
        assert_eq!((totals.read().connections, clients.open().by_client.len()), (0, 0));
    }

    /// Runs `work` on the kind of thread that the web side has.
    fn run(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        LocalSet::new().block_on(&runtime, work);
    }

    #[test]
    fn turn_of_a_client_with_many_requests_passes_to_others_between_them() {
        const MANY: usize = 1000;
        let clients = Clients::new(&Arc::default());
        let _places = [1, 2].map(|host| clients.admit(peer(host), 10, 10));
        let (order, came_after) = (Rc::new(RefCell::new(Vec::new())), Cell::new(0));
        run(async {
            let ask = |host: u8| {
                let (clients, order) = (Arc::clone(&clients), Rc::clone(&order));
                spawn_local(async move {
                    let turn = clients.turn(peer(host)).await;
                    turn.take(pin!(async { order.borrow_mut().push(host) })).await;
                })
            };
            let mut asked: Vec<_> = (0..MANY).map(|_| ask(1)).collect();
            while order.borrow().is_empty() {
                yield_now().await;
            }
            came_after.set(order.borrow().len());
            asked.push(ask(2));
            for asked in asked {
                asked.await.unwrap();
            }
        });
        let order = order.take();
        let before = order.iter().position(|&host| host == 2).unwrap() - came_after.get();
        assert_eq!(order.len(), MANY + 1);
        // The thread goes through its queue twice: the other one asks, and has its turn.
        assert!(before <= 4 * CLIENT_TURNS, "{before}");
    }

    #[test]
    fn take_gives_the_turn_to_the_next_one_when_work_waits_too_long() {
        let clients = Clients::new(&Arc::default());
        let _place = clients.admit(peer(1), 1, 1);
        run(async {
            let never: Vec<_> = (0..CLIENT_TURNS)
                .map(|_| {
                    let clients = Arc::clone(&clients);
                    spawn_local(async move { clients.turn(peer(1)).await.take(pin!(pending::<()>())).await })
                })
                .collect();
            // These have all turns.
            yield_now().await;
            let begun = Instant::now();
            let turn = clients.turn(peer(1)).await;
            assert!(begun.elapsed() >= TURN_TIME);
            assert_eq!(turn.take(pin!(async { 7 })).await, 7);
            assert!(never.iter().all(|task| !task.is_finished()));
        });
    }
}

//! The offload engine beside the kernel's TCP: its listeners, and what happens when its device goes and comes back.
//!
//! The kernel's listeners know nothing of it. When the device goes, the connections that it carried
//! are over, and new clients come through the kernel's addresses. From then on the engine is looked
//! for again, first soon and then less and less often.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use millrace_core::counters::{CounterKind, Group, Sheet};
use millrace_core::limits::control::ACCEPT_PAUSE;
use millrace_core::limits::toe::MAX_BACKLOG;
use millrace_offload::toe::tokio::{Reactor, TcpListener, TcpStream};
use millrace_offload::toe::{self, CounterSheets, IpCounters, TcpCounters, ToeCounters};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::conn;
use super::hub::SharedHub;
use super::stream::{ConnOrigin, ViewerStream};
use crate::limits::control::{CONTROL_TICK, OFFLOAD_RETRY_FIRST, OFFLOAD_RETRY_MOST};

/// Opens the engine's device and starts the engine, as often as it is asked; on a thread that may wait.
pub trait OpenOffload: Send {
    /// # Errors
    /// Why that cannot be now: what failed, where, and what to do.
    fn open(&mut self) -> Result<toe::Engine, String>;
}

/// An offload engine for viewers, and where it listens.
pub struct Offload {
    /// The running engine; or why none runs, which was reported to the operator.
    pub engine: Result<toe::Engine, String>,
    /// How another one is started when that one has ended.
    pub opener: Box<dyn OpenOffload>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The port at each of them.
    pub port: u16,
    /// The loop that writes to its connections.
    pub writer: usize,
    /// Where each engine is announced, so that another thread may also be a host of it
    /// ([`http_by_offload`](super::http_by_offload)).
    pub shown: watch::Sender<Weak<toe::Engine>>,
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, addresses, port, writer, .. } = self;
        let mut out = f.debug_struct("Offload");
        out.field("runs", &engine.is_ok()).field("addresses", addresses).field("port", port);
        out.field("writer", writer).finish_non_exhaustive()
    }
}

/// The work of an offload engine, or of several one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OffloadCounters {
    engine: ToeCounters,
    tcp: TcpCounters,
    ip: IpCounters,
}

impl OffloadCounters {
    fn of(sheets: &CounterSheets) -> Self {
        Self { engine: sheets.engine(), tcp: sheets.stack(), ip: sheets.ip() }
    }

    /// Sums of both, and what there is now of the other.
    pub(super) fn and(&self, now: &Self) -> Self {
        Self {
            engine: together(&self.engine, &now.engine),
            tcp: together(&self.tcp, &now.tcp),
            ip: together(&self.ip, &now.ip),
        }
    }
}

fn together<G: Group>(before: &G, now: &G) -> G {
    let (mut earlier, mut values) = (Vec::new(), Vec::new());
    before.put(|value| earlier.push(value));
    let mut place = G::COUNTERS.iter().zip(earlier);
    now.put(|value| match place.next() {
        Some((counter, earlier)) if counter.kind == CounterKind::Sum => values.push(earlier + value),
        _ => values.push(value),
    });
    let mut values = values.into_iter();
    G::take(|| values.next().unwrap_or_default())
}

/// Where others read it.
#[derive(Debug, Default)]
pub struct OffloadSheets {
    /// The engine.
    pub engine: Sheet<ToeCounters>,
    /// Its TCP.
    pub tcp: Sheet<TcpCounters>,
    /// Its IP layer.
    pub ip: Sheet<IpCounters>,
}

impl OffloadSheets {
    pub(super) fn publish(&self, counters: &OffloadCounters) {
        self.engine.publish(&counters.engine);
        self.tcp.publish(&counters.tcp);
        self.ip.publish(&counters.ip);
    }
}

/// Serves viewers by the engine for ever, and starts it again when it has ended.
pub(super) async fn run(hub: SharedHub, offload: Offload) {
    let Offload { engine, mut opener, addresses, port, writer, shown } = offload;
    let ends: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
    let mut pause = OFFLOAD_RETRY_FIRST;
    let (mut engine, mut said) = match engine {
        Ok(engine) => (Some(engine), None),
        Err(why) => (None, Some(why)),
    };
    loop {
        let opened = match engine.take() {
            Some(engine) => Ok(engine),
            None => {
                sleep(pause).await;
                pause = (pause * 2).min(OFFLOAD_RETRY_MOST);
                let tried = spawn_blocking(move || (opener.open(), opener)).await;
                // It ends by a panic only, and then there is nothing to try with.
                let Ok((opened, back)) = tried else { return };
                opener = back;
                opened
            }
        };
        match opened {
            Ok(engine) => {
                let since = hub.borrow().now();
                let why = serve(&hub, Arc::new(engine), &ends, (writer, &shown)).await;
                let mut hub = hub.borrow_mut();
                if !hub.offload_lost(why) {
                    return;
                }
                said = None;
                // One that comes and goes is not asked for every second.
                if u128::from(hub.now().ns_since(since)) >= OFFLOAD_RETRY_MOST.as_nanos() {
                    pause = OFFLOAD_RETRY_FIRST;
                }
            }
            // The same again is no news.
            Err(why) => {
                if said.as_ref() != Some(&why) {
                    tracing::warn!("the offload engine cannot be started now: {why}");
                    said = Some(why);
                }
            }
        }
    }
}

/// Accepts connections until the engine has ended; why it has.
async fn serve(
    hub: &SharedHub,
    engine: Arc<toe::Engine>,
    ends: &[SocketAddr],
    (writer, shown): (usize, &watch::Sender<Weak<toe::Engine>>),
) -> String {
    let mut accepting = JoinSet::new();
    let listened = engine.attach().and_then(|host| {
        let reactor = Reactor::new(&host)?;
        for end in ends {
            let listener = toe::TcpListener::bind_with_backlog(&host, *end, MAX_BACKLOG)?;
            let listener = TcpListener::new(&reactor, listener);
            accepting.spawn_local(accept(Rc::clone(hub), host.clone(), listener, writer));
        }
        Ok(host)
    });
    match listened {
        Ok(host) => hub.borrow_mut().offload_up(host, ends.to_vec(), writer),
        Err(error) => return error.to_string(),
    }
    shown.send_replace(Arc::downgrade(&engine));
    let last_look = LastLook { hub, engine: &engine };
    let mut looks = interval(CONTROL_TICK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // One ends when the engine has.
            _ = accepting.join_next() => break,
            _ = looks.tick() => hub.borrow_mut().offload_counts(&OffloadCounters::of(engine.sheets())),
        }
    }
    drop(last_look);
    accepting.shutdown().await;
    let counters = OffloadCounters::of(engine.sheets());
    let why = engine.end().unwrap_or("the loop that turned it has ended").to_owned();
    hub.borrow_mut().offload_counted(&counters);
    why
}

/// The server may end between two looks at the counters: those that are written then have the last moments too.
struct LastLook<'a> {
    hub: &'a SharedHub,
    engine: &'a toe::Engine,
}

impl Drop for LastLook<'_> {
    fn drop(&mut self) {
        if let Ok(hub) = self.hub.try_borrow() {
            hub.offload_counts(&OffloadCounters::of(self.engine.sheets()));
        }
    }
}

async fn accept(hub: SharedHub, host: toe::Host, listener: TcpListener, writer: usize) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => take(&hub, stream, peer, writer),
            Err(_) if host.is_stopped() => return,
            // Of one connection, not of the listener.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => {
                hub.borrow_mut().no_files("the offload engine accepts no connections", &error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn take(hub: &SharedHub, stream: TcpStream, peer: SocketAddr, writer: usize) {
    let Ok(local) = stream.local_addr() else { return };
    let from = ConnOrigin { peer, local, writer: Some(writer), is_encrypted: false };
    let line = hub.borrow_mut().accept(ViewerStream::Offload(stream), from);
    if let Some(line) = line {
        tokio::task::spawn_local(conn::serve(Rc::clone(hub), line, Vec::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_sums_totals_but_keeps_latest_gauges() {
        let of = |packets_in, connections| ToeCounters { packets_in, connections, ..ToeCounters::default() };
        assert_eq!(together(&of(3, 9), &of(4, 2)), of(7, 2));
        assert_eq!(together(&together(&of(3, 9), &of(4, 2)), &of(0, 0)), of(7, 0));
    }
}

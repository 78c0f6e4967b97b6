//! A loop that sleeps goes on when a full connection can be written again.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Stage, WithoutConns};
use millrace_core::ids::{ConnId, StreamId};
use millrace_core::seam::{Dest, PacketTx, SendOutcome, TransmitBatch};
use millrace_core::time::MediaTicks;
use millrace_netio::null::NullTx;
use millrace_offload::TxCounters;
use millrace_offload::bell::EventBell;
use millrace_offload::command::{Command, ConnSocket};
use millrace_offload::loop_tx::{LoopConnections, LoopTx, WithoutEngine};

/// A loop that is woken only by the limit of its sleep takes three times [`TIMEOUT`] for this many
/// looks.
const LOOKS: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A sender of whose connections one is full, and can always be written again.
struct Full {
    others: WithoutConns<NullTx>,
    writable: EventBell,
    looks: Arc<AtomicU32>,
}

impl PacketTx for Full {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.others.send(batch, outcomes);
    }
}

impl LoopConnections for Full {
    fn flush_conns(&mut self) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed);
        false
    }
    fn full_conns_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.writable.fd())
    }
    fn add_conn(&mut self, conn: ConnId, socket: ConnSocket) -> Result<(), i32> {
        self.others.add_conn(conn, socket)
    }
    fn write_control(&mut self, conn: ConnId, bytes: &[u8]) -> Result<(), i32> {
        self.others.write_control(conn, bytes)
    }
    fn return_conn(&mut self, conn: ConnId) -> bool {
        self.others.return_conn(conn)
    }
    fn poll_conn_returned(&mut self) -> Option<(ConnId, ConnSocket)> {
        self.others.poll_conn_returned()
    }
    fn remove_conn(&mut self, conn: ConnId) -> Option<ConnSocket> {
        self.others.remove_conn(conn)
    }
    fn poll_conn_writable(&mut self) -> Option<ConnId> {
        self.others.poll_conn_writable()
    }
    fn poll_conn_gone(&mut self) -> Option<(ConnId, i32)> {
        self.others.poll_conn_gone()
    }
    fn backlog_bytes(&self, _: ConnId) -> Option<u64> {
        None
    }
}

impl WithoutEngine for Full {}

impl LoopTx for Full {
    fn counters(&self) -> &TxCounters {
        LoopTx::counters(&self.others)
    }
    fn note_unreachable(&mut self, _: SocketAddr, _: i32) {}
    fn tend(&mut self, _: millrace_core::time::Instant) -> bool {
        false
    }
    fn is_zero_copy(&self, _: &Dest) -> bool {
        false
    }
    fn poll_done(&mut self) -> Option<(StreamId, u64)> {
        None
    }
}

#[test]
fn sleeping_loop_wakes_when_full_connection_is_writable() {
    let (writable, looks) = (EventBell::new().unwrap(), Arc::new(AtomicU32::new(0)));
    writable.announce_sleep();
    writable.ring();
    let tx = Full { others: WithoutConns(NullTx::default()), writable, looks: Arc::clone(&looks) };
    let mut stage = Stage::new(10, MediaTicks(90_000), tx);
    let (bell, core) = (Arc::clone(&stage.core.bell), &mut stage.core);
    std::thread::scope(|scope| {
        scope.spawn(move || core.run());
        let begun = Instant::now();
        while looks.load(Ordering::Relaxed) < LOOKS && begun.elapsed() < TIMEOUT {
            std::thread::yield_now();
        }
        let seen = looks.load(Ordering::Relaxed);
        stage.commands.push(Command::Stop).unwrap();
        bell.ring();
        assert!(seen >= LOOKS, "{seen} looks: it sleeps although there is room");
    });
}

//! Viewers that read from connections and throw the data away: `MSG_TRUNC` discards it in the
//! kernel, so that one core reads for thousands.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::net::RecvFlags;
use rustix::time::Timespec;

use super::{Blocks, now_ns};

/// Bytes taken from a connection at once.
const READ_BYTES: usize = 1 << 20;
/// Connections of one look.
const EVENTS: usize = 512;
/// The longest that it waits before it looks at the clock.
const WAIT_NS: i64 = 20_000_000;

/// A viewer that receives over TCP.
struct TcpViewer {
    socket: TcpStream,
    bytes: u64,
    /// The earliest that a block came, on the line of blocks: what lateness counts from.
    earliest_ns: i64,
    is_gone: bool,
}

/// Viewers, all read by one thread.
pub(super) struct Viewers {
    epoll: OwnedFd,
    viewers: Vec<TcpViewer>,
    blocks: Blocks,
    room: Vec<u8>,
    /// Lateness of blocks in microseconds, while it is counted.
    late: Option<Histogram<u64>>,
}

impl Viewers {
    /// Connects `count` of them.
    pub(super) fn connect(to: SocketAddr, count: u32, blocks: Blocks) -> anyhow::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let mut viewers = Vec::with_capacity(count as usize);
        for n in 0..count {
            let socket = TcpStream::connect(to).with_context(|| format!("viewer {n}: connect to {to}"))?;
            socket.set_nonblocking(true)?;
            epoll::add(&epoll, &socket, epoll::EventData::new_u64(u64::from(n)), epoll::EventFlags::IN)
                .context("watch a connection")?;
            viewers.push(TcpViewer { socket, bytes: 0, earliest_ns: i64::MAX, is_gone: false });
        }
        Ok(Self { epoll, viewers, blocks, room: vec![0; READ_BYTES], late: None })
    }

    /// Tells the sender that all are there.
    pub(super) fn go(&mut self) -> anyhow::Result<()> {
        self.viewers
            .iter_mut()
            .try_for_each(|viewer| viewer.socket.write_all(&[1]))
            .context("tell the sender")
    }

    /// Reads until `end_ns`, until `until` returns true, or until the user wants to stop.
    pub(super) fn read(
        &mut self,
        end_ns: u64,
        cancel: &AtomicBool,
        until: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while now_ns() < end_ns && !until() && !cancel.load(Ordering::Relaxed) {
            events.clear();
            let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT_NS as _ };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("wait for connections"),
            }
            for event in &events {
                self.take(event.data.u64() as usize);
            }
        }
        Ok(())
    }

    fn take(&mut self, index: usize) {
        let viewer = &mut self.viewers[index];
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        match rustix::net::recv(&viewer.socket, self.room.as_mut_slice(), flags) {
            Ok((_, length @ 1..)) => {
                let from = viewer.bytes;
                viewer.bytes += length as u64;
                note(viewer, &self.blocks, from, now_ns(), self.late.as_mut());
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => {
                viewer.is_gone = true;
                let _ = epoll::delete(&self.epoll, &viewer.socket);
            }
        }
    }

    /// Bytes of each, and how many are gone.
    pub(super) fn bytes(&self) -> (Vec<u64>, usize) {
        let gone = self.viewers.iter().filter(|viewer| viewer.is_gone).count();
        (self.viewers.iter().map(|viewer| viewer.bytes).collect(), gone)
    }

    /// From now on lateness is counted.
    pub(super) fn begin_counting(&mut self) {
        self.late = histogram();
    }

    /// Lateness of the blocks since then, in microseconds.
    pub(super) fn end_counting(&mut self) -> Option<Histogram<u64>> {
        self.late.take()
    }
}

/// Creates a histogram of up to a minute in microseconds; later values count as a minute. A
/// histogram that resizes itself would not do this for a value beyond its end.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000, 3).ok()
}

/// The blocks whose last byte is behind `from` have come at `at_ns`.
fn note(
    viewer: &mut TcpViewer,
    blocks: &Blocks,
    from: u64,
    at_ns: u64,
    mut late: Option<&mut Histogram<u64>>,
) {
    let block_bytes = blocks.bytes().max(1);
    for block in from / block_bytes..viewer.bytes / block_bytes {
        let place_ns = at_ns as i64 - (block * blocks.interval_ns) as i64;
        viewer.earliest_ns = viewer.earliest_ns.min(place_ns);
        if let Some(late) = late.as_mut() {
            late.saturating_record((place_ns - viewer.earliest_ns) as u64 / 1000);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn lateness_counts_from_the_earliest_block_and_only_whole_blocks_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut viewer = TcpViewer { socket, bytes: 0, earliest_ns: i64::MAX, is_gone: false };
        let blocks = Blocks { datagram_bytes: 188, datagrams: 2, interval_ns: 10_000_000 };
        let mut late = histogram().unwrap();
        let mut take = |bytes, at_ms: u64| {
            let from = viewer.bytes;
            viewer.bytes += bytes;
            note(&mut viewer, &blocks, from, at_ms * 1_000_000, Some(&mut late));
            (late.len(), late.max())
        };
        assert_eq!(take(375, 1_003), (0, 0));
        assert_eq!(take(1, 1_004), (1, 0), "the first block is the earliest so far");
        // Two blocks at once: one 3 ms late, the other earlier than all before.
        assert_eq!(take(752, 1_017).0, 3);
        let latest_us = late.max() as f64;
        assert!((latest_us / 3_000.0 - 1.0).abs() < 0.01, "{latest_us}");
    }
}

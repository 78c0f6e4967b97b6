//! The thread that asks the kernel: sockets, rings and the clock around the [`NeighbourTable`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::error::RouteError;
use super::neighbour_table::{Action, Defaults, HOP_LIMIT, NeighbourTable, TableId};
use super::outbox::Outbox;
use super::table::{Ask, HopTable, TableEnd};
use super::wire::{self, Told};
use crate::limits::{FULL_RING_NS, LONGEST_SLEEP_NS, MAX_HOPS};
use crate::netlink::{Family, Netlink};

/// Counts of the watch's work.
#[derive(Debug, Default)]
struct RouteWatchCounters {
    look_ups: AtomicU64,
    overruns: AtomicU64,
}

/// Follows routes and neighbours for [`HopTable`]s, on a thread named "route". Tables of a watch that was dropped know no
/// way any more, so that packets go by the kernel.
///
/// Neighbours that destinations need are kept fresh, which requires `CAP_NET_ADMIN`; without it the
/// kernel resolves them when it sends something there itself. From Linux 5.16 on the kernel keeps
/// them fresh by itself (`NTF_EXT_MANAGED`); this is revoked when no destination needs them any
/// more and at the end. If the process is killed, it lasts until the neighbour is deleted, at the
/// cost of a query now and then.
#[derive(Debug)]
pub struct RouteWatch {
    bell: Arc<OwnedFd>,
    tables: Sender<TableEnd>,
    is_over: Arc<AtomicBool>,
    counters: Arc<RouteWatchCounters>,
    thread: Option<JoinHandle<()>>,
}

impl RouteWatch {
    /// Starts in the calling thread's network namespace.
    ///
    /// # Errors
    /// When a netlink socket or the thread cannot be created.
    pub fn start() -> Result<Self, RouteError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(|e| RouteError::socket("make an event descriptor", e))?;
        let bell = Arc::new(bell);
        let (tables, new_tables) = channel();
        let (is_over, counters) = (Arc::new(AtomicBool::new(false)), Arc::new(RouteWatchCounters::default()));
        let listen = || Netlink::listen(Family::Route, &wire::GROUPS);
        let mut worker = Worker {
            events: listen().map_err(|e| RouteError::socket("follow changes", e))?,
            questions: Netlink::open(Family::Route).map_err(|e| RouteError::socket("open a socket", e))?,
            neighbour_table: NeighbourTable::new(Defaults { hop_limit_v4: default_hop_limit() }),
            tables: Vec::new(),
            new_tables,
            next_table: 0,
            bell: bell.clone(),
            is_over: is_over.clone(),
            counters: counters.clone(),
            begun: Instant::now(),
        };
        worker.resync().map_err(|e| RouteError::socket("list the interfaces", e))?;
        let thread = std::thread::Builder::new()
            .name("route".to_owned())
            .spawn(move || worker.run())
            .map_err(|source| RouteError::Thread { source })?;
        Ok(Self { bell, tables, is_over, counters, thread: Some(thread) })
    }

    /// A table for one device.
    pub fn table(&self) -> HopTable {
        let (table, end) = HopTable::joined(MAX_HOPS, Some(self.bell.clone()));
        // If the thread has ended, the table finds its rings abandoned and knows no way.
        let _ = self.tables.send(end);
        self.ring();
        table
    }

    /// Returns the number of routes looked up.
    pub fn look_ups(&self) -> u64 {
        self.counters.look_ups.load(Ordering::Relaxed)
    }

    /// Returns how often the kernel's notifications overflowed the socket; each time everything was
    /// queried again.
    pub fn overruns(&self) -> u64 {
        self.counters.overruns.load(Ordering::Relaxed)
    }

    fn ring(&self) {
        // Full means that it rings already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Drop for RouteWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed by it; the tables have noticed.
            let _ = thread.join();
        }
    }
}

/// Time to live of IPv4 packets of this namespace.
fn default_hop_limit() -> u8 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_default_ttl").unwrap_or_default();
    text.trim().parse().unwrap_or(HOP_LIMIT)
}

struct JoinedTable {
    id: TableId,
    end: TableEnd,
    outbox: Outbox,
}

struct Worker {
    events: Netlink,
    questions: Netlink,
    neighbour_table: NeighbourTable,
    tables: Vec<JoinedTable>,
    new_tables: Receiver<TableEnd>,
    next_table: TableId,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    counters: Arc<RouteWatchCounters>,
    begun: Instant,
}

impl Worker {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn run(mut self) {
        let mut is_more = false;
        while !self.is_over.load(Ordering::Acquire) {
            if self.wait(is_more).is_err() {
                break;
            }
            is_more = match self.turn() {
                Ok(is_more) => is_more,
                // Without its sockets the watch knows nothing; the tables notice that it is gone.
                Err(_) => break,
            };
        }
        self.neighbour_table.end();
        self.act();
    }

    fn wait(&mut self, is_more: bool) -> io::Result<()> {
        let now_ns = self.now_ns();
        let due_ns = self.neighbour_table.deadline_ns().unwrap_or(u64::MAX);
        let mut sleep_ns = due_ns.saturating_sub(now_ns).min(LONGEST_SLEEP_NS);
        if is_more {
            sleep_ns = 0;
        }
        if !self.flush() {
            sleep_ns = sleep_ns.min(FULL_RING_NS);
        }
        let timeout = Timespec {
            tv_sec: (sleep_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (sleep_ns % 1_000_000_000).cast_signed(),
        };
        let mut fds = [
            PollFd::from_borrowed_fd(self.events.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Stop the bell before looking at the rings, or a question that comes in between would be overheard.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        Ok(())
    }

    /// Returns whether the kernel has more to tell.
    fn turn(&mut self) -> io::Result<bool> {
        let now_ns = self.now_ns();
        while let Ok(end) = self.new_tables.try_recv() {
            self.tables.push(JoinedTable { id: self.next_table, end, outbox: Outbox::default() });
            self.next_table = self.next_table.wrapping_add(1);
        }
        let neighbour_table = &mut self.neighbour_table;
        self.tables.retain_mut(|table| {
            while let Ok(ask) = table.end.asks.pop() {
                match ask {
                    Ask::EgressPath { id, destination } => {
                        neighbour_table.ask(table.id, id, destination, now_ns)
                    }
                    Ask::Forget { id } => neighbour_table.forget(table.id, id),
                }
            }
            let is_gone = table.end.asks.is_abandoned();
            if is_gone {
                neighbour_table.forget_table(table.id);
            }
            !is_gone
        });
        let taken = self.events.take(|message| {
            if let Some(told) = wire::read(message) {
                neighbour_table.told(told, now_ns);
            }
        });
        let is_more = match taken {
            Ok(is_more) => is_more,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                self.counters.overruns.fetch_add(1, Ordering::Relaxed);
                self.resync()?;
                true
            }
            Err(error) => return Err(error),
        };
        self.neighbour_table.tick(now_ns);
        self.act();
        Ok(is_more)
    }

    fn resync(&mut self) -> io::Result<()> {
        let mut links = Vec::new();
        self.questions.dump(wire::list_links(), |message| {
            if let Some(Told::Link(link)) = wire::read(message) {
                links.push(link);
            }
        })?;
        let now_ns = self.now_ns();
        self.neighbour_table.resync(links, now_ns);
        Ok(())
    }

    /// Carries out the neighbour table's actions until there are none left.
    fn act(&mut self) {
        while let Some(action) = self.neighbour_table.next_action() {
            let now_ns = self.now_ns();
            match action {
                Action::LookUp(destination) => self.look_up(destination, now_ns),
                Action::Find(key) => {
                    let mut found = None;
                    let answer = self.questions.ask(wire::find_neighbour(key), |m| found = wire::read(m));
                    match (answer, found) {
                        (Ok(()), Some(told)) => self.neighbour_table.told(told, now_ns),
                        _ => self.neighbour_table.no_neighbour(key, now_ns),
                    }
                }
                // Refused without the privilege: then the kernel's own packets find the neighbour,
                // and the kernel reports it.
                Action::Use { key, is_kept } => {
                    let _ = self.questions.ask(wire::use_neighbour(key, is_kept), |_| ());
                }
                Action::Say { table, update } => {
                    if let Some(table) = self.tables.iter_mut().find(|t| t.id == table) {
                        table.outbox.say(&mut table.end.updates, update);
                    }
                }
            }
        }
    }

    fn look_up(&mut self, destination: IpAddr, now_ns: u64) {
        self.counters.look_ups.fetch_add(1, Ordering::Relaxed);
        let mut route = None;
        // An error is the kernel's word that there is no route.
        let answer = self.questions.ask(wire::find_route(destination), |m| route = wire::read_route(m));
        self.neighbour_table.route(destination, route.filter(|_| answer.is_ok()), now_ns);
    }

    /// Returns whether every loop had room for its updates.
    fn flush(&mut self) -> bool {
        let mut is_all = true;
        for table in &mut self.tables {
            is_all &= table.outbox.flush(&mut table.end.updates);
        }
        is_all
    }
}

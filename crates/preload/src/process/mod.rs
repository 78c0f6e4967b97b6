//! The sockets of this process: one queue pair and one lock for all threads.
//!
//! | file | holds |
//! | --- | --- |
//! | `socket` | a socket: its stage and its readiness |
//! | `opening` | bind, connect, listen, accept, shutdown |
//! | `inherited` | listeners of a parent, in its child |
//! | `bytes` | reading and writing |
//! | `options` | options that mean something to the engine |
//! | `descriptors` | close, dup, epoll sets |

mod bytes;
mod descriptors;
mod inherited;
mod opening;
mod options;
mod socket;

use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};

use libc::{epoll_event, pollfd};
use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::toe::{self, PortSet, Sockets};

pub(crate) use self::bytes::{Flags, receive, send, send_file};
pub(crate) use self::descriptors::{close, close_all, control_set, dup, note_set};
pub(crate) use self::opening::{accept, bind, connect, listen, names, shutdown};
pub(crate) use self::options::{
    OptionValue, allow_option, get_option, set_nonblocking, set_option, unread, unsent,
};
use self::socket::Socket;
use crate::limits::LEAVE_NS;

use crate::config::{Config, Subnet};
use crate::errno::{CallResult, Errno};
use crate::ready::Set;
use crate::table::{self, DescriptorKind};
use crate::wait::{self, Interest, Waiter};
use crate::{message, real};

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let (config, faults) = Config::read(|name| std::env::var_os(name));
    faults.iter().for_each(|fault| message::once(fault));
    config
});

static PROCESS: Mutex<Process> = Mutex::new(Process::new());

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The lock while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Process>>> = const { RefCell::new(None) };
}

/// Whether there is an engine to be asked at all.
pub(crate) fn is_configured() -> bool {
    CONFIG.engine.is_some()
}

/// Numbered items. A number consists of the place and the count of its earlier items, so a closed
/// item is not mistaken for the next one.
pub(crate) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    /// Those with nothing in them: they are found under the process's lock, however many others there are.
    free: Vec<u32>,
}

/// Bits of a number that are the place; the others, of the 30 that the table keeps, count.
const PLACE_BITS: u32 = 17;
const PLACES: u32 = 1 << PLACE_BITS;
const COUNTS: u32 = 1 << (30 - PLACE_BITS);

impl<T> Slab<T> {
    const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    fn insert(&mut self, value: T) -> u32 {
        let free = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            // There are no more than twice as many as descriptors in the table.
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[free as usize];
        *place = ((place.0 + 1) % COUNTS, Some(value));
        place.0 << PLACE_BITS | free
    }

    fn place(&mut self, number: u32) -> Option<&mut Option<T>> {
        let place = self.places.get_mut((number % PLACES) as usize)?;
        (place.0 == number >> PLACE_BITS).then_some(&mut place.1)
    }

    fn get(&mut self, number: u32) -> CallResult<&mut T> {
        self.place(number).and_then(Option::as_mut).ok_or(Errno::BADF)
    }

    fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.place(number)?.take()?;
        self.free.push(number % PLACES);
        Some(value)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let all = self.places.iter_mut().zip(0..);
        all.filter_map(|((count, value), place)| Some((*count << PLACE_BITS | place, value.as_mut()?)))
    }
}

/// State of the attachment to the engine.
enum EngineAttachment {
    /// Not needed yet.
    Unknown,
    /// It was tried: sockets are the kernel's.
    None,
    Open(Box<OpenEngine>),
}

/// The engine that this process is attached to.
struct OpenEngine {
    sockets: Sockets,
    /// Its addresses and their subnets.
    subnets: Vec<Subnet>,
    /// The ports that it has of its addresses, if these are the kernel's.
    ports: Option<PortSet>,
}

/// All of it.
pub(crate) struct Process {
    way: EngineAttachment,
    sockets: Slab<Socket>,
    sets: Slab<Set>,
    /// Which socket a number of the engine is.
    owners: Vec<Option<u32>>,
    waiters: Vec<Waiter>,
}

/// Calls `call` with the process's sockets, which have heard all that has happened.
pub(crate) fn with<T>(call: impl FnOnce(&mut Process) -> T) -> CallResult<T> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            IS_INSIDE.set(false);
        }
    }
    if IS_INSIDE.replace(true) {
        message::once("a signal handler has called a socket of the engine within another such call: EDEADLK");
        return Err(Errno::DEADLK);
    }
    let _leave = Leave;
    let mut process = lock();
    process.hear();
    let result = call(&mut process);
    if let EngineAttachment::Open(open) = &mut process.way {
        open.sockets.flush();
    }
    Ok(result)
}

fn lock() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    const fn new() -> Self {
        Self {
            way: EngineAttachment::Unknown,
            sockets: Slab::new(),
            sets: Slab::new(),
            owners: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// The engine, to which a child of a fork attaches here: its sockets are the parent's.
    fn engine(&mut self) -> CallResult<&mut Sockets> {
        self.attach_once();
        match &mut self.way {
            EngineAttachment::Open(open) => Ok(&mut open.sockets),
            _ => Err(Errno::NETDOWN),
        }
    }

    /// Processes events: sets get their sockets with news into their queues, and threads that wait
    /// for them are woken.
    fn hear(&mut self) {
        let Self { way: EngineAttachment::Open(open), sockets, sets, owners, waiters } = self else { return };
        open.sockets.hear();
        while let Some(number) = open.sockets.take_news() {
            let Some(index) = owners.get(number as usize).copied().flatten() else { continue };
            mark(sockets, sets, waiters, index);
        }
    }

    /// Something has happened to a socket, by a call of the program's.
    fn mark(&mut self, index: u32) {
        let Self { sockets, sets, waiters, .. } = self;
        mark(sockets, sets, waiters, index);
    }

    fn own(&mut self, number: u32, index: Option<u32>) {
        let number = number as usize;
        if self.owners.len() <= number {
            self.owners.resize(number + 1, None);
        }
        self.owners[number] = index;
    }

    fn attach_once(&mut self) {
        if matches!(self.way, EngineAttachment::Unknown) {
            self.way = CONFIG.engine.as_deref().map_or(EngineAttachment::None, attach);
        }
    }

    /// Attaches to the engine, if that was not tried yet. `None`: there is none.
    fn subnets(&mut self) -> Option<&[Subnet]> {
        self.attach_once();
        match &self.way {
            EngineAttachment::Open(open) if open.sockets.is_stopped() => {
                message::once(
                    "the engine has stopped: its connections are reset, and new sockets are the kernel's",
                );
                None
            }
            EngineAttachment::Open(open) => Some(&open.subnets),
            _ => None,
        }
    }

    /// Whether a port of the engine's addresses is its own; port 0 is one of its choice.
    fn has_port(&self, port: u16) -> bool {
        match &self.way {
            EngineAttachment::Open(open) => {
                port == 0 || open.ports.as_ref().is_none_or(|ports| ports.contains(port))
            }
            _ => false,
        }
    }

    // --- waiting ---

    /// Prepares a thread's sleep. Returns `None` if something has happened, else the descriptor
    /// that signals the next event; -1: there is none.
    pub(crate) fn begin_wait(&mut self, interest: Interest, bell: &Arc<OwnedFd>) -> Option<i32> {
        let mut engine = -1;
        if let EngineAttachment::Open(open) = &mut self.way {
            if open.sockets.arm() {
                return None;
            }
            if !open.sockets.is_stopped() {
                engine = open.sockets.readiness().as_raw_fd();
            }
        }
        self.waiters.push(Waiter { interest, bell: Arc::clone(bell) });
        Some(engine)
    }

    /// When it has slept.
    pub(crate) fn end_wait(&mut self, bell: &Arc<OwnedFd>, is_rung: bool) {
        self.waiters.retain(|waiter| !Arc::ptr_eq(&waiter.bell, bell));
        if let EngineAttachment::Open(open) = &mut self.way
            && is_rung
        {
            open.sockets.quiet();
            self.hear();
        }
    }

    /// Asks those of `fds` that are ours; how many have something to say.
    pub(crate) fn ask_all(&mut self, fds: &mut [pollfd]) -> usize {
        let mut count = 0;
        for of in fds {
            let DescriptorKind::Socket(index) = table::kind(of.fd) else { continue };
            let always = libc::POLLERR | libc::POLLHUP;
            of.revents = self.events(index, of.events as u16 as u32) as i16 & (of.events | always);
            count += usize::from(of.revents != 0);
        }
        count
    }

    /// Returns the events of the engine's sockets in a set, and whether the kernel's events must be
    /// checked before the next sleep.
    pub(crate) fn take_events(&mut self, index: u32, events: &mut [epoll_event]) -> (usize, bool) {
        let Ok(set) = self.sets.get(index) else { return (0, false) };
        set.turn = set.turn.wrapping_add(1);
        // The kernel's sockets have a place too, however much the engine's have to say; where there is one place only they take turns.
        let most = match events.len() {
            1 if set.turn.is_multiple_of(2) => return (0, true),
            1 => 1,
            all => all - all.div_ceil(4),
        };
        let mut taken = std::mem::take(set);
        let mut at = 0;
        let count = taken.take(
            most,
            |socket, wants| self.events(socket, wants),
            |found, data| {
                events[at] = epoll_event { events: found, u64: data };
                at += 1;
            },
        );
        if let Ok(set) = self.sets.get(index) {
            *set = taken;
        }
        (count, false)
    }

    // --- forks, and the end ---

    /// In a child: the queue pair is its parent's.
    fn forget(&mut self) {
        if let EngineAttachment::Open(open) = std::mem::replace(&mut self.way, EngineAttachment::Unknown) {
            // By the end of these the engine learns that the parent is gone, so the child may not keep them.
            for fd in open.sockets.descriptors() {
                let _ = real::close_fd(fd);
                table::set(fd, DescriptorKind::Kernel);
            }
            // Dropped, it would close the parent's sockets.
            Box::leak(open);
        }
        self.owners.clear();
        self.waiters.clear();
        let Self { sockets, sets, .. } = self;
        for (index, socket) in sockets.iter_mut() {
            if socket.inherit() {
                // Sets that were inherited with it ask for it at their next wait, which opens it.
                socket.mark_in(sets, index);
            }
        }
    }

    /// Called at the end of the process: its written data is still sent, as by the kernel.
    fn leave(&mut self) -> bool {
        let mut numbers: Vec<u32> = Vec::new();
        self.sockets.iter_mut().for_each(|(_, socket)| numbers.extend(socket.take_numbers().1));
        let EngineAttachment::Open(open) = &mut self.way else { return false };
        numbers.iter().for_each(|&number| open.sockets.close(number, false));
        open.sockets.flush();
        true
    }
}

fn mark(sockets: &mut Slab<Socket>, sets: &mut Slab<Set>, waiters: &[Waiter], index: u32) {
    let Ok(socket) = sockets.get(index) else { return };
    socket.mark_in(sets, index);
    for waiter in waiters {
        let is_woken = match waiter.interest {
            Interest::Any => true,
            Interest::Socket(of) => of == index,
            Interest::Set(of) => socket.watchers.iter().any(|watcher| watcher.0 == of),
        };
        if is_woken {
            waiter.wake();
        }
    }
}

/// Attaches to an engine.
fn attach(path: &std::path::Path) -> EngineAttachment {
    static AROUND: Once = Once::new();
    AROUND.call_once(|| real::at_fork_and_exit(before_fork, behind_fork, in_child, at_end));
    let subnet = |&(address, prefix): &(std::net::IpAddr, u8)| Subnet { address, prefix };
    let opened = toe::connect(path).and_then(|host| {
        let (subnets, ports) = (host.addresses().iter().map(subnet).collect(), host.ports().cloned());
        Ok(Box::new(OpenEngine { sockets: Sockets::new(host)?, subnets, ports }))
    });
    match opened {
        Ok(open) => {
            descriptors::own();
            for fd in open.sockets.descriptors() {
                table::set(fd, DescriptorKind::Internal);
            }
            EngineAttachment::Open(open)
        }
        Err(error) => {
            message::once(&format!(
                "{}: no offload engine answers there ({error}); sockets are the kernel's. Is the program that runs the engine up, and is this its socket?",
                path.display()
            ));
            EngineAttachment::None
        }
    }
}

extern "C" fn before_fork() {
    // A handler that forks while this thread has the lock: the child has no engine either way.
    if !IS_INSIDE.get() {
        FORKING.with(|guard| *guard.borrow_mut() = Some(lock()));
    }
}

extern "C" fn behind_fork() {
    FORKING.with(|guard| drop(guard.borrow_mut().take()));
}

extern "C" fn in_child() {
    FORKING.with(|guard| {
        if let Some(mut process) = guard.borrow_mut().take() {
            process.forget();
            descriptors::own();
            wait::forget_bell();
        }
    });
}

extern "C" fn at_end() {
    // Best effort: an ending process reports nothing any more.
    let _ = std::panic::catch_unwind(|| {
        if with(Process::leave) != Ok(true) {
            return;
        }
        let begun = MonotonicClock.now();
        while MonotonicClock.now().ns_since(begun) < LEAVE_NS {
            let is_done = with(|process| {
                process.engine().map_or(true, |engine| engine.is_stopped() || !engine.is_closing())
            });
            if is_done.unwrap_or(true) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_number_of_removed_entry_is_not_reused() {
        let mut slab = Slab::new();
        let (first, second) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(first), Some('a'));
        let third = slab.insert('c');
        assert_eq!(slab.places.len(), 2, "its place is used again");
        assert_eq!(slab.get(first), Err(Errno::BADF));
        assert_eq!((slab.get(second).copied(), slab.get(third).copied()), (Ok('b'), Ok('c')));
        assert_eq!(slab.remove(first), None);
        for _ in 0..COUNTS * 2 {
            let number = slab.insert('d');
            assert!(number < 1 << 30 && slab.remove(number) == Some('d'));
        }
    }

    #[test]
    fn places_that_are_free_are_known_and_each_is_given_once() {
        let mut slab = Slab::new();
        let numbers: Vec<u32> = (0..100).map(|value| slab.insert(value)).collect();
        for (value, &number) in numbers.iter().enumerate().filter(|(value, _)| value % 3 != 0) {
            assert_eq!(slab.remove(number), Some(value));
            // The second removal returns nothing and frees no second place.
            assert_eq!(slab.remove(number), None);
        }
        assert_eq!(slab.free.len(), 66);
        let again: Vec<u32> = (100..166).map(|value| slab.insert(value)).collect();
        assert_eq!((slab.places.len(), slab.free.len()), (100, 0));
        let mut places: Vec<u32> = again.iter().map(|number| number % PLACES).collect();
        places.sort_unstable();
        assert!(places.iter().all(|place| place % 3 != 0) && places.windows(2).all(|two| two[0] < two[1]));
        assert_eq!(
            again.iter().map(|&number| *slab.get(number).unwrap()).collect::<Vec<_>>(),
            (100..166).collect::<Vec<_>>()
        );
        assert_eq!(*slab.get(numbers[99]).unwrap(), 99);
    }
}

//! The thread that owns the engine's socket: a connecting program is checked and gets a queue pair,
//! a departed one returns it. The engine's thread sees neither sockets nor memory being mapped:
//! pairs come to it ready, by a ring, and go back by another one.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_tcp::ports::PortSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind, listen,
    recv, socket_with,
};

use super::channel::{engine_side, send};
use super::client::dial;
use super::message::{GateMessage, Refusal, Welcome};
use super::ports::{GateCommand, GatePort, Returned};
use super::report::Page;
use crate::bell::EventBell;
use crate::clock::MonotonicClock;
use crate::limits::{HANDSHAKE_NS, MAX_CALLERS, MAX_HANDSHAKE_BYTES};
use crate::toe::counters::GateCounters;
use crate::toe::engine::Survey;
use crate::toe::pair::{EngineEnd, PairSettings};
use crate::toe::status::{CounterSheets, EngineStatus, HostStatus};

/// Programs that may connect, beside those of the engine's own user and of root.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Of these users.
    pub uids: Vec<u32>,
    /// Of these groups: the one that the program runs with, not further ones of its user.
    pub gids: Vec<u32>,
}

impl Access {
    fn allows(&self, who: &UCred) -> bool {
        let (uid, gid) = (who.uid, who.gid.as_raw());
        uid.is_root()
            || uid == rustix::process::geteuid()
            || self.uids.contains(&uid.as_raw())
            || self.gids.contains(&gid)
    }

    fn is_own_only(&self) -> bool {
        self.uids.is_empty() && self.gids.is_empty()
    }
}

/// The running thread. Dropped, it ends, and the socket's file with it.
pub(in crate::toe) struct Gate {
    stop: Arc<AtomicBool>,
    bell: Arc<EventBell>,
    thread: Option<JoinHandle<()>>,
}

/// The information that the gate sends its hosts, and its access rules.
pub(in crate::toe) struct GateSettings {
    pub(in crate::toe) pair: PairSettings,
    pub(in crate::toe) addresses: Vec<(IpAddr, u8)>,
    pub(in crate::toe) ports: Option<PortSet>,
    pub(in crate::toe) access: Access,
}

impl Gate {
    /// Listens at `path`, and starts the thread.
    ///
    /// # Errors
    /// Another engine listens there; the file cannot be made.
    pub(in crate::toe) fn start(
        path: &Path,
        settings: GateSettings,
        port: GatePort,
        engine: Arc<EventBell>,
        sheets: CounterSheets,
    ) -> io::Result<Self> {
        let listener = listen_at(path, settings.access.is_own_only())?;
        let stop = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&port.bell);
        let gate = RunningGate {
            listener,
            path: path.to_owned(),
            slots: vec![PairSlot::Free; usize::from(port.pairs)],
            port,
            engine,
            settings,
            callers: Vec::new(),
            survey: Some(Box::new(Survey::new())),
            begun: MonotonicClock.now(),
            accepts_after: Instant(0),
            counters: GateCounters::default(),
            sheets,
            stop: Arc::clone(&stop),
        };
        let thread = std::thread::Builder::new().name("toe-gate".into()).spawn(move || gate.run())?;
        Ok(Self { stop, bell, thread: Some(thread) })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A gate that has panicked is over as well.
            let _ = thread.join();
        }
    }
}

/// Replaces a socket that has no listener any more, and nothing else.
fn listen_at(path: &Path, is_own_only: bool) -> io::Result<OwnedFd> {
    use std::os::unix::fs::FileTypeExt as _;
    let fail = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("engine socket {}: {what}: {error}", path.display()))
    };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        std::fs::create_dir_all(dir).map_err(|error| fail("cannot make its directory", error))?;
    }
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            let text = "there is a file of that name, which is no socket; choose another one";
            return Err(fail(text, io::ErrorKind::AlreadyExists.into()));
        }
        match dial(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(|error| fail("cannot remove the old one", error))?;
            }
            _ => {
                let text = "another engine listens there; stop it, or choose another one";
                return Err(fail(text, io::ErrorKind::AddrInUse.into()));
            }
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let bound = SocketAddrUnix::new(path).and_then(|at| bind(&listener, &at));
    bound.map_err(|errno| fail("cannot be made", errno.into()))?;
    // Credentials decide which user may connect; the file's mode already stops users that have no
    // business here.
    let mode = if is_own_only { 0o600 } else { 0o666 };
    chmod(path, Mode::from_raw_mode(mode)).map_err(|errno| fail("cannot set its mode", errno.into()))?;
    listen(&listener, MAX_CALLERS as i32)?;
    Ok(listener)
}

/// A pair of the gate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PairSlot {
    Free,
    Taken,
    /// Its host is gone, and the engine still has to do with it.
    Leaving,
}

/// The progress of a connected program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallerStage {
    /// Must send its request.
    Greeting,
    /// Wants a pair, and one will soon be free.
    Waiting,
    /// Wants connections from this place on, and another one is being answered.
    Asking(u32),
    /// The engine looks at connections for it.
    Asked,
    /// Has the pair of this slot.
    Host(usize),
    /// Is to be hung up on.
    Over,
}

struct Caller {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    /// Other callers are refused after their first message: a socket that is closed with unread
    /// bytes takes its last message along.
    is_allowed: bool,
    stage: CallerStage,
    since: Instant,
}

struct RunningGate {
    listener: OwnedFd,
    path: PathBuf,
    port: GatePort,
    /// Wakes the engine's thread.
    engine: Arc<EventBell>,
    settings: GateSettings,
    slots: Vec<PairSlot>,
    callers: Vec<Caller>,
    /// The one survey, while the engine has it not.
    survey: Option<Box<Survey>>,
    begun: Instant,
    /// The process was out of descriptors.
    accepts_after: Instant,
    counters: GateCounters,
    sheets: CounterSheets,
    stop: Arc<AtomicBool>,
}

impl RunningGate {
    fn run(mut self) {
        while !self.is_over() {
            let now = MonotonicClock.now();
            self.take_returned(now);
            self.look_at_time(now);
            self.counters.hosts = self.slots.iter().filter(|&&slot| slot == PairSlot::Taken).count() as u64;
            self.sheets.publish_gate(&self.counters);
            let ready = self.wait(now);
            let now = MonotonicClock.now();
            for (index, _) in ready.iter().enumerate().skip(1).filter(|(_, is_ready)| **is_ready) {
                self.hear(index - 1, now);
            }
            self.callers.retain(|caller| caller.stage != CallerStage::Over);
            if ready[0] {
                self.accept(now);
            }
        }
        // Whoever looks for an engine here from now on finds none.
        let _ = std::fs::remove_file(&self.path);
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.port.commands.is_abandoned()
    }

    /// Sleeps until something comes. Of the listener and of each caller whether it is readable.
    fn wait(&self, now: Instant) -> Vec<bool> {
        let bell = &self.port.bell;
        bell.announce_sleep();
        if self.is_over() || !self.port.returned.is_empty() {
            bell.awake();
            return vec![false; self.callers.len() + 1];
        }
        let is_accepting = now >= self.accepts_after;
        let mut fds = vec![
            PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN),
            PollFd::new(&self.listener, if is_accepting { PollFlags::IN } else { PollFlags::empty() }),
        ];
        fds.extend(self.callers.iter().map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
        let limited = self.callers.iter().filter(|caller| !matches!(caller.stage, CallerStage::Host(_)));
        let due = limited.map(|caller| caller.since.plus_ns(HANDSHAKE_NS));
        let due = due.chain((!is_accepting).then_some(self.accepts_after)).min();
        let limit = due.map(|due| {
            // A timer that is early would only come back here.
            let ns = due.ns_since(now) + 1_000_000;
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        // An interrupted poll is an early wake-up.
        let is_woken = poll(&mut fds, limit.as_ref()).is_ok_and(|count| count > 0);
        let ready = fds[1..].iter().map(|fd| is_woken && !fd.revents().is_empty()).collect();
        bell.awake();
        bell.clear();
        ready
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..MAX_CALLERS {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.greet(socket, now),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    // No descriptor is left, for instance: it stays readable, and would be tried without end.
                    self.accepts_after = now.plus_ns(HANDSHAKE_NS / 10);
                    return;
                }
            }
        }
    }

    fn greet(&mut self, socket: OwnedFd, now: Instant) {
        self.counters.callers += 1;
        let who = socket_peercred(&socket).ok();
        let is_allowed = who.as_ref().is_some_and(|who| self.settings.access.allows(who));
        self.counters.not_allowed += u64::from(!is_allowed);
        let is_greeting = |caller: &&mut Caller| !matches!(caller.stage, CallerStage::Host(_));
        if self.callers.iter_mut().filter(is_greeting).count() >= MAX_CALLERS {
            // The caller that has been silent for the longest time makes room; one that will be
            // refused goes before all others.
            let oldest = self
                .callers
                .iter_mut()
                .filter(is_greeting)
                .min_by_key(|caller| (caller.is_allowed, caller.since));
            if let Some(caller) = oldest {
                caller.stage = CallerStage::Over;
                self.counters.bad_callers += 1;
            }
            self.callers.retain(|caller| caller.stage != CallerStage::Over);
        }
        let pid = who.map_or(0, |who| who.pid.as_raw_pid().cast_unsigned());
        let uid = who.map_or(u32::MAX, |who| who.uid.as_raw());
        self.callers.push(Caller { socket, pid, uid, is_allowed, stage: CallerStage::Greeting, since: now });
    }

    /// Something has come from a caller, or it has hung up.
    fn hear(&mut self, index: usize, now: Instant) {
        let mut bytes = [0; MAX_HANDSHAKE_BYTES + 1];
        let caller = &mut self.callers[index];
        // Descriptors that come along are not taken.
        let got = match recv(&caller.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok((bytes, _)) => bytes,
            Err(_) => 0,
        };
        match (caller.stage, GateMessage::decode(&bytes[..got])) {
            _ if got == 0 => self.hang_up(index),
            _ if !caller.is_allowed => {
                let text = format!("user {} may not use this engine; have the engine allow it", caller.uid);
                self.refuse(index, Refusal::NotAllowed, &text);
            }
            (CallerStage::Greeting, Some(GateMessage::Attach)) => {
                (caller.stage, caller.since) = (CallerStage::Waiting, now);
                self.attach(index);
            }
            (CallerStage::Greeting, Some(GateMessage::AskStatus)) => {
                caller.since = now;
                let status = GateMessage::Status(Box::new(self.status(now)));
                self.tell(index, &status);
            }
            (CallerStage::Greeting, Some(GateMessage::AskConnections(from))) => {
                (caller.stage, caller.since) = (CallerStage::Asking(from), now);
                self.ask_engine();
            }
            // No other message is valid.
            _ => {
                self.counters.bad_callers += 1;
                let text = "this is no request that the engine understands: use the same version of both";
                self.refuse(index, Refusal::Unknown, text);
            }
        }
    }

    /// Answers a caller, which may then ask for something else. A caller that does not read is
    /// disconnected.
    fn tell(&mut self, index: usize, message: &GateMessage) {
        if send(&self.callers[index].socket, message, &[]).is_err() {
            self.hang_up(index);
        }
    }

    fn status(&self, now: Instant) -> EngineStatus {
        let host = |caller: &Caller| match caller.stage {
            CallerStage::Host(slot) => Some(HostStatus {
                pair: self.port.first_pair + slot as u16,
                pid: caller.pid,
                uid: caller.uid,
            }),
            _ => None,
        };
        EngineStatus {
            uptime_ns: now.ns_since(self.begun),
            pairs: self.port.pairs.into(),
            addresses: self.settings.addresses.clone(),
            ports: self.settings.ports.clone(),
            engine: self.sheets.engine(),
            stack: self.sheets.stack(),
            ip: self.sheets.ip(),
            gate: self.counters,
            hosts: self.callers.iter().filter_map(host).collect(),
        }
    }

    /// Makes the engine look for the caller that has waited longest, if it is not looking for
    /// another one.
    fn ask_engine(&mut self) {
        let asking = self.callers.iter_mut().filter_map(|caller| match caller.stage {
            CallerStage::Asking(from) => Some((caller, from)),
            _ => None,
        });
        let Some((caller, from)) = asking.min_by_key(|(caller, _)| caller.since) else { return };
        let Some(mut survey) = self.survey.take() else { return };
        survey.from = from;
        caller.stage = CallerStage::Asked;
        // There is an entry for it.
        let _ = self.port.commands.push(GateCommand::Survey(survey));
        self.engine.ring();
    }

    /// The engine has looked.
    fn take_survey(&mut self, survey: Box<Survey>, now: Instant) {
        // Who asked may have hung up meanwhile.
        if let Some(index) = self.callers.iter().position(|caller| caller.stage == CallerStage::Asked) {
            let caller = &mut self.callers[index];
            (caller.stage, caller.since) = (CallerStage::Greeting, now);
            let page = Page { next: survey.next, connections: survey.found.clone() };
            self.tell(index, &GateMessage::Connections(page));
        }
        self.survey = Some(survey);
        self.ask_engine();
    }

    fn refuse(&mut self, index: usize, why: Refusal, text: &str) {
        // It has hung up if it does not get there.
        let _ = send(&self.callers[index].socket, &GateMessage::Refused(why, text.to_owned()), &[]);
        self.hang_up(index);
    }

    /// A caller is over; its pair leaves.
    fn hang_up(&mut self, index: usize) {
        let caller = &mut self.callers[index];
        let stage = std::mem::replace(&mut caller.stage, CallerStage::Over);
        let CallerStage::Host(slot) = stage else { return };
        self.counters.hosts_left += 1;
        let Ok(nobody) = EngineEnd::nobody(Arc::clone(&self.engine)) else { return };
        self.slots[slot] = PairSlot::Leaving;
        // There is an entry for it.
        let _ = self.port.commands.push(GateCommand::Leave(self.port.first_pair + slot as u16, nobody));
        self.engine.ring();
    }

    /// A pair for a caller, if there is one; else it waits for one that will soon be free.
    fn attach(&mut self, index: usize) {
        let Some(slot) = self.slots.iter().position(|&slot| slot == PairSlot::Free) else {
            if !self.slots.contains(&PairSlot::Leaving) {
                self.counters.no_pair += 1;
                let text = match self.slots.len() {
                    0 => "this engine has no queue pairs for other programs, and only shows its status"
                        .to_owned(),
                    all => format!(
                        "all {all} queue pairs of the engine are taken: end a program, or start the engine with more"
                    ),
                };
                self.refuse(index, Refusal::Full, &text);
            }
            return;
        };
        let (mut end, [memory, bells]) = match engine_side(&self.settings.pair) {
            Ok(made) => made,
            Err(error) => {
                self.counters.no_pair += 1;
                let text = format!("the engine cannot make another queue pair: {error}");
                return self.refuse(index, Refusal::NoMemory, &text);
            }
        };
        end.user = self.callers[index].uid;
        let number = self.port.first_pair + slot as u16;
        let welcome = GateMessage::Welcome(Welcome {
            number,
            pair: self.settings.pair.clone(),
            addresses: self.settings.addresses.clone(),
            ports: self.settings.ports.clone(),
        });
        let _ = self.port.commands.push(GateCommand::Join(number, end));
        self.engine.ring();
        self.slots[slot] = PairSlot::Taken;
        self.callers[index].stage = CallerStage::Host(slot);
        self.counters.hosts_joined += 1;
        let sent = send(&self.callers[index].socket, &welcome, &[memory.as_fd(), bells.as_fd()]);
        if sent.is_err() {
            self.hang_up(index);
        }
    }

    /// The engine has done with pairs of hosts that are gone: others can have one. Or it has looked at connections.
    fn take_returned(&mut self, now: Instant) {
        while let Ok(returned) = self.port.returned.pop() {
            match returned {
                // Here the memory of a pair goes; the next host has memory of its own.
                Returned::Pair(pair, _memory) => {
                    self.slots[usize::from(pair - self.port.first_pair)] = PairSlot::Free;
                }
                Returned::Survey(survey) => self.take_survey(survey, now),
            }
        }
        for index in 0..self.callers.len() {
            if self.callers[index].stage == CallerStage::Waiting {
                self.attach(index);
            }
        }
        self.callers.retain(|caller| caller.stage != CallerStage::Over);
    }

    /// Disconnects silent callers, and notifies those that have waited long enough for a pair.
    fn look_at_time(&mut self, now: Instant) {
        for index in 0..self.callers.len() {
            let caller = &self.callers[index];
            let is_late = now.ns_since(caller.since) >= HANDSHAKE_NS;
            match caller.stage {
                CallerStage::Greeting if is_late => {
                    self.counters.bad_callers += 1;
                    self.refuse(index, Refusal::Unknown, "no request came in time");
                }
                CallerStage::Waiting if is_late => {
                    self.counters.no_pair += 1;
                    let text = "no queue pair of the engine has become free in time; try again";
                    self.refuse(index, Refusal::Full, text);
                }
                CallerStage::Asking(_) | CallerStage::Asked if is_late => {
                    self.refuse(index, Refusal::Full, "the engine has not answered in time; try again");
                }
                _ => {}
            }
        }
        self.callers.retain(|caller| caller.stage != CallerStage::Over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Gid, Pid, Uid, geteuid};

    #[test]
    fn own_programs_and_those_of_root_may_connect_and_others_by_name_only() {
        let who = |uid, gid| UCred { pid: Pid::INIT, uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) };
        let other = geteuid().as_raw() + 1;
        let none = Access::default();
        assert!(none.is_own_only() && none.allows(&who(0, 7)) && none.allows(&who(geteuid().as_raw(), 7)));
        assert!(!none.allows(&who(other, 0)), "a group of root is no user of root");
        let some = Access { uids: vec![other], gids: vec![70] };
        assert!(!some.is_own_only() && some.allows(&who(other, 7)) && some.allows(&who(other + 1, 70)));
        assert!(!some.allows(&who(other + 1, 71)));
    }
}

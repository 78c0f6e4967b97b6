//! From a socket of the kernel's to one of the engine's: bind, connect, listen, accept, shutdown.

use std::net::{IpAddr, Shutdown, SocketAddr};

use millrace_core::random::SplitMix;
use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;

use super::socket::{Socket, SocketStage};
use super::{CONFIG, Process, with};
use crate::address::{Family, canonical};
use crate::errno::{self, CallResult, Errno};
use crate::limits::PORT_TRIES;
use crate::message;
use crate::real;
use crate::table::{self, DescriptorKind};
use crate::wait::{Until, wait_for};

/// Ports that a listener at port 0 gets one of: below those that connections leave from.
const FREE_PORTS: std::ops::RangeInclusive<u16> = 32_768..=49_151;

const fn any(family: Family) -> SocketAddr {
    let ip = match family {
        Family::V4 => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

/// The family of a TCP socket of the kernel's; `None`: it is another kind of descriptor.
fn tcp_family(fd: i32) -> Option<Family> {
    let option = |name| real::option(fd, libc::SOL_SOCKET, name).ok();
    if option(libc::SO_TYPE)? != libc::SOCK_STREAM || option(libc::SO_PROTOCOL)? != libc::IPPROTO_TCP {
        return None;
    }
    match option(libc::SO_DOMAIN)? {
        libc::AF_INET => Some(Family::V4),
        libc::AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

impl Process {
    /// Makes the socket the engine's, with the options already set on it.
    fn adopt(&mut self, fd: i32, family: Family, local: SocketAddr) -> Option<u32> {
        let index = self.sockets.insert(Socket::in_place_of(fd, family, local));
        if table::set(fd, DescriptorKind::Socket(index)) {
            return Some(index);
        }
        self.sockets.remove(index);
        message::once(
            "a descriptor's number is beyond those that can be the engine's: the socket is the kernel's",
        );
        None
    }

    fn begin_connect(&mut self, index: u32, remote: SocketAddr) -> CallResult<()> {
        self.settle(index)?;
        let socket = self.sockets.get(index)?;
        let local = match socket.stage {
            SocketStage::Bound(local) => local,
            SocketStage::Connecting { .. } => return Err(Errno::ALREADY),
            SocketStage::Connected { .. } => return Err(Errno::ISCONN),
            SocketStage::Lost => return Err(lost()),
            _ => return Err(Errno::INVAL),
        };
        if let Some(errno) = socket.error.take() {
            // A second call returns the result of the first.
            return Err(errno);
        }
        let remote = canonical(remote);
        let mut from = canonical(local);
        if from.ip().is_unspecified() {
            from.set_ip(any(if remote.is_ipv4() { Family::V4 } else { Family::V6 }).ip());
        }
        let number = self.engine()?.connect(from, remote).map_err(|error| errno::of(&error))?;
        self.sockets.get(index)?.stage = SocketStage::Connecting { number, local };
        self.own(number, Some(index));
        Ok(())
    }

    /// Begins to listen; the numbers that are to become listeners.
    pub(super) fn begin_listen(&mut self, index: u32, local: SocketAddr) -> CallResult<Vec<u32>> {
        let socket = self.sockets.get(index)?;
        let (sharing, backlog) = (socket.sharing, socket.backlog);
        let (local, port) = (canonical(local), local.port());
        let mut ends = vec![local];
        if local.ip().is_unspecified() && local.is_ipv6() && !socket.is_v6_only {
            ends = [Family::V6, Family::V4].map(|family| SocketAddr::new(any(family).ip(), port)).to_vec();
        }
        // Of two families those that the engine has addresses of.
        if ends.len() > 1 {
            let subnets = self.subnets().unwrap_or_default();
            let families: Vec<bool> = subnets.iter().map(|of| of.address.is_ipv4()).collect();
            ends.retain(|end| families.contains(&end.is_ipv4()));
        }
        let mut numbers = Vec::new();
        for end in ends {
            match self.engine()?.listen(end, backlog, sharing) {
                Ok(number) => numbers.push(number),
                Err(error) => {
                    numbers.iter().for_each(|&number| self.give_up(number));
                    return Err(errno::of(&error));
                }
            }
        }
        for &number in &numbers {
            self.own(number, Some(index));
        }
        Ok(numbers)
    }

    pub(super) fn give_up(&mut self, number: u32) {
        if let Ok(engine) = self.engine() {
            engine.close(number, false);
        }
        self.own(number, None);
    }

    /// Whether all of them listen; if one cannot, none does.
    pub(super) fn end_listen(&mut self, numbers: &[u32]) -> CallResult<Option<()>> {
        let mut is_open = true;
        for &number in numbers {
            let engine = self.engine()?;
            let is_stopped = engine.is_stopped();
            match engine.outcome(number) {
                Ok(None) if is_stopped => return Err(Errno::NETDOWN),
                Ok(ends) => is_open &= ends.is_some(),
                Err(error) => {
                    numbers.iter().for_each(|&number| self.give_up(number));
                    return Err(errno::of(&error));
                }
            }
        }
        Ok(is_open.then_some(()))
    }

    /// The next connection of a listener: its number and its ends.
    fn next_connection(&mut self, index: u32) -> CallResult<Option<(u32, (SocketAddr, SocketAddr))>> {
        self.open_inherited(index)?;
        self.use_listener(index);
        let socket = self.sockets.get(index)?;
        let numbers = match &socket.stage {
            SocketStage::Listening { numbers, .. } => numbers.clone(),
            SocketStage::Reopening { .. } => return Ok(None),
            SocketStage::Lost => return Err(lost()),
            _ => return Err(Errno::INVAL),
        };
        let engine = self.engine()?;
        if engine.is_stopped() {
            return Err(Errno::NETDOWN);
        }
        for number in numbers {
            if let Some(next) = engine.accept(number).map_err(|error| errno::of(&error))? {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }
}

/// Returns the error for a child that uses its parent's socket.
pub(super) fn lost() -> Errno {
    message::once(
        "a connection of the engine is used by a process that has inherited it (ENOTCONN): connections of the engine stay with the process that has made \
         or accepted them; only listeners are inherited",
    );
    Errno::NOTCONN
}

/// `bind`; `None`: it is the kernel's.
pub(crate) fn bind(fd: i32, local: SocketAddr) -> Option<CallResult<()>> {
    if let DescriptorKind::Socket(_) = table::kind(fd) {
        return Some(Err(Errno::INVAL));
    }
    let family = tcp_family(fd)?;
    let is_ours = with(|process| {
        let subnets = process.subnets()?;
        if !CONFIG.binds(local, subnets) || !process.has_port(local.port()) {
            return None;
        }
        process.adopt(fd, family, local)
    });
    is_ours.ok().flatten().map(|_| Ok(()))
}

/// `connect`; `None`: it is the kernel's.
pub(crate) fn connect(fd: i32, remote: SocketAddr) -> Option<CallResult<()>> {
    let index = match table::kind(fd) {
        DescriptorKind::Socket(index) => index,
        DescriptorKind::Kernel => {
            let family = tcp_family(fd)?;
            with(|process| {
                let subnets = process.subnets()?;
                // A socket bound to an address or a port of the kernel stays there.
                if !CONFIG.connects(remote, subnets) || is_bound(fd) {
                    return None;
                }
                process.adopt(fd, family, any(family))
            })
            .ok()??
        }
        _ => return None,
    };
    Some(connect_ours(index, remote))
}

/// Whether the program has bound a socket of the kernel's.
fn is_bound(fd: i32) -> bool {
    real::local_port(fd).is_ok_and(|port| port != 0)
}

fn connect_ours(index: u32, remote: SocketAddr) -> CallResult<()> {
    let until = with(|process| {
        process.begin_connect(index, remote)?;
        Ok(process.sockets.get(index)?.until_written(false))
    })??;
    if matches!(until, Until::Now) {
        // The program asks for the result later, however fast the engine was: programs are used to
        // this from the kernel.
        return Err(Errno::INPROGRESS);
    }
    let outcome = wait_for(index, until, |process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        match socket.stage {
            SocketStage::Connecting { .. } => Ok(None),
            SocketStage::Connected { .. } => Ok(Some(())),
            _ => Err(socket.error.take().unwrap_or(Errno::CONNABORTED)),
        }
    });
    // It goes on being opened.
    outcome.map_err(|errno| if errno == Errno::AGAIN { Errno::INPROGRESS } else { errno })
}

/// `listen` of a socket of ours.
pub(crate) fn listen(index: u32, backlog: i32) -> CallResult<()> {
    let stage = with(|process| {
        let socket = process.sockets.get(index)?;
        match socket.stage {
            SocketStage::Bound(local) => {
                socket.backlog = backlog.max(1) as u32;
                Ok(Some(local))
            }
            // Linux changes the backlog. The engine's stays.
            _ if socket.is_listener() => Ok(None),
            SocketStage::Lost => Err(lost()),
            _ => Err(Errno::INVAL),
        }
    })??;
    let Some(local) = stage else { return Ok(()) };
    let mut random = SplitMix(MonotonicClock.now().0);
    let mut tries = if local.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        let port = match local.port() {
            0 => {
                let span = u64::from(*FREE_PORTS.end() - *FREE_PORTS.start());
                FREE_PORTS.start() + (random.next() % span) as u16
            }
            port => port,
        };
        let local = SocketAddr::new(local.ip(), port);
        let numbers = with(|process| process.begin_listen(index, local))??;
        tries -= 1;
        match wait_for(index, Until::Then(None), |process| process.end_listen(&numbers)) {
            Err(Errno::ADDRINUSE) if tries > 0 => {}
            outcome => {
                outcome?;
                return with(|process| {
                    let stage = SocketStage::Listening { numbers, local };
                    process.sockets.get(index)?.stage = stage;
                    process.mark(index);
                    Ok(())
                })?;
            }
        }
    }
}

/// `accept4` of a socket of ours: the descriptor and the peer.
pub(crate) fn accept(index: u32, flags: i32) -> CallResult<(i32, SocketAddr, Family)> {
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Err(Errno::INVAL);
    }
    let until = with(|process| process.sockets.get(index).map(|socket| socket.until_read(false)))??;
    let (number, ends) = wait_for(index, until, |process| process.next_connection(index))?;
    with(|process| {
        let listener = process.sockets.get(index)?;
        let family = listener.family;
        let socket = listener.accepted(number, ends, flags & libc::SOCK_NONBLOCK != 0);
        let domain = if family == Family::V4 { libc::AF_INET } else { libc::AF_INET6 };
        let placed = real::placeholder(domain, flags).and_then(|fd| {
            let new = process.sockets.insert(socket);
            if table::set(fd, DescriptorKind::Socket(new)) {
                return Ok((fd, new));
            }
            process.sockets.remove(new);
            let _ = real::close_fd(fd);
            Err(Errno::MFILE)
        });
        match placed {
            Ok((fd, new)) => {
                process.own(number, Some(new));
                process.apply_options(new, number)?;
                Ok((fd, ends.1, family))
            }
            Err(errno) => {
                // No program can receive the connection: its peer is notified.
                process.engine()?.close(number, true);
                Err(errno)
            }
        }
    })?
}

/// `shutdown` of a socket of ours.
pub(crate) fn shutdown(index: u32, how: i32) -> CallResult<()> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(Errno::INVAL),
    };
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let number = match socket.stage {
            SocketStage::Connected { number, .. } => number,
            SocketStage::Lost => return Err(lost()),
            SocketStage::Listening { local, .. }
            | SocketStage::Inherited { local, .. }
            | SocketStage::Reopening { local, .. } => {
                // No further connections are admitted.
                let (_, numbers) = socket.take_numbers();
                socket.stage = SocketStage::Bound(local);
                numbers.iter().for_each(|&number| process.give_up(number));
                process.mark(index);
                return Ok(());
            }
            _ => return Err(Errno::NOTCONN),
        };
        socket.is_write_shut |= how != Shutdown::Read;
        let outcome = process.engine()?.shutdown(number, how).map_err(|error| errno::of(&error));
        process.mark(index);
        outcome
    })?
}

/// This end and the other one, if there is one, and how the program wants to see them.
pub(crate) fn names(index: u32) -> CallResult<(SocketAddr, Option<SocketAddr>, Family)> {
    with(|process| {
        process.settle(index)?;
        let socket = process.sockets.get(index)?;
        let (local, remote) = match &socket.stage {
            SocketStage::Bound(local)
            | SocketStage::Listening { local, .. }
            | SocketStage::Inherited { local, .. }
            | SocketStage::Reopening { local, .. }
            | SocketStage::Connecting { local, .. } => (*local, None),
            SocketStage::Connected { ends, .. } => (ends.0, Some(ends.1)),
            SocketStage::Lost => return Err(lost()),
        };
        Ok((local, remote, socket.family))
    })?
}

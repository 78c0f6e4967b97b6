//! System calls, on sockets that the stack's listeners and connections stand behind.

use std::collections::{BTreeMap, HashMap, VecDeque};

use millrace_tcp::conn::{ConnectionState, Happened, Reason};
use millrace_tcp::stack::{CallError, ConnectionId, ListenerId};

use super::machine::{LOCAL_PORT, Machine};
use super::script::{Call, Expr};

/// Result of a call: a number, or -1 and the name of an error.
pub(super) type Outcome = Result<i64, &'static str>;

/// Outcome of a call.
pub(super) enum Done {
    Returned(Outcome),
    /// It has to wait.
    Blocks,
}

/// The port that connections are opened to.
const SERVER_PORT: u16 = 8080;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Not connected; bound to this port.
    Fresh(u16),
    Listens(ListenerId),
    Connected(ConnectionId),
}

#[derive(Clone, Debug)]
struct Socket {
    kind: Kind,
    is_nonblocking: bool,
    /// `SO_LINGER` of 0 s: close() resets.
    resets: bool,
    /// Bytes written and read.
    written: u64,
    read: u64,
    /// Options set before there is a connection.
    options: Vec<(String, i64)>,
}

/// The application's knowledge of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    is_established: bool,
    /// connect() has returned.
    is_seen: bool,
    is_readable: bool,
    is_peer_closed: bool,
    is_urgent: bool,
    closed: Option<Reason>,
    /// The error was returned already.
    is_told: bool,
}

/// A process: its sockets.
#[derive(Default)]
pub(super) struct Process {
    sockets: BTreeMap<i64, Socket>,
    known: HashMap<ConnectionId, Known>,
    accepted: VecDeque<(ListenerId, ConnectionId)>,
}

impl Process {
    /// Takes the events of the stack.
    pub(super) fn hear(&mut self, machine: &mut Machine) {
        while let Some(event) = machine.stack.poll_event() {
            let known = self.known.entry(event.connection).or_default();
            let has = |happened| event.happened.has(happened);
            if let (true, Some(listener)) = (has(Happened::ESTABLISHED), event.listener) {
                self.accepted.push_back((listener, event.connection));
            }
            known.is_established |= has(Happened::ESTABLISHED);
            known.is_readable |= has(Happened::READABLE);
            known.is_peer_closed |= has(Happened::PEER_CLOSED);
            known.is_urgent |= has(Happened::URGENT);
            if has(Happened::CLOSED) {
                known.closed = Some(event.reason);
            }
        }
    }

    /// Makes a call, or tries once more to finish one that blocks. `Err`: it is not known here.
    pub(super) fn call(&mut self, machine: &mut Machine, call: &Call) -> Result<Done, String> {
        self.hear(machine);
        let fd = call.args.first().and_then(Expr::number);
        if call.name == "socket" {
            let fresh = Socket {
                kind: Kind::Fresh(0),
                is_nonblocking: false,
                resets: false,
                written: 0,
                read: 0,
                options: Vec::new(),
            };
            self.sockets.insert(call.result, fresh);
            return Ok(Done::Returned(Ok(call.result)));
        }
        if call.name == "poll" {
            return self.poll(machine, call);
        }
        let fd = fd.ok_or("the first argument is no descriptor")?;
        let Some(socket) = self.sockets.get(&fd).cloned() else { return Ok(Done::Returned(Err("EBADF"))) };
        Ok(Done::Returned(match call.name.as_str() {
            "bind" => {
                let port =
                    call.args.get(1).and_then(|address| address.field("sin_port")).and_then(Expr::number);
                self.socket(fd).kind = Kind::Fresh(port.map_or(LOCAL_PORT, |port| port as u16));
                Ok(0)
            }
            "listen" => self.listen(machine, fd, &socket, call),
            "accept" => return Ok(self.accept(&socket, call)),
            "connect" => return self.connect(machine, fd, &socket),
            "setsockopt" => self.set(machine, fd, &socket, call)?,
            "getsockopt" => self.get(&socket, call)?,
            "fcntl" => self.control(fd, &socket, call)?,
            "ioctl" => self.ask(machine, &socket, call)?,
            "read" | "recv" | "recvfrom" | "recvmsg" => return self.read(machine, fd, &socket, call),
            "write" | "send" | "sendto" | "sendmsg" => return self.write(machine, fd, &socket, call),
            "shutdown" => self.shutdown(machine, &socket, call)?,
            "close" => self.close(machine, fd, &socket),
            other => return Err(format!("the system call {other} is not known")),
        }))
    }

    fn socket(&mut self, fd: i64) -> &mut Socket {
        self.sockets.get_mut(&fd).expect("looked up before")
    }

    fn listen(&mut self, machine: &mut Machine, fd: i64, socket: &Socket, call: &Call) -> Outcome {
        let Kind::Fresh(port) = socket.kind else { return Err("EINVAL") };
        let backlog = call.args.get(1).and_then(Expr::number).unwrap_or(0).max(0) as u32;
        let listener = machine.stack.listen(machine.family.local(port), backlog).map_err(|_| "EADDRINUSE")?;
        self.socket(fd).kind = Kind::Listens(listener);
        Ok(0)
    }

    fn accept(&mut self, socket: &Socket, call: &Call) -> Done {
        let Kind::Listens(listener) = socket.kind else { return Done::Returned(Err("EINVAL")) };
        let Some(at) = self.accepted.iter().position(|(of, _)| *of == listener) else {
            return if socket.is_nonblocking { Done::Returned(Err("EAGAIN")) } else { Done::Blocks };
        };
        let Some((_, connection)) = self.accepted.remove(at) else { return Done::Blocks };
        let kind = Kind::Connected(connection);
        let socket =
            Socket { kind, is_nonblocking: false, resets: false, written: 0, read: 0, options: vec![] };
        self.sockets.insert(call.result, socket);
        Done::Returned(Ok(call.result))
    }

    fn connect(&mut self, machine: &mut Machine, fd: i64, socket: &Socket) -> Result<Done, String> {
        let connection = match socket.kind {
            Kind::Listens(_) => return Ok(Done::Returned(Err("EISCONN"))),
            Kind::Connected(connection) => {
                let known = self.known.entry(connection).or_default();
                return Ok(Done::Returned(match known.closed.filter(|_| !known.is_told) {
                    Some(reason) => {
                        known.is_told = true;
                        Err(errno(reason))
                    }
                    None if known.is_established => {
                        // The first call that sees it returns 0.
                        let was_seen = std::mem::replace(&mut known.is_seen, true);
                        if was_seen { Err("EISCONN") } else { Ok(0) }
                    }
                    None if socket.is_nonblocking => Err("EALREADY"),
                    None => return Ok(Done::Blocks),
                }));
            }
            Kind::Fresh(port) => {
                let (local, remote) = (machine.family.local(port), machine.family.remote(SERVER_PORT));
                match machine.stack.open(local, remote, machine.now()) {
                    Ok(connection) => connection,
                    Err(_) => return Ok(Done::Returned(Err("EADDRINUSE"))),
                }
            }
        };
        self.socket(fd).kind = Kind::Connected(connection);
        if let Some((local, remote)) = machine.stack.ends(connection) {
            machine.look_at(local.port(), remote.port());
            machine.begin_anew();
        }
        for (name, value) in &socket.options {
            option(machine, connection, name, *value);
        }
        Ok(if socket.is_nonblocking { Done::Returned(Err("EINPROGRESS")) } else { Done::Blocks })
    }

    fn set(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        socket: &Socket,
        call: &Call,
    ) -> Result<Outcome, String> {
        let name = match call.args.get(2) {
            Some(Expr::Names(names)) if names.len() == 1 => names[0].clone(),
            _ => return Err("setsockopt without the name of an option".into()),
        };
        let value = call.args.get(3).ok_or("setsockopt without a value")?;
        match name.as_str() {
            // Buffers are as large as the settings say, and ports are free when their connections are gone.
            "SO_REUSEADDR" | "SO_SNDBUF" | "SO_RCVBUF" | "TCP_INQ" => {}
            "SO_LINGER" => {
                let field = |name| value.field(name).and_then(Expr::number);
                self.socket(fd).resets = field("onoff") == Some(1) && field("linger") == Some(0);
            }
            "TCP_NODELAY" | "SO_KEEPALIVE" | "TCP_USER_TIMEOUT" => {
                let value = value.number().unwrap_or(0);
                match socket.kind {
                    Kind::Connected(connection) => option(machine, connection, &name, value),
                    _ => self.socket(fd).options.push((name, value)),
                }
            }
            _ => return Err(format!("the option {name} has no counterpart in this stack")),
        }
        Ok(Ok(0))
    }

    fn get(&mut self, socket: &Socket, call: &Call) -> Result<Outcome, String> {
        if !call.args.get(2).is_some_and(|name| name.has_name("SO_ERROR")) {
            return Err("getsockopt is known for SO_ERROR alone".into());
        }
        let wanted = match call.args.get(3) {
            Some(Expr::List(items)) => items.first(),
            _ => None,
        };
        let known = match socket.kind {
            Kind::Connected(connection) => self.known.get_mut(&connection),
            _ => None,
        };
        let error = known.filter(|known| !known.is_told).and_then(|known| {
            known.is_told = known.closed.is_some_and(|reason| reason != Reason::Finished);
            known.closed.filter(|_| known.is_told).map(errno)
        });
        match (wanted, error) {
            (Some(Expr::Number(0)), None) => Ok(Ok(0)),
            (Some(wanted), Some(error)) if wanted.has_name(error) => Ok(Ok(0)),
            _ => Err(format!("SO_ERROR is {}", error.unwrap_or("0"))),
        }
    }

    fn control(&mut self, fd: i64, socket: &Socket, call: &Call) -> Result<Outcome, String> {
        match call.args.get(1) {
            // O_RDWR and O_NONBLOCK of Linux.
            Some(command) if command.has_name("F_GETFL") => {
                Ok(Ok(if socket.is_nonblocking { 0x802 } else { 0x2 }))
            }
            Some(command) if command.has_name("F_SETFL") => {
                let flags = call.args.get(2);
                self.socket(fd).is_nonblocking = flags.is_some_and(|flags| flags.has_name("O_NONBLOCK"));
                Ok(Ok(0))
            }
            _ => Err("fcntl is known for F_GETFL and F_SETFL alone".into()),
        }
    }

    /// ioctl: how much waits to be acknowledged, how far the urgent data goes.
    fn ask(&mut self, machine: &Machine, socket: &Socket, call: &Call) -> Result<Outcome, String> {
        let Kind::Connected(connection) = socket.kind else { return Ok(Err("ENOTCONN")) };
        let (request, wanted) = (call.args.get(1), call.args.get(2).and_then(Expr::number));
        let has = |name: &str| request.is_some_and(|request| request.has_name(name));
        let value = if has("SIOCOUTQ") {
            machine.stack.unacked_bytes(connection)
        } else if has("SIOCURG") {
            machine.stack.urgent_bytes(connection)
        } else {
            return Err(
                "ioctl is known for SIOCOUTQ and SIOCURG (bytes up to the end of urgent data) alone".into()
            );
        };
        if wanted == Some(i64::from(value)) { Ok(Ok(0)) } else { Err(format!("its value is [{value}]")) }
    }

    fn read(&mut self, machine: &mut Machine, fd: i64, socket: &Socket, call: &Call) -> Result<Done, String> {
        let Kind::Connected(connection) = socket.kind else { return Ok(Done::Returned(Err("ENOTCONN"))) };
        if call.args.iter().any(|arg| arg.has_name("MSG_ERRQUEUE")) {
            return Err("there is no error queue".into());
        }
        let bytes = length(call).ok_or("how much is to be read?")?;
        let mut to = vec![0; bytes];
        let taken = machine.stack.read(connection, &mut to, machine.now()).unwrap_or(0);
        let known = self.known.entry(connection).or_default();
        if taken > 0 {
            if to[..taken] != Machine::to_read(socket.read, taken) {
                return Err(format!("bytes from {} on are not what the peer has sent", socket.read));
            }
            known.is_readable &= taken == bytes;
            self.socket(fd).read += taken as u64;
            return Ok(Done::Returned(Ok(taken as i64)));
        }
        known.is_readable = false;
        let outcome = match known.closed.filter(|&reason| reason != Reason::Finished) {
            Some(reason) if !known.is_told => {
                known.is_told = true;
                Err(errno(reason))
            }
            Some(_) => Ok(0),
            None if known.is_peer_closed || known.closed.is_some() => Ok(0),
            None if machine.stack.state(connection) < ConnectionState::Established => Err("ENOTCONN"),
            None if socket.is_nonblocking || has_flag(call, "MSG_DONTWAIT") => Err("EAGAIN"),
            None => return Ok(Done::Blocks),
        };
        Ok(Done::Returned(outcome))
    }

    fn write(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        socket: &Socket,
        call: &Call,
    ) -> Result<Done, String> {
        for flag in ["MSG_ZEROCOPY", "MSG_FASTOPEN", "MSG_MORE"] {
            if has_flag(call, flag) {
                return Err(format!("{flag} has no counterpart in this stack"));
            }
        }
        let bytes = length(call).ok_or("how much is to be written?")?;
        let Kind::Connected(connection) = socket.kind else { return Ok(Done::Returned(Err("EPIPE"))) };
        let data = Machine::written(socket.written, bytes);
        let outcome = match machine.stack.write(connection, &data, machine.now()) {
            Ok(0) if bytes > 0 => {
                if !socket.is_nonblocking {
                    return Ok(Done::Blocks);
                }
                Err("EAGAIN")
            }
            Ok(taken) => {
                self.socket(fd).written += taken as u64;
                if has_flag(call, "MSG_OOB") {
                    machine.stack.mark_urgent(connection);
                }
                Ok(taken as i64)
            }
            Err(CallError::NoConnection) => {
                let known = self.known.entry(connection).or_default();
                let reason = known.closed.filter(|&reason| reason != Reason::Finished && !known.is_told);
                known.is_told = true;
                Err(reason.map_or("EPIPE", errno))
            }
            Err(_) => Err("EPIPE"),
        };
        Ok(Done::Returned(outcome))
    }

    fn shutdown(&mut self, machine: &mut Machine, socket: &Socket, call: &Call) -> Result<Outcome, String> {
        let Kind::Connected(connection) = socket.kind else { return Ok(Err("ENOTCONN")) };
        if !call.args.get(1).is_some_and(|how| how.has_name("SHUT_WR") || how.has_name("SHUT_RDWR")) {
            return Err("shutdown is known for SHUT_WR and SHUT_RDWR alone".into());
        }
        Ok(match machine.stack.close(connection, machine.now()) {
            Err(CallError::NoConnection) => Err("ENOTCONN"),
            _ => Ok(0),
        })
    }

    fn close(&mut self, machine: &mut Machine, fd: i64, socket: &Socket) -> Outcome {
        match socket.kind {
            Kind::Listens(listener) => machine.stack.unlisten(listener),
            Kind::Connected(connection) => {
                if socket.resets {
                    machine.stack.abort(connection, machine.now());
                }
                machine.stack.release(connection, machine.now());
            }
            Kind::Fresh(_) => {}
        }
        self.sockets.remove(&fd);
        Ok(0)
    }

    /// `poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 0) = 1`
    fn poll(&mut self, machine: &mut Machine, call: &Call) -> Result<Done, String> {
        let Some(Expr::List(entries)) = call.args.first() else {
            return Err("poll without descriptors".into());
        };
        let mut count = 0;
        for entry in entries {
            let fd = entry.field("fd").and_then(Expr::number).ok_or("poll without fd")?;
            let events = entry.field("events").ok_or("poll without events")?;
            let wanted = entry.field("revents").ok_or("poll without revents")?;
            let ready = self.ready(machine, fd, events);
            count += i64::from(!ready.is_empty());
            let is_same = match wanted {
                Expr::Names(names) => {
                    names.len() == ready.len() && names.iter().all(|name| ready.contains(&name.as_str()))
                }
                other => other.number() == Some(0) && ready.is_empty(),
            };
            let may_wait = call.args.get(2).and_then(Expr::number) != Some(0);
            if !is_same && may_wait && ready.is_empty() {
                return Ok(Done::Blocks);
            }
            if !is_same {
                return Err(format!("descriptor {fd} has {}", ready.join("|")));
            }
        }
        Ok(Done::Returned(Ok(count)))
    }

    fn ready(&self, machine: &Machine, fd: i64, events: &Expr) -> Vec<&'static str> {
        let Some(socket) = self.sockets.get(&fd) else { return vec!["POLLNVAL"] };
        let asked = |name: &'static str, is_so: bool| (is_so && events.has_name(name)).then_some(name);
        match socket.kind {
            Kind::Fresh(_) => vec!["POLLHUP"],
            Kind::Listens(listener) => {
                let is_waiting = self.accepted.iter().any(|(of, _)| *of == listener);
                asked("POLLIN", is_waiting).into_iter().collect()
            }
            Kind::Connected(connection) => {
                let known = self.known.get(&connection).copied().unwrap_or_default();
                let is_over = known.closed.is_some();
                let has_error =
                    known.closed.is_some_and(|reason| reason != Reason::Finished) && !known.is_told;
                let may_write = known.is_established
                    && !is_over
                    && machine.stack.state(connection) >= ConnectionState::Established;
                let may_read = known.is_readable || known.is_peer_closed || is_over;
                [
                    asked("POLLIN", may_read),
                    asked("POLLPRI", known.is_urgent && machine.stack.urgent_bytes(connection) > 0),
                    asked("POLLOUT", may_write || is_over),
                    has_error.then_some("POLLERR"),
                    is_over.then_some("POLLHUP"),
                ]
                .into_iter()
                .flatten()
                .collect()
            }
        }
    }

    /// Lets go of everything.
    pub(super) fn exit(&mut self, machine: &mut Machine) {
        self.hear(machine);
        let now = machine.now();
        let accepted = self.accepted.drain(..).map(|(_, connection)| connection);
        let connected = self.sockets.values().filter_map(|socket| match socket.kind {
            Kind::Connected(connection) => Some(connection),
            _ => None,
        });
        for connection in connected.chain(accepted) {
            machine.stack.abort(connection, now);
            machine.stack.release(connection, now);
        }
    }
}

fn option(machine: &mut Machine, connection: ConnectionId, name: &str, value: i64) {
    let now = machine.now();
    match name {
        "TCP_NODELAY" => machine.stack.nagle(connection, value == 0, now),
        "SO_KEEPALIVE" => machine.stack.keep_alive(connection, value != 0, now),
        // In milliseconds.
        "TCP_USER_TIMEOUT" => machine.stack.user_timeout(connection, value.max(0) as u64 * 1_000_000, now),
        _ => {}
    }
}

/// What Linux calls it.
fn errno(reason: Reason) -> &'static str {
    match reason {
        Reason::Refused => "ECONNREFUSED",
        Reason::Reset => "ECONNRESET",
        Reason::TimedOut | Reason::Silent => "ETIMEDOUT",
        Reason::Unreachable => "EHOSTUNREACH",
        Reason::Aborted => "ECONNABORTED",
        Reason::Finished | Reason::Forgotten => "EPIPE",
    }
}

fn has_flag(call: &Call, name: &str) -> bool {
    call.args.iter().any(|arg| arg.has_name(name))
}

/// How many bytes a call is about: its third argument, or those of all pieces of a message.
fn length(call: &Call) -> Option<usize> {
    let bytes = match call.name.as_str() {
        "recvmsg" | "sendmsg" => {
            let Expr::List(pieces) = call.args.get(1)?.field("msg_iov")? else { return None };
            let piece = |piece: &Expr| match piece {
                Expr::List(parts) => parts.get(1)?.number(),
                _ => None,
            };
            pieces.iter().map(piece).sum::<Option<i64>>()?
        }
        _ => call.args.get(2)?.number()?,
    };
    usize::try_from(bytes).ok()
}

//! Connections, whatever is spoken on them: how many there may be, the streams made on each, and the engine that writes to it.

use std::net::SocketAddr;

use millrace_core::ids::{ConnId, ViewerSession};
use millrace_core::time::Instant;
use millrace_offload::command::Command;

use super::conn_table::{ClosedConn, ConnPlace, ReturnedConn};
use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::keys::{ConnKey, StreamKey, StreamPath};
use super::output::Output;
use super::refusal::{ConnRefusal, Refusal};
use super::state::Service;
use super::stream::EndReason;

impl Service {
    /// A connection has come in from here.
    ///
    /// # Errors
    /// There are too many; drop it.
    pub fn conn_opened(&mut self, peer: SocketAddr) -> Result<ConnKey, ConnRefusal> {
        let opened = self.take_conn(peer, false);
        match opened {
            Ok(conn) => self.tell(ServiceEvent::ConnectionOpened { conn, peer }),
            Err(ConnRefusal::ShuttingDown) => {}
            Err(refusal) => self.tell(ServiceEvent::ConnectionRefused { address: peer.ip(), refusal }),
        }
        opened
    }

    /// A connection has been lent, for bytes of a title. There is room for it as for any other, but whoever accepted it has counted it.
    /// The viewer of a session is admitted, however many others are at its address.
    ///
    /// # Errors
    /// There are too many; give it back.
    pub fn conn_lent(
        &mut self,
        peer: SocketAddr,
        session: Option<ViewerSession>,
    ) -> Result<ConnKey, ConnRefusal> {
        if session.is_some_and(|session| self.has_session(session)) {
            return self.add_conn(peer, true);
        }
        self.take_conn(peer, true)
    }

    fn take_conn(&mut self, peer: SocketAddr, is_lent: bool) -> Result<ConnKey, ConnRefusal> {
        let is_full = self.usage.of(peer.ip()).connections >= self.config.max_connections_per_address;
        if is_full && !self.shutting_down && self.conns.len() < self.config.max_connections {
            return Err(ConnRefusal::Address);
        }
        self.add_conn(peer, is_lent)
    }

    fn add_conn(&mut self, peer: SocketAddr, is_lent: bool) -> Result<ConnKey, ConnRefusal> {
        let ip = peer.ip();
        if self.shutting_down {
            return Err(ConnRefusal::ShuttingDown);
        }
        if self.conns.len() >= self.config.max_connections {
            return Err(ConnRefusal::Full);
        }
        self.usage.add_connection(ip);
        let key = ConnKey(self.new_key());
        self.conns.insert(key, ip, is_lent);
        Ok(key)
    }

    /// Binds the connection to the only engine that can write to it: its socket is there. This
    /// engine sends everything that goes through it, however much others have to do, and it never
    /// moves to another one.
    pub fn bind_conn(&mut self, key: ConnKey, engine: usize) {
        self.conns.bind(key, Some(engine).filter(|engine| *engine < self.slots.len()));
    }

    /// The only engine that can write to the connection, if there is such a one.
    pub fn bound_to(&self, conn: ConnKey) -> Option<usize> {
        self.conns.bound_to(conn)
    }

    /// The connection is closed, by whomever. Streams that go through it end; the others made on it go on without it.
    pub fn conn_closed(&mut self, now: Instant, key: ConnKey) {
        self.end_opening(key);
        let Some(ClosedConn { ip, engines, streams }) = self.conns.begin_close(key) else { return };
        for stream in streams {
            if let Some(listener) = self.casts.listener_mut(stream) {
                listener.owner = None;
            }
            let Some(state) = self.streams.get_mut(&stream) else { continue };
            state.owner = None;
            if state.path.conn() == Some(key) {
                self.close(now, stream, EndReason::Disconnected);
            }
        }
        self.conns.remove(key);
        self.usage.remove_connection(ip);
        for (engine, conn) in engines.into_iter().flatten() {
            self.command(engine, Command::ConnRemove { conn });
        }
    }

    /// Connections, without those that are lent.
    pub fn connection_count(&self) -> usize {
        self.conns.len() - self.conns.lent_count()
    }

    /// Connections that are lent ([`Service::conn_lent`]).
    pub fn lent_count(&self) -> usize {
        self.conns.lent_count()
    }

    /// Streams made on it that have not ended.
    pub fn streams_of(&self, conn: ConnKey) -> &[StreamKey] {
        self.conns.streams_of(conn)
    }

    /// A stream whose connection is gone belongs to this one from now on.
    pub fn adopt(&mut self, key: StreamKey, conn: ConnKey) {
        let stream = self.streams.get_mut(&key).map(|stream| &mut stream.owner);
        let listener = self.casts.listener_mut(key).map(|listener| &mut listener.owner);
        let Some(owner) = stream.or(listener).filter(|_| self.conns.contains(conn)) else { return };
        if owner.is_none() {
            *owner = Some(conn);
            self.conns.add_stream(conn, key);
        }
    }

    /// It belongs to this connection from now on, whatever it belonged to.
    pub(super) fn own(&mut self, key: StreamKey, conn: Option<ConnKey>) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let before = std::mem::replace(&mut stream.owner, conn);
        if before == conn {
            return;
        }
        self.disown(key, before);
        if let Some(conn) = conn {
            self.conns.add_stream(conn, key);
        }
    }

    /// It belongs to this connection no longer.
    pub(super) fn disown(&mut self, key: StreamKey, conn: Option<ConnKey>) {
        if let Some(conn) = conn {
            self.conns.remove_stream(conn, key);
        }
    }

    /// The engine that writes to it, and its name there.
    pub(super) fn attachment(&self, conn: ConnKey) -> Option<ConnPlace> {
        self.conns.attachment(conn)
    }

    /// Lets the engine write to the connection, if none does.
    pub(super) fn attach(&mut self, key: ConnKey, engine: usize) -> Result<(), Refusal> {
        if !self.conns.contains(key) {
            return Err(Refusal::Gone);
        }
        if self.conns.attachment(key).is_none() {
            let id = self.slots.take_conn(engine).ok_or(Refusal::Exhausted(Exhausted::EngineConnections))?;
            self.conns.attach(key, (engine, id));
            self.outputs.push(Output::Attach { conn: key, engine, id });
        }
        Ok(())
    }

    /// The connection broke under the engine's writes.
    pub(super) fn engine_lost_conn(&mut self, now: Instant, engine: usize, id: ConnId) {
        let Some(key) = self.conns.at_place((engine, id)) else { return };
        for stream in self.streams_through(key) {
            self.close(now, stream, EndReason::Disconnected);
        }
        self.tell(ServiceEvent::ConnectionLost { conn: key });
    }

    /// Streams that go through the connection.
    pub(super) fn streams_through(&self, conn: ConnKey) -> Vec<StreamKey> {
        let through =
            |key: &StreamKey| self.streams.get(key).and_then(|stream| stream.path.conn()) == Some(conn);
        self.streams_of(conn).iter().copied().filter(through).collect()
    }

    /// Whether the connection of this path goes over to another engine, so that nothing can be played through it now.
    pub(super) fn is_being_moved(&self, path: StreamPath) -> bool {
        path.conn().is_some_and(|conn| self.conns.is_between_engines(conn))
    }

    /// Another engine, which calls it `id`, is to write to the connection. The one that does gives it back first, when the rest of a frame
    /// is out ([`Service::conn_returned`]): only then can the other begin.
    pub(super) fn hand_over(&mut self, key: ConnKey, engine: usize, id: ConnId) {
        if !self.conns.contains(key) {
            return;
        }
        if let Some((engine, conn)) = self.conns.begin_hand_over(key, (engine, id)) {
            self.command(engine, Command::ConnReturn { conn });
        }
        self.outputs.push(Output::Hold { conn: key });
    }

    /// An engine writes to the connection no longer: the next one does. If it did not have it, it had lost it.
    pub(super) fn conn_returned(&mut self, now: Instant, engine: usize, id: ConnId, is_alive: bool) {
        // One that has been closed meanwhile is asked for once more ([`Service::conn_closed`]).
        let Some(key) = self.conns.at_place((engine, id)) else { return };
        if !is_alive {
            return self.engine_lost_conn(now, engine, id);
        }
        let next = match self.conns.take_back(key, (engine, id)) {
            ReturnedConn::Unattached => {
                self.slots.give_back_conn(engine, id);
                return self.tell(ServiceEvent::ConnectionReturned { conn: key });
            }
            ReturnedConn::HandedOver(next) => next,
            ReturnedConn::Unexpected => return,
        };
        self.slots.give_back_conn(engine, id);
        if let Some((engine, id)) = next {
            self.outputs.push(Output::Attach { conn: key, engine, id });
        }
        for stream in self.streams_through(key) {
            self.go_on_moved(now, stream);
            self.go_on(now, stream);
        }
    }

    /// Handles the end of an engine's thread, with the data that it had not written yet.
    pub(super) fn lose_conns_of(&mut self, now: Instant, engine: usize) {
        for id in self.conns.leaving(engine) {
            self.engine_lost_conn(now, engine, id);
        }
    }
}

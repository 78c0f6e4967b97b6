//! Connections, whatever is spoken on them: how many there may be, the streams made on each, and the engine that writes to it.

use std::net::{IpAddr, SocketAddr};

use millrace_core::address::network_of;
use millrace_core::ids::ConnId;
use millrace_core::time::Instant;
use millrace_offload::command::Command;

use super::event::ServiceEvent;
use super::keys::{ConnKey, StreamKey, StreamPath};
use super::ledger::Usage;
use super::output::Output;
use super::refusal::{ConnRefusal, Refusal};
use super::state::Service;
use super::stream::EndReason;

/// One connection.
pub(super) struct ConnRecord {
    ip: IpAddr,
    /// It came with an order of bytes, and is given back behind them.
    is_lent: bool,
    /// Streams made on it that are still there, whatever path they take.
    streams: Vec<StreamKey>,
    /// The engine that writes to it, and its name there.
    attached: Option<(usize, ConnId)>,
    /// The engine that wrote to it before, and has not given it back: until then the other has to wait.
    leaving: Option<(usize, ConnId)>,
    /// The engine that is to write to it as soon as its streams stand still.
    pub(super) moves_to: Option<usize>,
    /// The only engine that can write to it; `None`: any can.
    bound_to: Option<usize>,
}

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
    ///
    /// # Errors
    /// There are too many; give it back.
    pub fn conn_lent(&mut self, peer: SocketAddr) -> Result<ConnKey, ConnRefusal> {
        self.take_conn(peer, true)
    }

    fn take_conn(&mut self, peer: SocketAddr, is_lent: bool) -> Result<ConnKey, ConnRefusal> {
        let ip = peer.ip();
        if self.shutting_down {
            return Err(ConnRefusal::ShuttingDown);
        }
        let used = self.usage.get(&network_of(ip)).map_or(0, |usage| usage.connections);
        if self.conns.len() >= self.config.max_connections {
            return Err(ConnRefusal::Full);
        }
        if used >= self.config.max_connections_per_address {
            return Err(ConnRefusal::Address);
        }
        self.usage.entry(network_of(ip)).or_default().connections += 1;
        let key = ConnKey(self.new_key());
        let conn = ConnRecord {
            ip,
            is_lent,
            streams: Vec::new(),
            attached: None,
            leaving: None,
            moves_to: None,
            bound_to: None,
        };
        self.conns.insert(key, conn);
        self.lent_conns += usize::from(is_lent);
        Ok(key)
    }

    /// Binds the connection to the only engine that can write to it: its socket is there. This
    /// engine sends everything that goes through it, however much others have to do, and it never
    /// moves to another one.
    pub fn bind_conn(&mut self, key: ConnKey, engine: usize) {
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.bound_to = Some(engine).filter(|engine| *engine < self.slots.len());
        }
    }

    /// The only engine that can write to the connection, if there is such a one.
    pub fn bound_to(&self, conn: ConnKey) -> Option<usize> {
        self.conns.get(&conn)?.bound_to
    }

    /// The connection is closed, by whomever. Streams that go through it end; the others made on it go on without it.
    pub fn conn_closed(&mut self, now: Instant, key: ConnKey) {
        self.end_opening(key);
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let (ip, engines) = (conn.ip, [conn.attached, conn.leaving]);
        conn.moves_to = None;
        for stream in std::mem::take(&mut conn.streams) {
            let Some(state) = self.streams.get_mut(&stream) else { continue };
            state.owner = None;
            if state.path.conn() == Some(key) {
                self.close(now, stream, EndReason::Disconnected);
            }
        }
        let was_lent = self.conns.remove(&key).is_some_and(|conn| conn.is_lent);
        self.lent_conns -= usize::from(was_lent);
        self.release_usage(network_of(ip), |usage| &mut usage.connections);
        for (engine, conn) in engines.into_iter().flatten() {
            self.by_conn.remove(&(engine, conn));
            self.command(engine, Command::ConnRemove { conn });
        }
    }

    /// Connections, without those that are lent.
    pub fn connection_count(&self) -> usize {
        self.conns.len() - self.lent_conns
    }

    /// Connections that are lent ([`Service::conn_lent`]).
    pub fn lent_count(&self) -> usize {
        self.lent_conns
    }

    /// Streams made on it that have not ended.
    pub fn streams_of(&self, conn: ConnKey) -> &[StreamKey] {
        self.conns.get(&conn).map_or(&[], |conn| &conn.streams)
    }

    /// A stream whose connection is gone belongs to this one from now on.
    pub fn adopt(&mut self, key: StreamKey, conn: ConnKey) {
        let (Some(stream), Some(state)) = (self.streams.get_mut(&key), self.conns.get_mut(&conn)) else {
            return;
        };
        if stream.owner.is_none() {
            stream.owner = Some(conn);
            state.streams.push(key);
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
        if let Some(state) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
            state.streams.push(key);
        }
    }

    /// It belongs to this connection no longer.
    pub(super) fn disown(&mut self, key: StreamKey, conn: Option<ConnKey>) {
        if let Some(state) = conn.and_then(|conn| self.conns.get_mut(&conn)) {
            state.streams.retain(|other| *other != key);
        }
    }

    /// The engine that writes to it, and its name there.
    pub(super) fn attachment(&self, conn: ConnKey) -> Option<(usize, ConnId)> {
        self.conns.get(&conn)?.attached
    }

    /// Lets the engine write to the connection, if none does.
    pub(super) fn attach(&mut self, key: ConnKey, engine: usize) -> Result<(), Refusal> {
        let conn = self.conns.get_mut(&key).ok_or(Refusal::Gone)?;
        if conn.attached.is_none() {
            let id = self.slots[engine].places.take_conn().ok_or(Refusal::EngineConnections)?;
            conn.attached = Some((engine, id));
            self.by_conn.insert((engine, id), key);
            self.outputs.push(Output::Attach { conn: key, engine, id });
        }
        Ok(())
    }

    /// The connection broke under the engine's writes.
    pub(super) fn engine_lost_conn(&mut self, now: Instant, engine: usize, id: ConnId) {
        let Some(&key) = self.by_conn.get(&(engine, id)) else { return };
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
        path.conn().is_some_and(|conn| self.is_between_engines(conn))
    }

    /// Whether this connection does.
    pub(super) fn is_between_engines(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.moves_to.is_some() || conn.leaving.is_some())
    }

    /// Another engine, which calls it `id`, is to write to the connection. The one that does gives it back first, when the rest of a frame
    /// is out ([`Service::conn_returned`]): only then can the other begin.
    pub(super) fn hand_over(&mut self, key: ConnKey, engine: usize, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.leaving = conn.attached.replace((engine, id));
        self.by_conn.insert((engine, id), key);
        if let Some((engine, conn)) = conn.leaving {
            self.command(engine, Command::ConnReturn { conn });
        }
        self.outputs.push(Output::Hold { conn: key });
    }

    /// An engine writes to the connection no longer: the next one does. If it did not have it, it had lost it.
    pub(super) fn conn_returned(&mut self, now: Instant, engine: usize, id: ConnId, is_alive: bool) {
        // One that has been closed meanwhile is asked for once more ([`Service::conn_closed`]).
        let Some(&key) = self.by_conn.get(&(engine, id)) else { return };
        if !is_alive {
            return self.engine_lost_conn(now, engine, id);
        }
        let Some(conn) = self.conns.get_mut(&key) else { return };
        if conn.attached == Some((engine, id)) {
            conn.attached = None;
            self.by_conn.remove(&(engine, id));
            self.slots[engine].places.give_back_conn(id);
            return self.tell(ServiceEvent::ConnectionReturned { conn: key });
        }
        if conn.leaving != Some((engine, id)) {
            return;
        }
        conn.leaving = None;
        let attached = conn.attached;
        self.by_conn.remove(&(engine, id));
        self.slots[engine].places.give_back_conn(id);
        if let Some((engine, id)) = attached {
            self.outputs.push(Output::Attach { conn: key, engine, id });
        }
        for stream in self.streams_through(key) {
            self.go_on_moved(now, stream);
            self.go_on(now, stream);
        }
    }

    /// Handles the end of an engine's thread, with the data that it had not written yet.
    pub(super) fn lose_conns_of(&mut self, now: Instant, engine: usize) {
        let leaving = self.conns.values().filter_map(|conn| conn.leaving).filter(|(from, _)| *from == engine);
        for (engine, id) in leaving.collect::<Vec<_>>() {
            self.engine_lost_conn(now, engine, id);
        }
    }

    pub(super) fn release_usage(&mut self, bucket: IpAddr, which: impl Fn(&mut Usage) -> &mut usize) {
        if let Some(usage) = self.usage.get_mut(&bucket) {
            *which(usage) = which(usage).saturating_sub(1);
            if usage.connections == 0 && usage.sessions == 0 && usage.streams == 0 {
                self.usage.remove(&bucket);
            }
        }
    }
}

//! The table of connections: the streams made on each, and the engine that writes to it.

use std::collections::HashMap;
use std::net::IpAddr;

use millrace_core::ids::ConnId;

use super::keys::{ConnKey, StreamKey};

/// An engine that writes to a connection, and the connection's name there.
pub(super) type ConnPlace = (usize, ConnId);

/// One connection.
struct ConnRecord {
    ip: IpAddr,
    /// It came with an order of bytes, and is given back behind them.
    is_lent: bool,
    /// Streams made on it that are still there, whatever path they take.
    streams: Vec<StreamKey>,
    /// The engine that writes to it.
    attached: Option<ConnPlace>,
    /// The engine that wrote to it before, and has not given it back: until then the other has to wait.
    leaving: Option<ConnPlace>,
    /// The engine that is to write to it as soon as its streams stand still.
    moves_to: Option<usize>,
    /// The only engine that can write to it; `None`: any can.
    bound_to: Option<usize>,
}

/// A connection that is about to be forgotten.
pub(super) struct ClosedConn {
    pub(super) ip: IpAddr,
    /// Engines that write to it, or have not given it back.
    pub(super) engines: [Option<ConnPlace>; 2],
    /// Streams made on it.
    pub(super) streams: Vec<StreamKey>,
}

/// An engine's return of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnedConn {
    /// No engine writes to it now.
    Unattached,
    /// The engine that was to follow can write to it.
    HandedOver(Option<ConnPlace>),
    /// It was not that engine's.
    Unexpected,
}

/// All connections.
#[derive(Default)]
pub(super) struct ConnTable {
    by_key: HashMap<ConnKey, ConnRecord>,
    /// Those of them that are lent.
    lent: usize,
    by_place: HashMap<ConnPlace, ConnKey>,
}

impl ConnTable {
    pub(super) fn insert(&mut self, key: ConnKey, ip: IpAddr, is_lent: bool) {
        let conn = ConnRecord {
            ip,
            is_lent,
            streams: Vec::new(),
            attached: None,
            leaving: None,
            moves_to: None,
            bound_to: None,
        };
        self.by_key.insert(key, conn);
        self.lent += usize::from(is_lent);
    }

    /// Takes the streams of a connection that ends. Its engines are found until it is removed.
    pub(super) fn begin_close(&mut self, key: ConnKey) -> Option<ClosedConn> {
        let conn = self.by_key.get_mut(&key)?;
        conn.moves_to = None;
        let (ip, engines) = (conn.ip, [conn.attached, conn.leaving]);
        Some(ClosedConn { ip, engines, streams: std::mem::take(&mut conn.streams) })
    }

    pub(super) fn remove(&mut self, key: ConnKey) {
        let Some(conn) = self.by_key.remove(&key) else { return };
        self.lent -= usize::from(conn.is_lent);
        for place in [conn.attached, conn.leaving].into_iter().flatten() {
            self.by_place.remove(&place);
        }
    }

    pub(super) fn contains(&self, key: ConnKey) -> bool {
        self.by_key.contains_key(&key)
    }

    /// All, those that are lent included.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn lent_count(&self) -> usize {
        self.lent
    }

    pub(super) fn bind(&mut self, key: ConnKey, engine: Option<usize>) {
        if let Some(conn) = self.by_key.get_mut(&key) {
            conn.bound_to = engine;
        }
    }

    /// The only engine that can write to the connection, if there is such a one.
    pub(super) fn bound_to(&self, key: ConnKey) -> Option<usize> {
        self.by_key.get(&key)?.bound_to
    }

    /// Streams made on it that have not ended.
    pub(super) fn streams_of(&self, key: ConnKey) -> &[StreamKey] {
        self.by_key.get(&key).map_or(&[], |conn| &conn.streams)
    }

    pub(super) fn add_stream(&mut self, key: ConnKey, stream: StreamKey) {
        if let Some(conn) = self.by_key.get_mut(&key) {
            conn.streams.push(stream);
        }
    }

    pub(super) fn remove_stream(&mut self, key: ConnKey, stream: StreamKey) {
        if let Some(conn) = self.by_key.get_mut(&key) {
            conn.streams.retain(|other| *other != stream);
        }
    }

    /// The engine that writes to it, and its name there.
    pub(super) fn attachment(&self, key: ConnKey) -> Option<ConnPlace> {
        self.by_key.get(&key)?.attached
    }

    /// The connection that has this name in this engine.
    pub(super) fn at_place(&self, place: ConnPlace) -> Option<ConnKey> {
        self.by_place.get(&place).copied()
    }

    pub(super) fn attach(&mut self, key: ConnKey, place: ConnPlace) {
        if let Some(conn) = self.by_key.get_mut(&key) {
            conn.attached = Some(place);
            self.by_place.insert(place, key);
        }
    }

    /// Another engine follows the one that writes to the connection, which is returned: it has to
    /// give the connection back first.
    pub(super) fn begin_hand_over(&mut self, key: ConnKey, to: ConnPlace) -> Option<ConnPlace> {
        let conn = self.by_key.get_mut(&key)?;
        conn.leaving = conn.attached.replace(to);
        self.by_place.insert(to, key);
        conn.leaving
    }

    /// An engine has given the connection back.
    pub(super) fn take_back(&mut self, key: ConnKey, place: ConnPlace) -> ReturnedConn {
        let Some(conn) = self.by_key.get_mut(&key) else { return ReturnedConn::Unexpected };
        let returned = if conn.attached == Some(place) {
            conn.attached = None;
            ReturnedConn::Unattached
        } else if conn.leaving == Some(place) {
            conn.leaving = None;
            ReturnedConn::HandedOver(conn.attached)
        } else {
            return ReturnedConn::Unexpected;
        };
        self.by_place.remove(&place);
        returned
    }

    /// Whether this connection goes over to another engine, so that nothing can be played through
    /// it now.
    pub(super) fn is_between_engines(&self, key: ConnKey) -> bool {
        self.by_key.get(&key).is_some_and(|conn| conn.moves_to.is_some() || conn.leaving.is_some())
    }

    /// The engine that is to write to the connection as soon as its streams stand still.
    pub(super) fn moves_to(&self, key: ConnKey) -> Option<usize> {
        self.by_key.get(&key)?.moves_to
    }

    pub(super) fn set_move(&mut self, key: ConnKey, engine: Option<usize>) {
        if let Some(conn) = self.by_key.get_mut(&key) {
            conn.moves_to = engine;
        }
    }

    /// Names of the connections that this engine has not given back.
    pub(super) fn leaving(&self, engine: usize) -> Vec<ConnId> {
        let leaving = self.by_key.values().filter_map(|conn| conn.leaving);
        leaving.filter(|(from, _)| *from == engine).map(|(_, id)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const KEY: ConnKey = ConnKey(7);

    fn one_conn(is_lent: bool) -> ConnTable {
        let mut conns = ConnTable::default();
        conns.insert(KEY, Ipv4Addr::LOCALHOST.into(), is_lent);
        conns
    }

    fn place(engine: usize, id: u32) -> ConnPlace {
        (engine, ConnId(id))
    }

    #[test]
    fn hand_over_waits_for_engine_that_wrote_before() {
        let mut conns = one_conn(false);
        let (first, other) = (place(0, 1), place(1, 2));
        conns.attach(KEY, first);
        assert_eq!(conns.begin_hand_over(KEY, other), Some(first));
        assert!(conns.is_between_engines(KEY));
        assert_eq!((conns.at_place(first), conns.at_place(other)), (Some(KEY), Some(KEY)));
        assert_eq!((conns.leaving(0), conns.leaving(1)), (vec![first.1], Vec::new()));
        assert_eq!(conns.take_back(KEY, first), ReturnedConn::HandedOver(Some(other)));
        assert!(!conns.is_between_engines(KEY));
        assert_eq!((conns.at_place(first), conns.attachment(KEY)), (None, Some(other)));
        assert_eq!(conns.take_back(KEY, first), ReturnedConn::Unexpected);
        assert_eq!(conns.take_back(KEY, other), ReturnedConn::Unattached);
        assert_eq!((conns.at_place(other), conns.attachment(KEY)), (None, None));
    }

    #[test]
    fn remove_forgets_both_engines_of_connection() {
        let mut conns = one_conn(true);
        let (first, other) = (place(0, 1), place(1, 2));
        conns.attach(KEY, first);
        conns.begin_hand_over(KEY, other);
        conns.add_stream(KEY, StreamKey(1));
        let closed = conns.begin_close(KEY).unwrap();
        assert_eq!((closed.engines, closed.streams), ([Some(other), Some(first)], vec![StreamKey(1)]));
        assert_eq!((conns.len(), conns.lent_count()), (1, 1));
        assert!(conns.streams_of(KEY).is_empty(), "their owner ends them");
        conns.remove(KEY);
        assert_eq!((conns.len(), conns.lent_count()), (0, 0));
        assert_eq!((conns.at_place(first), conns.at_place(other)), (None, None));
    }

    #[test]
    fn connection_that_is_to_move_plays_nothing_and_closes_where_it_is() {
        let mut conns = one_conn(false);
        conns.attach(KEY, place(0, 1));
        assert!(!conns.is_between_engines(KEY));
        conns.set_move(KEY, Some(1));
        assert_eq!((conns.is_between_engines(KEY), conns.moves_to(KEY)), (true, Some(1)));
        conns.begin_close(KEY).unwrap();
        assert_eq!((conns.is_between_engines(KEY), conns.moves_to(KEY)), (false, None));
    }

    #[test]
    fn streams_of_connection_follow_additions_and_removals() {
        let mut conns = one_conn(false);
        conns.add_stream(KEY, StreamKey(1));
        conns.add_stream(KEY, StreamKey(2));
        conns.remove_stream(KEY, StreamKey(1));
        assert_eq!(conns.streams_of(KEY), [StreamKey(2)]);
        conns.add_stream(ConnKey(8), StreamKey(3));
        assert!(conns.streams_of(ConnKey(8)).is_empty());
    }
}

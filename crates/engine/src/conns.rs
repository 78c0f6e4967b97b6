//! Which streams go through a connection: a doubly linked list for each, so that a connection that is gone costs as much as it has
//! streams.

use millrace_core::ids::ConnId;

/// No stream.
const NONE: u32 = u32::MAX;

/// The streams before and behind one.
#[derive(Clone, Copy, Debug)]
struct ConnectionLink {
    conn: ConnId,
    previous: u32,
    next: u32,
    is_linked: bool,
}

/// See the module. Connections whose numbers agree in their lowest bits share a list; they are
/// numbered from 0 on, so this is rare.
pub(crate) struct ConnLists {
    /// First stream of each list; their number is a power of two.
    heads: Box<[u32]>,
    links: Box<[ConnectionLink]>,
}

impl ConnLists {
    /// Creates the lists for this many streams.
    pub(crate) fn new(streams: usize) -> Self {
        let link = ConnectionLink { conn: ConnId(0), previous: NONE, next: NONE, is_linked: false };
        Self { heads: vec![NONE; streams.next_power_of_two()].into(), links: vec![link; streams].into() }
    }

    fn head(&self, conn: ConnId) -> usize {
        conn.0 as usize & (self.heads.len() - 1)
    }

    /// The stream goes through this connection from now on. It must not go through another.
    pub(crate) fn insert(&mut self, conn: ConnId, index: u32) {
        debug_assert!(!self.links[index as usize].is_linked);
        let head = self.head(conn);
        let next = std::mem::replace(&mut self.heads[head], index);
        self.links[index as usize] = ConnectionLink { conn, previous: NONE, next, is_linked: true };
        if let Some(next) = self.links.get_mut(next as usize) {
            next.previous = index;
        }
    }

    /// The stream goes through no connection any more.
    pub(crate) fn remove(&mut self, index: u32) {
        let ConnectionLink { conn, previous, next, is_linked } = self.links[index as usize];
        if !is_linked {
            return;
        }
        self.links[index as usize].is_linked = false;
        let head = self.head(conn);
        match self.links.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.heads[head] = next,
        }
        if let Some(next) = self.links.get_mut(next as usize) {
            next.previous = previous;
        }
    }

    /// The first stream of the connection.
    pub(crate) fn first(&self, conn: ConnId) -> Option<u32> {
        self.of_conn(conn, self.heads[self.head(conn)])
    }

    /// The connection's stream behind this one.
    pub(crate) fn behind(&self, index: u32) -> Option<u32> {
        let ConnectionLink { conn, next, .. } = self.links[index as usize];
        self.of_conn(conn, next)
    }

    /// The first stream of the connection from `index` on.
    fn of_conn(&self, conn: ConnId, mut index: u32) -> Option<u32> {
        loop {
            let link = self.links.get(index as usize)?;
            if link.conn == conn {
                return Some(index);
            }
            index = link.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn streams_of(lists: &ConnLists, conn: ConnId) -> Vec<u32> {
        std::iter::successors(lists.first(conn), |&index| lists.behind(index)).collect()
    }

    proptest! {
        /// Streams come and go; connections 1, 9 and 17 share a list.
        #[test]
        fn conn_lists_after_any_operations_match_model(ops in proptest::collection::vec((0u32..7, 0usize..5), 0..100)) {
            let conns = [0, 1, 9, 17, u32::MAX].map(ConnId);
            let mut lists = ConnLists::new(7);
            let mut model = [const { BTreeSet::new() }; 5];
            for (index, conn) in ops {
                match model.iter_mut().find(|streams| streams.contains(&index)) {
                    Some(streams) => {
                        streams.remove(&index);
                        lists.remove(index);
                        lists.remove(index);
                    }
                    None => {
                        model[conn].insert(index);
                        lists.insert(conns[conn], index);
                    }
                }
                for (conn, streams) in conns.into_iter().zip(&model) {
                    let mut listed = streams_of(&lists, conn);
                    listed.sort_unstable();
                    prop_assert_eq!(listed, streams.iter().copied().collect::<Vec<_>>());
                }
            }
        }
    }
}

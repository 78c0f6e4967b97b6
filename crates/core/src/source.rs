//! Local source addresses of datagrams: a small table that the control side fills and engines read.
//!
//! A viewer expects its media from the address that it contacted. The kernel chooses the source by
//! the route instead, and on a machine with several addresses that is often another one. An address
//! takes 16 bytes and a destination has room for one, so a destination names a row of this table.

use std::net::IpAddr;
use std::sync::OnceLock;

use crate::limits::MAX_SOURCES;

/// A row of a [`SourceTable`], or the address that the route gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceId(u8);

impl SourceId {
    /// The address that the route gives.
    pub const BY_ROUTE: Self = Self(0);

    /// Whether the route determines the address.
    #[inline]
    pub fn is_by_route(self) -> bool {
        self == Self::BY_ROUTE
    }
}

/// The table of source addresses. Rows are filled once and never change, so reading takes no lock.
#[derive(Debug)]
pub struct SourceTable {
    rows: [OnceLock<IpAddr>; MAX_SOURCES],
}

impl Default for SourceTable {
    fn default() -> Self {
        Self { rows: [const { OnceLock::new() }; MAX_SOURCES] }
    }
}

impl SourceTable {
    /// Returns the row of this address, which is added if it is new. Returns [`SourceId::BY_ROUTE`]
    /// if the table is full.
    pub fn row_of(&self, ip: IpAddr) -> SourceId {
        let place = self.rows.iter().position(|row| *row.get_or_init(|| ip) == ip);
        place.and_then(|place| u8::try_from(place + 1).ok()).map_or(SourceId::BY_ROUTE, SourceId)
    }

    /// Returns the address of a row; `None` if the route determines it.
    pub fn get(&self, id: SourceId) -> Option<IpAddr> {
        self.rows.get(usize::from(id.0).checked_sub(1)?)?.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_same_address_is_the_same_until_the_table_is_full() {
        let table = SourceTable::default();
        let ip = |last: u8| IpAddr::from([192, 0, 2, last]);
        let first = table.row_of(ip(0));
        for last in 0..=254 {
            let row = table.row_of(ip(last));
            assert_eq!((row.is_by_route(), table.get(row)), (false, Some(ip(last))));
        }
        assert_eq!(table.row_of(ip(0)), first);
        assert_eq!((table.row_of(ip(255)), table.get(SourceId::BY_ROUTE)), (SourceId::BY_ROUTE, None));
    }
}

//! The ledger of usage: connections, streams and bit rates of each address, user and title.

use std::collections::HashMap;
use std::net::IpAddr;

use millrace_core::address::network_of;

use super::counted::{CountedViewer, Watched};

/// What one address holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) connections: usize,
    /// Streams, playing or not.
    pub(super) sessions: usize,
    /// Those that have reserved room to play, and viewers that fetch segments.
    pub(super) streams: usize,
    /// Bits a second that they have reserved.
    pub(super) rate: u64,
}

/// The use of the server. Addresses of one network count as one.
#[derive(Debug, Default)]
pub(super) struct UsageLedger {
    by_network: HashMap<IpAddr, Usage>,
    watched: Watched,
}

impl UsageLedger {
    /// What this address holds.
    pub(super) fn of(&self, ip: IpAddr) -> Usage {
        self.by_network.get(&network_of(ip)).copied().unwrap_or_default()
    }

    /// The use of each title and of each user with limits.
    pub(super) fn watched(&self) -> &Watched {
        &self.watched
    }

    pub(super) fn add_connection(&mut self, ip: IpAddr) {
        self.entry(ip).connections += 1;
    }

    pub(super) fn remove_connection(&mut self, ip: IpAddr) {
        self.release(ip, |usage| usage.connections = usage.connections.saturating_sub(1));
    }

    pub(super) fn add_session(&mut self, ip: IpAddr) {
        self.entry(ip).sessions += 1;
    }

    pub(super) fn remove_session(&mut self, ip: IpAddr) {
        self.release(ip, |usage| usage.sessions = usage.sessions.saturating_sub(1));
    }

    /// Counts a session at the other address from now on.
    pub(super) fn move_session(&mut self, from: IpAddr, to: IpAddr) {
        if network_of(from) != network_of(to) {
            self.add_session(to);
            self.remove_session(from);
        }
    }

    /// A viewer at this address has reserved room to play.
    pub(super) fn add_viewer(&mut self, ip: IpAddr, who: CountedViewer<'_>) {
        let usage = self.entry(ip);
        (usage.streams, usage.rate) = (usage.streams + 1, usage.rate + who.rate);
        self.watched.begin(who);
    }

    /// It gives that back.
    pub(super) fn remove_viewer(&mut self, ip: IpAddr, who: CountedViewer<'_>) {
        self.release(ip, |usage| {
            usage.rate -= who.rate;
            usage.streams = usage.streams.saturating_sub(1);
        });
        self.watched.end(who);
    }

    /// The bit rate of a viewer at this address, `before` until now, is that of `who`.
    pub(super) fn change_rate(&mut self, ip: IpAddr, before: u64, who: CountedViewer<'_>) {
        if let Some(usage) = self.by_network.get_mut(&network_of(ip)) {
            usage.rate = usage.rate - before + who.rate;
        }
        self.watched.end(CountedViewer { rate: before, ..who });
        self.watched.begin(who);
    }

    fn entry(&mut self, ip: IpAddr) -> &mut Usage {
        self.by_network.entry(network_of(ip)).or_default()
    }

    /// Forgets addresses that hold nothing any more: clients must not be able to fill the table.
    fn release(&mut self, ip: IpAddr, change: impl FnOnce(&mut Usage)) {
        let network = network_of(ip);
        let Some(usage) = self.by_network.get_mut(&network) else { return };
        change(usage);
        if usage.connections == 0 && usage.sessions == 0 && usage.streams == 0 {
            self.by_network.remove(&network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn viewer(rate: u64) -> CountedViewer<'static> {
        CountedViewer { title: "film", quota: None, rate, player: None }
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn ledger_forgets_addresses_that_hold_nothing() {
        let (mut ledger, ip) = (UsageLedger::default(), address(1));
        ledger.add_connection(ip);
        ledger.add_session(ip);
        ledger.add_viewer(ip, viewer(5));
        assert_eq!(ledger.of(ip), Usage { connections: 1, sessions: 1, streams: 1, rate: 5 });
        ledger.remove_connection(ip);
        ledger.remove_viewer(ip, viewer(5));
        assert_eq!(ledger.of(ip), Usage { sessions: 1, ..Usage::default() });
        assert_eq!(ledger.by_network.len(), 1);
        ledger.remove_session(ip);
        assert!(ledger.by_network.is_empty());
    }

    #[test]
    fn ledger_keeps_addresses_that_hold_connections_or_viewers() {
        let (mut ledger, ip) = (UsageLedger::default(), address(1));
        ledger.add_session(ip);
        ledger.add_connection(ip);
        ledger.remove_session(ip);
        assert_eq!(ledger.of(ip), Usage { connections: 1, ..Usage::default() });
        ledger.add_viewer(ip, viewer(5));
        ledger.remove_connection(ip);
        assert_eq!(ledger.of(ip), Usage { streams: 1, rate: 5, ..Usage::default() });
        let title = viewer(0).whose().next().expect("the title");
        assert_eq!(ledger.watched().used(&title, None, |_| 0), (1, 5));
        ledger.remove_viewer(ip, viewer(5));
        assert_eq!((ledger.watched().used(&title, None, |_| 0), ledger.by_network.len()), ((0, 0), 0));
    }

    #[test]
    fn addresses_of_one_network_are_counted_together() {
        let mut ledger = UsageLedger::default();
        let [one, other]: [IpAddr; 2] =
            ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().expect("an address"));
        ledger.add_session(one);
        ledger.move_session(one, other);
        assert_eq!((ledger.of(one).sessions, ledger.by_network.len()), (1, 1));
        ledger.move_session(other, address(1));
        assert_eq!((ledger.of(one).sessions, ledger.of(address(1)).sessions), (0, 1));
    }

    #[test]
    fn changed_rate_counts_for_address_and_title() {
        let (mut ledger, ip) = (UsageLedger::default(), address(1));
        ledger.add_viewer(ip, viewer(5));
        ledger.add_viewer(ip, viewer(1));
        ledger.change_rate(ip, 5, viewer(8));
        assert_eq!(ledger.of(ip).rate, 9);
        let title = viewer(0).whose().next().expect("the title");
        assert_eq!(ledger.watched().used(&title, None, |_| 0), (2, 9));
    }
}

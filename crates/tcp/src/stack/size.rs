//! How much memory a stack takes, from its settings: all of it is taken when it is made.

use millrace_core::wheel::Wheel;

use super::listen::Listener;
use super::notes::Notes;
use super::requests::Requests;
use super::{Reply, Settings, StackSlot, WantedExtent};
use crate::limits::MAX_REPLIES;
use crate::recover::records::Records;
use crate::recv::Pages;
use crate::send::Store;
use crate::table::FlowTable;
use crate::time_wait::TimeWaits;
use crate::wire::FlowKey;

/// Bytes of an idle established connection in all tables of a stack: its slot, its ends and its place in the table (at the least load), its
/// timer, and its places in the two queues.
pub const IDLE_CONNECTION_BYTES: usize = size_of::<StackSlot>() + size_of::<FlowKey>() + 2 * 8 + 24 + 2 * 4;

// 10^6 connections take half a GB.
const _: () = assert!(IDLE_CONNECTION_BYTES <= 512);

impl Settings {
    /// Bytes that a stack with these settings takes.
    pub fn bytes(&self) -> u64 {
        let connections = self.connections as usize;
        let queues = 2 * connections * size_of::<u32>();
        let slots = connections * size_of::<StackSlot>() + queues;
        let found = FlowTable::bytes(self.connections) + Wheel::bytes(connections);
        let handshakes = Requests::bytes(self.requests) + TimeWaits::bytes(self.time_waits);
        let sending = Records::bytes(self.records) + Store::bytes(self.descriptors, self.host_pages);
        let waiting =
            self.descriptors as usize * size_of::<WantedExtent>() + MAX_REPLIES * size_of::<Reply>();
        let received = Pages::bytes_of(&self.clusters);
        let listeners = usize::from(self.listeners) * size_of::<Option<Listener>>();
        (slots + found + handshakes + listeners + sending + waiting + received + Notes::BYTES) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::{Agreed, Config};
    use crate::recv::ClusterSize;

    /// With a tenth of the connections busy, and a flood of handshakes.
    fn a_million() -> Settings {
        let cluster = ClusterSize { bytes: 64 << 20, page_bytes: 2048 };
        Settings {
            config: Config::default(),
            connections: 1_000_000,
            requests: 65_536,
            listeners: 16,
            time_waits: 262_144,
            records: 262_144,
            descriptors: 262_144,
            host_pages: 16_384,
            clusters: vec![cluster, cluster],
            defers_acks: true,
            cookies: true,
            ports: (40_000..=50_000).into(),
            secret: [1, 2],
        }
    }

    #[test]
    fn settings_bytes_of_million_connections_fit_in_one_gb() {
        let settings = a_million();
        let bytes = settings.bytes();
        assert!(bytes < 1_000_000_000, "{bytes}");
        let idle = Settings { connections: 0, ..settings };
        let each = (bytes - idle.bytes()) / 1_000_000;
        // A table of a million has 2.1 places for each, and a wheel's blocks are not all full.
        assert!((500..=IDLE_CONNECTION_BYTES as u64 + 4).contains(&each), "{each}");
    }

    #[test]
    fn request_and_time_wait_records_are_smaller_than_connections() {
        let bytes = |change: fn(&mut Settings)| {
            let mut settings = a_million();
            let before = settings.bytes();
            change(&mut settings);
            (settings.bytes() - before) as usize
        };
        let request = bytes(|settings| settings.requests *= 2) / 65_536;
        let time_wait = bytes(|settings| settings.time_waits *= 2) / 262_144;
        assert!(size_of::<Agreed>() < request && request <= 176, "{request}");
        assert!((80..=92).contains(&time_wait), "{time_wait}");
    }
}

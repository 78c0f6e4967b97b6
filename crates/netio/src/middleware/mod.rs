//! Around any way out: each takes the device inside and is a device itself, so they stack.
//!
//! | wrapper | does |
//! | --- | --- |
//! | [`FaultTx`] | loses, doubles and reorders datagrams, blocks and refuses entries, all from one seed |
//! | [`CountTx`] | counts outcomes, datagrams and bytes |
//! | [`TraceTx`] | remembers the last entries with their outcomes |
//! | [`PcapTx`] | writes what was taken to a capture file |

mod fault;
mod pcap;
mod trace;

pub use self::fault::{FaultCounters, FaultPlan, FaultTx};
pub use self::pcap::{PcapSource, PcapTx};
pub use self::trace::{CountTx, SendCounts, TraceTx, Traced};

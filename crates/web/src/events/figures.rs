//! Figures of each second: what counters have counted since the second before.

use std::collections::BTreeMap;

use millrace_core::time::NS_PER_S;
use millrace_rights::Now;
use schemars::JsonSchema;
use serde::Serialize;

use crate::site::Site;
use crate::status::{Room, Status};

/// How much is sent, and how well.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Figures")]
pub struct LiveFigures {
    /// Seconds since 1970.
    pub at_unix_s: u64,
    /// Streams that are being sent, by RTSP and HTTP.
    pub streams: u64,
    /// Media in the last second; null at first.
    pub bits_per_s: Option<u64>,
    /// Packets in the last second; null at first.
    pub packets_per_s: Option<u64>,
    /// Of these, how many left after their time.
    pub late_packets: Option<u64>,
    /// The longest delay of a packet since the start.
    pub late_max_s: f64,
    /// The resource with the highest usage: it refuses viewers first.
    pub limit: Option<Room>,
    /// The same of each engine.
    pub engines: Vec<EngineFigures>,
    /// Events of the last second that were not sent, because there were too many.
    pub left_out: u64,
}

/// One engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct EngineFigures {
    /// Its number.
    pub engine: String,
    /// Streams that it sends.
    pub streams: u64,
    /// Media in the last second; null at first.
    pub bits_per_s: Option<u64>,
    /// Share of the time that its core was busy; null at first.
    pub busy: Option<f64>,
    /// Packets of the last second that left after their time; null at first.
    pub late_packets: Option<u64>,
    /// The longest delay of a packet since the start.
    pub late_max_s: f64,
}

/// Counters of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) streams: u64,
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) late: u64,
    pub(crate) late_max_ns: u64,
    busy_ns: u64,
    idle_ns: u64,
}

/// Of each engine, by its number.
pub(crate) fn sums(site: &dyn Site) -> BTreeMap<String, Sums> {
    let mut engines = BTreeMap::<String, Sums>::new();
    site.counters(&mut |sample| {
        let field: fn(&mut Sums) -> &mut u64 = match (sample.part, sample.counter.name) {
            ("engine", "playing") => |sums| &mut sums.streams,
            ("engine", "bytes") => |sums| &mut sums.bytes,
            ("engine", "packets") => |sums| &mut sums.packets,
            ("engine", "late") => |sums| &mut sums.late,
            ("engine", "late_max_ns") => |sums| &mut sums.late_max_ns,
            ("loop", "busy_ns") => |sums| &mut sums.busy_ns,
            ("loop", "idle_ns") => |sums| &mut sums.idle_ns,
            _ => return,
        };
        let engine = sample.label.map(|(_, value)| value).unwrap_or_default();
        *field(engines.entry(engine.to_owned()).or_default()) = sample.value;
    });
    engines
}

/// The figures that came before.
#[derive(Debug, Default)]
pub(super) struct Before(Option<(Now, BTreeMap<String, Sums>)>);

impl Before {
    /// The figures now.
    pub(super) fn figures(&mut self, site: &dyn Site, status: &Status) -> LiveFigures {
        self.since(Now::read(), sums(site), status)
    }

    fn since(&mut self, now: Now, engines: BTreeMap<String, Sums>, status: &Status) -> LiveFigures {
        let before = self.0.replace((now, engines.clone()));
        let ns = before.as_ref().map(|(then, _)| now.mono.ns_since(then.mono)).filter(|&ns| ns > 0);
        let per_s = |count: u64, ns: u64| (u128::from(count) * u128::from(NS_PER_S) / u128::from(ns)) as u64;
        let mut all =
            LiveFigures { at_unix_s: now.unix_s, limit: fullest(&status.room), ..LiveFigures::default() };
        if ns.is_some() {
            (all.bits_per_s, all.packets_per_s, all.late_packets) = (Some(0), Some(0), Some(0));
        }
        for (engine, now) in engines {
            let mut of = EngineFigures {
                engine,
                streams: now.streams,
                late_max_s: now.late_max_ns as f64 / NS_PER_S as f64,
                ..EngineFigures::default()
            };
            let then = before.as_ref().and_then(|(_, engines)| engines.get(&of.engine));
            if let Some((then, ns)) = then.zip(ns) {
                let grown = |field: fn(&Sums) -> u64| field(&now).saturating_sub(field(then));
                let bits_per_s = per_s(grown(|sums| sums.bytes) * 8, ns);
                let late = grown(|sums| sums.late);
                let (busy, idle) = (grown(|sums| sums.busy_ns), grown(|sums| sums.idle_ns));
                of.busy = (busy + idle > 0).then(|| busy as f64 / (busy + idle) as f64);
                (of.bits_per_s, of.late_packets) = (Some(bits_per_s), Some(late));
                all.bits_per_s = all.bits_per_s.map(|sum| sum + bits_per_s);
                all.packets_per_s = all.packets_per_s.map(|sum| sum + per_s(grown(|sums| sums.packets), ns));
                all.late_packets = all.late_packets.map(|sum| sum + late);
            }
            all.streams += of.streams;
            all.late_max_s = all.late_max_s.max(of.late_max_s);
            all.engines.push(of);
        }
        all
    }
}

/// Returns the resource with the highest share in use.
fn fullest(room: &[Room]) -> Option<Room> {
    let share = |room: &Room| if room.of == 0 { 0.0 } else { room.used as f64 / room.of as f64 };
    room.iter().max_by(|a, b| share(a).total_cmp(&share(b))).cloned()
}

#[cfg(test)]
mod tests {
    use millrace_core::time::Instant;

    use super::*;

    #[test]
    fn rates_are_what_was_counted_by_the_time_that_has_passed() {
        let room = |what: &str, used, of| Room { what: what.to_owned(), used, of };
        let status =
            Status { room: vec![room("a", 1, 10), room("b", 9, 10), room("c", 5, 0)], ..Status::default() };
        let sums = |bytes, late, busy_ns| Sums {
            streams: 3,
            bytes,
            packets: bytes / 1000,
            late,
            late_max_ns: 1_500_000,
            busy_ns,
            idle_ns: 4_000_000_000 - busy_ns,
        };
        let engines = |bytes, late, busy_ns| {
            ["0", "1"].map(|engine| (engine.to_owned(), sums(bytes, late, busy_ns))).into_iter().collect()
        };
        let at = |ms: u64| Now { mono: Instant(ms * 1_000_000), unix_s: ms / 1000 };
        let mut before = Before::default();
        let first = before.since(at(5_000), engines(1_000_000, 3, 0), &status);
        assert_eq!((first.streams, first.bits_per_s, first.late_packets), (6, None, None));
        assert_eq!(first.limit, Some(room("b", 9, 10)));
        let next = before.since(at(7_000), engines(3_000_000, 4, 1_000_000_000), &status);
        assert_eq!((next.at_unix_s, next.bits_per_s, next.packets_per_s), (7, Some(16_000_000), Some(2_000)));
        assert_eq!((next.late_packets, next.late_max_s), (Some(2), 0.0015));
        let engine = &next.engines[1];
        assert_eq!(
            (&engine.engine[..], engine.bits_per_s, engine.late_packets),
            ("1", Some(8_000_000), Some(1))
        );
        // Idle time went down by as much as busy time went up: all of it was busy.
        assert_eq!(engine.busy, Some(1.0));
    }
}

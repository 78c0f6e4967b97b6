//! State kept for each stream: its egress path, so that a stream does not change its path with
//! every burst.
//!
//! Packets of one stream that go by different ways may overtake each other: the kernel's way has a queue, the other has
//! none. So a stream goes on as it went until [`SWITCH_AFTER`] bursts in a row would have gone better by one other way.

use crate::limits::ASK_AGAIN_AFTER;
pub use crate::limits::SWITCH_AFTER;
use millrace_core::ids::StreamId;
use millrace_core::prefetch::prefetch;

use super::plan::EgressPath;

/// Stands for no device.
const NONE: u8 = u8::MAX;

/// One stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRoute {
    generation: u32,
    /// The batch in which it was seen last.
    batch: u32,
    /// Its last entry in that batch.
    entry: u8,
    /// Where that went.
    route: u8,
    /// The way it goes.
    way: EgressPath,
    /// The way that the last `votes` bursts would have liked better.
    wished: EgressPath,
    votes: u8,
    /// The device that can reach the viewer.
    device: u8,
    /// Bursts until the devices are asked again whether they can.
    rest: u8,
    /// How many that were the last time.
    timeout: u8,
}

const UNUSED: StreamRoute = StreamRoute {
    generation: 0,
    batch: 0,
    entry: 0,
    route: 0,
    way: EgressPath::Kernel,
    wished: EgressPath::Kernel,
    votes: u8::MAX,
    device: NONE,
    rest: 0,
    timeout: 0,
};

impl StreamRoute {
    /// The device that reached the viewer last time.
    pub(super) fn device(&self) -> Option<usize> {
        (self.device != NONE).then_some(usize::from(self.device))
    }

    /// Whether it is time to ask all devices. Counts the bursts between.
    pub(super) fn asks(&mut self) -> bool {
        self.rest = self.rest.saturating_sub(1);
        self.rest == 0
    }

    /// Remembers which device can reach the viewer.
    pub(super) fn reached_by(&mut self, device: Option<usize>) {
        self.device = device.map_or(NONE, |device| device as u8);
        self.timeout = match device {
            Some(_) => 0,
            None => (self.timeout * 2).clamp(*ASK_AGAIN_AFTER.start(), *ASK_AGAIN_AFTER.end()),
        };
        self.rest = self.timeout;
    }

    /// The way to go for a burst that would go best by `best`; whether that is a change by choice.
    pub(super) fn settle(&mut self, best: EgressPath, has_device: bool) -> (EgressPath, bool) {
        let best = if best == EgressPath::Xdp && !has_device { EgressPath::Kernel } else { best };
        let is_new = self.votes == u8::MAX;
        let must_change = self.way == EgressPath::Xdp && !has_device;
        if is_new || must_change {
            (self.way, self.votes) = (best, 0);
            return (best, false);
        }
        if best == self.way {
            self.votes = 0;
            return (self.way, false);
        }
        self.votes = if self.wished == best { self.votes + 1 } else { 1 };
        self.wished = best;
        let changes = self.votes >= SWITCH_AFTER;
        if changes {
            (self.way, self.votes) = (best, 0);
        }
        (self.way, changes)
    }

    /// Its last entry in this batch, and where that went.
    pub(super) fn earlier(&self, batch: u32) -> Option<(usize, usize)> {
        (self.batch == batch).then_some((usize::from(self.entry), usize::from(self.route)))
    }

    /// Remembers where an entry goes.
    pub(super) fn note(&mut self, batch: u32, entry: usize, route: usize) {
        (self.batch, self.entry, self.route) = (batch, entry as u8, route as u8);
    }
}

/// All streams of an engine.
pub(super) struct StreamRouteTable(Box<[StreamRoute]>);

impl StreamRouteTable {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![UNUSED; count].into())
    }

    /// Asks for the memory of a stream's row.
    pub(super) fn expect(&self, stream: StreamId) {
        if let Some(row) = self.0.get(stream.index as usize) {
            prefetch(row);
        }
    }

    /// The row of a stream, fresh if its place had another stream before; `None` beyond the table.
    pub(super) fn row(&mut self, stream: StreamId) -> Option<&mut StreamRoute> {
        let row = self.0.get_mut(stream.index as usize)?;
        if row.generation != stream.generation {
            *row = StreamRoute { generation: stream.generation, ..UNUSED };
        }
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32, generation: u32) -> StreamId {
        StreamId { index, generation }
    }

    #[test]
    fn stream_path_changes_after_eight_agreeing_bursts() {
        let mut streams = StreamRouteTable::new(2);
        let row = streams.row(id(1, 0)).unwrap();
        assert_eq!(
            row.settle(EgressPath::Xdp, true),
            (EgressPath::Xdp, false),
            "the first burst goes at once as is best"
        );
        for _ in 0..20 {
            for _ in 1..SWITCH_AFTER {
                assert_eq!(row.settle(EgressPath::Kernel, true), (EgressPath::Xdp, false));
            }
            assert_eq!(
                row.settle(EgressPath::Xdp, true),
                (EgressPath::Xdp, false),
                "one burst as before, and counting starts again"
            );
        }
        for _ in 1..SWITCH_AFTER {
            row.settle(EgressPath::Kernel, true);
        }
        assert_eq!(row.settle(EgressPath::Kernel, true), (EgressPath::Kernel, true));
        // Two other ways in turn are no agreement.
        for _ in 0..SWITCH_AFTER {
            assert_eq!(row.settle(EgressPath::Xdp, true), (EgressPath::Kernel, false));
            assert_eq!(row.settle(EgressPath::KernelZeroCopy, true), (EgressPath::Kernel, false));
        }
    }

    #[test]
    fn stream_slot_reuse_starts_with_fresh_state() {
        let mut streams = StreamRouteTable::new(1);
        streams.row(id(0, 0)).unwrap().settle(EgressPath::Xdp, true);
        assert_eq!(
            streams.row(id(0, 1)).unwrap().settle(EgressPath::Kernel, true),
            (EgressPath::Kernel, false)
        );
        assert!(streams.row(id(1, 0)).is_none());
    }

    #[test]
    fn devices_that_cannot_are_asked_again_now_and_then() {
        let mut streams = StreamRouteTable::new(1);
        let row = streams.row(id(0, 0)).unwrap();
        assert!(row.asks());
        row.reached_by(None);
        let asked = (0..640).filter(|_| row.asks().then(|| row.reached_by(None)).is_some()).count();
        // After 2, 4, 8, 16, 32, 64, then every 64.
        assert_eq!(asked, 6 + (640 - 126) / 64);
        row.reached_by(Some(2));
        assert_eq!(row.device(), Some(2));
    }

    #[test]
    fn entries_of_one_batch_know_each_other() {
        let mut streams = StreamRouteTable::new(1);
        let row = streams.row(id(0, 0)).unwrap();
        assert_eq!(row.earlier(5), None);
        row.note(5, 3, 2);
        assert_eq!((row.earlier(5), row.earlier(6)), (Some((3, 2)), None));
    }
}

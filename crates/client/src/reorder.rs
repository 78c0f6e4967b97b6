//! Puts payloads back in order, in a window bounded in packets and in time. Payloads missing at the
//! window's end are given up and reported as a gap.

use millrace_core::time::Instant;

/// Where payloads go in order.
pub trait InOrder {
    /// The payload of packet `ext`.
    fn payload(&mut self, ext: u64, bytes: &[u8]);
    /// Packets `from..from + count` did not come in time.
    fn gap(&mut self, from: u64, count: u64);
}

#[derive(Debug)]
struct ReorderSlot {
    filled: bool,
    since: Instant,
    bytes: Vec<u8>,
}

/// A reordering window. Memory: at most `packets` payloads, taken only when packets are out of order.
#[derive(Debug)]
pub struct Reorder {
    slots: Vec<ReorderSlot>,
    wait_ns: u64,
    next: Option<u64>,
    held: usize,
}

impl Reorder {
    /// A window of `packets` (at least 1) that waits `wait_ns` for a missing one.
    pub fn new(packets: usize, wait_ns: u64) -> Self {
        let slots =
            (0..packets.max(1)).map(|_| ReorderSlot { filled: false, since: Instant(0), bytes: Vec::new() });
        Self { slots: slots.collect(), wait_ns, next: None, held: 0 }
    }

    /// Delivers the payloads held and begins at `start`.
    pub fn begin(&mut self, start: u64, out: &mut dyn InOrder) {
        self.flush(out);
        self.next = Some(start);
    }

    /// Takes one payload; `false` if its place was given up already.
    pub fn push(&mut self, now: Instant, ext: u64, payload: &[u8], out: &mut dyn InOrder) -> bool {
        let next = *self.next.get_or_insert(ext);
        if ext < next {
            return false;
        }
        if ext == next && self.held == 0 {
            out.payload(ext, payload); // the usual case: nothing is copied
            self.next = Some(next + 1);
            return true;
        }
        let window = self.slots.len() as u64;
        if ext - next >= window {
            self.give_up_until(ext - window + 1, out);
        }
        let slot = self.slot(ext);
        if !slot.filled {
            slot.filled = true;
            slot.since = now;
            slot.bytes.clear();
            slot.bytes.extend_from_slice(payload);
            self.held += 1;
        }
        self.drain(out);
        true
    }

    fn slot(&mut self, ext: u64) -> &mut ReorderSlot {
        let len = self.slots.len() as u64;
        &mut self.slots[(ext % len) as usize]
    }

    /// Delivers payloads in order while the next one is present.
    fn drain(&mut self, out: &mut dyn InOrder) {
        while self.held > 0 {
            let Some(next) = self.next else { return };
            let slot = self.slot(next);
            if !slot.filled {
                return;
            }
            slot.filled = false;
            out.payload(next, &slot.bytes);
            self.held -= 1;
            self.next = Some(next + 1);
        }
    }

    /// Goes on to `ext`: payloads before it are given out, missing ones are named.
    fn give_up_until(&mut self, ext: u64, out: &mut dyn InOrder) {
        while let Some(next) = self.next.filter(|next| *next < ext) {
            self.drain(out);
            let at = self.next.unwrap_or(next);
            let end =
                if self.held == 0 { ext } else { (at..ext).find(|n| self.slot(*n).filled).unwrap_or(ext) };
            if end > at {
                out.gap(at, end - at);
                self.next = Some(end);
            }
        }
        self.drain(out);
    }

    fn first_held(&self) -> Option<(u64, Instant)> {
        let next = self.next.filter(|_| self.held > 0)?;
        let len = self.slots.len() as u64;
        (next..next + len).find_map(|ext| {
            let slot = &self.slots[(ext % len) as usize];
            slot.filled.then_some((ext, slot.since))
        })
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_at(&self) -> Option<Instant> {
        self.first_held().map(|(_, since)| since.plus_ns(self.wait_ns))
    }

    /// Gives up payloads that have been waited for long enough.
    pub fn handle_timeout(&mut self, now: Instant, out: &mut dyn InOrder) {
        while let Some((ext, since)) = self.first_held() {
            if now < since.plus_ns(self.wait_ns) {
                return;
            }
            self.give_up_until(ext, out);
        }
    }

    /// Gives out everything that is held.
    pub fn flush(&mut self, out: &mut dyn InOrder) {
        while let Some((ext, _)) = self.first_held() {
            self.give_up_until(ext, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Log(Vec<String>);

    impl InOrder for Log {
        fn payload(&mut self, ext: u64, bytes: &[u8]) {
            assert_eq!(bytes, format!("p{ext}").as_bytes());
            self.0.push(ext.to_string());
        }
        fn gap(&mut self, from: u64, count: u64) {
            self.0.push(format!("gap {from}+{count}"));
        }
    }

    fn push(reorder: &mut Reorder, log: &mut Log, now: u64, ext: u64) -> bool {
        reorder.push(Instant(now), ext, format!("p{ext}").as_bytes(), log)
    }

    #[test]
    fn order_is_restored_and_time_gives_up() {
        let (mut r, mut log) = (Reorder::new(8, 100), Log::default());
        for (now, ext) in [(0, 5), (1, 7), (2, 8), (3, 6), (4, 11), (5, 12)] {
            assert!(push(&mut r, &mut log, now, ext));
        }
        assert_eq!(log.0, ["5", "6", "7", "8"]);
        assert_eq!(r.poll_at(), Some(Instant(104)));
        r.handle_timeout(Instant(103), &mut log);
        assert_eq!(log.0.len(), 4);
        r.handle_timeout(Instant(104), &mut log);
        assert_eq!(log.0[4..], ["gap 9+2", "11", "12"]);
        assert_eq!(r.poll_at(), None);
        assert!(!push(&mut r, &mut log, 106, 9), "given up already");
    }

    #[test]
    fn reorder_window_is_bounded_in_packets() {
        let (mut r, mut log) = (Reorder::new(4, 100), Log::default());
        for ext in [1, 3, 4, 5, 6] {
            push(&mut r, &mut log, 0, ext); // 6 does not fit beside the missing 2
        }
        assert_eq!(log.0, ["1", "gap 2+1", "3", "4", "5", "6"]);
        push(&mut r, &mut log, 0, 9);
        push(&mut r, &mut log, 0, 1000);
        assert_eq!(log.0[6..], ["gap 7+2", "9", "gap 10+987"]);
        r.flush(&mut log);
        assert_eq!(log.0[9..], ["gap 997+3", "1000"]);
    }

    #[test]
    fn reorder_begin_starts_run_at_announced_number() {
        let (mut r, mut log) = (Reorder::new(8, 100), Log::default());
        r.begin(10, &mut log);
        push(&mut r, &mut log, 0, 11);
        assert!(log.0.is_empty());
        push(&mut r, &mut log, 0, 10);
        push(&mut r, &mut log, 0, 13);
        r.begin(100, &mut log);
        push(&mut r, &mut log, 0, 100);
        assert_eq!(log.0, ["10", "11", "gap 12+1", "13", "100"]);
    }

    /// Whatever comes: numbers go out in rising order, each payload or gap once, nothing twice.
    #[test]
    fn reorder_of_any_arrivals_outputs_in_order() {
        struct Rising(u64);
        impl InOrder for Rising {
            fn payload(&mut self, ext: u64, bytes: &[u8]) {
                assert_eq!(ext, self.0);
                assert_eq!(bytes, ext.to_be_bytes());
                self.0 += 1;
            }
            fn gap(&mut self, from: u64, count: u64) {
                assert_eq!(from, self.0);
                assert!(count > 0);
                self.0 += count;
            }
        }
        bolero::check!().with_type::<Vec<(u8, u8)>>().with_iterations(2000).for_each(|steps| {
            let (mut r, mut out) = (Reorder::new(16, 50), Rising(1000));
            r.begin(1000, &mut out);
            let mut now = 0;
            for (ext, wait) in steps {
                now += u64::from(*wait);
                let ext = 1000 + u64::from(*ext);
                r.push(Instant(now), ext, &ext.to_be_bytes(), &mut out);
                r.handle_timeout(Instant(now), &mut out);
            }
            r.flush(&mut out);
            assert_eq!(r.poll_at(), None);
        });
    }
}

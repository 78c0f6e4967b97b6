//! The effects of a bad link on each packet, and when it leaves: a state machine without I/O and
//! without a clock.
//!
//! A packet passes the bottleneck (whose queue is reckoned, not kept: it is known at arrival when the packet's last bit
//! will have left), may get lost, doubled, marked or damaged, waits for its delay, and may be held back at the end. Since order is
//! kept until then, all that waits stands in one line, and so do the packets that are held back.

use std::collections::VecDeque;

use millrace_core::random::{MILLION, SplitMix};
use millrace_core::time::{Instant, NS_PER_S};

use crate::alter::LinkPacket;
use crate::classify::Traffic;
use crate::counts::LinkCounts;
use crate::limits::{MAX_LINK_BYTES, MAX_LINK_PACKETS};
use crate::spec::{BurstLoss, Impairment, QueueBound, RateLimit};

/// A packet that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<P> {
    /// The packet.
    pub packet: P,
    /// How often it goes out: 2 if it was doubled.
    pub times: u32,
    /// When it was to leave; the caller may be late.
    pub due: Instant,
}

/// One direction of a link. `P` is a packet or whatever stands for it.
///
/// Give packets in with [`ImpairmentModel::handle_packet`], take them out with [`ImpairmentModel::poll_output`] until it has
/// none, come again at [`ImpairmentModel::poll_at`]. The same description and the same arrivals give the same
/// departures, whenever they are taken.
#[derive(Debug)]
pub struct ImpairmentModel<P> {
    spec: Impairment,
    bottleneck: Option<Bottleneck>,
    bursts: Option<Bursts>,
    // One generator for each effect: adding one does not change the behavior of the others.
    loss: SplitMix,
    duplicate: SplitMix,
    jitter: SplitMix,
    reorder: SplitMix,
    mark: SplitMix,
    corrupt: SplitMix,
    line: VecDeque<QueuedPacket<P>>,
    held: VecDeque<OvertakenPacket<P>>,
    /// Bytes of both.
    waiting_bytes: u64,
    /// Packets that have gone out in their order: those that are held back count on it.
    passed: u64,
    /// When the last of them was due.
    passed_ns: u64,
    last_arrival_ns: u64,
    last_due_ns: u64,
    counts: [LinkCounts; 2],
}

/// A packet on its way.
#[derive(Debug)]
struct QueuedPacket<P> {
    packet: P,
    bytes: u64,
    class: Traffic,
    due_ns: u64,
    times: u32,
    hold: bool,
}

/// A packet that lets others overtake.
#[derive(Debug)]
struct OvertakenPacket<P> {
    waiting: QueuedPacket<P>,
    /// Value of `passed` when it was put aside.
    since: u64,
    /// It leaves when `passed` has reached this value.
    until_passed: u64,
    /// Or at this time.
    until_ns: u64,
}

impl<P: LinkPacket> ImpairmentModel<P> {
    /// The link that `spec` describes.
    pub fn new(spec: &Impairment) -> Self {
        Self::with_stream(spec, 0)
    }

    /// The same with other random numbers of the same seed: two directions are not to lose the same packets.
    pub fn with_stream(spec: &Impairment, stream: u64) -> Self {
        let mut seeds = SplitMix(spec.seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        let mut next = || SplitMix(seeds.next());
        let (loss, duplicate, jitter, reorder) = (next(), next(), next(), next());
        let (bursts, mark, corrupt) = (next(), next(), next());
        Self {
            bursts: spec.burst_loss.map(|burst| Bursts::new(burst, bursts)),
            bottleneck: spec.rate.map(Bottleneck::new),
            spec: spec.clone(),
            loss,
            duplicate,
            jitter,
            reorder,
            mark,
            corrupt,
            line: VecDeque::new(),
            held: VecDeque::new(),
            waiting_bytes: 0,
            passed: 0,
            passed_ns: 0,
            last_arrival_ns: 0,
            last_due_ns: 0,
            counts: [LinkCounts::default(); 2],
        }
    }

    /// A packet of `bytes` bytes (network header and all that follows) comes in at `now`. Gives it back if it goes no
    /// further. A `now` before that of an earlier packet counts as the same.
    pub fn handle_packet(&mut self, now: Instant, bytes: usize, class: Traffic, mut packet: P) -> Option<P> {
        let now_ns = now.0.max(self.last_arrival_ns);
        self.last_arrival_ns = now_ns;
        let bytes = bytes as u64;
        let waiting = self.waiting();
        let counts = &mut self.counts[class as usize];
        counts.received += 1;
        counts.received_bytes += bytes;
        if waiting >= MAX_LINK_PACKETS || self.waiting_bytes.saturating_add(bytes) > MAX_LINK_BYTES {
            counts.overflow += 1;
            return Some(packet);
        }
        let sent_ns = match &mut self.bottleneck {
            None => now_ns,
            Some(bottleneck) => match bottleneck.admit(now_ns, bytes) {
                Some(sent_ns) => sent_ns,
                None => {
                    counts.queue_drops += 1;
                    return Some(packet);
                }
            },
        };
        // Both are asked in any case: whether one hits must not change the other.
        let in_burst = self.bursts.as_mut().is_some_and(Bursts::hits);
        if self.loss.hits(self.spec.loss.ppm()) | in_burst {
            counts.lost += 1;
            return Some(packet);
        }
        counts.waiting += 1;
        self.waiting_bytes += bytes;
        let times = 1 + u32::from(self.duplicate.hits(self.spec.duplicate.ppm()));
        // A router marks what arrives sound; the damage comes on the wire behind it.
        if self.mark.hits(self.spec.mark.ppm()) {
            counts.marked += u64::from(packet.mark());
        }
        if self.corrupt.hits(self.spec.corrupt.ppm()) {
            packet.flip_bits(self.corrupt.next());
            counts.corrupted += 1;
        }
        let due_ns = sent_ns.saturating_add(self.draw_delay_ns()).max(self.last_due_ns);
        self.last_due_ns = due_ns;
        let hold = self.spec.reorder.is_some_and(|reorder| self.reorder.hits(reorder.share.ppm()));
        self.line.push_back(QueuedPacket { packet, bytes, class, due_ns, times, hold });
        None
    }

    fn draw_delay_ns(&mut self) -> u64 {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let jitter_ns = match ns(self.spec.jitter) {
            0 => 0,
            most => self.jitter.below(most.saturating_add(1)),
        };
        ns(self.spec.delay).saturating_add(jitter_ns)
    }

    /// When [`ImpairmentModel::poll_output`] may have something next, if nothing else comes in; `None` if all is out.
    pub fn poll_at(&self) -> Option<Instant> {
        let line = self.line.front().map(|waiting| waiting.due_ns);
        let held = self.held.front().map(|held| if self.may_go(held) { 0 } else { held.until_ns });
        line.into_iter().chain(held).min().map(Instant)
    }

    /// The next packet that leaves at `now` or was to leave before.
    pub fn poll_output(&mut self, now: Instant) -> Option<Departure<P>> {
        loop {
            let line_ns = self.line.front().map_or(u64::MAX, |waiting| waiting.due_ns);
            // What happened first comes first, however late the caller is.
            if let Some(held) = self.held.front()
                && (self.may_go(held) || held.until_ns <= now.0.min(line_ns))
            {
                // Enough others have overtaken: it leaves right behind the last of them.
                let due_ns =
                    if self.may_go(held) { self.passed_ns.max(held.waiting.due_ns) } else { held.until_ns };
                let held = self.held.pop_front()?;
                let overtaken = self.passed > held.since;
                self.counts[held.waiting.class as usize].reordered += u64::from(overtaken);
                return Some(self.depart(held.waiting, due_ns));
            }
            if line_ns > now.0 {
                return None;
            }
            let waiting = self.line.pop_front()?;
            match self.spec.reorder {
                Some(reorder) if waiting.hold => {
                    let within_ns = u64::try_from(reorder.within.as_nanos()).unwrap_or(u64::MAX);
                    self.held.push_back(OvertakenPacket {
                        since: self.passed,
                        until_passed: self.passed + u64::from(reorder.by_packets),
                        until_ns: waiting.due_ns.saturating_add(within_ns),
                        waiting,
                    });
                }
                _ => {
                    let due_ns = waiting.due_ns;
                    (self.passed, self.passed_ns) = (self.passed + 1, due_ns);
                    return Some(self.depart(waiting, due_ns));
                }
            }
        }
    }

    fn may_go(&self, held: &OvertakenPacket<P>) -> bool {
        self.passed >= held.until_passed
    }

    fn depart(&mut self, waiting: QueuedPacket<P>, due_ns: u64) -> Departure<P> {
        let counts = &mut self.counts[waiting.class as usize];
        self.waiting_bytes -= waiting.bytes;
        counts.waiting -= 1;
        counts.forwarded += u64::from(waiting.times);
        counts.duplicated += u64::from(waiting.times) - 1;
        counts.forwarded_bytes += waiting.bytes * u64::from(waiting.times);
        Departure { packet: waiting.packet, times: waiting.times, due: Instant(due_ns) }
    }

    /// Packets inside.
    pub fn waiting(&self) -> usize {
        self.line.len() + self.held.len()
    }

    /// Returns the counts of all packets.
    pub fn counts(&self) -> LinkCounts {
        let [rtp, other] = self.counts;
        rtp.plus(&other)
    }

    /// Returns the counts of the packets of one kind.
    pub fn counts_of(&self, class: Traffic) -> LinkCounts {
        self.counts[class as usize]
    }
}

/// Gilbert's model: a chain of two states; the bad one loses everything.
#[derive(Debug)]
struct Bursts {
    bad: bool,
    mean_packets: u64,
    /// Probability that a burst begins with the next packet, as a fraction.
    begins: (u64, u64),
    random: SplitMix,
}

impl Bursts {
    fn new(burst: BurstLoss, mut random: SplitMix) -> Self {
        let (share, mean_packets) = (u64::from(burst.share.ppm()), u64::from(burst.mean_packets.max(1)));
        // In the long run as many bursts begin as end: share / mean = (1 - share) * begins.
        let begins = (share, (MILLION - share).saturating_mul(mean_packets));
        let bad = random.hits(burst.share.ppm());
        Self { bad, mean_packets, begins, random }
    }

    /// Whether the next packet is lost.
    fn hits(&mut self) -> bool {
        let lost = self.bad;
        let (share, of) = self.begins;
        let changes = if self.bad {
            self.random.below(self.mean_packets) == 0
        } else {
            share > 0 && (share >= of || self.random.below(of) < share)
        };
        self.bad ^= changes;
        lost
    }
}

/// The queue and the slow line behind it, reckoned ahead.
#[derive(Debug)]
struct Bottleneck {
    bits_per_s: u64,
    bound: QueueBound,
    /// When each packet of the queue begins to be sent, and its bytes.
    queue: VecDeque<(u64, u64)>,
    queue_bytes: u64,
    /// The line is free at this time and `rest / bits_per_s` nanoseconds: no error adds up.
    free_ns: u64,
    rest: u64,
}

impl Bottleneck {
    fn new(limit: RateLimit) -> Self {
        Self {
            bits_per_s: limit.rate.0.max(1),
            bound: limit.queue,
            queue: VecDeque::new(),
            queue_bytes: 0,
            free_ns: 0,
            rest: 0,
        }
    }

    /// When the last bit of a packet that comes now will have been sent; `None` if the queue is full.
    fn admit(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        while let Some(&(start_ns, gone)) = self.queue.front()
            && start_ns <= now_ns
        {
            self.queue_bytes -= gone;
            self.queue.pop_front();
        }
        if self.free_ns > now_ns {
            let fits = match self.bound {
                QueueBound::Packets(most) => self.queue.len() < most as usize,
                QueueBound::Bytes(most) => self.queue_bytes + bytes <= most,
            };
            if !fits || self.queue.len() >= MAX_LINK_PACKETS {
                return None;
            }
            self.queue.push_back((self.free_ns, bytes));
            self.queue_bytes += bytes;
        } else if self.free_ns < now_ns {
            (self.free_ns, self.rest) = (now_ns, 0);
        }
        let bits_ns = u128::from(bytes) * 8 * u128::from(NS_PER_S) + u128::from(self.rest);
        let of = u128::from(self.bits_per_s);
        self.free_ns = self.free_ns.saturating_add(u64::try_from(bits_ns / of).unwrap_or(u64::MAX));
        self.rest = (bits_ns % of) as u64;
        Some(self.free_ns)
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

//! What an acknowledgment costs the sender: `cargo run --release -p millrace-tcp --example ack_cost`.
//!
//! Connections with 64 segments in flight each; every acknowledgment is for two segments, after which two new ones are sent.
//! Printed: nanoseconds for an acknowledgment alone, and for one together with `next` and `sent` of two segments, with one
//! connection (all in the cache) and with 10,000 in turn (none is).

use std::time::Instant as Clock;

use millrace_core::time::Instant;
use millrace_tcp::cc::Algorithm;
use millrace_tcp::recover::records::Records;
use millrace_tcp::sender::{AckIn, Permit, Sender, Setup};
use millrace_tcp::seq::Seq;
use millrace_tcp::wire::Sacks;

const MSS: u16 = 1448;
const IN_FLIGHT: u32 = 64;

struct Connections {
    senders: Vec<Sender>,
    records: Records,
    now: Instant,
}

impl Connections {
    fn new(count: usize) -> Self {
        let setup = Setup {
            first: Seq(1),
            mss: MSS,
            mss_limit: MSS,
            has_sack: true,
            has_ecn: false,
            was_syn_repeated: false,
            handshake_ns: Some(20_000_000),
            algorithm: Algorithm::Cubic,
            is_paced: false,
        };
        let now = Instant(1_000_000_000);
        let senders = (0..count).map(|_| Sender::new(&setup, now)).collect();
        let mut all = Self { senders, records: Records::new(count as u32 * 8 + 64), now };
        for index in 0..count {
            for _ in 0..IN_FLIGHT {
                all.send(index, 1, true);
            }
        }
        all
    }

    /// Sends so many segments; `is_forced`: without being asked.
    fn send(&mut self, index: usize, segments: u32, is_forced: bool) {
        let sender = &mut self.senders[index];
        for _ in 0..segments {
            let nxt = sender.nxt();
            let limit = sender.una() + IN_FLIGHT * u32::from(MSS);
            let again = match sender.next(&mut self.records, self.now, limit) {
                Permit::Retransmit { seq, .. } => Some(seq),
                Permit::New { .. } => None,
                _ if is_forced => None,
                _ => return,
            };
            let seq = again.unwrap_or(nxt);
            let _ = sender.sent(&mut self.records, self.now, seq, MSS, again.is_some());
            sender.device_done(&mut self.records, seq, MSS);
        }
    }

    fn ack(&mut self, index: usize, ack: Seq, sacks: &Sacks) {
        let ack = AckIn {
            ack,
            window: 1 << 20,
            sacks,
            stamps: None,
            is_ece: false,
            arrived: self.now,
            has_data: false,
        };
        let acked = self.senders[index].acked(&mut self.records, self.now, &ack);
        std::hint::black_box(acked);
    }
}

/// Nanoseconds for an acknowledgment, and with two segments sent.
fn measure(count: usize, rounds: u32, has_hole: bool) -> (f64, f64) {
    let mut all = Connections::new(count);
    let (mut acks_ns, mut all_ns) = (0, 0);
    let base: Vec<Seq> = all.senders.iter().map(Sender::una).collect();
    for round in 1..=rounds {
        all.now = all.now.plus_ns(600_000);
        let step = u32::from(MSS) * 2 * round;
        let start = Clock::now();
        for (index, &base) in base.iter().enumerate() {
            let mut sacks = Sacks::default();
            if has_hole {
                // Segment 0 is missing: each acknowledgment reports two more behind it.
                sacks.push(base + u32::from(MSS), base + u32::from(MSS) + step.min(62 * u32::from(MSS)));
                all.ack(index, base, &sacks);
            } else {
                all.ack(index, base + step, &sacks);
            }
        }
        acks_ns += start.elapsed().as_nanos();
        for index in 0..count {
            all.send(index, 2, false);
        }
        all_ns += start.elapsed().as_nanos();
    }
    let acks = f64::from(rounds) * count as f64;
    (acks_ns as f64 / acks, all_ns as f64 / acks)
}

fn main() {
    println!("sender: {} bytes", size_of::<Sender>());
    for (what, has_hole) in [("in order", false), ("behind a hole", true)] {
        for (count, rounds) in [(1, 30), (10_000, 30)] {
            let mut best = (f64::MAX, f64::MAX);
            for _ in 0..if count == 1 { 2000 } else { 3 } {
                let (ack, both) = measure(count, rounds, has_hole);
                best = (best.0.min(ack), best.1.min(both));
            }
            println!(
                "{what}, {count} connections: {:.0} ns an ACK, {:.0} ns with sending two segments",
                best.0, best.1
            );
        }
    }
}

//! The paper's Figure 4 over real paths: processor time of whole sends across a veth pair, a traditional stack beside stored
//! checksums.
//!
//! Traditional is the kernel's UDP socket, which copies a packet and computes its checksum; stored
//! is AF_XDP with headers of version 4, whose sums are known. Between the two stand the kernel's
//! present means to avoid the same work (a checksum that is left to the device, many packets in a
//! call, trains of packets that the kernel cuts) and AF_XDP with a traditional stack's framing.
//!
//! The time is the sending thread's, user and system, plus the time of the kernel thread that helps
//! its core with soft interrupts. The receiving half of a veth pair runs in the sender's soft
//! interrupts, so it is part of this time, for all contenders alike: the peer drops each packet as
//! soon as its device has counted it. The share of soft interrupts is shown beside the time, from
//! the kernel's own samples, and the saving with and without it.

mod outcome;
mod stage;

use std::time::Duration;

use outcome::{label, report};
use stage::{CALL_PACKETS, Egress, PathTestbed};

use super::stream::{CacheState, PacketStream, PayloadMemory, SIZES, STREAM_BYTES};
use crate::capacity::meter::Usage;
use crate::frame::{Bench, Need, NoiseMeter, Options, Pinned, Report};
use crate::framing::{Version, full, full_fast, v4};
use crate::raw_loops::XdpLoop;

/// The benchmark.
pub(in crate::benches) const BENCH: Bench = Bench {
    name: "nlf-send",
    shows: "processor time of whole sends across a veth pair: kernel UDP that sums beside AF_XDP with stored checksums",
    not_for: "the speed of a network card: a veth pair copies in software, and its receiving half is the sender's work",
    options: &["runs"],
    targets: &[
        "nlf-send-saved-1k",
        "nlf-send-saved-8k",
        "nlf-send-sums-saved-8k",
        "nlf-send-missing",
        "nlf-send-damaged",
    ],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
        Need::Program("tc", "apt-get install iproute2"),
    ],
    run,
};

/// How packets are sent.
#[derive(Clone, Copy)]
enum SendPath {
    /// One message per packet, `call_packets` of them in a call.
    Socket { call_packets: usize },
    /// As many packets in a message as it takes; the kernel cuts.
    Trains,
    /// AF_XDP; the payload is copied into a frame or sent from where it lies.
    Frames { version: Version, in_place: bool },
}

#[derive(Clone, Copy)]
struct Contender {
    name: &'static str,
    path: SendPath,
    /// Whether the device is declared to compute checksums, so that the kernel's stack does not.
    offload: bool,
}

const TRADITIONAL: &str = "UDP, a call each, sum computed";
const XDP_FULL: &str = "AF_XDP, full";
const XDP_V4: &str = "AF_XDP, v4";

const CONTENDERS: [Contender; 10] = [
    Contender { name: TRADITIONAL, path: SendPath::Socket { call_packets: 1 }, offload: false },
    Contender {
        name: "UDP, 32 a call, sum computed",
        path: SendPath::Socket { call_packets: CALL_PACKETS },
        offload: false,
    },
    Contender { name: "UDP, trains, sum computed", path: SendPath::Trains, offload: false },
    Contender {
        name: "UDP, a call each, sum left to the device",
        path: SendPath::Socket { call_packets: 1 },
        offload: true,
    },
    Contender {
        name: "UDP, 32 a call, sum left to the device",
        path: SendPath::Socket { call_packets: CALL_PACKETS },
        offload: true,
    },
    Contender { name: "UDP, trains, sum left to the device", path: SendPath::Trains, offload: true },
    Contender { name: XDP_FULL, path: SendPath::Frames { version: full, in_place: false }, offload: true },
    Contender {
        name: "AF_XDP, full, fastest sum",
        path: SendPath::Frames { version: full_fast, in_place: false },
        offload: true,
    },
    Contender { name: XDP_V4, path: SendPath::Frames { version: v4, in_place: false }, offload: true },
    Contender {
        name: "AF_XDP, v4, payload where it lies",
        path: SendPath::Frames { version: v4, in_place: true },
        offload: true,
    },
];

/// What one contender's sends of one size cost.
#[derive(Default)]
struct Cost {
    /// Processor time of a whole send, a value for each round.
    cpu_ms: Vec<f64>,
    /// Soft interrupts of the core meanwhile, all rounds.
    softirq_ms: f64,
    sends: u32,
}

impl Cost {
    /// Soft interrupts of one send.
    fn softirq_per_send_ms(&self) -> f64 {
        self.softirq_ms / f64::from(self.sends.max(1))
    }

    /// Processor time without soft interrupts, by rounds.
    fn own_ms(&self) -> Vec<f64> {
        self.cpu_ms.iter().map(|ms| (ms - self.softirq_per_send_ms()).max(0.0)).collect()
    }
}

/// The results for one packet size.
struct PacketSizeResults {
    packet_bytes: usize,
    /// In the order of [`CONTENDERS`]; `None`: could not take part.
    costs: Vec<Option<Cost>>,
    sent: u64,
    damaged: usize,
    notes: Vec<String>,
}

fn run(options: &Options) -> anyhow::Result<Report> {
    let stream_bytes = options.pick(300_000, STREAM_BYTES / 5, STREAM_BYTES);
    options.say("filling memory");
    let memory =
        PayloadMemory::with_frames(options.pick(4 << 20, 64 << 20, 512 << 20), XdpLoop::EXTENTS as u32)?;
    let stage = PathTestbed::build()?;
    let sink = stage.sink()?;
    let mut meter = NoiseMeter::start();
    let (mut all, mut missing) = (Vec::new(), 0);
    for packet_bytes in SIZES {
        let before = sink.received()?;
        let measured = stage.hosts.on_client(|| {
            let _pinned = Pinned::to_last();
            measure(&stage, &memory, packet_bytes, stream_bytes, options, &mut meter)
        })??;
        missing += sink.missing(before, measured.sent)?;
        all.push(measured);
    }
    stage.hosts.on_client(|| stage::set_checksum_offload(true))??;
    Ok(report(&all, missing, stream_bytes, meter))
}

/// All contenders in turns over packets of one size.
fn measure(
    stage: &PathTestbed,
    memory: &PayloadMemory,
    packet_bytes: usize,
    stream_bytes: usize,
    options: &Options,
    meter: &mut NoiseMeter,
) -> anyhow::Result<PacketSizeResults> {
    let mut egress = Egress::open(memory, PacketStream::new(memory, packet_bytes, CacheState::InOrder))?;
    let mut measured = enter(stage, &mut egress, packet_bytes)?;
    let least = options.pick(Duration::ZERO, Duration::from_millis(40), Duration::from_millis(150));
    let rounds = options.runs.unwrap_or(options.pick(1, 6, 12));
    // Round 0 warms up.
    for round in 0..=rounds {
        options.say(&format!("whole sends, {} KB: round {round} of {rounds}", packet_bytes >> 10));
        meter.look();
        for offload in [false, true] {
            stage::set_checksum_offload(offload)?;
            let entered = CONTENDERS.iter().zip(&mut measured.costs).filter(|(c, _)| c.offload == offload);
            for (contender, cost) in entered {
                options.go_on()?;
                let Some(cost) = cost else { continue };
                let turn = turn(&mut egress, contender, stream_bytes, least)?;
                measured.sent += turn.packets;
                if round > 0 {
                    cost.cpu_ms.push(turn.cpu_ms / f64::from(turn.sends));
                    cost.softirq_ms += turn.softirq_ms;
                    cost.sends += turn.sends;
                }
            }
        }
    }
    for (contender, cost) in CONTENDERS.iter().zip(&measured.costs) {
        if let Some(cost) = cost {
            meter.repeated(&label(packet_bytes, contender.name), &cost.cpu_ms);
        }
    }
    Ok(measured)
}

/// Finds out which contenders can take part, and whether their packets arrive as they should.
fn enter(
    stage: &PathTestbed,
    egress: &mut Egress<'_>,
    packet_bytes: usize,
) -> anyhow::Result<PacketSizeResults> {
    let mut measured =
        PacketSizeResults { packet_bytes, costs: Vec::new(), sent: 0, damaged: 0, notes: Vec::new() };
    for contender in &CONTENDERS {
        let is_frames = matches!(contender.path, SendPath::Frames { .. });
        if let (true, Some(why)) = (is_frames, egress.refusal()) {
            let label = label(packet_bytes, contender.name);
            measured.notes.push(format!("not measured: {label}: {why}"));
            measured.costs.push(None);
            continue;
        }
        stage::set_checksum_offload(contender.offload)?;
        measured.damaged += stage.damaged(egress, contender)?;
        measured.sent += CALL_PACKETS as u64;
        measured.costs.push(Some(Cost::default()));
    }
    Ok(measured)
}

/// One contender's turn: whole sends until it is long beside the samples of the kernel.
struct ContenderTurn {
    packets: u64,
    sends: u32,
    cpu_ms: f64,
    softirq_ms: f64,
}

fn turn(
    egress: &mut Egress<'_>,
    contender: &Contender,
    stream_bytes: usize,
    least: Duration,
) -> anyhow::Result<ContenderTurn> {
    let core = [rustix::thread::sched_getcpu()];
    let (before, start) = (Usage::look(&[], &core), thread_cpu());
    let (mut packets, mut sends) = (0, 0);
    while sends == 0 || thread_cpu() - start < least {
        packets += egress.send_all(contender, stream_bytes)? as u64;
        sends += 1;
    }
    let own = thread_cpu() - start;
    let spent = Usage::look(&[], &core).since(&before);
    // Soft interrupts that the kernel gave to its own thread are work of these packets too.
    let cpu_ms = own.as_secs_f64() * 1e3 + spent.processes_s * 1e3;
    Ok(ContenderTurn { packets, sends, cpu_ms, softirq_ms: spent.softirq_s * 1e3 })
}

/// Processor time of this thread to the nanosecond, user and system.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{Connection, Datagram};

    fn can_run() -> bool {
        let missing = BENCH.missing();
        if !missing.is_empty() {
            eprintln!("skipped: needs {}", missing.join(", and "));
        }
        missing.is_empty()
    }

    #[test]
    fn nlf_contenders_send_same_data_without_loss() {
        if !can_run() {
            return;
        }
        let report = BENCH.measure(&Options::tiny("millrace")).unwrap();
        let correct = ["nlf-send-missing", "nlf-send-damaged"];
        assert!(
            report.promises.iter().filter(|p| correct.contains(&p.id.as_str())).all(|p| p.holds),
            "{report}"
        );
        for contender in &CONTENDERS {
            let rows = report.rows.iter().filter(|row| row.label.ends_with(contender.name)).count();
            assert!(rows >= SIZES.len(), "{}: {report}", contender.name);
        }
    }

    /// The receiving kernel sees a checksum that is wrong by one.
    #[test]
    fn wrong_checksum_is_dropped_by_receiving_kernel() {
        fn wrong(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
            v4(connection, &Datagram { payload_sum: datagram.payload_sum ^ 1, ..*datagram }, out)
        }
        if !can_run() {
            return;
        }
        let memory = PayloadMemory::with_frames(1 << 20, XdpLoop::EXTENTS as u32).unwrap();
        let stage = PathTestbed::build().unwrap();
        let _sink = stage.sink().unwrap();
        let damaged = stage.hosts.on_client(|| {
            let stream = PacketStream::new(&memory, 8 << 10, CacheState::InOrder);
            let mut egress = Egress::open(&memory, stream).unwrap();
            let by = |version| Contender {
                name: "x",
                path: SendPath::Frames { version, in_place: false },
                offload: true,
            };
            [v4, wrong as Version].map(|version| stage.damaged(&mut egress, &by(version)).unwrap())
        });
        assert_eq!(damaged.unwrap(), [0, CALL_PACKETS]);
    }

    #[test]
    fn savings_are_taken_within_a_round() {
        assert_eq!(outcome::saved_percent(&[1.0, 30.0], &[2.0, 40.0]), [50.0, 25.0]);
        let cost = Cost { cpu_ms: vec![5.0, 1.0], softirq_ms: 8.0, sends: 4 };
        assert_eq!(cost.own_ms(), [3.0, 0.0], "never less than nothing");
    }
}

//! The program on packets made here, run by the kernel without a network. Needs root; skipped otherwise.

mod clock;
mod frame;
mod mutated;
mod packets;
mod sequence;

use super::*;
use frame::Frame;
use millrace_netio::bpf::TestRun;

/// Where streams of these tests go.
const LOCAL: &str = "10.1.2.3:5004";
/// Verdict of packets that are not counted.
const PASS: i32 = program::TCX_NEXT;
/// Verdict of packets that are.
const DROP: i32 = program::TCX_DROP;

/// A probe at no interface, or `None` without root.
fn probe(slots: u32, action: ProbeAction) -> Option<DropProbe> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: BPF needs root");
        return None;
    }
    let form = Form { action, header_bytes: 14, arrival: ArrivalClock::Context };
    Some(DropProbe::load(slots, form).unwrap())
}

/// A probe that watches [`LOCAL`] in slot 0 for transport streams.
fn watching() -> Option<DropProbe> {
    let probe = probe(4, ProbeAction::Drop)?;
    probe.watch(local(LOCAL), 0, ProbeMedia::rtp(33)).unwrap();
    Some(probe)
}

fn local(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl DropProbe {
    /// The verdict on a frame that comes at `arrival_ns`.
    fn judge_at(&self, frame: &Frame, arrival_ns: u64) -> i32 {
        let (packet, context) = (frame.bytes(), frame.context(arrival_ns));
        self.program.test_run(&TestRun { packet: &packet, context: &context, repeat: 1 }).unwrap().result
    }

    fn judge(&self, frame: &Frame) -> i32 {
        self.judge_at(frame, 1_000_000_000)
    }
}

/// An RTP packet of payload type 33.
fn rtp(sequence: u16, timestamp: u32, payload: usize) -> Vec<u8> {
    let mut bytes = vec![0x80, 33];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(timestamp.to_be_bytes());
    bytes.extend(0x1122_3344u32.to_be_bytes());
    bytes.resize(12 + payload, 0x47);
    bytes
}

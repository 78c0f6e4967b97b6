//! The proof that a chained datagram is sent without a look at its payload: the payload's pages are taken away from this
//! process while it sends, so that one read of them would end it; an ordinary UDP socket behind a veth pair receives
//! every byte, and the kernel there verifies every checksum. Needs root; skipped otherwise.
//!
//! 194 packets fill an extent but for its last page, which then holds only metadata: the sums that the checksums are
//! made of. The RTP headers come from elsewhere (`Payload::Patched`), as for a viewer with a timeline of its own; those
//! in the extent lie between the payloads and are out of reach too.

use crate::support::xdp::*;
use crate::support::*;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::seam::{Payload, SendOutcome, Transmit};
use millrace_netio::xdp::testing::{GuardedRegion, PAGE_BYTES};
use millrace_netio::xdp::{Strategy, XdpTx};

const PACKETS: u32 = 194;

/// Set for the process that is to die.
const CHILD: &str = "MILLRACE_READ_LOCKED_PAYLOADS";

/// The control: with the strategy that copies, the same memory ends the process. It dies in a child of this one.
#[test]
fn staging_copy_of_locked_memory_ends_process() {
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os(CHILD).is_none() {
        let name = "xdp_zero_touch::staging_copy_of_locked_memory_ends_process";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("locked now") && !text.contains("survived"), "{text}");
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{text}");
        return;
    }
    let (region, guard) = GuardedRegion::new(9 * EXTENT_BYTES).unwrap();
    let (arena, leases) = film(Box::new(region), 1, PACKETS);
    let to = "10.77.0.2:5004".parse().unwrap();
    let table = fixed_hops(7);
    let (mut tx, _nic) = XdpTx::over_memory(config(&arena, Some(Strategy::Staging)), table).unwrap();
    guard.set_locked(0..EXTENT_BYTES - PAGE_BYTES, true).unwrap();
    eprintln!("locked now");
    let outcomes = send_entries(&mut tx, vec![packets(0, to, &leases[0], 0, 1)]);
    eprintln!("survived: {outcomes:?}");
}

#[test]
fn payloads_are_sent_without_being_read() {
    let Some(net) = Wire::new() else { return };
    let (region, guard) = GuardedRegion::new(9 * EXTENT_BYTES).unwrap();
    let (arena, leases) = film(Box::new(region), 1, PACKETS);
    let lease = &leases[0];
    let payloads = 0..EXTENT_BYTES - PAGE_BYTES;
    assert!(PACKETS as usize * SEGMENT <= payloads.end, "the last page holds metadata only");
    let content = lease.content();
    assert!(content.layout.meta_offset(0, PACKETS) >= payloads.end, "and all of it");
    let copy = lease.wire(0, PACKETS).to_vec();
    let Some(mut tx) = open(&net, config(&arena, Some(Strategy::Chained))) else { return };

    let mut viewers = FAMILIES.map(|family| net.viewers.inside(|| receiver(family)));
    let mut wanted = 0;
    for round in 0..20u32 {
        let (place, count) = (round * 5, 1 + round * 37 % 92);
        let headers = pattern(round, 12 * count as usize);
        guard.set_locked(payloads.clone(), true).unwrap();
        let entries = viewers.iter().enumerate().map(|(n, (_, to))| {
            let (transmit, source) = packets(n as u32, *to, lease, place, count);
            let bytes = lease.wire(place, count);
            (
                Transmit {
                    payload: Payload::Patched { headers: &headers, bytes, segment: SEGMENT },
                    ..transmit
                },
                source,
            )
        });
        let outcomes = send_entries(&mut tx, entries.collect());
        assert!(!tx.poll(), "all has come back");
        assert_eq!(outcomes, [SendOutcome::Sent; 2]);
        let sent = copy[place as usize * SEGMENT..].chunks(SEGMENT).zip(headers.chunks(12));
        let sent: Vec<Vec<u8>> = sent.map(|(d, h)| [h, &d[12..]].concat()).collect();
        for (viewer, to) in &mut viewers {
            let got = receive(viewer, sent.len());
            assert!(got == sent, "{to} round {round}: {} of {}", got.len(), sent.len());
            wanted += sent.len() as u64;
        }
    }
    guard.set_locked(payloads, false).unwrap();
    assert!(*lease.wire(0, PACKETS) == copy, "nobody wrote them either");
    let counters = tx.counters();
    assert_eq!((counters.chained, counters.staged, counters.datagrams), (wanted, 0, wanted));
    assert_eq!(checksum_errors(&net), 0);
}

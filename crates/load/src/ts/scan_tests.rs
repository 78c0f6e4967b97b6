//! Streams made packet by packet.

use super::*;

/// A packet with a payload, and a clock reference if one is given.
pub(crate) fn packet(pid: u16, counter: u8, pcr: Option<u64>) -> Vec<u8> {
    let control = if pcr.is_some() { 0x30 } else { 0x10 };
    let mut bytes = vec![SYNC, (pid >> 8) as u8, pid as u8, control | counter & 0x0f];
    if let Some(value) = pcr {
        let (base, extension) = (value / 300, value % 300);
        bytes.extend_from_slice(&[7, 0x10]);
        bytes.extend_from_slice(&((base >> 1) as u32).to_be_bytes());
        bytes.extend_from_slice(&[(base as u8 & 1) << 7 | 0x7e | (extension >> 8) as u8, extension as u8]);
    }
    bytes.resize(TS_PACKET_BYTES, 0xff);
    bytes
}

fn scan(pieces: &[&[u8]]) -> (ScanCounts, Vec<u64>) {
    let (mut scan, mut clock) = (TsScan::default(), Vec::new());
    for piece in pieces {
        scan.bytes(piece, |pcr| clock.push(pcr.value));
    }
    (scan.counts(), clock)
}

#[test]
fn clocks_and_counters_wherever_the_bytes_are_cut() {
    let mut stream = Vec::new();
    for n in 0..20u8 {
        stream.extend(packet(256, n, (n % 5 == 0).then_some(PCR_WRAP - 27_000_000 + u64::from(n) * 1001)));
        stream.extend(packet(257, n, (n % 5 == 0).then_some(7)));
        stream.extend(packet(NULL_PID, 3, None));
    }
    let clock: Vec<u64> = [0, 5, 10, 15].iter().map(|n| PCR_WRAP - 27_000_000 + n * 1001).collect();
    let counts = ScanCounts { packets: 60, pcrs: 4, pcr_interval_max_ns: 185_370, ..ScanCounts::default() };
    let expected = (counts, clock);
    assert_eq!(scan(&[&stream]), expected);
    for cut in 0..400 {
        let (a, b) = stream.split_at(cut);
        assert_eq!(scan(&[a, b]), expected, "{cut}");
    }
    assert_eq!(scan(&stream.chunks(1).collect::<Vec<_>>()), expected);
}

#[test]
fn pcr_wraps_and_is_read_to_last_bit() {
    let at = |value| Pcr { value, discontinuity: false };
    assert_eq!(at(26_999_999).ns_since(at(PCR_WRAP - 1)), 1_000_000_000);
    assert_eq!(at(PCR_WRAP - 1).timestamp(), 0xffff_ffff);
    let (_, clock) = scan(&[&packet(1, 0, Some(PCR_WRAP - 1))]);
    assert_eq!(clock, [PCR_WRAP - 1]);
}

#[test]
fn counters_that_do_not_follow() {
    let fine = [packet(1, 14, None), packet(1, 15, None), packet(1, 15, None), packet(1, 0, None)].concat();
    assert_eq!(scan(&[&fine]).0.continuity_errors, 0);
    let gap = [packet(1, 14, None), packet(1, 2, None), packet(1, 3, None)].concat();
    let (counts, _) = scan(&[&gap]);
    assert_eq!((counts.continuity_errors, counts.missing), (1, 3));
    let mut says_so = packet(1, 9, Some(0));
    says_so[5] |= 0x80;
    assert_eq!(scan(&[&packet(1, 1, None), &says_so]).0.continuity_errors, 0);
    let mut marked = packet(1, 9, Some(1));
    marked[1] |= 0x80;
    let (counts, clock) = scan(&[&packet(1, 1, None), &marked, &packet(1, 2, None)]);
    assert_eq!((counts.marked_errors, counts.continuity_errors, clock.len()), (1, 0, 0));
}

#[test]
fn lost_sync_is_found_again() {
    let stream = [packet(1, 0, None), vec![0; 100], packet(1, 1, None), packet(1, 2, None)].concat();
    for cut in 0..300 {
        let (a, b) = stream.split_at(cut);
        let (counts, _) = scan(&[a, b]);
        assert_eq!((counts.packets, counts.sync_losses, counts.continuity_errors), (3, 1, 0), "{cut}");
    }
    assert_eq!(scan(&[&[0; 1000]]).0, ScanCounts { sync_losses: 1, ..ScanCounts::default() });
}

#[test]
fn ts_scan_restart_keeps_only_counts() {
    let mut scan = TsScan::default();
    scan.bytes(&[packet(1, 0, None), vec![SYNC; 50]].concat(), |_| {});
    scan.restart();
    scan.bytes(&packet(1, 9, Some(5)), |pcr| assert_eq!(pcr.value, 5));
    // The half packet's front was whole, so it was one.
    assert_eq!((scan.counts().packets, scan.counts().continuity_errors), (3, 0));
}

#[test]
fn ts_scan_of_any_bytes_is_independent_of_cuts() {
    bolero::check!().with_type::<(Vec<u8>, u8)>().with_iterations(2000).for_each(|(bytes, cut)| {
        let long: Vec<u8> = bytes.iter().copied().cycle().take(bytes.len() * 8).collect();
        let whole = scan(&[&long]);
        let pieces: Vec<&[u8]> = long.chunks(usize::from(*cut).max(1)).collect();
        assert_eq!(scan(&pieces), whole);
        assert!(whole.1.iter().all(|value| *value < PCR_WRAP + 300));
    });
}

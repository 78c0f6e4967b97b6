use super::*;

/// `n` packets of 188 bytes that hold their number and no byte 0x47 but the first.
fn packets(n: usize) -> Vec<u8> {
    (0..n).flat_map(numbered).collect()
}

fn numbered(i: usize) -> [u8; 188] {
    let mut packet = [0x11; 188];
    packet[0] = SYNC;
    for (at, shift) in [(4, 12), (5, 6), (6, 0)] {
        packet[at] = 0x80 | (i >> shift & 0x3f) as u8;
    }
    packet
}

/// Reads `source` in pieces of `step` through a framer with a buffer of `buffer_bytes`.
fn run(framing: Framing, source: &[u8], step: usize, buffer_bytes: usize) -> (Vec<u8>, Skipped, usize) {
    let mut framer = Framer::new(buffer_bytes);
    framer.set_framing(framing);
    let (mut out, mut gaps, mut rest) = (Vec::new(), 0, source);
    loop {
        let space = framer.space();
        assert!(!space.is_empty());
        let n = rest.len().min(step).min(space.len());
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        if n == 0 {
            framer.end()
        } else {
            framer.filled(n)
        }
        while let Some((bytes, gap)) = framer.next_run() {
            assert!(!bytes.is_empty() && bytes.len().is_multiple_of(188));
            out.extend_from_slice(bytes);
            gaps += usize::from(gap);
        }
        if n == 0 {
            let s = framer.skipped();
            let extra = framing.stride() - 188;
            let given = out.len() / 188 * extra + out.len();
            let missing =
                source.len() as i64 - (given as u64 + s.before_bytes + s.bytes + s.tail_bytes) as i64;
            assert!(
                missing <= 0 && missing >= -(extra as i64),
                "every byte is given or counted: {s:?}, {missing}"
            );
            return (out, s, gaps);
        }
    }
}

fn all_steps(framing: Framing, source: &[u8]) -> (Vec<u8>, Skipped) {
    let first = run(framing, source, usize::MAX, 1 << 20);
    for (step, buffer) in [(1, 4096), (187, 4096), (188, 5000), (4096, 4096), (100_000, 8192)] {
        assert_eq!(run(framing, source, step, buffer), first, "reads of {step} bytes");
    }
    (first.0, first.1)
}

fn with_prefix(ts: &[u8]) -> Vec<u8> {
    ts.chunks(188).flat_map(|p| [&[1, 2, 3, 4], p].concat()).collect()
}

fn with_suffix(ts: &[u8]) -> Vec<u8> {
    ts.chunks(188).flat_map(|p| [p, &[9; 16]].concat()).collect()
}

#[test]
fn framing_variants_yield_the_same_packets() {
    let ts = packets(100);
    for (framing, source) in [
        (Framing::Plain, ts.clone()),
        (Framing::M2ts, with_prefix(&ts)),
        (Framing::ReedSolomon, with_suffix(&ts)),
    ] {
        assert_eq!(detect(&source, false), Some((framing, 0)));
        assert_eq!(all_steps(framing, &source), (ts.clone(), Skipped::default()));
    }
    // The last suffix is cut off: the packet is whole all the same.
    let mut source = with_suffix(&ts);
    source.truncate(source.len() - 10);
    assert_eq!(all_steps(Framing::ReedSolomon, &source).0, ts);
}

#[test]
fn framing_counts_bytes_before_first_packet() {
    let source = [&[0x11; 1000][..], &packets(20)].concat();
    assert_eq!(detect(&source, false), Some((Framing::Plain, 1000)));
    let (out, skipped) = all_steps(Framing::Plain, &source);
    assert_eq!((out, skipped.before_bytes, skipped.places), (packets(20), 1000, 0));
}

#[test]
fn other_files_are_not_transport_streams() {
    assert_eq!(detect(b"", true), None);
    assert_eq!(detect(&[SYNC; 50], true), None);
    let text: Vec<u8> = b"Good evening, here is some text. ".iter().copied().cycle().take(5000).collect();
    assert_eq!(detect(&text, true), None);
    // Two packets by chance at the end of a file of something else.
    let chance = [&[0x22; 5000][..], &packets(2)].concat();
    assert_eq!(detect(&chance, true), None);
    assert_eq!(detect(&packets(1), true), Some((Framing::Plain, 0)));
    assert_eq!(detect(&packets(3), true), Some((Framing::Plain, 0)));
    assert_eq!(detect(&packets(7), false), None);
}

#[test]
fn framing_drops_truncated_last_packet() {
    let mut source = packets(50);
    source.truncate(49 * 188 + 100);
    let (out, skipped) = all_steps(Framing::Plain, &source);
    assert_eq!((out, skipped), (packets(49), Skipped { tail_bytes: 100, ..Skipped::default() }));
}

#[test]
fn framing_with_damaged_sync_byte_drops_one_packet() {
    let mut source = packets(50);
    source[20 * 188] = 0x46;
    let (out, skipped) = all_steps(Framing::Plain, &source);
    let mut expected = packets(50);
    expected.drain(20 * 188..21 * 188);
    assert_eq!(out, expected);
    assert_eq!((skipped.bytes, skipped.places, skipped.first_offset), (188, 1, 20 * 188));
}

#[test]
fn lost_bytes_cost_the_packet_they_were_in() {
    let mut source = packets(50);
    source.drain(20 * 188 + 50..20 * 188 + 120);
    let (out, skipped) = all_steps(Framing::Plain, &source);
    let mut expected = packets(50);
    expected.drain(20 * 188..21 * 188);
    assert_eq!(out, expected);
    assert_eq!((skipped.bytes, skipped.places, skipped.first_offset), (118, 1, 20 * 188));
}

#[test]
fn foreign_bytes_between_packets_cost_no_packet() {
    for framing in [Framing::Plain, Framing::M2ts, Framing::ReedSolomon] {
        let at = 20 * framing.stride();
        let mut source = match framing {
            Framing::Plain => packets(50),
            Framing::M2ts => with_prefix(&packets(50)),
            Framing::ReedSolomon => with_suffix(&packets(50)),
        };
        source.splice(at..at, [0x33; 77]);
        let (out, skipped) = all_steps(framing, &source);
        assert_eq!(out, packets(50), "{framing:?}");
        assert_eq!((skipped.bytes, skipped.places, skipped.first_offset), (77, 1, at as u64));
    }
}

#[test]
fn damage_longer_than_the_buffer_is_one_place() {
    let source = [&packets(30)[..], &[0x55; 100_000], &packets(30)].concat();
    let (out, skipped) = all_steps(Framing::Plain, &source);
    assert_eq!(out, [packets(30), packets(30)].concat());
    assert_eq!((skipped.bytes, skipped.places, skipped.first_offset), (100_000, 1, 30 * 188));
}

#[test]
fn framing_marks_run_after_damage_once() {
    let mut source = packets(50);
    source[20 * 188] = 0;
    source[40 * 188] = 0;
    let (_, skipped, gaps) = run(Framing::Plain, &source, 500, 4096);
    assert_eq!((skipped.places, gaps), (2, 2));
}

#[test]
fn something_else_behind_the_last_packet_is_dropped() {
    let source = [&packets(30)[..], &[0x55; 5000]].concat();
    let (out, skipped) = all_steps(Framing::Plain, &source);
    assert_eq!((out, skipped), (packets(30), Skipped { tail_bytes: 5000, ..Skipped::default() }));
}

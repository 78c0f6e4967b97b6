use super::*;

/// A section in the long syntax with its CRC.
fn section(table: u8, extension: u16, version: u8, body: &[u8]) -> Vec<u8> {
    let length = 5 + body.len() + 4;
    let mut bytes = vec![table, 0xb0 | (length >> 8) as u8, length as u8];
    bytes.extend(extension.to_be_bytes());
    bytes.extend([0xc1 | version << 1, 0, 0]);
    bytes.extend(body);
    bytes.extend(crc(&bytes).to_be_bytes());
    bytes
}

/// CRC-32/MPEG-2 bit by bit (ISO/IEC 13818-1 annex A).
fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xffff_ffff, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |c, _| c << 1 ^ if c >> 31 == 1 { 0x04c1_1db7 } else { 0 })
    })
}

/// Payload bytes as TS packets of one PID: the first with a pointer of 0.
fn packets(sections: &[u8], mut counter: u8) -> Vec<[u8; 188]> {
    let payload = [&[0], sections].concat();
    let chunks = payload.chunks(184).enumerate();
    chunks
        .map(|(i, chunk)| {
            let mut packet = [0xff; 188];
            packet[..4].copy_from_slice(&[0x47, if i == 0 { 0x40 } else { 0 }, 0, 0x10 | counter & 15]);
            packet[4..4 + chunk.len()].copy_from_slice(chunk);
            counter = counter.wrapping_add(1);
            packet
        })
        .collect()
}

fn collect(assembler: &mut SectionAssembler, packets: &[[u8; 188]]) -> (Vec<Vec<u8>>, u64) {
    let (mut out, mut wrong) = (Vec::new(), 0);
    for packet in packets {
        wrong += assembler.push(TsPacket(packet), |s| out.push(s.to_vec()));
    }
    (out, wrong)
}

#[test]
fn sections_over_packets_and_several_in_one() {
    let long = section(0x40, 7, 0, &[0x55; 900]);
    let short = section(0x40, 8, 0, &[1, 2, 3]);
    let all = [&long[..], &short, &short].concat();
    let (out, wrong) = collect(&mut SectionAssembler::default(), &packets(&all, 14));
    assert_eq!((out, wrong), (vec![long, short.clone(), short], 0));
}

#[test]
fn section_assembler_pointer_ends_and_starts_section() {
    let (a, b) = (section(0x40, 1, 0, &[0xaa; 200]), section(0x40, 2, 0, &[0xbb; 20]));
    let mut first = packets(&a, 0);
    let rest = a[183..].to_vec();
    let mut second = [0xff; 188];
    second[..5].copy_from_slice(&[0x47, 0x40, 0, 0x11, rest.len() as u8]);
    second[5..5 + rest.len()].copy_from_slice(&rest);
    second[5 + rest.len()..5 + rest.len() + b.len()].copy_from_slice(&b);
    first[1] = second;
    assert_eq!(collect(&mut SectionAssembler::default(), &first).0, [a, b]);
}

#[test]
fn section_assembler_with_missing_packet_drops_one_section() {
    let a = section(0x40, 1, 0, &[0xaa; 500]);
    let mut broken = packets(&a, 0);
    broken.remove(1);
    broken.extend(packets(&a, 5));
    assert_eq!(collect(&mut SectionAssembler::default(), &broken), (vec![a], 0));
}

#[test]
fn section_assembler_ignores_duplicate_packet() {
    let a = section(0x40, 1, 0, &[0xaa; 500]);
    let mut twice = packets(&a, 0);
    twice.insert(1, twice[1]);
    assert_eq!(collect(&mut SectionAssembler::default(), &twice), (vec![a], 0));
}

#[test]
fn section_assembler_counts_wrong_crc() {
    let mut a = section(0x40, 1, 0, &[0xaa; 50]);
    a[20] ^= 1;
    assert_eq!(collect(&mut SectionAssembler::default(), &packets(&a, 0)), (vec![], 1));
}

#[test]
fn impossible_lengths_do_no_harm() {
    for head in [&[0x40, 0xbf, 0xff][..], &[0x40, 0xb0, 0x00], &[0x40], &[]] {
        let (out, _) = collect(&mut SectionAssembler::default(), &packets(head, 0));
        assert!(out.is_empty());
    }
    let mut packet = [0xff; 188];
    packet[..5].copy_from_slice(&[0x47, 0x40, 0, 0x10, 250]);
    assert!(collect(&mut SectionAssembler::default(), &[packet]).0.is_empty());
}

#[test]
fn tables_are_read() {
    let pat = section(0, 0x1234, 3, &[0, 0, 0xe0, 0x10, 0, 1, 0xf0, 0x00, 0, 2, 0xe1, 0x00]);
    let expected =
        PatSection { stream: 0x1234, number: 0, last_number: 0, programs: vec![(1, 0x1000), (2, 0x100)] };
    assert_eq!(parse_pat(&pat), Some(expected));
    let body = [
        &[0xe1, 0x00, 0xf0, 0x02, 0x09, 0x00][..],
        &[0x1b, 0xe1, 0x00, 0xf0, 0x00],
        &[0x0f, 0xe1, 0x01, 0xf0, 0x06, 0x0a, 0x04, b'e', b'n', b'g', 0],
    ]
    .concat();
    let pmt = parse_pmt(&section(2, 1, 0, &body)).unwrap();
    assert_eq!((pmt.program, pmt.pcr_pid, pmt.streams.len()), (1, 0x100, 2));
    assert_eq!((pmt.streams[0].pid, pmt.streams[0].codec.as_str()), (0x100, "H.264"));
    assert_eq!((pmt.streams[1].pid, pmt.streams[1].language.as_deref()), (0x101, Some("eng")));
    // Not in force yet; another table; a descriptor loop that does not fit.
    let mut next = section(0, 1, 0, &[0, 1, 0xe1, 0]);
    next[5] &= !1;
    assert_eq!(parse_pat(&next), None);
    assert_eq!(parse_pat(&section(2, 1, 0, &[])), None);
    assert_eq!(parse_pmt(&section(2, 1, 0, &[0xe1, 0, 0xf0, 9])), None);
    assert_eq!(parse_pmt(&section(2, 1, 0, &[0xe1, 0, 0xf0, 0, 0x1b, 0xe1, 0, 0xf0, 9])), None);
}

#[test]
fn remapped_pmt_keeps_descriptors_and_has_new_pids_and_head() {
    let mut body = vec![0xe0, 0x77, 0xf0, 0];
    body.extend([0x1b, 0xe0, 0x77, 0xf0, 0]);
    body.extend([0x0f, 0xe0, 0x88, 0xf0, 6, 0x0a, 4, b'e', b'n', b'g', 0]);
    body.extend([0x06, 0xe0, 0x99, 0xf0, 0]);
    let section = section(2, 7, 3, &body);
    let head = PmtHead { program: 1, version: 5, pcr_pid: 0x100 };
    let to = |pid: u16| {
        [(0x77, 0x100), (0x88, 0x120)].into_iter().find(|(from, _)| *from == pid).map(|(_, to)| to)
    };
    let new = remapped_pmt(&section, head, to).unwrap();
    assert!(crc_is_right(&new));
    assert_eq!(new[5] >> 1 & 31, 5, "the version");
    let pmt = parse_pmt(&new).unwrap();
    assert_eq!((pmt.program, pmt.pcr_pid), (1, 0x100));
    let streams: Vec<_> = pmt.streams.iter().map(|stream| (stream.pid, stream.language.as_deref())).collect();
    assert_eq!(streams, [(0x100, None), (0x120, Some("eng"))], "the third has no PID");
    assert_eq!(remapped_pmt(&section[..20], head, to), None);
    assert_eq!(remapped_pmt(&[], head, to), None);
}

//! FEC headers: those of other senders are read, and nothing is lost or accepted that should not
//! be.

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn headers_of_ffmpeg_are_understood_and_made_byte_for_byte() {
    // Sent by ffmpeg with `-fec prompeg=l=5:d=5`: a row and a column of five packets of 1316 bytes.
    let row = hex("0e88 0524 a1 000000 70cc3228 40 01 05 00");
    let column = hex("0f05 0524 a1 000000 70cc3228 00 05 05 00");
    let expected = FecHeader {
        sn_base: 0x0e88,
        length_recovery: 1316,
        payload_type_recovery: 33,
        timestamp_recovery: 0x70cc_3228,
        kind: FecKind::Xor,
        index: 0,
        row: true,
        offset: 1,
        count: 5,
    };
    assert_eq!(FecHeader::parse(&row), Some((expected, &[][..])));
    assert_eq!(expected.emit()[..], row);
    let expected = FecHeader { sn_base: 0x0f05, row: false, offset: 5, ..expected };
    assert_eq!(FecHeader::parse(&column), Some((expected, &[][..])));
    assert_eq!(expected.emit()[..], column);
}

#[test]
fn fec_header_from_gstreamer_is_parsed() {
    // Ten equal packets: everything but the timestamps cancels out.
    let bytes = hex("4dda 0000 80 000000 00000123 00 0a 0a 00 aabb");
    let (header, parity) = FecHeader::parse(&bytes).unwrap();
    assert_eq!((header.length_recovery, header.payload_type_recovery, header.count), (0, 0, 10));
    assert_eq!(parity, [0xaa, 0xbb]);
}

#[test]
fn payload_type_recovery_keeps_eighth_bit_for_reed_solomon_only() {
    let header = FecHeader {
        payload_type_recovery: 0xa1,
        kind: FecKind::ReedSolomon,
        index: 7,
        offset: 20,
        count: 4,
        ..FecHeader::default()
    };
    let bytes = header.emit();
    assert_eq!((bytes[4], bytes[5], bytes[12]), (0xa1, 0x80, 0x17));
    assert_eq!(FecHeader::parse(&bytes), Some((header, &[][..])));
    assert_eq!(FecHeader { payload_type_recovery: 0x21, ..header }.emit()[4..6], [0xa1, 0]);
    let xor = FecHeader { kind: FecKind::Xor, ..header }.emit();
    assert_eq!(xor[5], 0);
    assert_eq!(FecHeader::parse(&xor).unwrap().0.payload_type_recovery, 0x21);
}

#[test]
fn fec_header_parse_of_invalid_bytes_returns_none() {
    let good = FecHeader { offset: 1, count: 1, ..FecHeader::default() }.emit();
    assert!(FecHeader::parse(&good).is_some());
    assert!((0..16).all(|len| FecHeader::parse(&good[..len]).is_none()));
    // Not extended, a future extension, Hamming, an unknown type, no step, no packets.
    for (at, value) in [(4, 0x21), (12, 0x80), (12, 0x08), (12, 0x18), (13, 0), (14, 0)] {
        let mut bad = good;
        bad[at] = value;
        assert_eq!(FecHeader::parse(&bad), None, "byte {at} {value:#x}");
    }
}

#[test]
fn fec_header_parse_and_emit_of_any_bytes_round_trip() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        if let Some((header, parity)) = FecHeader::parse(bytes) {
            assert_eq!(parity.len(), bytes.len() - 16);
            let again = header.emit();
            assert_eq!(FecHeader::parse(&again), Some((header, &[][..])));
            assert_eq!(header.with_recovery(header.recovery()), header);
            // The mask but for its first bit, and the last byte, are not kept.
            assert_eq!((&again[..5], &again[8..15]), (&bytes[..5], &bytes[8..15]));
        }
    });
}

#[test]
fn protected_fields_of_lost_packets_are_restored() {
    let code = crate::fec::Code::new(4, 2).unwrap();
    let fields: Vec<[u8; 7]> =
        (0..4).map(|i| protected_fields(1316 - 188 * i as u16, 33, 0xffff_fff0 + 5 * i)).collect();
    let mut parity = [[0; 7]; 2];
    let [first, second] = &mut parity;
    let data: Vec<&[u8]> = fields.iter().map(|f| &f[..]).collect();
    code.encode(&data, &mut [first, second]);
    let headers = [(FecKind::Xor, 0), (FecKind::ReedSolomon, 1)].map(|(kind, index)| {
        let header = FecHeader { kind, index, offset: 3, count: 4, ..FecHeader::default() };
        FecHeader::parse(&header.with_recovery(parity[usize::from(index)]).emit()).unwrap().0
    });
    let plan = code.plan(0b110110).unwrap();
    let mut lost = [[0; 7]; 2];
    let [zero, three] = &mut lost;
    plan.restore(
        &[&fields[1], &fields[2], &headers[0].recovery(), &headers[1].recovery()],
        &mut [zero, three],
    );
    assert_eq!(lost, [fields[0], fields[3]]);
    assert_eq!(split_fields(lost[1]), (1316 - 188 * 3, 33, 0xffff_ffff));
}

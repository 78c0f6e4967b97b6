use proptest::prelude::*;

use super::*;

fn layout_stream(byte: u64, config: u32) -> LayoutStream {
    let (codec, language) = ("E-AC-3".to_owned(), (config > 0).then(|| "deu".to_owned()));
    LayoutStream { byte, pid: 257, stream_type: 0x87, codec, language, config }
}

/// An index of `packets` packets with `access` random access points, all consistent.
fn index(packets: u32, access: u32) -> TitleIndex {
    let bytes = |packet: u32| u64::from(packet) * DEFAULT_PACKET_BYTES as u64;
    let time = |packet: u32| MediaTicks(u64::from(packet) * 300);
    let step = (packets / (access + 1)).max(1);
    let points = (0..access.min(packets)).map(|i| {
        let packet = i * step;
        RandomAccessPoint { packet, time: time(packet), byte: bytes(packet) + 188 }
    });
    let pieces = (0..5.min(packets)).map(|i| ClockPiece { byte: bytes(i), time: time(i) });
    let pids = [(0, PidRole::Pat), (32, PidRole::Pmt), (256, PidRole::Stream), (8191, PidRole::Null)];
    let pids = pids.map(|(pid, role)| PidUse {
        pid,
        role,
        stream_type: 27,
        pcr: pid == 256,
        ts_packets: u64::from(pid),
    });
    TitleIndex::from_parts(IndexParts {
        access: points.collect(),
        pieces: pieces.collect(),
        pids: pids.to_vec(),
        times: (0..packets).step_by(TIME_STEP_PACKETS as usize).map(time).collect(),
        data_bytes: bytes(packets),
        duration: time(packets),
        bases: (0..2.min(packets))
            .map(|i| TimeBase { byte: bytes(i), time: time(i), first_pts: (1 << 33) - 1 })
            .collect(),
        layouts: (0..2.min(packets)).map(|i| layout_stream(bytes(i), i)).collect(),
        end: Some(time(packets + 9)),
    })
    .unwrap()
}

#[test]
fn decode_of_flipped_byte_or_truncated_file_fails() {
    let file = encode(&index(1000, 7));
    assert_eq!(
        file.len(),
        frame::FRAME_BYTES + HEADER_BYTES + 4 * 8 + 7 * 24 + 5 * 16 + 4 * 16 + 2 * 24 + 2 * 48
    );
    for at in 0..file.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = file.clone();
            damaged[at] ^= flip;
            assert!(decode(&damaged).is_err(), "byte {at} ^ {flip:#x}");
        }
        assert!(decode(&file[..at]).is_err(), "cut to {at}");
    }
}

/// An index with one field of its body changed and its checksums right: as a faulty writer would make it.
fn forged(at: usize, bytes: &[u8]) -> Result<TitleIndex, FormatError> {
    let file = encode(&index(1000, 7));
    let mut body = file[frame::FRAME_BYTES..].to_vec();
    put(&mut body, at, bytes);
    decode(&frame::seal_file(FileKind::Index, &body))
}

#[test]
fn decode_of_forged_body_names_invalid_field() {
    let refused = |words: &str, at, bytes: &[u8]| {
        let error = forged(at, bytes).unwrap_err().to_string();
        assert!(error.contains(words), "wanted \"{words}\", got \"{error}\"");
    };
    refused("index: packet bytes is 188", at::PACKET_BYTES, &188u32.to_le_bytes());
    refused("index: time step is 255", at::TIME_STEP, &255u32.to_le_bytes());
    refused("index: times at offset", at::TIMES, &u32::MAX.to_le_bytes());
    refused("index: access points", at::ACCESS, &u32::MAX.to_le_bytes());
    refused("index: body length", at::LAYOUTS, &1u32.to_le_bytes());
    refused("index: reserved byte", at::RESERVED + 7, &[1]);
    refused("index: time bases", at::BASES, &u32::MAX.to_le_bytes());
    refused("end number 0: must not be before the duration", at::TITLE_END, &1u64.to_le_bytes());
    refused("must be one for every 256 packets", at::DATA_BYTES, &(188u64 * 70_000).to_le_bytes());
    refused("must be a multiple of 188", at::DATA_BYTES, &189u64.to_le_bytes());
    refused("must not be after the duration", at::DURATION, &1u64.to_le_bytes());
    let pids = HEADER_BYTES + 4 * 8 + 7 * 24 + 5 * 16;
    refused("index: role of a PID is 5", pids + pid_at::ROLE, &[5]);
    refused("index: PCR flag of a PID is 2", pids + pid_at::PCR, &[2]);
    refused("must be above the one before it", pids + PID_BYTES, &[0, 0]);
    refused("must be at most 0x1fff", pids + 3 * PID_BYTES, &0x2000u16.to_le_bytes());
    let bases = pids + 4 * PID_BYTES;
    refused("time bases number 0: must begin at byte 0", bases + base_at::TIME, &[1]);
    refused("time bases number 1: must lie behind", bases + BASE_BYTES + base_at::BYTE, &[0; 8]);
    refused(
        "time bases number 1: must have a time stamp",
        bases + BASE_BYTES + base_at::FIRST_PTS,
        &u64::MAX.to_le_bytes(),
    );
    let layouts = bases + 2 * BASE_BYTES;
    refused("layouts number 0: must begin at byte 0", layouts + layout_at::BYTE, &[1]);
    refused("layouts number 1: must lie within", layouts + LAYOUT_BYTES + layout_at::BYTE, &[0xff; 8]);
    refused("must have a PID of at most", layouts + layout_at::PID, &0x2000u16.to_le_bytes());
    refused("must have a language of three letters", layouts + layout_at::LANGUAGE, b"d");
    refused("codec of a stream is other bytes", layouts + layout_at::CODEC, &[0xff]);
    refused("index: reserved byte", layouts + layout_at::RESERVED_2 + 4, &[1]);
    refused("index: layouts", at::LAYOUTS, &u32::MAX.to_le_bytes());
    let access = HEADER_BYTES + 4 * 8;
    refused("must start sending at or before", access + access_at::PACKET, &9u32.to_le_bytes());
    refused(
        "must lie behind the one before it",
        access + 2 * ACCESS_BYTES + access_at::TIME,
        &188u64.to_le_bytes(),
    );
}

/// Versions 1 and 2 can be read; the layouts, time bases and end that they lack are unknown.
#[test]
fn decode_of_older_versions_leaves_newer_lists_empty() {
    let new = index(1000, 7);
    let file = encode(&new);
    let mut body = file[frame::FRAME_BYTES..file.len() - 2 * LAYOUT_BYTES].to_vec();
    let old =
        |version, body: &[u8]| decode(&[&frame::seal_as(FileKind::Index, version, body)[..], body].concat());
    assert!(old(2, &body).unwrap_err().to_string().contains("reserved"), "there these bytes were reserved");
    put(&mut body, at::LAYOUTS, &[0; 4]);
    let parts = IndexParts { layouts: Vec::new(), ..new.parts().clone() };
    assert_eq!(old(2, &body).unwrap(), TitleIndex::from_parts(parts.clone()).unwrap());
    body.truncate(body.len() - 2 * BASE_BYTES);
    assert!(old(1, &body).unwrap_err().to_string().contains("reserved"));
    put(&mut body, at::TITLE_END, &[0; 12]);
    let read = old(1, &body).unwrap();
    assert_eq!((read.bases(), read.parts().end, read.end()), (&[][..], None, read.duration()));
    assert_eq!(read, TitleIndex::from_parts(IndexParts { bases: Vec::new(), end: None, ..parts }).unwrap());
}

proptest! {
    #[test]
    fn round_trip(packets in 1u32..5000, access in 0u32..50) {
        let index = index(packets, access);
        prop_assert_eq!(decode(&encode(&index)), Ok(index));
    }

    #[test]
    fn decode_of_arbitrary_body_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..600), counts in any::<[u8; 4]>()) {
        let mut body = body;
        if body.len() >= HEADER_BYTES {
            put(&mut body, at::PACKET_BYTES, &1316u32.to_le_bytes());
            put(&mut body, at::TIME_STEP, &256u32.to_le_bytes());
            put(&mut body, at::LAYOUTS, &[0; 12]);
            for (i, count) in counts.iter().enumerate() {
                put(&mut body, at::TIMES + 4 * i, &u32::from(*count % 8).to_le_bytes());
            }
        }
        if let Ok(index) = decode(&frame::seal_file(FileKind::Index, &body)) {
            prop_assert_eq!(encode(&index), frame::seal_file(FileKind::Index, &body));
        }
    }
}

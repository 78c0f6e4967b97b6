use proptest::prelude::*;

use super::*;

fn header() -> MetaHeader {
    MetaHeader::new(TitleId([5; 16]), 1316, 188 * 100_000).unwrap()
}

#[test]
fn meta_header_decode_of_damaged_block_fails() {
    let block = header().encode();
    assert_eq!(MetaHeader::decode(&block[..]), Ok(header()));
    for at in 0..block.len() {
        let mut damaged = block.clone();
        damaged[at] ^= 0x10;
        assert!(MetaHeader::decode(&damaged[..]).is_err(), "byte {at}");
    }
    for len in (0..META_BLOCK_BYTES).step_by(37) {
        assert!(MetaHeader::decode(&block[..len]).is_err(), "cut to {len}");
    }
}

#[test]
fn meta_header_decode_of_forged_block_names_invalid_field() {
    let refused = |words: &str, at: usize, bytes: &[u8]| {
        let mut block = header().encode();
        put(&mut block[FRAME_BYTES..], at, bytes);
        let frame = frame::seal(FileKind::Meta, &block[FRAME_BYTES..]);
        put(&mut block[..], 0, &frame);
        let error = MetaHeader::decode(&block[..]).unwrap_err().to_string();
        assert!(error.contains(words), "wanted \"{words}\", got \"{error}\"");
    };
    refused("packet bytes is 1300", at::PACKET_BYTES, &1300u16.to_le_bytes());
    refused("packet bytes is 0", at::PACKET_BYTES, &0u16.to_le_bytes());
    refused("record length is 16", at::RECORD_BYTES, &16u16.to_le_bytes());
    refused("block length is 512", at::BLOCK_BYTES, &512u16.to_le_bytes());
    refused("records in a block is 511", at::RECORDS_PER_BLOCK, &511u16.to_le_bytes());
    refused("packets is 1; expected 14286", at::PACKETS, &1u32.to_le_bytes());
    refused("reserved byte", at::RESERVED_1, &[1]);
    refused("reserved byte", META_BLOCK_BYTES - FRAME_BYTES - 1, &[1]);
    let short = frame::seal_file(FileKind::Meta, &header().encode()[FRAME_BYTES..META_BLOCK_BYTES - 8]);
    assert!(MetaHeader::decode(&short).unwrap_err().to_string().contains("header block length"));
}

#[test]
fn length_of_the_file() {
    let of = |packets: u64| MetaHeader::new(TitleId([0; 16]), 1316, packets * 1316).unwrap();
    assert_eq!((of(1).blocks(), of(1).file_bytes()), (1, 8192));
    assert_eq!((of(510).blocks(), of(511).blocks()), (1, 2));
    assert_eq!(of(u64::from(u32::MAX)).packets, u32::MAX);
    assert_eq!(MetaHeader::new(TitleId([0; 16]), 1316, 1316 << 32), None);
    assert_eq!(MetaHeader::new(TitleId([0; 16]), 1317, 1316), None);
}

#[test]
fn open_block_with_flipped_byte_fails() {
    let mut block = [0x5a; META_BLOCK_BYTES];
    seal_block(&mut block, 77);
    assert_eq!(open_block(&block, 77), Ok(&[0x5a; RECORDS_BYTES][..]));
    assert_eq!(open_block(&block, 78), Err(MetaError::WrongBlock { block: 78, found: 77 }));
    for at in 0..block.len() {
        block[at] ^= 0x04;
        assert!(open_block(&block, 77).is_err(), "byte {at}");
        block[at] ^= 0x04;
    }
}

proptest! {
    #[test]
    fn header_round_trip(title: [u8; 16], ts_per_packet in 1u16..=48, bytes in 1u64..1 << 36) {
        let header = MetaHeader::new(TitleId(title), ts_per_packet * 188, bytes).unwrap();
        prop_assert_eq!(MetaHeader::decode(&header.encode()[..]), Ok(header));
    }
}

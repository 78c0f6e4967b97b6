use proptest::prelude::*;

use super::*;

proptest! {
    /// Times neither drift nor descend, and each is found again.
    #[test]
    fn paces_are_exact(rate in 1000u64..2_000_000_000, bytes in MIN_BLOCK_BYTES..=MAX_PACKET_BYTES, block in 0u32..1_000_000) {
        let pace = BlockPacing::at_rate(BitRate(rate), bytes).unwrap();
        prop_assert_eq!(pace.rate(), BitRate(rate));
        let time = pace.time_of(block);
        let exact = f64::from(block) * bytes as f64 * 8.0 * 90_000.0 / rate as f64;
        prop_assert!((time.0 as f64 - exact).abs() <= 1.0 + exact * 1e-12, "{} {}", time.0, exact);
        let found = pace.packet_at(time);
        prop_assert!(pace.time_of(found) >= time && (found == 0 || pace.time_of(found - 1) < time));
        let before = pace.access_before(time);
        prop_assert!(before <= block && pace.time_of(before) <= time);
    }
}

#[test]
fn pace_every_interval_yields_matching_rate() {
    let pace = BlockPacing::every(Duration::from_millis(20), 1000).unwrap();
    assert_eq!((pace.rate(), pace.time_of(50)), (BitRate(400_000), MediaTicks(90_000)));
}

#[test]
fn identity_id_changes_with_pace_or_file_content() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [1; 5000]).unwrap();
    let id = |rate| {
        let opening = Opening::begin(file.path()).unwrap();
        opening.identity.id(BlockPacing::at_rate(BitRate(rate), 1000).unwrap().ticks)
    };
    assert_eq!(id(5000), id(5000));
    assert_ne!(id(5000), id(5001));
    let before = id(5000);
    std::fs::write(file.path(), [1; 5001]).unwrap();
    assert_ne!(id(5000), before);
}

#[test]
fn transport_stream_opening_of_other_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.ts");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match Opening::begin(&path).map(Opening::transport_stream) {
            Ok(Ok(_)) => panic!("taken"),
            Ok(Err(error)) | Err(error) => error.to_string(),
        }
    };
    assert!(refused(&[]).contains("empty"));
    assert!(refused(&[0; 100_000]).contains("not a transport stream"));
    // Packets with something behind each.
    let framed: Vec<u8> =
        (0..2000).flat_map(|_| [[0x47, 0x1f, 0xff, 0x10].as_slice(), &[0xff; 200]].concat()).collect();
    assert!(refused(&framed).contains("x.ts"));
    assert!(matches!(Opening::begin(dir.path()), Err(OpenError::File { .. })));
    assert!(matches!(Opening::begin(&dir.path().join("none")), Err(OpenError::File { .. })));
}

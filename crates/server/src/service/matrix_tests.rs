use super::*;

const MATRIX: FecMatrix = FecMatrix { data_units: 4, parity_units: 3, unit_packets: 20 };

#[test]
fn words_and_parameters() {
    assert_eq!(MATRIX.offer(), "xor,all;xor_port=+2;rs_port=+6;pt=96;L=20;D=4;k=4;m=3;U=20");
    assert_eq!(MATRIX.grant(FecMode::Xor, 5000), "xor;xor_port=5002;pt=96;L=20;D=4;k=4;m=3;U=20");
    assert_eq!(
        MATRIX.grant(FecMode::All, 5000),
        "all;xor_port=5002;rs_port=5006;pt=96;L=20;D=4;k=4;m=3;U=20"
    );
    assert_eq!(MATRIX.grant(FecMode::Off, 5000), "off");
    let one = FecMatrix { parity_units: 1, ..MATRIX };
    assert_eq!(one.offer(), "xor;xor_port=+2;pt=96;L=20;D=4;k=4;m=1;U=20");
    assert_eq!(one.at_most(FecMode::All), FecMode::Xor);
    assert_eq!(FecMode::parse("ALL"), Some(FecMode::All));
    assert_eq!(FecMode::parse("on"), None);
}

#[test]
fn rates() {
    let rates = [FecMode::Off, FecMode::Xor, FecMode::All].map(|mode| MATRIX.rate(mode, 4_000_000));
    assert_eq!(rates, [0, 1_000_000, 3_000_000]);
}

/// Each function against its meaning, packet by packet.
#[test]
fn slots_of_a_run() {
    for (k, m, unit) in [(4u8, 2u8, 5u8), (1, 2, 3), (5, 3, 1), (7, 4, 4), (4, 1, 5), (4, 4, 20)] {
        let matrix = FecMatrix { data_units: k, parity_units: m, unit_packets: unit };
        let (k, unit) = (u32::from(k), u32::from(unit));
        let row = k * unit;
        let packets = row * 3 + row / 2 + 1;
        let slots = matrix.columns(packets);
        assert_eq!(slots, 4 * unit);
        // Packets of the columns whose FEC is in a slot of a track, each within a title without
        // end.
        let protected = |track: u8, slot: u32| -> Vec<Vec<u32>> {
            let each = matrix.column_packets(track);
            let places = (slot * each..(slot + 1) * each).map(|packet| matrix.spread().place(track, packet));
            places.map(|at| (0..k).map(|u| at.row * row + u * unit + at.column).collect()).collect()
        };
        for track in [TRACK_XOR, TRACK_RS].into_iter().filter(|&track| matrix.column_packets(track) > 0) {
            for packet in 0..packets {
                let starts_behind = |column: &Vec<u32>| column[0] >= packet;
                let whole = (0..slots + unit).find(|&slot| protected(track, slot).iter().any(starts_behind));
                assert_eq!(Some(matrix.first_whole(track, packet)), whole, "{packet}");
                let ends_behind = |column: &Vec<u32>| column.last().is_none_or(|&last| last >= packet);
                let until = (0..slots).find(|&slot| protected(track, slot).iter().any(ends_behind));
                assert_eq!(Some(matrix.whole_until(track, packet, packets)), until, "{packet}");
            }
            assert_eq!(matrix.whole_until(track, packets, packets), slots);
            // FEC never leaves before the last packet that it protects.
            for slot in 0..slots {
                let last = protected(track, slot).into_iter().flatten().filter(|&p| p < packets).max();
                assert!(last.is_none_or(|last| last <= matrix.departure(slot, packets)));
            }
        }
        for packet in 0..packets {
            let due = (0..slots).find(|slot| slot / unit * row + row + slot % unit * k >= packet);
            assert_eq!(Some(matrix.first_due(packet)), due, "{packet}");
        }
        assert_eq!(matrix.departure(0, packets), row);
        assert_eq!(matrix.departure(slots - 1, packets), packets - 1);
        assert!((1..slots).all(|s| matrix.departure(s, packets) >= matrix.departure(s - 1, packets)));
    }
}

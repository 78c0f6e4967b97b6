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
fn columns_of_a_run() {
    for (k, unit) in [(4u8, 5u8), (1, 3), (5, 1), (7, 4)] {
        let matrix = FecMatrix { data_units: k, parity_units: 2, unit_packets: unit };
        let row = u32::from(k) * u32::from(unit);
        let packets = row * 3 + row / 2 + 1;
        let columns = matrix.columns(packets);
        assert_eq!(columns, 4 * u32::from(unit));
        let members = |column: u32| {
            let (r, j) = (column / u32::from(unit), column % u32::from(unit));
            (0..u32::from(k)).map(move |u| r * row + u * u32::from(unit) + j).filter(move |&p| p < packets)
        };
        for packet in 0..packets {
            let whole = (0..columns).position(|column| members(column).all(|p| p >= packet));
            // A column without packets, at the end, belongs to every run.
            let whole = whole.map_or(columns, |column| column as u32);
            let first = matrix.first_whole(packet);
            assert!(first == whole || first > whole && members(whole).count() < usize::from(k), "{packet}");
            let due = (0..columns).find(|&column| {
                let (r, j) = (column / u32::from(unit), column % u32::from(unit));
                (r + 1) * row + j * u32::from(k) >= packet
            });
            assert_eq!(Some(matrix.first_due(packet)), due, "{packet}");
            let until = (0..columns).find(|&column| {
                let (r, j) = (column / u32::from(unit), column % u32::from(unit));
                r * row + (u32::from(k) - 1) * u32::from(unit) + j >= packet
            });
            assert_eq!(
                Some(matrix.whole_until(packet, packets)),
                until.filter(|_| packet < packets),
                "{packet}"
            );
        }
        assert_eq!(matrix.whole_until(packets, packets), columns);
        assert_eq!(matrix.departure(0, packets), row);
        assert_eq!(matrix.departure(columns - 1, packets), packets - 1);
        assert!((1..columns).all(|c| matrix.departure(c, packets) >= matrix.departure(c - 1, packets)));
        // FEC never leaves before the last packet that it protects.
        assert!((0..columns).all(|c| members(c).all(|p| p <= matrix.departure(c, packets))));
    }
}

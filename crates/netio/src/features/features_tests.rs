use super::*;

#[test]
fn loopback_says_what_it_is() {
    let lo = DeviceFeatures::of("lo").unwrap();
    assert_eq!((lo.name.as_str(), lo.mac, lo.is_tx_no_linear), ("lo", Some([0; 6]), false));
    assert!(lo.if_index > 0 && lo.mtu >= 1500);
    let text = lo.to_string();
    assert!(text.starts_with("lo (") && text.contains("XDP") && text.contains("offloads"), "{text}");
}

#[test]
fn device_features_of_missing_interface_returns_error() {
    for name in ["nosuch0", "", "a-name-that-is-too-long"] {
        let text = DeviceFeatures::of(name).unwrap_err().to_string();
        assert!(text.contains(&format!("interface {name}")) && text.contains("ip link"), "{text}");
    }
}

#[test]
fn device_features_display_marks_unknown_properties() {
    let lo = DeviceFeatures::of("lo").unwrap();
    let xdp = Some(XdpFeatures(1 | 2 | 8));
    let card = DeviceFeatures {
        driver: Some("ice".to_owned()),
        xdp_features: xdp,
        zc_max_segs: Some(8),
        xsk_features: Some(XskFeatures(2)),
        has_xdp_program: Some(true),
        rx_queues: None,
        is_tx_no_linear: true,
        offloads: None,
        ..lo
    };
    let text = card.to_string();
    let parts = [
        "lo (ice)",
        "unknown in",
        "XDP: programs, redirect, AF_XDP zero-copy\n",
        "8 pieces",
        "AF_XDP frames: checksums",
        "xdp off",
        "from where they lie",
        "offloads: unknown",
    ];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    let bare = DeviceFeatures { xdp_features: None, ..card }.to_string();
    assert!(bare.contains("XDP: unknown") && !bare.contains("pieces"), "{bare}");
    assert_eq!(XdpFeatures(0).to_string(), "nothing");
    assert!(
        XdpFeatures(1).runs_programs() && !XdpFeatures(1).is_zero_copy() && XdpFeatures(32).takes_pieces()
    );
    assert!(XskFeatures(2).fills_checksums() && !XskFeatures(1).fills_checksums());
}

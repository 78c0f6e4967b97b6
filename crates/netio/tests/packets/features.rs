//! The kernel's description of a veth device. Needs root; skipped otherwise.

use crate::support::*;
use millrace_netio::features::{DeviceFeatures, XdpFeatures};

#[test]
fn device_features_of_veth_follow_ethtool_settings() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("link set va mtu 1400");
    let about = || net.server.inside(|| DeviceFeatures::of("va")).expect("features");
    let va = about();
    assert_eq!((va.driver.as_deref(), va.mtu, va.mac), (Some("veth"), 1400, Some([2, 0, 0, 0x77, 0, 1])));
    assert_eq!((va.is_up, va.has_carrier, va.has_xdp_program), (true, Some(true), Some(false)));
    assert!(va.rx_queues >= Some(1) && va.tx_queues >= Some(1) && !va.is_tx_no_linear);
    // As the wire was made: nothing is cut or summed by the device.
    let offloads = va.offloads.expect("offloads");
    assert!(
        !offloads.tso && !offloads.udp_segmentation && !offloads.checksum && offloads.gso,
        "{offloads:?}"
    );
    net.server.must("ethtool -K va tx on tso on tx-udp-segmentation on gso off");
    let offloads = about().offloads.expect("offloads");
    assert!(offloads.tso && offloads.udp_segmentation && offloads.checksum && !offloads.gso, "{offloads:?}");
    match va.xdp_features {
        None => eprintln!("skipped: this kernel does not tell of XDP (Linux 6.3 does)"),
        Some(xdp) => {
            assert!(xdp.runs_programs() && xdp.takes_pieces() && !xdp.is_zero_copy(), "{xdp}");
            assert_ne!(xdp, XdpFeatures(0));
        }
    }
    net.viewers.ip("link set vb down");
    assert_eq!(about().has_carrier, Some(false));
    net.server.ip("link set va down");
    let text = about().to_string();
    assert!(text.starts_with("va (veth): down, MTU 1400"), "{text}");
    // Other namespaces have other interfaces.
    assert!(net.viewers.inside(|| DeviceFeatures::of("va")).is_err());
}

#[test]
fn queues_are_counted() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("link add qa numrxqueues 3 numtxqueues 2 type veth peer name qb");
    net.server.ip("link set qa up");
    let qa = net.server.inside(|| DeviceFeatures::of("qa")).expect("features");
    assert_eq!((qa.rx_queues, qa.tx_queues), (Some(3), Some(2)));
}

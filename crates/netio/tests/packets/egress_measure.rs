//! The measurement of the egress paths, on a veth pair between network namespaces: it yields
//! figures, nothing reaches the other end, and nothing is left behind. Needs root; skipped
//! otherwise.

use std::net::IpAddr;
use std::sync::Arc;

use crate::support::*;
use millrace_core::pool::ExtentArena;
use millrace_netio::egress_select::measure::{
    Effort, EgressMeasurement, MeasureError, OpenXdp, TargetInterface, measure,
};
use millrace_netio::egress_select::{Class, EgressPath};
use millrace_netio::route::HopTable;
use millrace_netio::xdp::{XdpConfig, XdpTx};

fn target(wire: &Wire) -> TargetInterface {
    wire.server.inside(|| TargetInterface::of("va")).unwrap()
}

fn open(arena: Arc<ExtentArena>, hops: HopTable) -> Result<XdpTx, String> {
    let config = XdpConfig {
        interface: "va".to_owned(),
        queue: 0,
        arena,
        strategy: None,
        streams: 64,
        port: 9,
        rtcp_port: 9,
        tx_budget: 64,
    };
    XdpTx::open(config, hops).map_err(|error| error.to_string())
}

fn run(wire: &Wire, target: &TargetInterface, with_xdp: bool) -> Result<EgressMeasurement, MeasureError> {
    wire.server.inside(|| {
        let mut open = open;
        let open: Option<OpenXdp<'_, XdpTx>> = if with_xdp { Some(&mut open) } else { None };
        measure(target, Effort::default(), open)
    })
}

#[test]
fn measure_yields_figures_for_all_paths_without_side_effects() {
    let Some(wire) = Wire::new() else { return };
    let received = || wire.viewers.counter("snmp", "Ip", "InReceives");
    let before = received();
    let frames = || -> u64 {
        wire.viewers.must("cat /sys/class/net/vb/statistics/rx_packets").trim().parse().unwrap()
    };
    let frames_before = frames();
    let measured = run(&wire, &target(&wire), true).unwrap();
    assert_eq!(measured.no_xdp, None, "veth can do AF_XDP");
    for class in Class::ALL {
        for way in [EgressPath::Kernel, EgressPath::Xdp] {
            let ns = measured.table.ns(class, way);
            assert!(ns.is_some_and(|ns| ns > 1.0), "{class} {way}: {}", measured.table);
        }
    }
    assert!(frames() - frames_before > 1000, "frames did cross the wire");
    let heard = received() - before;
    assert!(heard < 20, "{heard} packets reached the other host");
    let neighbours = wire.server.must("ip neigh show");
    assert!(!neighbours.contains("192.0.2.") && !neighbours.contains("198.51."), "{neighbours}");
    println!("{}", measured.table);
}

#[test]
fn measure_without_af_xdp_reports_reason() {
    let Some(wire) = Wire::new() else { return };
    let measured = run(&wire, &target(&wire), false).unwrap();
    assert!(measured.table.has(EgressPath::Kernel) && !measured.table.has(EgressPath::Xdp));
    let fails = |_: Arc<ExtentArena>, _: HopTable| -> Result<XdpTx, String> { Err("no luck".into()) };
    let measured =
        wire.server.inside(|| measure(&target(&wire), Effort::default(), Some(&mut { fails }))).unwrap();
    assert_eq!(measured.no_xdp.as_deref(), Some("no luck"));
}

#[test]
fn addresses_in_use_are_left_alone_and_missing_ones_are_named() {
    let Some(wire) = Wire::new() else { return };
    wire.server.ip("addr add 192.0.2.1/24 dev va");
    // This entry already exists: it must be neither used nor removed.
    wire.server.ip("neigh add 198.51.100.77 lladdr 02:00:00:00:00:07 dev va nud permanent");
    let error = run(&wire, &target(&wire), false).unwrap_err().to_string();
    assert!(error.contains("neighbour entry") && error.contains("va"), "{error}");
    assert!(wire.server.must("ip neigh show").contains("198.51.100.77 dev va lladdr 02:00:00:00:00:07"));
    wire.server.ip("neigh del 198.51.100.77 dev va");
    assert!(run(&wire, &target(&wire), false).unwrap().table.has(EgressPath::Kernel));
    wire.server.ip("addr flush dev va");
    let error = run(&wire, &target(&wire), false).unwrap_err().to_string();
    assert!(error.contains("va: no IPv4 address") && error.contains("ip address add"), "{error}");
}

#[test]
fn measure_on_down_interface_yields_no_figures() {
    let Some(wire) = Wire::new() else { return };
    let target = target(&wire);
    assert!(target.is_up && target.is_ethernet && target.mac == [2, 0, 0, 0x77, 0, 1], "{target:?}");
    wire.server.ip("link set va down");
    assert!(!wire.server.inside(|| TargetInterface::of("va")).unwrap().is_up);
    if let Ok(measured) = run(&wire, &target, true) {
        assert!(
            !measured.table.has(EgressPath::Kernel) && !measured.table.has(EgressPath::Xdp),
            "{}",
            measured.table
        );
    }
    let nobody: IpAddr = "192.0.2.77".parse().unwrap();
    assert!(!wire.server.must("ip neigh show").contains(&nobody.to_string()));
}

//! Viewers whose packets are counted by the probe in the kernel: it must agree with the sockets to the packet.
//!
//! Needs root and network namespaces; skipped with a message otherwise.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::support::two_hosts::{Site, listen};
use millrace_lab::netns::TwoHosts;
use millrace_load::{Arrivals, LoadOptions, LoadReport, load};

/// The client host's end of the veth pair.
const INTERFACE: &str = "vc";

/// `None`, with the reason printed, if this process may not make a site.
fn site(film_secs: u64) -> Option<Site> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces and probes need root");
        return None;
    }
    Some(Site::new(TwoHosts::new(true).unwrap(), film_secs, &listen(), &[]))
}

fn load_at(site: &Site, change: impl FnOnce(&mut LoadOptions)) -> LoadReport {
    let mut options = LoadOptions::new(vec![site.server.title("film")], 8);
    options.arrivals = Arrivals::Ramp(Duration::from_millis(400));
    options.duration = Duration::from_secs(10);
    options.stall = Duration::from_secs(5);
    options.probe = Some(INTERFACE.to_owned());
    change(&mut options);
    let cancel = AtomicBool::new(false);
    let run = || load(&options, &cancel, &mut |_| {});
    match site.scene.hosts.on_client(run).unwrap() {
        Ok(report) => report,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn probe_and_sockets_agree_to_the_packet() {
    let Some(site) = site(4) else { return };
    // Both see the whole film of every viewer: it ends with BYE.
    let report = load_at(&site, |options| options.probe_passes = true);
    let probe = report.probe.clone().unwrap();
    assert_eq!((report.played, report.sessions_ended, report.failed), (8, 8, 0), "{report}");
    assert!(report.packets > 8 * 500, "{report}");
    assert_eq!(
        (probe.packets, probe.payload_bytes, probe.lost),
        (report.packets, report.payload_bytes, report.lost),
        "{report}"
    );
    assert_eq!((probe.dropped_packets, probe.missed_packets), (0, 0), "{report}");
    let from_sockets: Vec<_> = report.per_stream.iter().map(|s| (s.packets, s.lost, s.has_ended)).collect();

    // The same films again, counted and dropped in the kernel.
    let report = load_at(&site, |_| {});
    let probe = report.probe.clone().unwrap();
    let dropped: Vec<_> = report.per_stream.iter().map(|s| (s.packets, s.lost, s.has_ended)).collect();
    assert_eq!(dropped, from_sockets, "{report}");
    assert!(report.is_clean(), "{report}");
    // Trains of datagrams count as one here.
    assert!(probe.dropped_packets > 100 && probe.seen_packets == probe.dropped_packets, "{report}");
    assert_eq!(probe.missed_packets, 0, "{report}");
    // A first packet may be there before the reply has been read.
    assert!(report.per_stream.iter().all(|stream| stream.first_packet_us.is_some()), "{report}");
    assert!(report.lateness.max_us > 0, "{report}");
    assert!(
        report.series.iter().any(|sample| sample.packets > 100 && sample.lateness_max_us > 0),
        "{report}"
    );
}

#[test]
fn probe_counts_pause_and_seek_as_separate_runs() {
    let Some(site) = site(20) else { return };
    let report = load_at(&site, |options| {
        options.behaviour = "pause@1,play@2,seek@3=10".parse().unwrap();
        options.duration = Duration::from_secs(8);
    });
    assert_eq!((report.failed, report.pauses, report.seeks), (0, 8, 8), "{report}");
    assert_eq!((report.lost_in_all(), report.sessions_stalled), (0, 0), "{report}");
    assert!(report.per_stream.iter().all(|stream| stream.runs == 3 && stream.packets > 500), "{report}");
    assert!(report.lateness.max_us < 900_000, "a pause is not lateness: {report}");
}

#[test]
fn probe_on_wrong_interface_is_reported() {
    let Some(site) = site(3) else { return };
    let report = load_at(&site, |options| options.probe = Some("lo".to_owned()));
    let probe = report.probe.clone().unwrap();
    assert_eq!((probe.seen_packets, report.packets), (0, 0), "{report}");
    assert!(probe.missed_packets > 0, "{report}");
    let problem = "the probe saw no packet on lo: wrong interface?";
    assert!(report.problems.iter().any(|p| p == problem), "{report}");
    let url = site.server.title("film");
    let error = site
        .scene
        .hosts
        .on_client(|| {
            let mut options = LoadOptions::new(vec![url], 1);
            options.probe = Some("nowhere0".to_owned());
            load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string()
        })
        .unwrap();
    assert!(error.contains("nowhere0"), "{error}");
}

//! The load with FEC, against a server that loses packets as configured.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_client::FecChoice;
use millrace_load::{LoadOptions, LoadReport, load};
use millrace_testkit::rtsp_server::fec::{FecSending, behaviour, losses};
use millrace_testkit::rtsp_server::{Behaviour, Server, TS, steady};

fn run_load(behaviour: &Behaviour, choice: FecChoice, viewers: u32) -> LoadReport {
    let server = Server::start(behaviour.clone());
    let mut options = LoadOptions::new(vec![server.url()], viewers);
    options.fec = choice;
    options.duration = Duration::from_secs(3); // longer than the film
    load(&options, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

#[test]
fn viewers_of_a_load_repair_and_verify() {
    steady(|| {
        let fec = FecSending::new(4, 3, 10);
        let mut behaviour = behaviour(fec.clone());
        behaviour.drop = losses(&fec);
        behaviour.holes = (160..180).collect();
        let report = run_load(&behaviour, FecChoice::All, 4);
        let sums = report.fec.clone().unwrap();
        let missing = (behaviour.drop.len() + behaviour.holes.len()) as u64;
        assert_eq!((sums.granted, sums.refused, sums.counts.repaired), (4, 0, 4 * missing), "{report}");
        assert_eq!((report.lost_in_all(), sums.counts.unsettled, sums.counts.unfit), (0, 0, 0), "{report}");
        assert_eq!(
            (report.sessions_inspected, report.ts.continuity_errors, report.ts.sync_losses),
            (4, 0, 0)
        );
        assert_eq!(report.ts.packets, 4 * (behaviour.film.len() / TS) as u64, "every packet of every film");
        assert!((report.delivered_ratio - 1.0).abs() < 1e-9, "{report}");
        assert!(report.per_stream.iter().all(|stream| stream.repaired == Some(missing) && stream.lost == 0));
    });
}

#[test]
fn load_with_fec_counts_unrepaired_packets() {
    steady(|| {
        let mut behaviour = behaviour(FecSending::new(4, 1, 10));
        behaviour.drop = vec![1, 11, 25];
        let report = run_load(&behaviour, FecChoice::Xor, 2);
        let sums = report.fec.clone().unwrap();
        assert_eq!((report.lost_in_all(), sums.counts.repaired, sums.lost_on_the_way), (4, 2, 6), "{report}");
        assert!(report.problems.iter().any(|problem| problem == "4 packets lost"), "{report}");
        behaviour.fec = None;
        let report = run_load(&behaviour, FecChoice::Xor, 2);
        assert_eq!((report.fec.as_ref().unwrap().refused, report.lost_in_all()), (2, 6), "{report}");
        let problem = "2 sessions were refused the FEC that they requested";
        assert!(report.problems.iter().any(|text| text == problem), "{report}");
    });
}

//! The player with FEC, against a server that loses packets as configured.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_client::play::{PlayOptions, TransportChoice, play};
use millrace_client::report::{EndReason, ReceptionReport};
use millrace_client::{FecChoice, Output};
use millrace_core::fec::Spread;
use millrace_testkit::rtsp_server::fec::{FecSending, PACKETS, behaviour, losses};
use millrace_testkit::rtsp_server::{Behaviour, Server, steady};

/// Plays to a file; returns the report and whether the file is the film, bit by bit.
fn record(
    behaviour: &Behaviour,
    choice: FecChoice,
    change: impl Fn(&mut PlayOptions),
) -> (ReceptionReport, bool) {
    let server = Server::start(behaviour.clone());
    let dir = tempfile::tempdir().unwrap();
    let (out, reference) = (dir.path().join("out.ts"), dir.path().join("film.ts"));
    std::fs::write(&reference, &behaviour.film).unwrap();
    let mut options = PlayOptions::new(server.url());
    options.fec = choice;
    options.duration = Some(Duration::from_secs(20));
    (options.output, options.reference) = (Output::File(out.clone()), Some(reference));
    change(&mut options);
    let report = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    (report, std::fs::read(out).unwrap() == behaviour.film)
}

#[test]
fn xor_repairs_a_packet_of_every_column() {
    steady(|| {
        let fec = FecSending::new(5, 2, 10);
        let mut behaviour = behaviour(fec.clone());
        behaviour.drop = losses(&fec);
        let (report, is_film) = record(&behaviour, FecChoice::Xor, |_| {});
        let counts = report.fec.clone().unwrap();
        let lost = behaviour.drop.len() as u64;
        assert_eq!(
            (counts.counts.repaired, counts.counts.lost, counts.counts.unfit),
            (lost, 0, 0),
            "{report}"
        );
        assert!(is_film, "{report}");
        assert_eq!(
            (counts.granted.as_str(), report.sequence.lost, report.sequence.lost_at_end),
            ("xor", 0, Some(0))
        );
        assert_eq!((report.end, report.byte_check.as_ref().unwrap().different_bytes), (EndReason::Bye, 0));
        assert_eq!(counts.lost_on_the_way, lost - 1, "of the last packet only FEC knows");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!((&json["fec"]["repaired"], &json["fec"]["lost"]), (&lost.into(), &0.into()));
    });
}

#[test]
fn fec_all_parities_repair_as_many_lost_units() {
    steady(|| {
        let mut fec = FecSending::new(4, 3, 10);
        // Parities are lost too: two of three are left for these columns.
        fec.drop = vec![(1, 0, 0), (1, 4, 1), (1, 9, 2)];
        let mut behaviour = behaviour(fec.clone());
        behaviour.holes = (40..60).collect(); // units 0 and 1 of row 1: a disk is gone
        behaviour.drop = (90..120).collect(); // units 1 to 3 of row 2
        let (report, is_film) = record(&behaviour, FecChoice::All, |_| {});
        let counts = report.fec.clone().unwrap().counts;
        assert_eq!((counts.repaired, counts.lost, counts.unfit), (50, 0, 0), "{report}");
        assert!(is_film, "{report}");
        assert!(report.problems.iter().all(|problem| problem.starts_with("BYE")), "{report}");
    });
}

/// As many packets one after another as rows of 4 + 2 units of 20 bear, of everything that is sent, around the end of a row.
#[test]
fn fec_repairs_burst_across_end_of_stripe() {
    steady(|| {
        let (mut fec, spread) = (FecSending::new(4, 2, 20), Spread::new(4, 2, 20));
        let mut sent = Vec::new();
        for packet in 0..PACKETS as u32 {
            sent.push(Ok(packet));
            let slot = spread.first_due(packet);
            let is_due = spread.departs_with(slot) == u64::from(packet);
            let place = |parity| Err((slot / fec.unit, spread.column(slot, parity), parity as u32));
            sent.extend((0..2).filter(|_| is_due).map(place));
        }
        let end = sent.iter().position(|sent| *sent == Ok(2 * fec.row())).unwrap();
        let mut behaviour = behaviour(fec.clone());
        for lost in &sent[end - 18..end + 18] {
            match lost {
                Ok(packet) => behaviour.drop.push(*packet),
                Err(place) => fec.drop.push(*place),
            }
        }
        assert!(behaviour.drop.len() > 20 && fec.drop.len() > 5);
        behaviour.fec = Some(fec);
        let (report, is_film) = record(&behaviour, FecChoice::All, |_| {});
        let counts = report.fec.clone().unwrap().counts;
        let lost = behaviour.drop.len() as u64;
        assert_eq!((counts.repaired, counts.lost, counts.unfit), (lost, 0, 0), "{report}");
        assert!(is_film, "{report}");
    });
}

#[test]
fn fec_reports_unrepairable_packets_as_lost() {
    steady(|| {
        let fec = FecSending::new(5, 2, 10);
        let mut behaviour = behaviour(fec);
        behaviour.drop = vec![3, 13, 24, 34, 44]; // two of column 3, three of column 4
        let (report, is_film) = record(&behaviour, FecChoice::All, |_| {});
        let counts = report.fec.clone().unwrap();
        assert_eq!(
            (counts.counts.repaired, counts.counts.lost, counts.lost_on_the_way),
            (2, 3, 5),
            "{report}"
        );
        assert_eq!((report.sequence.lost, is_film), (3, false));
        let text = report.to_string();
        assert!(text.contains("all: 5 lost in transit, 2 repaired, 3 lost"), "{text}");
        assert!(text.contains("3 packets lost"), "{text}");
        assert_eq!(report.byte_check.unwrap().different_bytes, 0, "what comes is right and in its place");
    });
}

#[test]
fn fec_refused_by_server_plays_on_and_reports_reason() {
    steady(|| {
        let mut refused = FecSending::new(5, 2, 10);
        refused.refused = Some("the title is stored without parity");
        let (report, is_film) = record(&behaviour(refused), FecChoice::All, |_| {});
        assert!(is_film, "{report}");
        assert!(
            report.problems.contains(&"no FEC: the title is stored without parity".to_owned()),
            "{report}"
        );
        let mut other = behaviour(FecSending::new(5, 2, 10));
        other.fec = None; // a server that has never heard of it
        let (report, is_film) = record(&other, FecChoice::Xor, |_| {});
        assert!(is_film && report.problems.contains(&"no FEC".to_owned()), "{report}");
    });
}

#[test]
fn fec_is_asked_for_only_where_it_makes_sense() {
    let server = Server::start(behaviour(FecSending::new(5, 2, 10)));
    let mut options = PlayOptions::new(server.url());
    options.duration = Some(Duration::from_millis(100));
    play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert!(!server.seen.request("SETUP").contains("X-Millrace-FEC"));
    options.fec = FecChoice::All;
    play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let setups: Vec<_> =
        server.seen.requests.lock().unwrap().iter().filter(|r| r.starts_with("SETUP")).cloned().collect();
    assert!(setups[1].contains("X-Millrace-FEC: all"), "{setups:?}");
    options.transport = TransportChoice::Tcp;
    let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("fec") && error.contains("TCP"), "{error}");
    options.transport = TransportChoice::Udp;
    options.url = "rtp://127.0.0.1:5004".to_owned();
    let error = play(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("off, xor"), "{error}");
}

/// A seek: the numbers jump, and the FEC of the place before is of no use.
#[test]
fn repair_goes_on_after_a_seek() {
    steady(|| {
        let fec = FecSending::new(4, 2, 10);
        let mut behaviour = behaviour(fec);
        behaviour.drop = vec![50, 205, 215, 290];
        let (report, _) = record(&behaviour, FecChoice::All, |options| {
            options.script = "seek@0.3=0.4".parse().unwrap(); // packet 200 of those at 2 ms
        });
        let counts = report.fec.clone().unwrap().counts;
        assert_eq!((counts.lost, counts.unfit, report.sequence.lost), (0, 0, 0), "{report}");
        assert!(counts.repaired >= 4, "{report}");
        assert_eq!(report.byte_check.as_ref().unwrap().different_bytes, 0, "{report}");
    });
}

/// Lost right before a pause: the FEC comes when the film goes on.
#[test]
fn repair_goes_on_behind_a_pause() {
    steady(|| {
        let mut behaviour = behaviour(FecSending::new(4, 2, 20));
        behaviour.drop = (80..330).step_by(9).collect(); // two of a column at most
        let (report, is_film) = record(&behaviour, FecChoice::All, |options| {
            options.script = "pause@0.3,play@0.6".parse().unwrap();
        });
        let counts = report.fec.clone().unwrap().counts;
        assert_eq!(report.plays.len(), 2, "{report}");
        assert!(is_film, "{report}");
        let lost = behaviour.drop.len() as u64;
        assert_eq!(
            (counts.repaired, counts.lost, counts.unsettled, counts.unfit),
            (lost, 0, 0, 0),
            "{report}"
        );
    });
}

//! Cost of a datagram on every egress path, beside the plain loops: at every length of burst, with
//! media that lie in the processor's cache and with media that do not.
//!
//! All send datagrams of the same media to 256 viewers across one veth pair that cuts in software,
//! into a host whose sink drops everything: the receiving half of a veth pair runs on the sender's
//! core, so it is kept short. The first batches go to a socket instead, and every byte that arrives
//! there must be the same for all; afterwards the peer's device counts the arrivals. Contenders
//! take turns in short slots, every batch is timed, ratios are taken within a round.

mod contenders;
mod outcome;
mod stage;

use anyhow::Context;

use self::contenders::Egress;
use self::outcome::BackendResults;
use self::stage::{Extents, SinkTestbed, Temperature};
use super::tx::missing;
use crate::frame::{Bench, Contest, ContestOptions, Need, Options, Report};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "backends",
    shows: "ns a datagram by every egress path, beside the plain loops, at every length of burst, hot and cold",
    not_for: "the speed of a network card: a veth pair copies, cuts and sums in software; read the ratios",
    options: &["runs"],
    targets: &[
        "backends-choice",
        "backends-staging-hot",
        "backends-staging-cold",
        "backends-missing",
        "backends-checksum-errors",
    ],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
        Need::Program("tc", "apt-get install iproute2"),
    ],
    run,
};

fn run(options: &Options) -> anyhow::Result<Report> {
    let bursts = options.pick(vec![1, 8], vec![1, 4, 8, 44], vec![1, 2, 4, 8, 16, 44]);
    // Hot: 4 MiB of media. Cold: more than any cache; a quick look has less, a tiny one next to nothing.
    let cold_extents = options.pick(32, 2048, 4096);
    let extents = Extents::new(options.pick(4, 16, 16), cold_extents, Egress::EXTENTS_ASIDE)?;
    let stage = SinkTestbed::build(extents)?;
    stage.on_server(|| measure(options, &stage, &bursts))?
}

fn measure(options: &Options, stage: &SinkTestbed, bursts: &[usize]) -> anyhow::Result<Report> {
    let ways = Egress::open(stage)?;
    let mut outcome = BackendResults::new(ways.names(), bursts);
    let before = stage.received()?;
    let errors_before = stage.checksum_errors()?;
    for temperature in Temperature::ALL {
        for &burst in bursts {
            let mut contest = Contest::new(format!("{temperature}, bursts of {burst}"));
            ways.enter(&mut contest, stage.turns(temperature, burst));
            let result = contest.run(&how(options, burst))?;
            outcome.add(temperature, burst, result);
        }
    }
    // Other packets (neighbour discovery) may come on top.
    outcome.missing = missing(stage.sent(), || Ok(stage.received()? - before))?;
    outcome.checksum_errors = stage
        .checksum_errors()?
        .checked_sub(errors_before)
        .context("a counter of the kernel went backwards")?;
    outcome.notes = ways.notes();
    Ok(outcome.report())
}

/// Single datagrams are checked in numbers. Of long bursts it is one batch: the kernel notices when sends without a copy go
/// to a socket of this machine, and a sender that notices it too would do without for a while.
fn how(options: &Options, burst: usize) -> ContestOptions {
    let check_batches = if burst < 8 { options.pick(8, 64, 256) } else { 1 };
    ContestOptions { check_batches, ..ContestOptions::from_options(options) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_bench_sends_same_data_on_all_paths_without_loss() {
        let missing = BENCH.missing();
        if !missing.is_empty() {
            eprintln!("skipped: needs {}", missing.join(", and "));
            return;
        }
        let report = run(&Options::tiny("millrace")).unwrap();
        let counts = ["backends-missing", "backends-checksum-errors"];
        let correct: Vec<_> = report.promises.iter().filter(|p| counts.contains(&p.id.as_str())).collect();
        assert!(correct.len() == 2 && correct.iter().all(|p| p.holds), "{report}");
        for way in ["sendmmsg", "MSG_ZEROCOPY", "KernelTx", "KernelTx without copying", "BestTx"] {
            assert_eq!(report.rows.iter().filter(|row| row.label.ends_with(way)).count() % 4, 0, "{report}");
            assert!(report.rows.iter().any(|row| row.label.contains(way)), "{way}: {report}");
        }
    }
}

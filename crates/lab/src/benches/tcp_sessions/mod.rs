//! What more connections cost: NTT's experiment (Maruyama, Nishimura, Nakano: Communication Processing Techniques for Multimedia Servers, 1996).
//!
//! | file | holds |
//! | --- | --- |
//! | `turns` | nanoseconds for a segment without a device, from 1 connection to 10,000 |
//! | `link` | throughput over a veth pair: Figures 3 and 8 |

pub(super) mod link;
mod turns;

use anyhow::ensure;

use crate::frame::{Bench, Need, NoiseMeter, Options, Report};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "tcp-sessions",
    shows: "from 1 connection to 10,000: ns for a segment into a null device, throughput over a veth pair beside this kernel's TCP with epoll and with a process each",
    not_for: "the speed of a network card: the hosts of the throughput are joined by a veth pair and share processors",
    options: &["runs", "only", "tun", "quick"],
    targets: &["tcp-sessions-64", "tcp-sessions-10000"],
    needs: &[
        Need::Root,
        Need::Program("dd", "apt-get install coreutils"),
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
    ],
    run,
};

/// Parts that `--only` names.
const PARTS: [&str; 2] = ["turns", "link"];

fn run(options: &Options) -> anyhow::Result<Report> {
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    ensure!(
        unknown.is_none(),
        "--only {}: the parts of bench tcp-sessions are {}",
        unknown.map_or("", |part| part),
        PARTS.join(", ")
    );
    let wants = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let mut report = Report::new("tcp-sessions");
    let mut meter = NoiseMeter::start();
    if wants("turns") {
        turns::run(options, &mut report, &mut meter)?;
    }
    if wants("link") {
        link::run(options, &mut report, &mut meter)?;
    }
    report.noise = Some(meter.finish());
    Ok(report)
}

//! What parity costs: computing it, restoring from it, sending it.
//!
//! | file | measures |
//! | --- | --- |
//! | `coding.rs` | encoding and decoding beside the plain XOR of the same blocks and beside other codes, hot and cold |
//! | `at_send.rs` | an FEC packet from stored parity beside one that is encoded when it is sent |
//! | `send.rs` | sending an FEC packet beside sending a data packet |

mod at_send;
mod coders;
mod coding;
mod send;

use crate::frame::{Bench, Options, Report, Row};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "parity",
    shows: "what parity costs: encoding and restoring beside plain XOR and ISA-L, FEC packets beside data packets",
    not_for: "disks, and the network card's own time; as root it also measures sending, across a veth pair",
    options: &["runs"],
    needs: &[],
    run,
};

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("parity");
    let noise = coding::run(options, &mut report)?.and(at_send::run(options, &mut report)?);
    let missing: Vec<String> = super::tx::BENCH.missing();
    let noise = if missing.is_empty() {
        noise.and(send::run(options, &mut report)?)
    } else {
        report.rows.push(Row::new(format!("without sending: it needs {}", missing.join(", and "))));
        noise
    };
    report.noise = Some(noise);
    Ok(report)
}

//! What parity costs: computing it, restoring from it, writing it, sending it.
//!
//! | file | measures |
//! | --- | --- |
//! | `coding.rs` | encoding and decoding beside the plain XOR of the same blocks and beside other codes, hot and cold |
//! | `at_send.rs` | an FEC packet from stored parity beside one that is encoded when it is sent |
//! | `ingest.rs` | taking in a title with parity and without, beside a plain copy |
//! | `send.rs` | sending an FEC packet beside sending a data packet, at any burst |
//! | `track.rs` | the same through the engine, at the bursts of a track of parity |

mod at_send;
mod coders;
mod coding;
mod ingest;
mod send;
mod track;

use crate::frame::{Bench, Noise, Options, Report, Row};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "parity",
    shows: "what parity costs: encoding and restoring beside plain XOR and ISA-L, FEC packets beside data packets",
    not_for: "the time of disks and network cards: titles lie in memory, packets cross a veth pair (as root)",
    options: &["runs"],
    targets: &["parity-encode-cold", "parity-encode-hot", "parity-fec-send", "parity-fec-missing"],
    needs: &[],
    run,
};

/// A part with measurements of its own; it needs what another benchmark needs.
type PartFn = fn(&Options, &mut Report) -> anyhow::Result<Noise>;

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("parity");
    let mut noise = coding::run(options, &mut report)?.and(at_send::run(options, &mut report)?);
    let parts: [(&str, &Bench, PartFn); 2] = [
        ("taking in a title", &super::ingest::BENCH, ingest::run),
        ("sending", &super::tx::BENCH, send::run),
    ];
    for (what, like, part) in parts {
        let missing = like.missing();
        if missing.is_empty() {
            noise = noise.and(part(options, &mut report)?);
        } else {
            report.rows.push(Row::new(format!("without {what}: it needs {}", missing.join(", and "))));
        }
    }
    report.noise = Some(noise);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_bench_lists_all_contenders() {
        // Each contender's bytes are compared before it is measured. Contenders that the machine
        // cannot run are left out and named.
        let dir = tempfile::tempdir().unwrap();
        let options = Options { scratch: dir.path().into(), ..Options::tiny("millrace") };
        let report = run(&options).unwrap();
        let shown = |word: &str| report.rows.iter().any(|row| row.label.starts_with(word));
        for word in ["8+2 hot, encode: ours", "8+2 cold, restore 2: ours", "8+2, an FEC packet from stored"] {
            assert!(shown(word), "{word}: {report}");
        }
        assert!(shown("without taking in a title") || shown("taking in "), "{report}");
        assert!(shown("without sending") || shown("sending, bursts of 1: an FEC packet"), "{report}");
        assert!(report.promises.iter().any(|promise| promise.id == "parity-encode-cold"), "{report}");
    }
}

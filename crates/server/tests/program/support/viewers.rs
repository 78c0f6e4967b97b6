//! Many viewers of `millrace load`, and the data that each of them must have received.
#![allow(unreachable_pub)]

use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{Server, millrace};

/// The behaviour of a load's viewers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Viewers {
    /// They seek all the time, so that they are everywhere in their films and disks are asked all the time.
    Restless,
    /// They play on, so that every byte follows the one before; to the end, if the film is shorter than the load.
    Steady,
}

/// A load that is under way.
pub struct Load {
    child: Child,
    viewers: u64,
    how: Viewers,
}

impl Load {
    /// `viewers` viewers of these titles, who arrive within two seconds and then play together for `secs` seconds.
    pub fn start(
        server: &Server,
        titles: &[&str],
        (viewers, secs): (u64, u64),
        how: Viewers,
        more: &[&str],
    ) -> Self {
        let urls: Vec<_> = titles.iter().map(|title| server.title(title)).collect();
        let mut command = millrace();
        command.arg("load").args(&urls).args(["--streams", &viewers.to_string()]);
        command.args(["--duration", &format!("{secs}s"), "--arrivals", "ramp:2s", "--json", "--quiet"]);
        if how == Viewers::Restless {
            command.args(["--behaviour", "seek 2s fixed:1"]);
        }
        let child = command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, viewers, how }
    }

    /// Returns its result, whatever it is.
    pub fn end(self) -> (Value, Output) {
        let output = self.child.wait_with_output().unwrap();
        let report =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (report, output)
    }

    /// Ends it, whatever has come.
    pub fn stop(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asserts that all viewers received everything: judged by missing packets anywhere, by how
    /// much each viewer received, and by the exit code. How late it came is not judged: this
    /// machine may be busy.
    pub fn assert_nothing_missing(self) -> Value {
        let (viewers, how) = (self.viewers, self.how);
        let (report, output) = self.end();
        if let Some(fec) = report["fec"].as_object() {
            assert_eq!((&fec["granted"], &fec["refused"]), (&viewers.into(), &0.into()), "{report}");
        }
        for what in ["failed", "lost", "lost_at_start", "lost_at_end", "restarts", "sessions_silent"] {
            assert_eq!(report[what], 0, "{what}: {report}");
        }
        assert_eq!((&report["streams"], &report["played"]), (&viewers.into(), &viewers.into()), "{report}");
        for what in ["sync_losses", "marked_errors"] {
            assert_eq!(report["ts"][what], 0, "{what}: {report}");
        }
        // On a busy machine a receiver may hear of its own seek after the first packet from there.
        if how == Viewers::Steady {
            assert_eq!(
                (&report["seeks"], &report["ts"]["continuity_errors"]),
                (&0.into(), &0.into()),
                "{report}"
            );
        } else {
            assert!(report["seeks"].as_u64() > Some(0), "{report}");
        }
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        let together = Duration::from_millis(report["together_ms"].as_u64().unwrap());
        for one in each(&report, viewers) {
            // 2 Mb/s in packets of 1316 bytes, except those that were late at the end, or at the
            // beginning on a busy machine. A seek costs 50 ms and any delay that a busy machine
            // adds.
            let us = |what: &str| one[what].as_u64().unwrap_or(0);
            let late = Duration::from_micros(us("lateness_max_us") + us("setup_us"));
            let share = if how == Viewers::Steady { 0.9 } else { 0.5 };
            let least = share * together.saturating_sub(late).as_secs_f64() * 2e6 / 8.0 / 1316.0;
            assert!(one["has_ended"] == true || got(one) as f64 >= least, "fewer than {least:.0}: {one}");
        }
        report
    }

    /// Every viewer saw a film of `packets` packets from its first to its last.
    pub fn assert_all_of(self, packets: u64) -> Value {
        let viewers = self.viewers;
        let report = self.assert_nothing_missing();
        assert_eq!(report["sessions_ended"], viewers, "{report}");
        for one in each(&report, viewers) {
            assert_eq!(got(one), packets, "{one}");
        }
        report
    }
}

/// Packets that a viewer got: those that came, and those that FEC repaired instead.
fn got(one: &Value) -> u64 {
    one["packets"].as_u64().unwrap() + one["repaired"].as_u64().unwrap_or(0)
}

fn each(report: &Value, viewers: u64) -> &[Value] {
    let each = report["per_stream"].as_array().expect("a list").as_slice();
    assert_eq!(each.len() as u64, viewers, "{report}");
    each
}

/// Packets of a title, of the size that every player gets.
pub fn packets_of(film: &Path) -> u64 {
    std::fs::metadata(film).unwrap().len().div_ceil(1316)
}

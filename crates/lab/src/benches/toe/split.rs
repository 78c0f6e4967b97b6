//! Where the time of some threads goes, sampled by `perf` while they work: copying, TCP/IP, and everything around them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::rig::Side;

/// Samples a second of each processor: no multiple of any timer's rate.
const SAMPLES_PER_S: &str = "3999";

/// Shares of one thread's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    pub(super) copy: f64,
    pub(super) protocol: f64,
    pub(super) driver: f64,
    pub(super) samples: u64,
}

/// Returns the part that a routine belongs to, by its name.
fn part_of(symbol: &str) -> usize {
    const COPY: &[&str] = &[
        "memcpy",
        "memmove",
        "copy_",
        "_copy",
        "rep_movs",
        "Words>::read",
        "Words>::write",
        "Words::read",
        "Words::write",
    ];
    const PROTOCOL: &[&str] = &[
        "tcp",
        "ip_",
        "__ip",
        "inet",
        "sock",
        "csum",
        "checksum",
        "sum16",
        "millrace_tcp",
        "ipv4",
        "nf_",
        "lock_sock",
        "release_sock",
        "sk_",
    ];
    let has = |parts: &[&str]| parts.iter().any(|part| symbol.contains(part));
    match () {
        () if has(COPY) => 0,
        () if has(PROTOCOL) => 1,
        () => 2,
    }
}

/// Samples the threads for `seconds`, and returns where the time of each side went.
///
/// # Errors
/// Without perf, or the right to use it; of a program without symbols.
pub(super) fn sample(
    threads: &[(Side, Option<u32>)],
    seconds: f64,
    dir: &Path,
) -> anyhow::Result<Vec<(Side, Shares)>> {
    let there: Vec<(Side, u32)> = threads.iter().filter_map(|&(side, id)| Some((side, id?))).collect();
    let data = dir.join("perf.data");
    let mut record = Command::new("perf");
    // All processors: not every kernel samples single threads.
    record.args(["record", "-q", "-a", "-e", "cpu-clock", "-F", SAMPLES_PER_S, "-o"]).arg(&data);
    let output =
        record.args(["--", "sleep", &seconds.to_string()]).output().context("perf cannot be started")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf record: {}", words.trim().lines().last().unwrap_or_default());
    let mut report = Command::new("perf");
    report.args(["report", "-q", "--stdio", "--sort", "pid,symbol", "-F", "sample,pid,symbol", "-t", ";"]);
    let output = report.arg("-i").arg(&data).env("LC_ALL", "C").output().context("perf cannot be started")?;
    let _ = std::fs::remove_file(&data);
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf report: {}", words.trim().lines().last().unwrap_or_default());
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(there.into_iter().map(|(side, id)| (side, shares(&text, id))).collect())
}

/// Lines `samples;tid:comm;[k] symbol`.
fn shares(text: &str, id: u32) -> Shares {
    let mut parts = [0_u64; 3];
    for line in text.lines() {
        let mut fields = line.split(';').map(str::trim);
        let (Some(samples), Some(thread), Some(symbol)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let of = thread.split(':').find_map(|part| part.trim().parse::<u32>().ok());
        if of == Some(id)
            && let Ok(samples) = samples.parse::<u64>()
        {
            parts[part_of(symbol)] += samples;
        }
    }
    let all = parts.iter().sum::<u64>();
    let share = |part: usize| parts[part] as f64 / all.max(1) as f64;
    Shares { copy: share(0), protocol: share(1), driver: share(2), samples: all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_for_their_thread_and_part() {
        let text = "\n  60;  17:bench-host;[k] rep_movs_alternative\n 20;17:bench-host;[k] tcp_sendmsg_locked \n\
                    20;   17:bench-host;[.] <millrace_offload::toe::host::Host>::with\n 9;18:toe;[k] memcpy\nnonsense;;\n";
        let found = shares(text, 17);
        assert_eq!(found, Shares { copy: 0.6, protocol: 0.2, driver: 0.2, samples: 100 });
        assert_eq!(shares(text, 18).copy, 1.0);
        assert_eq!(shares(text, 19), Shares::default());
        assert_eq!(part_of("[.] <millrace_core::shared::Words>::write"), 0);
        assert_eq!(part_of("[.] <millrace_tcp::stack::Stack>::output"), 1);
        assert_eq!(part_of("[k] veth_xmit"), 2);
    }
}

//! Where a core's time goes: its ten busiest routines, as the paper's Tables 1 and 2 have them, sampled by `perf`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

/// Samples a second: no multiple of any timer's rate.
const SAMPLES_PER_S: u32 = 1_999;
/// Lines of the paper's tables.
pub const TOP: usize = 10;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Routine {
    /// Its name; all code outside of the kernel is one line, USER, as in the paper.
    pub name: String,
    /// Samples in it.
    pub samples: u64,
    /// Its share of all samples of a core that works.
    pub share: f64,
    /// Whether it is of the kernel.
    pub is_kernel: bool,
}

/// The kernel's routines when a core has nothing to do: no part of the table, nor of its shares.
const IDLE: &[&str] = &[
    "acpi_idle_do_entry",
    "acpi_safe_halt",
    "arch_cpu_idle",
    "call_cpuidle",
    "cpu_idle_poll",
    "cpuidle_enter",
    "cpuidle_enter_state",
    "cpuidle_idle_call",
    "default_idle",
    "default_idle_call",
    "do_idle",
    "intel_idle",
    "intel_idle_ibrs",
    "intel_idle_irq",
    "mwait_idle",
    "mwait_idle_with_hints",
    "native_safe_halt",
    "poll_idle",
    "pv_native_safe_halt",
    "tick_nohz_idle_enter",
    "tick_nohz_idle_exit",
    "tick_nohz_idle_restart_tick",
    "tick_nohz_idle_stop_tick",
];

/// Samples `cores` for `seconds` and sums them up, busiest first; all routines but idle ones, not only the first ten.
///
/// # Errors
/// Without perf, or without the right to use it.
pub fn sample(cores: &[usize], seconds: u32, dir: &Path) -> anyhow::Result<Vec<Routine>> {
    let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let data = dir.join("perf.data");
    let rate = SAMPLES_PER_S.to_string();
    // The clock of the processor: counters of its hardware are not there on every machine.
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", &rate, "-C", &list, "-o"]).arg(&data);
    let output =
        record.args(["--", "sleep", &seconds.to_string()]).output().context("perf cannot be started")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf record: {}", words.trim().lines().last().unwrap_or_default());
    let mut report = Command::new("perf");
    report
        .args(["report", "-q", "--stdio", "--sort", "symbol", "-F", "sample,symbol", "-t", ";", "-i"])
        .arg(&data);
    let output = report.env("LC_ALL", "C").output().context("perf cannot be started")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "perf report: {}", words.trim().lines().last().unwrap_or_default());
    let routines = parse(&String::from_utf8_lossy(&output.stdout));
    ensure!(!routines.is_empty(), "perf has not seen anything");
    Ok(routines)
}

/// Lines `samples;[k] symbol`, in any order.
fn parse(text: &str) -> Vec<Routine> {
    let mut routines: Vec<Routine> = Vec::new();
    let mut user = 0;
    for line in text.lines() {
        let Some((samples, symbol)) = line.split_once(';') else { continue };
        let Ok(samples) = samples.trim().parse::<u64>() else { continue };
        // Further columns, should perf add any.
        let symbol = symbol.split(';').next().unwrap_or_default().trim();
        match symbol.strip_prefix("[k]") {
            // Compilers add to the name of a part that they have split off: `do_idle.constprop.0`.
            Some(name) if IDLE.contains(&name.trim().split('.').next().unwrap_or_default()) => {}
            Some(name) => {
                routines.push(Routine { name: name.trim().to_owned(), samples, share: 0.0, is_kernel: true });
            }
            None => user += samples,
        }
    }
    if user > 0 {
        routines.push(Routine { name: "USER".to_owned(), samples: user, share: 0.0, is_kernel: false });
    }
    let all: u64 = routines.iter().map(|routine| routine.samples).sum();
    routines.iter_mut().for_each(|routine| routine.share = routine.samples as f64 / all.max(1) as f64);
    routines.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
    routines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_of_perf_output_merges_user_routines_and_drops_idle_ones() {
        let text = "# To display the perf.data header info\n#\n        120;[k] copy_page_to_iter\n         60;[.] 0x0000000000012345\n\n\
                    40;[.] millrace_lab::streams::events::run\n        200;[k] pv_native_safe_halt\n 30;[k] tick_nohz_idle_exit\n 9;[k] do_idle.constprop.0\n 80;[k] skb_release_data;   \nnonsense\n;;\n";
        let found = parse(text);
        let line = |name: &str, samples, is_kernel| Routine {
            name: name.to_owned(),
            samples,
            share: samples as f64 / 300.0,
            is_kernel,
        };
        let expected = [
            line("copy_page_to_iter", 120, true),
            line("USER", 100, false),
            line("skb_release_data", 80, true),
        ];
        assert_eq!(found, expected);
        assert_eq!(parse(""), []);
    }
}

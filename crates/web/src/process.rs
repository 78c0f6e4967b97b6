//! The version of the program, and figures about its process: for `/metrics`, under the names that the client libraries of Prometheus give them.

use std::fmt::Write;
use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// Figures from the kernel's `stat` files of the process and of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessFigures {
    cpu_s: f64,
    start_unix_s: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
}

/// Appends them. Figures that cannot be read are left out.
pub(crate) fn write_process_metrics(text: &mut String) {
    let version = env!("CARGO_PKG_VERSION");
    let mut family = |name: &str, kind: &str, help: &str, value: &str| {
        // Writing into a string does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{value}\n");
    };
    let labelled = format!("{{version=\"{version}\"}} 1");
    family("millrace_build_info", "gauge", "The version of the program; always 1.", &labelled);
    if let Some(figures) = read_figures() {
        let ProcessFigures { cpu_s, start_unix_s, resident_bytes, virtual_bytes, threads } = figures;
        let seconds = |seconds: f64| format!(" {seconds:.2}");
        let cpu = "Processor time of the process, by itself and by the kernel for it.";
        family("process_cpu_seconds_total", "counter", cpu, &seconds(cpu_s));
        let start = "When the process was started, since 1970.";
        family("process_start_time_seconds", "gauge", start, &seconds(start_unix_s));
        let resident = "Memory of the process that is present.";
        family("process_resident_memory_bytes", "gauge", resident, &format!(" {resident_bytes}"));
        let virtual_memory = "Addresses that the process has in use.";
        family("process_virtual_memory_bytes", "gauge", virtual_memory, &format!(" {virtual_bytes}"));
        family("process_threads", "gauge", "Threads of the process.", &format!(" {threads}"));
    }
    if let Some(open) = open_files() {
        family("process_open_fds", "gauge", "Open files, with sockets.", &format!(" {open}"));
    }
    let most = getrlimit(Resource::Nofile).current.map_or("+Inf".to_owned(), |most| most.to_string());
    family("process_max_fds", "gauge", "Most files that may be open.", &format!(" {most}"));
}

fn read_figures() -> Option<ProcessFigures> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let of_machine = fs::read_to_string("/proc/stat").ok()?;
    figures_of(&stat, &of_machine, clock_ticks_per_second(), page_size() as u64)
}

/// Parses both files (proc_pid_stat(5), proc_stat(5)).
fn figures_of(stat: &str, of_machine: &str, ticks_per_s: u64, page_bytes: u64) -> Option<ProcessFigures> {
    // The name of the program may have spaces and parentheses. The third field is the first behind it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let boot_unix_s = of_machine.lines().find_map(|line| line.strip_prefix("btime "))?;
    let seconds = |ticks: u64| ticks as f64 / ticks_per_s.max(1) as f64;
    Some(ProcessFigures {
        cpu_s: seconds(field(14)? + field(15)?),
        threads: field(20)?,
        start_unix_s: boot_unix_s.trim().parse::<u64>().ok()? as f64 + seconds(field(22)?),
        virtual_bytes: field(23)?,
        resident_bytes: field(24)? * page_bytes,
    })
}

/// Since Linux 6.2 the directory knows how many there are; else they are counted, which takes milliseconds for ten thousand.
fn open_files() -> Option<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory).ok()?.len() {
        // The directory that is read is one of them.
        0 => Some(fs::read_dir(directory).ok()?.count().saturating_sub(1) as u64),
        open => Some(open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_stat_files_are_those_of_their_fields() {
        let stat = "1234 (mill) race) S 1 1234 1234 0 -1 4194560 5000 0 3 0 250 50 0 0 20 0 17 0 360000 1073741824 25600 \
                    18446744073709551615 1 1 0 0 0 0 0 4096 16384 0 0 0 17 1 0 0 0 0 0\n";
        let of_machine = "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n";
        let expected = ProcessFigures {
            cpu_s: 3.0,
            start_unix_s: 1_700_003_600.0,
            resident_bytes: 104_857_600,
            virtual_bytes: 1 << 30,
            threads: 17,
        };
        assert_eq!(figures_of(stat, of_machine, 100, 4096), Some(expected));
        for (stat, of_machine) in [("", of_machine), ("1 (a) S 1 2", of_machine), (stat, "cpu 1\n")] {
            assert_eq!(figures_of(stat, of_machine, 100, 4096), None);
        }
    }

    #[test]
    fn open_files_counts_a_file_more() {
        // Other tests open and close files meanwhile: far fewer than the files opened here.
        let before = open_files().unwrap();
        let opened: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        assert!(open_files().unwrap() >= before.saturating_sub(300) + opened.len() as u64);
        assert!(before >= 3);
    }
}

//! Which modules and programs of tests begin first, and which must have the machine to themselves.

/// The longest, longest first: what takes a minute should not begin last. `cargo xtask test` ends with the figures of its
/// run. A module of a program is named as a program is, `crate/module`. A name that is not here takes a few seconds, and
/// one that leads nowhere is a failing test.
pub(super) const LONG: &[&str] = &[
    "server/bench_tiny",
    "store/crash_members",
    "server/e2e_full_disk",
    "server/e2e_serve",
    "server/e2e_live",
    "web/web",
    "server/e2e_offload",
    "server/e2e_real_disks",
    "server/e2e_packet_sizes",
    "server/e2e_rendition",
    "server/e2e_scale",
    "store/lib",
    "server/analyse",
    "make/ingest_containers",
    "make/trick",
    "server/e2e_damage",
    "server/e2e_folders",
    "make/ladder",
    "server/e2e_tls",
    "store/crash_single",
    "store/crash_ladder",
    "lab/toe_soak",
    "server/e2e_transform",
    "store/crash_replace",
    "server/engine_command",
    "server/client_fec",
];

/// Not beside others, with the reason.
pub(super) const ALONE: &[(&str, &str)] = &[
    (
        "server/e2e_members",
        "two hundred viewers who seek all the time and may miss nothing: half of what a small machine can do",
    ),
    (
        "netio/udp_netns",
        "fills slow devices faster than they drain, which takes a processor that nobody else wants",
    ),
];

/// Programs that run in one process, all modules together: those of `web` share titles that are made once for a process,
/// those of the engine need seconds.
const WHOLE: &[&str] = &["engine/virtual_time", "web/web"];

/// Crates whose test programs have real sockets and real clocks, and sometimes starve beside others on a busy machine.
const REAL_TIME: &[&str] =
    &["client", "lab", "link", "load", "netio", "objects", "offload", "preload", "server", "stream", "web"];

/// Whether a program's tests may fail for want of a processor. Unit tests and all of the other crates take the clock as an
/// argument, so a test that fails there sometimes has found a fault.
pub(super) fn is_real_time(name: &str) -> bool {
    name.split_once('/').is_some_and(|(folder, target)| REAL_TIME.contains(&folder) && target != "lib")
}

/// Whether its modules stay together.
pub(super) fn is_whole(name: &str) -> bool {
    WHOLE.contains(&name)
}

/// Where one stands: by its place among the long ones, else behind them.
pub(super) fn rank(name: &str) -> usize {
    LONG.iter().position(|long| *long == name).unwrap_or(LONG.len())
}

/// Why it must be alone, if so.
pub(super) fn alone(name: &str) -> Option<&'static str> {
    ALONE.iter().find(|(listed, _)| *listed == name).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::workspace::root;

    #[test]
    fn order_lists_name_existing_test_programs() {
        for name in LONG.iter().chain(ALONE.iter().map(|(name, _)| name)).chain(WHOLE) {
            assert!(is_run(name), "{name} is no test program and no module of one");
        }
        // A program that only has modules, a module without tests, a file of a crate that is no module of a program.
        for name in ["netio/packets", "server/support", "server/no_such", "web/hls", "engine/ahead"] {
            assert!(!is_run(name), "{name}");
        }
    }

    /// Whether there is a process of tests with this name.
    fn is_run(name: &str) -> bool {
        let (folder, target) = name.split_once('/').expect("crate/target");
        let dir = root().join("crates").join(folder);
        let has_tests = |path: PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains("#[test]"));
        let tests = dir.join("tests");
        if target == "lib" {
            return dir.join("src/lib.rs").is_file();
        }
        if is_whole(name) {
            return tests.join(target).join("main.rs").is_file();
        }
        let programs =
            fs::read_dir(&tests).into_iter().flatten().map(|entry| entry.expect("an entry").path());
        let is_split = |program: &PathBuf| {
            let own = program.file_name().expect("a name").to_string_lossy();
            program.join("main.rs").is_file() && !is_whole(&format!("{folder}/{own}"))
        };
        let module = |program: PathBuf| {
            has_tests(program.join(format!("{target}.rs"))) || has_tests(program.join(target).join("mod.rs"))
        };
        has_tests(tests.join(format!("{target}.rs"))) || programs.filter(is_split).any(module)
    }

    #[test]
    fn is_real_time_leaves_out_unit_tests_and_crates_without_a_clock() {
        assert!(is_real_time("server/e2e_serve") && is_real_time("netio/route"));
        assert!(!["server/lib", "tcp/packetdrill", "make/trick", "doc tests"].into_iter().any(is_real_time));
        assert!(REAL_TIME.iter().all(|folder| root().join("crates").join(folder).is_dir()));
    }

    #[test]
    fn long_ones_come_first() {
        assert!(rank(LONG[0]) < rank(LONG[1]) && rank(LONG[1]) < rank("store/no_such"));
        assert_eq!(alone("store/no_such"), None);
        assert_eq!(alone(ALONE[0].0), Some(ALONE[0].1));
        assert!(
            LONG.iter().all(|name| alone(name).is_none()),
            "who is alone begins when the others have ended"
        );
    }
}

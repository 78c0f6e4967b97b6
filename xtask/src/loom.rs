//! The shared words of `core` under loom: every order in which their threads can run, instead of those that happen to come.

use crate::workspace::{cargo, root};

/// Preemptions of a thread in one order: nearly every fault shows with two, and the whole takes seconds.
const SHORT_PREEMPTIONS: &str = "2";
/// For the long run.
const LONG_PREEMPTIONS: &str = "5";
/// After this time a model gives up, in seconds: the models that need the time stay within ten minutes.
const LIMIT_S: &str = "140";

/// `cargo xtask loom [--long]`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let preemptions = match args {
        [] => SHORT_PREEMPTIONS,
        [long] if long == "--long" => LONG_PREEMPTIONS,
        _ => return Err("usage: loom [--long]".into()),
    };
    let status = cargo()
        .args(["test", "--locked", "--package", "millrace-core", "--test", "loom"])
        // Compiled otherwise than everything else, so apart from it.
        .args(["--target-dir".as_ref(), root().join("target/loom").as_os_str()])
        .env("RUSTFLAGS", "--cfg millrace_loom")
        .env("LOOM_MAX_PREEMPTIONS", preemptions)
        .env("LOOM_MAX_DURATION", LIMIT_S)
        .status()
        .map_err(|e| format!("cargo test could not be started: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("an order of threads was found in which it fails; see above".into())
    }
}

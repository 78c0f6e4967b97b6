//! The `unsafe` code of `core` under miri: every access to memory is checked while its tests run.

use std::process::{Command, Stdio};

use crate::workspace::root;

/// The tests that run: memory that several threads share. The vector code of `core` uses
/// instructions that miri does not know.
const TESTS: &str = "pool::";

/// What runs this program has chosen another toolchain, by more than one variable.
fn miri() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "miri"]).current_dir(root());
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

/// Why it cannot be run here, if it cannot.
pub(crate) fn missing() -> Option<&'static str> {
    let version = miri().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    (!is_there)
        .then_some("no nightly toolchain with miri (rustup component add --toolchain nightly miri rust-src)")
}

/// `cargo xtask miri`
pub(crate) fn run(_: &[String]) -> Result<(), String> {
    if let Some(why) = missing() {
        return Err(why.into());
    }
    let status = miri()
        .args(["test", "--locked", "--package", "millrace-core", "--lib"])
        // Compiled by another compiler than everything else, so apart from it.
        .args(["--target-dir".as_ref(), root().join("target/miri").as_os_str()])
        .arg("--")
        .arg(TESTS)
        .status()
        .map_err(|e| format!("cargo miri could not be started: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("memory is used in a way that the language forbids; see above".into())
    }
}

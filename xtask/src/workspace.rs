//! The location of the workspace, and the output of `cargo metadata` about it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The folder with the workspace's `Cargo.toml`: one above this crate.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// The cargo that started us, else the one in the path.
///
/// Without the variables about our own package that `cargo run` sets: build scripts that read such variables, like ring's,
/// would run again, and everything above them would be compiled again, whenever `cargo xtask` and `cargo` take turns.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
        command.env_remove(name);
    }
    command
}

/// `cargo metadata` of the workspace members; needs no network.
pub(crate) fn metadata() -> Result<Value, String> {
    metadata_with(&["--no-deps", "--offline"])
}

/// The same with every crate that they use on the system that packages are made for.
pub(crate) fn full_metadata() -> Result<Value, String> {
    metadata_with(&["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"])
}

fn metadata_with(options: &[&str]) -> Result<Value, String> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(options)
        .output()
        .map_err(|e| format!("cargo metadata could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata printed no valid JSON: {e}"))
}

/// Returns the directory of cargo's build output (honours `CARGO_TARGET_DIR` and configuration).
pub(crate) fn target_dir() -> Result<PathBuf, String> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"].as_str().ok_or("cargo metadata names no target directory")?;
    Ok(PathBuf::from(dir))
}

/// Whether a program is found in the path.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

//! The test programs of the workspace, as cargo names them after building.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace::cargo;

/// One program with tests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// Crate folder and target, `server/e2e_serve`; the unit tests of a library are `store/lib`.
    pub(super) name: String,
    /// The package as cargo calls it.
    pub(super) package: String,
    pub(super) version: String,
    /// What chooses it: `--lib`, `--test e2e_serve`.
    pub(super) choice: String,
    pub(super) program: PathBuf,
    /// Where its `Cargo.toml` lies; its tests run there.
    pub(super) dir: PathBuf,
}

/// Builds every target with its tests, and every program that they start; the same command serves
/// callers that need only one of them, because another choice of packages has other features and
/// would be built again.
pub(crate) fn build() -> Result<Vec<Value>, String> {
    let output = cargo()
        .args(["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo test could not be started: {e}"))?;
    if !output.status.success() {
        return Err(format!("{}: cargo test --workspace --locked --no-run", output.status));
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(|line| serde_json::from_str(line).map_err(|e| format!("cargo's JSON: {e}"))).collect()
}

/// Returns the test programs among the build output.
pub(super) fn binaries(messages: &[Value]) -> Vec<Binary> {
    messages.iter().filter(|m| m["profile"]["test"] == true).filter_map(binary).collect()
}

/// Returns the program `name` among the build output, as people would run it.
pub(crate) fn program(messages: &[Value], name: &str) -> Option<PathBuf> {
    let mut built = messages.iter().filter(|m| m["profile"]["test"] == false && m["target"]["name"] == name);
    built.find_map(|m| m["executable"].as_str()).map(PathBuf::from)
}

fn binary(message: &Value) -> Option<Binary> {
    let program = PathBuf::from(message["executable"].as_str()?);
    let dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let target = message["target"]["name"].as_str()?;
    let choice = match message["target"]["kind"][0].as_str()? {
        "bin" => format!("--bin {target}"),
        "test" => format!("--test {target}"),
        "bench" => format!("--bench {target}"),
        "example" => format!("--example {target}"),
        _ => "--lib".to_owned(),
    };
    let folder = dir.file_name()?.to_string_lossy().into_owned();
    let (package, version) = package(message["package_id"].as_str()?, &folder)?;
    let word = if choice == "--lib" { "lib" } else { target };
    Some(Binary { name: format!("{folder}/{word}"), package, version, choice, program, dir })
}

/// Name and version in `path+file:///folder#name@version`; where both are the same, the name is left out.
fn package(id: &str, folder: &str) -> Option<(String, String)> {
    let (_, end) = id.rsplit_once('#')?;
    let (name, version) = end.split_once('@').unwrap_or((folder, end));
    Some((name.to_owned(), version.to_owned()))
}

impl Binary {
    /// A command that runs its tests as `cargo test` would. What passing tests print is shown too: some of them say that they
    /// have done nothing.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--show-output")
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .env("CARGO_MANIFEST_PATH", self.dir.join("Cargo.toml"))
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO_PKG_VERSION", &self.version);
        command
    }

    /// Returns the command that a person types to run it again.
    pub(super) fn again(&self) -> String {
        format!("cargo test --package {} {}", self.package, self.choice)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(kind: &str, name: &str, test: bool, executable: Option<&str>) -> Value {
        json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///w/crates/server#millrace-server@0.1.0",
            "manifest_path": "/w/crates/server/Cargo.toml",
            "target": { "kind": [kind], "name": name },
            "profile": { "test": test },
            "executable": executable,
        })
    }

    #[test]
    fn test_programs_are_told_from_all_else() {
        let messages = [
            artifact("lib", "millrace_server", false, None),
            artifact("lib", "millrace_server", true, Some("/t/millrace_server-1")),
            artifact("bin", "millrace", false, Some("/t/millrace")),
            artifact("test", "e2e_serve", true, Some("/t/e2e_serve-2")),
            json!({ "reason": "build-finished", "success": true }),
        ];
        let found = binaries(&messages);
        let shown: Vec<_> = found.iter().map(|b| (b.name.as_str(), b.again())).collect();
        let lib = "cargo test --package millrace-server --lib".to_owned();
        let test = "cargo test --package millrace-server --test e2e_serve".to_owned();
        assert_eq!(shown, [("server/lib", lib), ("server/e2e_serve", test)]);
        assert_eq!(found[0].dir, Path::new("/w/crates/server"));
        assert_eq!(found[0].command().get_current_dir(), Some(Path::new("/w/crates/server")));
        assert_eq!(program(&messages, "millrace"), Some(PathBuf::from("/t/millrace")));
        assert_eq!(program(&messages, "e2e_serve"), None);
    }

    #[test]
    fn packages_are_named_with_and_without_their_folder() {
        let both = |name: &str, version: &str| Some((name.to_owned(), version.to_owned()));
        assert_eq!(
            package("path+file:///w/crates/core#millrace-core@0.1.0", "core"),
            both("millrace-core", "0.1.0")
        );
        assert_eq!(package("path+file:///w/xtask#0.1.0", "xtask"), both("xtask", "0.1.0"));
        assert_eq!(package("millrace", "core"), None);
    }
}

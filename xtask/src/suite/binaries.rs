//! The test programs of the workspace, as cargo names them after building.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::order;
use crate::workspace::cargo;

/// One program with tests in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// Crate folder and target, `server/program`; the unit tests of a library are `store/lib`.
    pub(super) name: String,
    /// The package as cargo calls it.
    pub(super) package: String,
    pub(super) version: String,
    /// What chooses it: `--lib`, `--test program`.
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

/// Tests of one program that run in one process.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Crate folder and module, `server/e2e_serve`, or the name of the program.
    pub(super) name: String,
    pub(super) again: String,
    /// Their names; none stands for all of the program.
    pub(super) tests: Vec<String>,
    /// How many there are.
    pub(super) listed: usize,
}

impl Binary {
    /// A command that runs these tests, or all of them if none is named, as `cargo test` would. What passing tests print is
    /// shown too: some of them say that they have done nothing.
    pub(super) fn command(&self, tests: &[String]) -> Command {
        let mut command = self.start();
        command.arg("--show-output");
        if !tests.is_empty() {
            command.arg("--exact").args(tests);
        }
        command
    }

    fn start(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .env("CARGO_MANIFEST_PATH", self.dir.join("Cargo.toml"))
            .env("CARGO_PKG_NAME", &self.package)
            .env("CARGO_PKG_VERSION", &self.version);
        command
    }

    /// Returns the command that a person types to run it again.
    fn again(&self) -> String {
        format!("cargo test --package {} {}", self.package, self.choice)
    }

    /// Asks the program for the names of its tests, ignored ones too.
    pub(super) fn tests(&self) -> Result<Vec<String>, String> {
        let mut command = self.start();
        let output = command.args(["--list", "--format", "terse"]).stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| format!("{} could not be started: {e}", self.program.display()))?;
        if !output.status.success() {
            return Err(format!("{}: {} --list", output.status, self.program.display()));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    }

    /// Returns the parts that run as processes of their own: each module of a program of integration tests, so that it has
    /// the process, the place in the order and the log that it would have as a program.
    pub(super) fn parts(&self, tests: &[String]) -> Vec<Part> {
        let whole =
            Part { name: self.name.clone(), again: self.again(), tests: Vec::new(), listed: tests.len() };
        if !self.choice.starts_with("--test ") || order::is_whole(&self.name) {
            return vec![whole];
        }
        let mut modules: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
        for test in tests {
            let module = test.split_once("::").map(|(module, _)| module);
            modules.entry(module).or_default().push(test.clone());
        }
        if modules.keys().all(Option::is_none) {
            return vec![whole];
        }
        let folder = self.name.split_once('/').map_or("", |(folder, _)| folder);
        let part = |(module, tests): (Option<&str>, Vec<String>)| {
            let (name, again) = match module {
                Some(module) => (format!("{folder}/{module}"), format!("{} {module}::", self.again())),
                None => (self.name.clone(), self.again()),
            };
            Part { name, again, listed: tests.len(), tests }
        };
        modules.into_iter().map(part).collect()
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
            artifact("test", "program", true, Some("/t/program-2")),
            json!({ "reason": "build-finished", "success": true }),
        ];
        let found = binaries(&messages);
        let shown: Vec<_> = found.iter().map(|b| (b.name.as_str(), b.again())).collect();
        let lib = "cargo test --package millrace-server --lib".to_owned();
        let test = "cargo test --package millrace-server --test program".to_owned();
        assert_eq!(shown, [("server/lib", lib), ("server/program", test)]);
        assert_eq!(found[0].dir, Path::new("/w/crates/server"));
        assert_eq!(found[0].command(&[]).get_current_dir(), Some(Path::new("/w/crates/server")));
        assert_eq!(program(&messages, "millrace"), Some(PathBuf::from("/t/millrace")));
        assert_eq!(program(&messages, "program"), None);
    }

    #[test]
    fn each_module_of_a_test_program_is_a_part() {
        let of = |kind, name| binary(&artifact(kind, name, true, Some("/t/x"))).unwrap();
        let listed = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let tests = listed(&["serve::plays", "load::a::b", "apart", "serve::stops", "serve_twice::plays"]);
        let parts = of("test", "program").parts(&tests);
        let shown: Vec<_> = parts.iter().map(|part| (part.name.as_str(), part.tests.join(" "))).collect();
        let expected = [
            ("server/program", "apart"),
            ("server/load", "load::a::b"),
            ("server/serve", "serve::plays serve::stops"),
            ("server/serve_twice", "serve_twice::plays"),
        ];
        assert_eq!(shown, expected.map(|(name, tests)| (name, tests.to_owned())));
        assert_eq!(parts.iter().map(|part| part.listed).sum::<usize>(), tests.len());
        assert_eq!(parts[2].again, "cargo test --package millrace-server --test program serve::");
        let command = of("test", "program").command(&parts[2].tests);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["--show-output", "--exact", "serve::plays", "serve::stops"]);

        // Unit tests, a program without modules, and one without tests are run without names.
        for (kind, names) in [("lib", &["a::b", "c::d"][..]), ("test", &["a", "b"]), ("test", &[])] {
            let parts = of(kind, "one").parts(&listed(names));
            assert_eq!(parts.len(), 1, "{kind} {names:?}");
            assert_eq!((parts[0].tests.len(), parts[0].listed), (0, names.len()), "{kind} {names:?}");
        }
    }

    #[test]
    fn tests_are_listed_by_their_program() {
        let own = std::env::current_exe().unwrap();
        let this =
            binary(&artifact("bin", "xtask", true, own.to_str())).map(|of| Binary { dir: "/".into(), ..of });
        let tests = this.unwrap().tests().unwrap();
        assert!(
            tests.iter().any(|test| test.ends_with("binaries::tests::tests_are_listed_by_their_program"))
        );
        let gone = binary(&artifact("test", "one", true, Some("/no/such-program"))).unwrap();
        assert!(gone.tests().unwrap_err().contains("such-program could not be started: "));
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

//! Every command of ours that README, docs and the help texts show is one that the program takes.
//!
//! Each is given to a shell as it stands, with `--help` behind it: the program then reads the whole line, refuses options and
//! values that it does not know, and does nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use crate::support::ok;

/// The shell's preamble: our program with `--help`, and others that only read the data piped to
/// them.
const PREAMBLE: &str = r#"
set -o pipefail
millrace() { "$MILLRACE" "$@" --help >/dev/null </dev/null; }
sudo() { "$@"; }
ffplay() { cat >/dev/null; }
jq() { cat >/dev/null; }
ffprobe() { cat >/dev/null; }
"#;

/// Words that stand for something to be filled in where the program takes only certain words.
const PATTERNS: [&str; 1] = ["millrace help COMMAND"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README and every document below docs.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    for dir in ["guide", "ref", "reports"] {
        let entries = fs::read_dir(root().join("docs").join(dir)).unwrap();
        // Pictures lie there as well.
        found.extend(
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension() == Some("md".as_ref())),
        );
    }
    found.push(root().join("docs/performance.md"));
    found
}

/// A command of ours out of a line of a document, without a prompt and with the name that it has once it is installed.
fn command(line: &str) -> Option<String> {
    let line = line.trim().trim_start_matches("$ ").replace("target/release/millrace", "millrace");
    let first = line.strip_prefix("sudo ").unwrap_or(&line);
    (first.starts_with("millrace ") && !PATTERNS.contains(&first)).then(|| line.clone())
}

/// The commands in a document's blocks and in its text.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut language = None;
    let mut begun = String::new();
    for line in text.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("```") {
            language = if language.is_none() { Some(rest.to_owned()) } else { None };
            continue;
        }
        match language.as_deref() {
            Some("sh" | "console") => {
                begun.push_str(line.strip_suffix('\\').unwrap_or(line));
                if !line.ends_with('\\') {
                    found.extend(command(&std::mem::take(&mut begun)));
                }
            }
            Some(_) => {}
            None => found.extend(line.split('`').skip(1).step_by(2).filter_map(command)),
        }
    }
    found
}

/// Returns the examples in a help text; a remark about one stands behind at least two spaces.
fn examples(help: &str) -> Vec<String> {
    let shown = help.lines().skip_while(|line| !line.starts_with("Example"));
    let bare = |line: &str| command(line.trim().split("  ").next().unwrap_or_default());
    shown.filter_map(bare).collect()
}

/// Returns the program's objection to a line; `None` if it accepts it. In text an option may be
/// named without its value.
fn refusal(line: &str, dir: &Path) -> Option<String> {
    let output = Command::new("bash")
        .args(["-c", &format!("{PREAMBLE}\n{line}")])
        .current_dir(dir)
        .env("MILLRACE", env!("CARGO_BIN_EXE_millrace"))
        .output()
        .expect("bash can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    let taken = output.status.success() || said.contains("a value is required for");
    (!taken).then(|| format!("{line}\n{said}"))
}

#[test]
fn commands_in_documents_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for path in documents() {
        for line in commands(&fs::read_to_string(&path).unwrap()) {
            seen += 1;
            wrong.extend(refusal(&line, dir.path()).map(|what| format!("{}: {what}", path.display())));
        }
    }
    assert!(seen > 60, "only {seen} commands were found: are they looked for where they are?");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn examples_in_help_texts_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for name in [
        "serve",
        "init",
        "add",
        "prepare",
        "ls",
        "rm",
        "inspect",
        "fsck",
        "volume create",
        "volume status",
        "volume add",
        "volume replace",
        "repair",
        "scrub",
        "transform",
        "play",
        "load",
        "top",
        "engine",
        "engine status",
        "doctor",
        "config",
        "user",
        "user sign",
        "bench",
    ] {
        let words: Vec<&str> = std::iter::once("help").chain(name.split(' ')).collect();
        // No line is broken at this width.
        let output = support::millrace().args(&words).env("COLUMNS", "1000").output().unwrap();
        let found = examples(&String::from_utf8(output.stdout).unwrap());
        assert!(!found.is_empty(), "{name}: the help has no example");
        wrong.extend(found.iter().filter_map(|line| refusal(line, dir.path())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn refusal_of_invalid_documented_command_returns_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(ok(&["help"]).contains("serve"));
    let text =
        "Say `millrace ls --jsn` or\n\n```sh\n# so\nmillrace play x \\\n  --fec most | ffplay -\nls\n```\n";
    let found = commands(text);
    assert_eq!(found, ["millrace ls --jsn", "millrace play x   --fec most | ffplay -"]);
    for line in found {
        assert!(refusal(&line, dir.path()).is_some_and(|what| what.contains("error:")), "{line}");
    }
    assert_eq!(refusal("sudo millrace ls --json | jq .   # all", dir.path()), None);
}

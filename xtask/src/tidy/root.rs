//! The files allowed in the root of the workspace: readers look there first, and files that a
//! program has left there by chance (a certificate, a key, a core dump) must not be committed with
//! the next change.

use super::{Finding, Tree};

/// Files and folders of the root.
const KNOWN: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Makefile",
    "README.md",
    "changes",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "examples",
    "rustfmt.toml",
    "scripts",
    "xtask",
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let is_known = |name: &str| KNOWN.contains(&name) || is_ignored(name);
    for name in tree.root().filter(|name| !is_known(name)) {
        findings.push(Finding {
            path: name.to_owned(),
            line: 0,
            what: "does not belong in the root".into(),
            remedy: "remove it and see to it that what made it works in a folder of its own, or list it in \
                     xtask/src/tidy/root.rs"
                .into(),
        });
    }
}

/// What measuring tools write there; git ignores it too.
fn is_ignored(name: &str) -> bool {
    name.ends_with(".profraw") || name.starts_with("perf.data")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_file_in_root_is_reported() {
        let files = ["Cargo.toml", "auto.key", "crates/core/src/lib.rs", "notes/x.md", "perf.data.old"];
        let tree = Tree::of(&files.map(|path| (path, "")));
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        let found: Vec<_> = findings.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(found, ["auto.key", "notes"]);
    }
}

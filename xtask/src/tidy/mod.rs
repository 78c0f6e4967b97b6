//! The rules of the codebase that no compiler enforces, each with the place, the fault and the
//! remedy.
//!
//! | module | rules |
//! | --- | --- |
//! | [`words`] | clocks, printing and I/O only where they belong; nothing left over |
//! | [`vocabulary`] | one word for one thing: retired words stay away |
//! | [`prose`] | comments in plain English: phrases whose number can only fall |
//! | [`bounds`] | bounds stand in one place, each with its reason |
//! | [`unsafe_code`] | `unsafe` only in listed files, each block with its reason |
//! | [`size`] | length of files and functions |
//! | [`imports`] | imports of a crate that run up: their number can only fall |
//! | [`modules`] | every source file is reached and states its purpose |
//! | [`root`] | the files allowed in the root |
//! | [`markdown`] | one title, links and paths that lead somewhere, nothing of one machine or one day |
//! | [`names`] | names in documents are those of something |
//! | [`allow`] | the exceptions, each with its reason; one that is no longer needed is a fault |

mod allow;
mod bounds;
pub(crate) mod figures;
mod imports;
mod markdown;
mod modules;
mod names;
mod prose;
mod root;
mod size;
mod tree;
mod unsafe_code;
mod vocabulary;
mod words;

use std::fmt;

pub(crate) use tree::Tree;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// From 1; 0 for the file as a whole.
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}; {}", self.path, self.what, self.remedy),
            line => write!(f, "{}:{line}: {}; {}", self.path, self.what, self.remedy),
        }
    }
}

/// `cargo xtask tidy`
pub(crate) fn run(_args: &[String]) -> Result<(), String> {
    let tree = Tree::of_workspace()?;
    let findings = check(&tree, allow::LISTED);
    if findings.is_empty() {
        println!("tidy: {} files, nothing to say", tree.files.len());
        return Ok(());
    }
    let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
    Err(format!("{} findings\n{}", lines.len(), lines.join("\n")))
}

fn check(tree: &Tree, listed: &'static [allow::AllowEntry]) -> Vec<Finding> {
    let exceptions = allow::Exceptions::new(listed);
    let mut findings = Vec::new();
    words::check(tree, &exceptions, &mut findings);
    vocabulary::check(tree, &mut findings);
    prose::check(tree, &mut findings);
    bounds::check(tree, &mut findings);
    unsafe_code::check(tree, &exceptions, &mut findings);
    size::check(tree, &exceptions, &mut findings);
    modules::check(tree, &mut findings);
    imports::check(tree, &mut findings);
    markdown::check(tree, &mut findings);
    names::check(tree, &mut findings);
    root::check(tree, &mut findings);
    exceptions.check(tree, &mut findings);
    findings.sort();
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_has_no_tidy_findings() {
        let tree = Tree::of_workspace().unwrap();
        assert!(
            tree.files.iter().any(|f| f.path == "xtask/src/tidy/mod.rs"),
            "the walk misses this very file"
        );
        let findings: Vec<_> = check(&tree, allow::LISTED).iter().map(Finding::to_string).collect();
        assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
    }

    #[test]
    fn finding_display_has_location_fault_and_remedy() {
        let mut finding = Finding { path: "a.rs".into(), line: 7, what: "x".into(), remedy: "do y".into() };
        assert_eq!(finding.to_string(), "a.rs:7: x; do y");
        finding.line = 0;
        assert_eq!(finding.to_string(), "a.rs: x; do y");
    }
}

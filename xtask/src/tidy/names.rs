//! Documents name only what exists: types, functions, constants and files in backticks occur in the
//! program.

use std::collections::BTreeSet;

use super::markdown::{finding, prose};
use super::tree::File;
use super::{Finding, Tree};

/// Names of other programs, of this kernel and of standards.
const FOREIGN: &[&str] = &[
    "CHECKSUM_PARTIAL",
    "FD_CLOEXEC",
    "IP_TOS",
    "O_TMPFILE",
    "SCM_RIGHTS",
    "SK_REUSEPORT",
    "SO_PEERCRED",
    "XDP_STATISTICS",
    "adaptation_field",
    "clock_nanosleep",
    "dvb_subtitle",
    "ipfrag_time",
    "proxy_cache_key",
    "proxy_pass",
    "sch_netem",
    "sk_lookup",
    "tcp_migrate_req",
    "vbv_buffer_size",
    "vbv_delay",
];

/// What documents call a metric: the program's name and a group before a counter, a suffix behind.
const METRIC: &str = "millrace_";
const METRIC_SUFFIXES: &[&str] = &["_total", "_bucket", "_sum", "_count"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let known = known(tree);
    for file in tree.files.iter().filter(|file| is_document(file)) {
        for (line, text) in prose(file) {
            // Odd pieces stand between two backticks.
            for span in text.split('`').skip(1).step_by(2) {
                if let Some(unknown) = names(span).find(|name| !is_known(name, &known)) {
                    let what = format!("`{span}`: nothing is called {unknown}");
                    let remedy =
                        "name what there is now, or list the name of another program in tidy/names.rs";
                    findings.push(finding(file, line, what, remedy));
                }
            }
        }
    }
}

/// A document of the present state; a changelog names things of the past.
fn is_document(file: &File) -> bool {
    file.path.ends_with(".md") && !file.path.starts_with("CHANGELOG") && !file.path.starts_with("changes/")
}

/// Every word of the program, and the names of its files and folders.
fn known(tree: &Tree) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    // This file has names of nothing, in its samples.
    let is_program = |file: &&File| !file.path.ends_with(".md") && file.path != file!();
    let programs = tree.files.iter().filter(is_program);
    let words = programs.flat_map(|file| file.text.split(move |c| !is_word(c)));
    let names = tree.files.iter().flat_map(|file| file.path.split(['/', '.']));
    words.chain(names).collect()
}

/// The names in a piece of code, unless it could be a plain word or a command.
fn names(span: &str) -> impl Iterator<Item = &str> {
    let end = span.find(['(', '<', '{', '!']).unwrap_or(span.len());
    let path = &span[..end];
    let parts = || path.split([':', '.']).filter(|part| !part.is_empty());
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let has_hump = |part: &str| {
        part.as_bytes().windows(2).any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
    };
    let is_path = parts().all(is_name)
        && (path.contains("::") || parts().any(|part| part.contains('_') || has_hump(part)));
    parts().filter(move |_| is_path)
}

fn is_known(name: &str, known: &BTreeSet<&str>) -> bool {
    if known.contains(name) || FOREIGN.contains(&name) {
        return true;
    }
    let Some(counter) = name.strip_prefix(METRIC) else { return false };
    let counter = METRIC_SUFFIXES.iter().find_map(|suffix| counter.strip_suffix(suffix)).unwrap_or(counter);
    counter.match_indices('_').any(|(at, _)| known.contains(&counter[at + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(document: &str) -> Vec<String> {
        let code = "pub fn open_title() {} struct TitleIndex; const MAX_PARTS: u32 = 4; sum memory_held";
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", code),
            ("crates/a/tests/e2e_serve.rs", ""),
            ("docs/a.md", document),
            ("CHANGELOG.md", "`open_trick` is gone"),
        ]);
        let mut findings = Vec::new();
        check(&tree, &mut findings);
        findings.into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn check_finds_names_of_what_is_gone() {
        let expected = [
            "1: `open_trick`: nothing is called open_trick",
            "2: `a::Gone::new`: nothing is called Gone",
            "2: `TitleList`: nothing is called TitleList",
            "2: `MAX_TITLES`: nothing is called MAX_TITLES",
            "2: `e2e_gone.rs`: nothing is called e2e_gone",
        ];
        assert_eq!(
            found("`open_trick` and\n`a::Gone::new`, `TitleList`, `MAX_TITLES`, `e2e_gone.rs`"),
            expected
        );
    }

    #[test]
    fn check_of_names_that_exist_finds_nothing() {
        let text = "`open_title(name)`, `TitleIndex`, `MAX_PARTS`, `e2e_serve.rs`, `millrace_web_memory_held_total`, `O_TMPFILE`";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn check_leaves_words_and_commands_alone() {
        let text = "`serve --listen 0.0.0.0:80`, `word`, `Word`, `a-b_c`, `x = y_z`\n```\nopen_trick\n```";
        assert_eq!(found(text), [""; 0]);
    }
}

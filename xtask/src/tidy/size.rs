//! Length of files and functions. The bounds are not magic: the rule keeps small things from
//! growing. A longer file or function has an entry with its length now, which must be lowered when
//! it shrinks.

use super::allow::{Exceptions, Rule};
use super::tree::File;
use super::{Finding, Tree};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

pub(super) fn check(tree: &Tree, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        let finding =
            |line, what, remedy: &str| Finding { path: file.path.clone(), line, what, remedy: remedy.into() };
        let lines = if file.is_test() { 0 } else { rust.lines_without_tests() };
        let bound = exceptions.bound(&file.path, |rule| match rule {
            Rule::FileLines(lines) => Some(lines),
            _ => None,
        });
        if let Some(fault) = compare("file", lines, FILE_LINES, bound) {
            findings.push(finding(0, fault, "split it by concern"));
        }

        let bound = exceptions.bound(&file.path, |rule| match rule {
            Rule::FunctionLines(lines) => Some(lines),
            _ => None,
        });
        let lengths = functions(file, rust);
        if let Some(longest) = lengths.iter().map(|(_, _, lines)| *lines).max().filter(|_| bound.is_some())
            && let Some(fault) = compare("longest function", longest, FUNCTION_LINES, bound)
        {
            findings.push(finding(0, fault, "split it by step"));
        }
        for (name, line, lines) in lengths.into_iter().filter(|_| bound.is_none()) {
            if let Some(fault) = compare(&format!("function `{name}`"), lines, FUNCTION_LINES, None) {
                findings.push(finding(line, fault, "split it by step"));
            }
        }
    }
}

/// Name, line and length of each function outside of tests.
fn functions(file: &File, rust: &crate::rust_text::RustText) -> Vec<(String, usize, usize)> {
    if file.is_test() {
        return Vec::new();
    }
    let functions = rust.functions().into_iter().filter(|f| !rust.in_test(f.span.start));
    functions
        .map(|f| {
            let first = rust.line(f.span.start);
            (f.name, first, rust.line(f.span.end - 1) - first + 1)
        })
        .collect()
}

fn compare(what: &str, lines: usize, general: usize, own: Option<usize>) -> Option<String> {
    match own {
        None if lines > general => Some(format!("{what} has {lines} lines; at most {general} are allowed")),
        Some(own) if lines > own => {
            Some(format!("{what} has grown to {lines} lines; its exception says {own}"))
        }
        Some(own) if lines < own => Some(format!(
            "{what} has shrunk to {lines} lines; {}",
            if lines > general { "lower its exception" } else { "remove its exception" }
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::allow::AllowEntry;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        static LIST: &[AllowEntry] = &[
            AllowEntry { rule: Rule::FileLines(700), path: "long.rs", reason: "a table" },
            AllowEntry { rule: Rule::FunctionLines(90), path: "long.rs", reason: "a table" },
        ];
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &Exceptions::new(LIST), &mut findings);
        findings.into_iter().map(|f| (f.line, f.what)).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn f() {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn files_are_short_without_their_tests() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "    // x\n".repeat(500));
        assert_eq!(found("a.rs", &("// x\n".repeat(600) + &tests)), []);
        assert_eq!(
            found("a.rs", &("// x\n".repeat(601) + &tests)),
            [(0, "file has 601 lines; at most 600 are allowed".to_owned())]
        );
        assert_eq!(found("a_tests.rs", &"// x\n".repeat(900)), []);
    }

    #[test]
    fn functions_are_short() {
        assert_eq!(found("a.rs", &function(70)), []);
        assert_eq!(
            found("a.rs", &format!("// x\n{}", function(71))),
            [(2, "function `f` has 71 lines; at most 70 are allowed".to_owned())]
        );
        assert_eq!(found("a_tests.rs", &function(80)), []);
        assert_eq!(found("a.rs", &format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(80))), []);
    }

    #[test]
    fn exceptions_ratchet() {
        let rest = |lines: usize| "// x\n".repeat(lines - 90);
        assert_eq!(found("long.rs", &(rest(700) + &function(90))), []);
        let grown = found("long.rs", &(rest(700) + &function(95)));
        assert_eq!(
            grown.iter().map(|f| f.1.as_str()).collect::<Vec<_>>(),
            [
                "file has grown to 705 lines; its exception says 700",
                "longest function has grown to 95 lines; its exception says 90"
            ]
        );
        let shrunk = found("long.rs", &(rest(650) + &function(60)));
        assert_eq!(
            shrunk.iter().map(|f| f.1.as_str()).collect::<Vec<_>>(),
            [
                "file has shrunk to 620 lines; lower its exception",
                "longest function has shrunk to 60 lines; remove its exception"
            ]
        );
    }
}

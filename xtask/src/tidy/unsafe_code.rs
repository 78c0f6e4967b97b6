//! `unsafe` only in listed files, every block with a comment that explains why it is sound, and
//! crate roots that make the compiler enforce the rest.

use super::allow::{Exceptions, Rule};
use super::tree::File;
use super::{Finding, Tree};
use crate::rust_text::RustText;

/// Lines of code (attributes, the start of a statement) that may stand between a SAFETY comment and its block.
const CODE_LINES_BETWEEN: usize = 3;

pub(super) fn check(tree: &Tree, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    for (file, rust) in tree.rust() {
        location(file, rust, exceptions, findings);
        reasons(file, rust, findings);
        crate_root(file, rust, exceptions, findings);
    }
}

fn location(file: &File, rust: &RustText, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    let Some(first) = rust.words("unsafe").next() else { return };
    if !exceptions.allows(Rule::Unsafe, &file.path) {
        findings.push(Finding {
            path: file.path.clone(),
            line: rust.line(first),
            what: "`unsafe` in a file that is not listed for it".into(),
            remedy: "use a safe form, or list the file in xtask/src/tidy/allow.rs with the reason".into(),
        });
    }
}

fn reasons(file: &File, rust: &RustText, findings: &mut Vec<Finding>) {
    let code: Vec<&str> = rust.code.lines().collect();
    let comments: Vec<&str> = rust.comments.lines().collect();
    for at in rust.words("unsafe") {
        let rest = rust.code[at + "unsafe".len()..].trim_start();
        let needs_reason = rest.starts_with('{') || rest.starts_with("impl ") || rest.starts_with("impl<");
        if needs_reason && !has_reason(&code, &comments, rust.line(at) - 1) {
            findings.push(Finding {
                path: file.path.clone(),
                line: rust.line(at),
                what: "`unsafe` without a reason".into(),
                remedy: "say why it is sound in a `// SAFETY:` comment right before it".into(),
            });
        }
    }
}

/// Whether a SAFETY comment stands on `line` (from 0) or before it. A line with another `unsafe` ends the search:
/// one reason serves one block.
fn has_reason(code: &[&str], comments: &[&str], line: usize) -> bool {
    if comments[line].contains("SAFETY:") {
        return true;
    }
    let mut code_lines = 0;
    for before in (0..line).rev() {
        if comments[before].contains("SAFETY:") {
            return true;
        }
        let is_code = !code[before].trim().is_empty();
        code_lines += usize::from(is_code);
        if code_lines > CODE_LINES_BETWEEN || crate::rust_text::words(code[before], "unsafe").next().is_some()
        {
            return false;
        }
    }
    false
}

/// A crate without listed files forbids `unsafe`; one with listed files denies it, so that each such file has to
/// allow it openly.
fn crate_root(file: &File, rust: &RustText, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    let Some(folder) = file.path.strip_suffix("lib.rs").or_else(|| file.path.strip_suffix("main.rs")) else {
        return;
    };
    if !folder.ends_with("/src/") {
        return;
    }
    let lint = if exceptions.any_below(Rule::Unsafe, folder) { "deny" } else { "forbid" };
    let attribute = format!("#![{lint}(unsafe_code)]");
    if !rust.code.contains(&attribute) {
        findings.push(Finding {
            path: file.path.clone(),
            line: 0,
            what: format!("the crate root lacks `{attribute}`"),
            remedy: "add it below the module's description".into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::allow::AllowEntry;

    static LIST: &[AllowEntry] =
        &[AllowEntry { rule: Rule::Unsafe, path: "crates/a/src/ok.rs", reason: "a reason" }];

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &Exceptions::new(LIST), &mut findings);
        findings.into_iter().map(|f| (f.line, f.what)).collect()
    }

    #[test]
    fn unlisted_files_hold_no_unsafe() {
        let text = "// SAFETY: one\nfn f() { unsafe { g() } }\n";
        assert_eq!(
            found("crates/a/src/no.rs", text),
            [(2, "`unsafe` in a file that is not listed for it".to_owned())]
        );
        assert_eq!(found("crates/a/src/ok.rs", text), []);
        assert_eq!(
            found("crates/a/src/no.rs", "#![allow(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";"),
            []
        );
    }

    #[test]
    fn unsafe_block_without_reason_is_reported() {
        let reason = "// SAFETY: this is a long\n// reason over lines\n";
        for good in [
            format!("{reason}unsafe {{ g() }}\n"),
            format!("{reason}#[inline]\nlet x =\n    unsafe {{ g() }};\n"),
            "let x = unsafe { g() }; // SAFETY: short\n".to_owned(),
            format!("{reason}unsafe impl Send for X {{}}\n"),
            "/// # Safety\n/// Callers must care.\npub unsafe fn f();\nunsafe trait T {}\n".to_owned(),
        ] {
            assert_eq!(found("crates/a/src/ok.rs", &good), [], "{good}");
        }
        for (bad, line) in [
            ("unsafe { g() }\n".to_owned(), 1),
            (format!("{reason}unsafe {{ g() }}\nunsafe {{ h() }}\n"), 4),
            (format!("{reason}a();\nb();\nc();\nd();\nunsafe {{ g() }}\n"), 7),
            ("// Safety: lower case\nunsafe impl<T> Send for X<T> {}\n".to_owned(), 2),
        ] {
            assert_eq!(
                found("crates/a/src/ok.rs", &bad),
                [(line, "`unsafe` without a reason".to_owned())],
                "{bad}"
            );
        }
    }

    #[test]
    fn crate_roots_hold_the_rest() {
        assert_eq!(found("crates/a/src/lib.rs", "#![deny(unsafe_code)]\n"), []);
        assert_eq!(found("crates/b/src/lib.rs", "#![forbid(unsafe_code)]\n"), []);
        assert_eq!(
            found("crates/b/src/main.rs", "#![deny(unsafe_code)]\n"),
            [(0, "the crate root lacks `#![forbid(unsafe_code)]`".to_owned())]
        );
        assert_eq!(found("crates/b/src/part/main.rs", ""), []);
    }
}

//! Every source file is reached by a `mod`, and states its purpose in its first line.

use std::collections::BTreeSet;

use super::tree::File;
use super::{Finding, Tree};
use crate::rust_text::{RustText, matching_brace};

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut reached = BTreeSet::new();
    for (file, _) in tree.rust().filter(|(file, _)| is_root(&file.path)) {
        reach(tree, &file.path, &mut reached);
    }
    for (file, _) in tree.rust() {
        if !reached.contains(&file.path) {
            findings.push(Finding {
                path: file.path.clone(),
                line: 0,
                what: "no `mod` leads to this file".into(),
                remedy: "declare it or delete it".into(),
            });
        }
        header(file, findings);
    }
}

/// Files that cargo compiles without a `mod`.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        [.., "src", "bin", _] | [.., "tests" | "benches" | "examples", _] => !path.contains("/src/tests/"),
        [.., "tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => false,
    }
}

/// Follows the `mod` declarations of one file.
fn reach(tree: &Tree, path: &str, reached: &mut BTreeSet<String>) {
    let Some(file) = tree.file(path) else { return };
    let Some(rust) = &file.rust else { return };
    if !reached.insert(path.to_owned()) {
        return;
    }
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let below = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ if is_root(path) => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    for child in declared(&file.text, rust) {
        let candidates = match &child.path {
            Some(explicit) => vec![join(folder, explicit)],
            None => {
                let base = [std::slice::from_ref(&below), &child.inside].concat().join("/");
                vec![format!("{base}/{}.rs", child.name), format!("{base}/{}/mod.rs", child.name)]
            }
        };
        for candidate in candidates {
            reach(tree, &candidate, reached);
        }
    }
}

/// `folder` and a relative path, `..` resolved.
pub(super) fn join(folder: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// One `mod name;`.
struct Declared {
    name: String,
    /// Inline modules around it, from outside in.
    inside: Vec<String>,
    /// From `#[path = ".."]`.
    path: Option<String>,
}

fn declared(text: &str, rust: &RustText) -> Vec<Declared> {
    // Inline modules: where their bodies begin and end.
    let mut inline = Vec::new();
    let mut found = Vec::new();
    for at in rust.words("mod") {
        let rest = &rust.code[at + 3..];
        let name: String =
            rest.trim_start().chars().take_while(|&c| c == '_' || c.is_alphanumeric()).collect();
        let behind = rest.trim_start()[name.len()..].trim_start();
        if behind.starts_with('{') {
            let open = rust.code.len() - behind.len();
            inline.push((open..matching_brace(&rust.code, open).unwrap_or(text.len()), name));
        } else if behind.starts_with(';') && !name.is_empty() {
            let inside =
                inline.iter().filter(|(span, _)| span.contains(&at)).map(|(_, name)| name.clone()).collect();
            found.push(Declared { name, inside, path: path_attribute(text, rust, at) });
        }
    }
    found
}

/// The value of `#[path = "..."]` among the attributes right before `at`.
fn path_attribute(text: &str, rust: &RustText, at: usize) -> Option<String> {
    // Attributes of this item begin behind the last statement or item.
    let start = rust.code[..at].rfind([';', '}', '{']).map_or(0, |end| end + 1);
    let attribute = start + rust.code[start..at].find("#[path")?;
    let value = &text[attribute..at];
    let value = value.split('"').nth(1)?;
    Some(value.to_owned())
}

fn header(file: &File, findings: &mut Vec<Finding>) {
    let is_source = file.path.contains("/src/") && !file.is_test();
    let first = file.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if is_source && !first.starts_with("//!") {
        findings.push(Finding {
            path: file.path.clone(),
            line: 1,
            what: "the file does not say what it is for".into(),
            remedy: "begin it with `//!` and one sentence".into(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Tree::of(files), &mut findings);
        findings.into_iter().map(|f| format!("{}: {}", f.path, f.what)).collect()
    }

    #[test]
    fn module_declarations_of_every_form_are_followed() {
        let files = [
            ("crates/a/src/lib.rs", "//! A.\npub mod b;\nmod c { mod d; }\n#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/b/mod.rs", "//! B.\nmod e;\n"),
            ("crates/a/src/b/e.rs", "//! E.\n#[cfg(test)]\n#[path = \"e_tests.rs\"]\nmod tests;\nmod f;\n"),
            ("crates/a/src/b/e_tests.rs", ""),
            ("crates/a/src/b/e/f.rs", "//! F.\n#[path = \"../../g.rs\"]\nmod g;\n"),
            ("crates/a/src/g.rs", "//! G.\n"),
            ("crates/a/src/c/d.rs", "//! D.\n"),
            ("crates/a/src/tests.rs", ""),
            ("crates/a/src/bin/tool.rs", "//! Tool.\n"),
            ("crates/a/tests/all.rs", "mod common;\n"),
            ("crates/a/tests/common/mod.rs", ""),
            ("crates/a/build.rs", ""),
        ];
        let found = found(&files);
        // "../../g.rs" is taken from the folder of the file that declares it.
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn undeclared_source_file_is_reported() {
        let files = [
            ("crates/a/src/lib.rs", "//! A.\n// mod b;\nconst C: &str = \"mod c;\";\n"),
            ("crates/a/src/b.rs", "//! B.\n"),
            ("crates/a/src/c.rs", "//! C.\n"),
        ];
        assert_eq!(
            found(&files),
            [
                "crates/a/src/b.rs: no `mod` leads to this file",
                "crates/a/src/c.rs: no `mod` leads to this file"
            ]
        );
    }

    #[test]
    fn source_file_without_purpose_is_reported() {
        let files = [("crates/a/src/lib.rs", "use b::c;\n"), ("crates/a/tests/all.rs", "use b::c;\n")];
        assert_eq!(found(&files), ["crates/a/src/lib.rs: the file does not say what it is for"]);
    }
}

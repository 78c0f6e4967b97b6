//! The structure in figures, for the table in docs/design/0046-structure.md: they are printed, and no rule holds them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Tree;
use super::imports::{Crates, crates, targets};
use super::tree::File;
use crate::rust_text::RustText;

/// Crates that no user is served with.
const WORKSHOP: &[&str] = &["lab", "link", "load", "sim", "testkit"];
/// A name with more definitions cannot be searched for.
const MOST_DEFINITIONS: usize = 4;

/// `cargo xtask figures`
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let tree = args.first().map_or_else(Tree::of_workspace, |folder| Tree::of_checkout(Path::new(folder)))?;
    let (product, workshop) = code_lines(&tree);
    println!("code lines of the product without tests  {product}");
    println!("code lines of the workshop               {workshop}");
    println!("programs of integration tests            {}", test_programs(&tree));
    let circles = circles(&crates(&tree));
    let files = |circles: &[Vec<String>]| circles.iter().map(Vec::len).sum::<usize>();
    println!("circles of files; files in them          {}; {}", circles.len(), files(&circles));
    for circle in &circles {
        println!("    {:>3}  {}", circle.len(), circle.join(" "));
    }
    let types = types(&tree);
    let many: Vec<&str> =
        types.iter().filter(|(_, count)| **count > MOST_DEFINITIONS).map(|(name, _)| *name).collect();
    println!("type names with over {MOST_DEFINITIONS} definitions      {} {}", many.len(), many.join(" "));
    let shared: usize = types.values().filter(|count| **count > 1).sum();
    println!("definitions that share their name        {shared}");
    Ok(())
}

/// Lines that are neither empty nor comments, without tests.
fn code_lines(tree: &Tree) -> (usize, usize) {
    let (mut product, mut workshop) = (0, 0);
    for (name, file, rust) in sources(tree) {
        if file.is_test() {
            continue;
        }
        let mut at = 0;
        let mut count = 0;
        for line in rust.code.split_inclusive('\n') {
            if let Some(first) = line.find(|c: char| !c.is_whitespace())
                && !rust.in_test(at + first)
            {
                count += 1;
            }
            at += line.len();
        }
        *if WORKSHOP.contains(&name) { &mut workshop } else { &mut product } += count;
    }
    (product, workshop)
}

/// The files below `src` of each crate.
fn sources(tree: &Tree) -> impl Iterator<Item = (&str, &File, &RustText)> {
    tree.rust().filter_map(|(file, rust)| {
        let (name, _) = file.path.strip_prefix("crates/")?.split_once("/src/")?;
        Some((name, file, rust))
    })
}

fn test_programs(tree: &Tree) -> usize {
    let is_program = |path: &str| {
        let mut parts = path.split('/').skip(2);
        let is_test = parts.next() == Some("tests");
        match (parts.next(), parts.next(), parts.next()) {
            (Some(file), None, _) => is_test && file.ends_with(".rs"),
            (_, Some(file), None) => is_test && file == "main.rs",
            _ => false,
        }
    };
    tree.files.iter().filter(|file| is_program(&file.path)).count()
}

/// Definitions of each name of a type, outside tests.
fn types(tree: &Tree) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for (_, file, rust) in sources(tree) {
        if file.is_test() {
            continue;
        }
        for word in ["struct", "enum", "trait", "union"] {
            for at in rust.words(word).filter(|&at| !rust.in_test(at)) {
                let rest = rust.code[at + word.len()..].trim_start();
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                if rest.starts_with(|c: char| c.is_ascii_uppercase()) {
                    *counts.entry(&rest[..end]).or_insert(0) += 1;
                }
            }
        }
    }
    counts
}

/// Groups of files in which every file reaches every other by imports, without the root of a crate.
fn circles(crates: &Crates<'_>) -> Vec<Vec<String>> {
    let mut circles = Vec::new();
    for (folder, files) in crates {
        let files: BTreeMap<_, _> = files
            .iter()
            .filter(|(path, _)| !path.is_empty())
            .map(|(path, rust)| (path.clone(), *rust))
            .collect();
        let names: Vec<&Vec<String>> = files.keys().collect();
        let next: Vec<Vec<usize>> = files
            .iter()
            .map(|(from, rust)| {
                let targets = targets(&files, from, rust);
                targets.iter().filter_map(|to| names.binary_search(&to).ok()).collect()
            })
            .collect();
        let reached: Vec<BTreeSet<usize>> = (0..names.len()).map(|from| reach(from, &next)).collect();
        let mut is_placed = vec![false; names.len()];
        for at in 0..names.len() {
            if is_placed[at] {
                continue;
            }
            let group: Vec<usize> =
                reached[at].iter().copied().filter(|&to| reached[to].contains(&at)).collect();
            if group.len() < 2 {
                continue;
            }
            group.iter().for_each(|&file| is_placed[file] = true);
            circles.push(group.iter().map(|&file| format!("{folder}/{}", names[file].join("/"))).collect());
        }
    }
    circles
}

/// All that can be reached from a file by at least one import.
fn reach(from: usize, next: &[Vec<usize>]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = next[from].clone();
    while let Some(file) = left.pop() {
        if reached.insert(file) {
            left.extend(&next[file]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_lines_are_those_without_comments_and_tests() {
        let tree = Tree::of(&[
            (
                "crates/a/src/lib.rs",
                "//! A.\n\nfn f() {\n    // Why.\n}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n",
            ),
            ("crates/lab/src/lib.rs", "struct S;\n"),
            ("crates/a/src/b_tests.rs", "fn g() {}\n"),
            ("crates/a/tests/all/main.rs", "fn g() {}\n"),
            ("crates/a/tests/all/part.rs", "fn g() {}\n"),
            ("crates/a/src/b/tests/part.rs", "fn g() {}\n"),
            ("crates/a/tests/one.rs", "fn g() {}\n"),
        ]);
        assert_eq!(code_lines(&tree), (2, 1));
        assert_eq!(test_programs(&tree), 2);
    }

    #[test]
    fn circles_are_of_files_that_reach_each_other() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "use b::B;\n"),
            ("crates/a/src/b.rs", "use crate::c::C;\n"),
            ("crates/a/src/c.rs", "use crate::d::D;\n"),
            ("crates/a/src/d.rs", "use crate::b::B;\nuse crate::e::E;\n"),
            ("crates/a/src/e.rs", "use crate::F;\n"),
        ]);
        assert_eq!(circles(&crates(&tree)), [["crates/a/b", "crates/a/c", "crates/a/d"]]);
    }

    #[test]
    fn types_are_counted_by_their_definitions() {
        let tree = Tree::of(&[
            (
                "crates/a/src/lib.rs",
                "struct Part;\nenum Part2 {}\n#[cfg(test)]\nmod tests {\n    struct Part;\n}\n",
            ),
            ("crates/b/src/lib.rs", "pub struct Part<T>(T);\n// struct Part\n"),
        ]);
        assert_eq!(types(&tree), BTreeMap::from([("Part", 2), ("Part2", 1)]));
    }
}

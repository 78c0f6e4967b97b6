//! Imports that run up: those that must go before the modules of a folder can be sorted so that each imports only modules below it.
//!
//! Such a module cannot be understood, tested or moved alone. To find the least set of them is hard (feedback arc set); the
//! greedy order with local improvement here finds it for a handful of modules.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree};
use crate::rust_text::RustText;

/// The most in a crate that is not listed.
const MOST: usize = 10;

/// Crates with more; the number can only fall.
const COUNTS: &[(&str, usize)] = &[("crates/tcp", 27)];

/// The folder's own `mod.rs` or `lib.rs` among its modules.
const OWN: &str = ".";

/// A file as its path of modules below the crate.
type ModulePath = Vec<String>;

/// The files of a crate by their modules.
type Modules<'a> = BTreeMap<ModulePath, &'a RustText>;

/// All crates by their folders.
pub(super) type Crates<'a> = BTreeMap<&'a str, Modules<'a>>;

/// Imports between two modules of a folder: importer, imported, number of pairs of files.
type Arrows = BTreeMap<(String, String), usize>;

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_against(COUNTS, tree, findings);
}

fn check_against(counts: &[(&str, usize)], tree: &Tree, findings: &mut Vec<Finding>) {
    for (folder, files) in crates(tree) {
        let up: Vec<String> =
            folders(&files).iter().flat_map(|(folder, arrows)| upward(folder, arrows)).collect();
        let listed = counts.iter().find(|(name, _)| *name == folder);
        let (found, allowed) = (up.len(), listed.map_or(MOST, |(_, count)| *count));
        let remedy = if found > allowed {
            format!("move what both need into a module below them; imports that run up: {}", up.join(", "))
        } else if listed.is_some() && found < allowed {
            "lower the number in xtask/src/tidy/imports.rs".to_owned()
        } else {
            continue;
        };
        let what = format!("{found} imports run up, {allowed} are allowed");
        findings.push(Finding { path: format!("{folder}/src"), line: 0, what, remedy });
    }
}

pub(super) fn crates(tree: &Tree) -> Crates<'_> {
    let mut crates = Crates::new();
    for (file, rust) in tree.rust() {
        if let Some((folder, path)) = file.path.split_once("/src/")
            && let Some(module) = module(path)
        {
            crates.entry(folder).or_default().insert(module, rust);
        }
    }
    crates
}

/// The module of a file below `src`; `None` for tests and for the root of a program.
fn module(path: &str) -> Option<ModulePath> {
    let mut parts: ModulePath = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts.iter().any(|part| part.ends_with("_tests") || part == "tests" || part == "main") {
        return None;
    }
    if parts.last().is_some_and(|last| last == "mod" || last == "lib") {
        parts.pop();
    }
    Some(parts)
}

/// The arrows between the modules of each folder.
fn folders(files: &Modules<'_>) -> BTreeMap<ModulePath, Arrows> {
    let mut folders: BTreeMap<ModulePath, Arrows> = BTreeMap::new();
    for (from, rust) in files {
        for to in &targets(files, from, rust) {
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            let name = |path: &ModulePath| path.get(shared).map_or(OWN, String::as_str).to_owned();
            let arrows = folders.entry(from[..shared].to_vec()).or_default();
            *arrows.entry((name(from), name(to))).or_default() += 1;
        }
    }
    folders
}

/// The other files of its crate that a file imports from.
pub(super) fn targets(files: &Modules<'_>, from: &ModulePath, rust: &RustText) -> BTreeSet<ModulePath> {
    imports(rust).iter().filter_map(|path| resolve(files, from, path)).collect()
}

/// The paths of all `use` items outside tests.
fn imports(rust: &RustText) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for at in rust.words("use").filter(|&at| !rust.in_test(at)) {
        let text = &rust.code[at + 3..];
        if let Some(end) = text.find(';') {
            expand(&text[..end], &[], &mut paths);
        }
    }
    paths
}

/// Takes the braces of an import apart.
fn expand(text: &str, before: &[String], paths: &mut Vec<Vec<String>>) {
    let (head, group) = match text.split_once('{') {
        Some((head, group)) => (head, group.trim_end().strip_suffix('}')),
        None => (text, None),
    };
    let head = head.split(" as ").next().unwrap_or_default();
    let names = head.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned);
    let path: Vec<String> = before.iter().cloned().chain(names).collect();
    let Some(group) = group else {
        paths.push(path);
        return;
    };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !group[start..at].trim().is_empty() {
                    expand(&group[start..at], &path, paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The other file that an import leads to; `None` for another crate.
fn resolve(files: &Modules<'_>, from: &ModulePath, path: &[String]) -> Option<ModulePath> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (&from[..0], &path[1..]),
        "self" => (&from[..], &path[1..]),
        "super" => (&from[..from.len().checked_sub(supers)?], &path[supers..]),
        _ => (&from[..], path),
    };
    let mut to = base.to_vec();
    for name in rest {
        to.push(name.clone());
        if !files.contains_key(&to) {
            to.pop();
            break;
        }
    }
    (to != *from).then_some(to)
}

/// The imports that run up in the best order found.
fn upward(folder: &ModulePath, arrows: &Arrows) -> Vec<String> {
    let names: BTreeSet<&String> = arrows.keys().flat_map(|(from, to)| [from, to]).collect();
    let names: Vec<&String> = names.into_iter().collect();
    let index = |name| names.binary_search(&name).expect("each end has an index");
    let edges: Vec<Edge> = arrows
        .iter()
        .map(|((from, to), &weight)| Edge { from: index(from), to: index(to), weight })
        .collect();
    let order = improve(order(names.len(), &edges), &edges);
    let position = positions(&order);
    let up = edges.iter().filter(|edge| position[edge.from] > position[edge.to]);
    let word = |edge: &Edge| format!("{}: {} -> {}", folder.join("/"), names[edge.from], names[edge.to]);
    up.flat_map(|edge| std::iter::repeat_n(word(edge), edge.weight)).collect()
}

/// An arrow between two modules by their numbers.
struct Edge {
    from: usize,
    to: usize,
    weight: usize,
}

/// Sorts the modules by the degrees among those that are left (Eades, Lin and Smyth 1993).
fn order(count: usize, edges: &[Edge]) -> Vec<usize> {
    let mut left = vec![true; count];
    let (mut first, mut last) = (Vec::new(), Vec::new());
    while first.len() + last.len() < count {
        let among = |edge: &&Edge| left[edge.from] && left[edge.to];
        let (mut out, mut into) = (vec![0; count], vec![0; count]);
        for edge in edges.iter().filter(among) {
            out[edge.from] += edge.weight;
            into[edge.to] += edge.weight;
        }
        let rest = || (0..count).filter(|&at| left[at]);
        let weight =
            |at: &usize| if into[*at] == 0 { isize::MAX } else { out[*at] as isize - into[*at] as isize };
        let next = rest().find(|&at| out[at] == 0);
        match next {
            Some(at) => last.push(at),
            None => first.extend(rest().max_by_key(weight)),
        }
        left[next.unwrap_or_else(|| first[first.len() - 1])] = false;
    }
    first.extend(last.into_iter().rev());
    first
}

/// The place of each module in an order.
fn positions(order: &[usize]) -> Vec<usize> {
    let mut position = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &name)| position[name] = at);
    position
}

/// Moves one module at a time for as long as that helps.
fn improve(mut order: Vec<usize>, edges: &[Edge]) -> Vec<usize> {
    let cost = |order: &[usize]| -> usize {
        let position = positions(order);
        edges.iter().filter(|edge| position[edge.from] > position[edge.to]).map(|edge| edge.weight).sum()
    };
    let mut best = cost(&order);
    while best > 0 {
        let (before, count) = (best, order.len());
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            let mut moved = order.clone();
            let name = moved.remove(from);
            moved.insert(to, name);
            let cost = cost(&moved);
            if cost < best {
                (order, best) = (moved, cost);
            }
        }
        if best == before {
            break;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(counts: &[(&str, usize)], files: &[(&str, &str)]) -> Vec<String> {
        let mut findings = Vec::new();
        check_against(counts, &Tree::of(files), &mut findings);
        findings.iter().map(|finding| format!("{}; {}", finding.what, finding.remedy)).collect()
    }

    #[test]
    fn imports_of_modules_below_are_free() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\nmod c;\nuse b::B;\n"),
            ("crates/a/src/b.rs", "use crate::c::{C, d::{self, D}};\nuse std::fmt;\n"),
            ("crates/a/src/c/mod.rs", "mod d;\n"),
            ("crates/a/src/c/d.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"),
        ];
        assert_eq!(found(&[("crates/a", 0)], &files), [""; 0]);
    }

    #[test]
    fn circle_has_one_import_that_runs_up() {
        let files = [
            ("crates/a/src/b.rs", "use super::c::C;\nuse super::d::D;\n"),
            ("crates/a/src/c.rs", "use crate::d::D;\n"),
            ("crates/a/src/d.rs", "use crate::b::B;\n"),
        ];
        let [said] = &found(&[("crates/a", 0)], &files)[..] else { panic!("one finding") };
        assert!(said.starts_with("1 imports run up, 0 are allowed") && said.contains("d -> b"), "{said}");
        assert_eq!(found(&[("crates/a", 1)], &files), [""; 0]);
        assert_eq!(found(&[], &files), [""; 0], "{MOST} are allowed without a line");
        assert!(found(&[("crates/a", 2)], &files)[0].contains("lower the number"));
    }

    #[test]
    fn circle_of_a_folder_and_its_own_file_counts() {
        let files = [
            ("crates/a/src/b/mod.rs", "mod c;\nuse c::C;\npub struct B;\n"),
            ("crates/a/src/b/c.rs", "use super::B;\n"),
        ];
        assert_eq!(found(&[("crates/a", 0)], &files).len(), 1);
    }

    #[test]
    fn group_of_imports_is_taken_apart() {
        let mut paths = Vec::new();
        expand(" crate::a::{B, c::{self, D as E}}", &[], &mut paths);
        let shown: Vec<String> = paths.iter().map(|path| path.join("::")).collect();
        assert_eq!(shown, ["crate::a::B", "crate::a::c::self", "crate::a::c::D"]);
    }
}

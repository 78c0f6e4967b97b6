//! The licences of the crates that are linked into the programs. A distributed program must be accompanied by them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::workspace;

/// Crates of the distributed programs.
const SHIPPED: &[&str] = &["millrace-server", "millrace-lab", "millrace-preload"];

/// Beginnings of names of files that hold licences.
const LICENCE_FILES: &[&str] = &["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// `cargo xtask notices`
pub(crate) fn run(_args: &[String]) -> Result<(), String> {
    print!("{}", notices(&workspace::full_metadata()?)?);
    Ok(())
}

fn notices(metadata: &Value) -> Result<String, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let linked = linked(metadata)?;
    // Most crates under the same licence have the same text: it stands once, below all their names.
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages.iter().filter(|package| linked.contains(text_of(&package["id"]))) {
        let [name, version, licence, manifest] =
            ["name", "version", "license", "manifest_path"].map(|key| text_of(&package[key]));
        let shown = format!("{name} {version} ({licence})");
        let folder = Path::new(manifest).parent().ok_or_else(|| format!("{manifest}: has no folder"))?;
        let texts = texts(folder)?;
        if texts.is_empty() {
            by_text
                .entry("The crate contains no text of its licence.".into())
                .or_default()
                .insert(shown.clone());
        }
        for text in texts {
            by_text.entry(text).or_default().insert(shown.clone());
        }
    }
    let mut all = String::from("The programs contain these crates.\n");
    for (text, crates) in by_text {
        let crates = crates.into_iter().collect::<Vec<_>>().join("\n");
        all += &format!("\n{}\n{crates}\n\n{}\n", "=".repeat(80), text.trim_end());
    }
    Ok(all)
}

/// Crates of others that are linked into a program, by their ids. Macros are among them: cargo lists them in the same way.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>, String> {
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata resolves no dependencies")?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let id_of = |name: &&str| {
        packages.iter().find(|package| package["name"] == **name).map(|package| text_of(&package["id"]))
    };
    let mut waiting: Vec<&str> = SHIPPED.iter().filter_map(id_of).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id).ok_or_else(|| format!("{id}: not resolved"))?;
        let uses = node["deps"].as_array().into_iter().flatten();
        let is_linked = |used: &&Value| {
            used["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null())
        };
        waiting.extend(uses.filter(is_linked).map(|used| text_of(&used["pkg"])));
    }
    let ours: BTreeSet<_> =
        metadata["workspace_members"].as_array().into_iter().flatten().map(text_of).collect();
    Ok(seen.difference(&ours).copied().collect())
}

/// The texts of all licences in a crate's folder.
fn texts(folder: &Path) -> Result<Vec<String>, String> {
    let fault = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if LICENCE_FILES.iter().any(|begin| name.starts_with(begin)) && entry.path().is_file() {
            paths.push(entry.path());
        }
    }
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display())))
        .collect()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_name_linked_crates_with_their_licences() {
        let text = notices(&workspace::full_metadata().unwrap()).unwrap();
        assert!(text.contains("\nrusqlite ") && text.contains("\nrustix ") && text.contains("\ntokio "));
        assert!(text.contains("Permission is hereby granted"));
        // Neither tests nor build scripts are linked, and our own licence is elsewhere.
        for other in ["\nproptest ", "\nbolero ", "\ncc ", "\nmillrace-"] {
            assert!(!text.contains(other), "{other}");
        }
    }
}

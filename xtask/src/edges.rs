//! The arrows between the crates. The list is the architecture: a new arrow is a decision, not a convenience.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::workspace;

/// What one crate may use in normal builds (tests may use more).
struct Rule {
    krate: &'static str,
    /// Crates of this workspace.
    ours: &'static [&'static str],
    /// Crates from elsewhere: `None` where the choice is free.
    theirs: Option<&'static [&'static str]>,
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        krate: "millrace-core",
        ours: &[],
        theirs: Some(&[]),
        why: "the words of all others; standard library only, or the arrows would turn around",
    },
    Rule {
        krate: "millrace-cli",
        ours: &["millrace-core"],
        theirs: None,
        why: "the frame of every command, whatever it does",
    },
    Rule {
        krate: "millrace-ts",
        ours: &["millrace-core"],
        theirs: Some(&["serde"]),
        why: "it judges streams that the others make: code shared with them would hide bugs in both; its teletext is apart from that",
    },
    Rule {
        krate: "millrace-media",
        ours: &["millrace-core"],
        theirs: Some(&["crc-fast", "serde", "thiserror"]),
        why: "formats only: bytes in, meaning out, so whatever it parses can be fuzzed without a file or a clock",
    },
    Rule {
        krate: "millrace-nvod",
        ours: &["millrace-core"],
        theirs: Some(&["thiserror"]),
        why: "a schedule that sender and receiver must agree on: numbers in, numbers out, without a clock or a socket",
    },
    Rule {
        krate: "millrace-store",
        ours: &["millrace-core", "millrace-media"],
        theirs: None,
        why: "knows disks, not viewers, and never how titles are made",
    },
    Rule {
        krate: "millrace-make",
        ours: &["millrace-core", "millrace-media", "millrace-store"],
        theirs: None,
        why: "writes titles and runs ffmpeg; nothing that reads titles depends on it",
    },
    Rule {
        krate: "millrace-engine",
        ours: &["millrace-core"],
        theirs: Some(&[]),
        why: "deterministic: without other crates it cannot reach a clock, a file or a socket",
    },
    Rule {
        krate: "millrace-tcp",
        ours: &["millrace-core"],
        theirs: Some(&[]),
        why: "deterministic, as the engine is: segments and time come in, segments go out",
    },
    Rule { krate: "millrace-netio", ours: &["millrace-core"], theirs: None, why: "knows packets, not films" },
    Rule {
        krate: "millrace-offload",
        ours: &["millrace-core", "millrace-store", "millrace-engine", "millrace-netio", "millrace-tcp"],
        theirs: None,
        why: "its loops are the one place where store, engine, TCP and packet I/O meet",
    },
    Rule {
        krate: "millrace-stream",
        ours: &["millrace-core", "millrace-make", "millrace-store", "millrace-engine", "millrace-offload"],
        theirs: None,
        why: "the engine for other programs: a library without a protocol, a service or an executor",
    },
    Rule {
        krate: "millrace-preload",
        ours: &["millrace-core", "millrace-offload"],
        theirs: Some(&["libc", "rustix"]),
        why: "it is loaded into programs of others: small, and nothing of the server's",
    },
    Rule {
        krate: "millrace-rights",
        ours: &["millrace-core"],
        theirs: None,
        why: "who may do what, for every protocol alike: it knows names of titles and no title",
    },
    Rule {
        krate: "millrace-tls",
        ours: &["millrace-core"],
        theirs: None,
        why: "TLS and its libraries, for every protocol alike: bytes go through it, and it understands none of them",
    },
    Rule {
        krate: "millrace-web",
        ours: &[
            "millrace-core",
            "millrace-media",
            "millrace-store",
            "millrace-rights",
            "millrace-tls",
            "millrace-ts",
        ],
        theirs: None,
        why: "HTTP and its libraries; it sees titles, and the service through a trait, never an engine",
    },
    Rule {
        krate: "millrace-objects",
        ours: &["millrace-core", "millrace-store", "millrace-tls"],
        theirs: None,
        why: "object stores and their libraries; the store knows nothing of them",
    },
    Rule {
        krate: "millrace-client",
        ours: &["millrace-core", "millrace-netio", "millrace-nvod", "millrace-ts"],
        theirs: None,
        why: "it is the oracle: code shared with the server would hide bugs in both",
    },
    Rule {
        krate: "millrace-link",
        ours: &["millrace-core", "millrace-netio"],
        theirs: None,
        why: "a bad network for benchmarks and tests; nothing that is shipped depends on it",
    },
    Rule {
        krate: "millrace-load",
        ours: &["millrace-core", "millrace-netio", "millrace-client"],
        theirs: None,
        why: "thousands of viewers for benchmarks and tests; nothing that is shipped depends on it",
    },
    Rule {
        krate: "millrace-lab",
        ours: &[
            "millrace-core",
            "millrace-cli",
            "millrace-make",
            "millrace-store",
            "millrace-engine",
            "millrace-netio",
            "millrace-offload",
            "millrace-tcp",
            "millrace-stream",
            "millrace-client",
            "millrace-link",
            "millrace-load",
            "millrace-ts",
        ],
        theirs: None,
        why: "measures everything: the server as a program, the rest as libraries too; nothing that is served depends on it",
    },
    Rule {
        krate: "millrace-server",
        ours: &[
            "millrace-core",
            "millrace-cli",
            "millrace-media",
            "millrace-make",
            "millrace-nvod",
            "millrace-store",
            "millrace-objects",
            "millrace-offload",
            "millrace-client",
            "millrace-ts",
            "millrace-rights",
            "millrace-tls",
            "millrace-web",
        ],
        theirs: None,
        why: "the control side: it reaches engine and packet I/O through offload only",
    },
    Rule {
        krate: "millrace-sim",
        ours: &[
            "millrace-core",
            "millrace-store",
            "millrace-engine",
            "millrace-offload",
            "millrace-client",
            "millrace-rights",
            "millrace-server",
            "millrace-web",
        ],
        theirs: None,
        why: "the whole server on one virtual clock: it uses what is served, and nothing uses it",
    },
    Rule {
        krate: "millrace-manual",
        ours: &["millrace-lab", "millrace-server"],
        theirs: Some(&["clap", "clap_complete", "clap_mangen"]),
        why: "it describes the command lines of both programs, so that neither needs the generators",
    },
    Rule {
        krate: "millrace-testkit",
        ours: &["millrace-core", "millrace-engine", "millrace-netio", "millrace-store"],
        theirs: Some(&["rustix"]),
        why: "what tests of several crates share: only dev-dependencies lead to it",
    },
    Rule {
        krate: "xtask",
        ours: &[],
        theirs: Some(&["serde_json"]),
        why: "builds in seconds and works when the rest does not",
    },
];

/// The workshop: benchmarks, the load generator, the emulated link, and man pages of all programs. Only crates of the workshop may use them in normal
/// builds, regardless of the rules above, so that nothing of them is shipped.
const WORKSHOP: &[&str] = &["millrace-lab", "millrace-link", "millrace-load", "millrace-manual"];

/// A crate and the crates that it uses in normal builds.
struct Package {
    name: String,
    uses: BTreeSet<String>,
}

/// `cargo xtask edges`
pub(crate) fn run(_args: &[String]) -> Result<(), String> {
    let packages = packages(&workspace::metadata()?)?;
    for package in &packages {
        let ours: Vec<_> = package.uses.iter().filter(|d| is_ours(d)).map(|d| short(d)).collect();
        println!(
            "{:<8} <- {}",
            short(&package.name),
            if ours.is_empty() { "nothing".into() } else { ours.join(", ") }
        );
    }
    let mut faults = check(&packages);
    faults.extend(workshop_in_product(&packages));
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("{} wrong arrows\n{}", faults.len(), faults.join("\n")))
    }
}

fn short(krate: &str) -> &str {
    krate.strip_prefix("millrace-").unwrap_or(krate)
}

fn is_ours(krate: &str) -> bool {
    krate == "xtask" || krate.starts_with("millrace-")
}

fn packages(metadata: &Value) -> Result<Vec<Package>, String> {
    let list = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    list.iter()
        .map(|package| {
            let name = package["name"].as_str().ok_or("a package without a name")?.to_owned();
            let dependencies = package["dependencies"].as_array().ok_or("a package without dependencies")?;
            let uses = dependencies
                .iter()
                // loom's model takes the place of a part of the standard library in one kind of test.
                .filter(|d| d["kind"].is_null() && d["target"] != "cfg(millrace_loom)")
                .filter_map(|d| d["name"].as_str().map(str::to_owned))
                .collect();
            Ok(Package { name, uses })
        })
        .collect()
}

fn check(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for package in packages {
        let Some(rule) = RULES.iter().find(|r| r.krate == package.name) else {
            faults.push(format!(
                "{}: not in the list; add a rule with its reason to xtask/src/edges.rs",
                package.name
            ));
            continue;
        };
        for used in &package.uses {
            let allowed = if is_ours(used) { Some(rule.ours) } else { rule.theirs };
            if allowed.is_some_and(|list| !list.contains(&used.as_str())) {
                let list = allowed.unwrap_or_default().join(", ");
                let list = if list.is_empty() { "nothing" } else { &list };
                faults.push(format!("{} -> {used}: allowed is {list}; {}", package.name, rule.why));
            }
        }
    }
    for rule in RULES {
        if !packages.iter().any(|p| p.name == rule.krate) {
            faults.push(format!("{}: in the list but not in the workspace; remove its rule", rule.krate));
        }
    }
    faults
}

/// Crates of the product that use one of the workshop.
fn workshop_in_product(packages: &[Package]) -> Vec<String> {
    let in_workshop = |krate: &str| WORKSHOP.contains(&krate);
    let product = packages.iter().filter(|package| !in_workshop(&package.name));
    let edges = product.flat_map(|package| package.uses.iter().map(move |used| (&package.name, used)));
    edges
        .filter(|(_, used)| in_workshop(used))
        .map(|(name, used)| {
            format!("{name} -> {used}: only the workshop ({}) and tests may use it", WORKSHOP.join(", "))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_ruled() -> Vec<Package> {
        RULES
            .iter()
            .map(|r| Package { name: r.krate.into(), uses: r.ours.iter().map(|&d| d.to_owned()).collect() })
            .collect()
    }

    #[test]
    fn workspace_dependencies_match_allowed_edges() {
        let packages = packages(&workspace::metadata().unwrap()).unwrap();
        assert!(packages.len() >= 10, "cargo metadata sees {} crates", packages.len());
        assert_eq!(check(&packages), Vec::<String>::new());
        assert_eq!(workshop_in_product(&packages), Vec::<String>::new());
    }

    #[test]
    fn rules_keep_workshop_out_of_product() {
        assert_eq!(workshop_in_product(&as_ruled()), Vec::<String>::new());
        for name in WORKSHOP {
            assert!(RULES.iter().any(|rule| rule.krate == *name), "{name} is no crate");
        }
    }

    #[test]
    fn product_that_depends_on_workshop_is_a_fault() {
        for product in ["millrace-server", "millrace-web", "millrace-client"] {
            for tool in ["millrace-load", "millrace-link", "millrace-lab"] {
                let mut packages = as_ruled();
                let package = packages.iter_mut().find(|package| package.name == product).unwrap();
                package.uses.insert(tool.into());
                let faults = workshop_in_product(&packages);
                assert_eq!(faults.len(), 1, "{faults:?}");
                assert!(faults[0].starts_with(&format!("{product} -> {tool}: only")), "{faults:?}");
                assert_eq!(check(&packages).len(), 1, "the rules forbid it too");
            }
        }
    }

    #[test]
    fn check_of_allowed_edges_finds_nothing() {
        assert_eq!(check(&as_ruled()), Vec::<String>::new());
    }

    #[test]
    fn check_of_forbidden_edge_reports_reason() {
        let mut packages = as_ruled();
        let engine = packages.iter_mut().find(|p| p.name == "millrace-engine").unwrap();
        engine.uses.insert("millrace-store".into());
        engine.uses.insert("libc".into());
        let faults = check(&packages);
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults[0].starts_with("millrace-engine -> libc: allowed is nothing; deterministic"),
            "{faults:?}"
        );
        assert!(
            faults[1].starts_with("millrace-engine -> millrace-store: allowed is millrace-core;"),
            "{faults:?}"
        );
    }

    #[test]
    fn check_of_store_that_depends_on_make_finds_the_fault() {
        let mut packages = as_ruled();
        let store = packages.iter_mut().find(|p| p.name == "millrace-store").unwrap();
        store.uses.insert("millrace-make".into());
        let faults = check(&packages);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].contains("millrace-store -> millrace-make") && faults[0].contains("never how titles")
        );
    }

    #[test]
    fn unknown_and_missing_crates_are_faults() {
        let mut packages = as_ruled();
        packages.retain(|p| p.name != "millrace-netio");
        packages.push(Package { name: "millrace-extra".into(), uses: BTreeSet::new() });
        let faults = check(&packages);
        assert!(faults.iter().any(|f| f.starts_with("millrace-extra: not in the list")), "{faults:?}");
        assert!(faults.iter().any(|f| f.starts_with("millrace-netio: in the list but not")), "{faults:?}");
    }

    #[test]
    fn packages_ignores_dev_and_build_dependencies() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages":[{"name":"millrace-core","dependencies":[
                {"name":"proptest","kind":"dev"},{"name":"cc","kind":"build"},{"name":"libc","kind":null}]}]}"#,
        )
        .unwrap();
        let packages = packages(&metadata).unwrap();
        assert_eq!(packages[0].uses.iter().collect::<Vec<_>>(), ["libc"]);
    }
}

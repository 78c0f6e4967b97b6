use super::*;

fn found(files: &[(&str, &str)]) -> Vec<String> {
    let mut findings = Vec::new();
    check(&Tree::of(files), &mut findings);
    findings.into_iter().map(|f| format!("{}:{} {}", f.path, f.line, f.what)).collect()
}

fn in_doc(text: &str) -> Vec<String> {
    found(&[
        ("docs/a.md", &format!("# A\n{text}\n")),
        ("docs/b.md", "# B\n## One two\n"),
        ("crates/x.rs", ""),
    ])
}

#[test]
fn document_must_start_with_single_title() {
    assert_eq!(found(&[("a.md", "# A\n\n## B\n```sh\n# a comment\n```\n")]), Vec::<String>::new());
    assert_eq!(found(&[("a.md", "text\n")]), ["a.md:1 the document has no title"]);
    assert_eq!(found(&[("a.md", "text\n# A\n")]), ["a.md:2 the title is not the first line"]);
    assert_eq!(found(&[("a.md", "# A\n# B\n")]), ["a.md:2 a second title"]);
}

#[test]
fn crate_head_with_stale_path_is_found() {
    let head = "//! | the words | `crates/a/src/lib.rs`, `crates/a/src/gone.rs` |\n// `crates/no/head.rs`\n";
    let expected = ["crates/a/src/lib.rs:1 `crates/a/src/gone.rs` is not in the repository"];
    assert_eq!(found(&[("crates/a/src/lib.rs", head)]), expected);
}

#[test]
fn links_lead_somewhere() {
    for good in [
        "[b](b.md) [self](#a) [up](../crates/x.rs)",
        "[b](b.md#one-two \"title\")",
        "[`b`](b.md)",
        "[out](https://example.org/x.md) `[not](a link.md)`",
        "```\n[not](here.md)\n```",
    ] {
        assert_eq!(in_doc(good), Vec::<String>::new(), "{good}");
    }
    assert_eq!(in_doc("[c](c.md)"), ["docs/a.md:2 the link to c.md leads nowhere"]);
    assert_eq!(in_doc("[`c`](c.md)"), ["docs/a.md:2 the link to c.md leads nowhere"]);
    assert_eq!(
        in_doc("[b](b.md#three)"),
        ["docs/a.md:2 docs/b.md has no heading for the link to b.md#three"]
    );
}

#[test]
fn paths_in_backticks_exist() {
    assert_eq!(
        in_doc("`crates/x.rs`, `crates/x.rs:12`, `crates/*/src`, `crates/` and `target/x`"),
        Vec::<String>::new()
    );
    assert_eq!(in_doc("`crates/y.rs`"), ["docs/a.md:2 `crates/y.rs` is not in the repository"]);
}

#[test]
fn machine_specific_paths_are_reported() {
    let place = DOCUMENT_PLACES[0];
    let fault = |line: usize| format!("docs/a.md:{line} the path {place} exists on one machine only");
    assert_eq!(in_doc(&format!("see {place}x")), [fault(2)]);
    assert_eq!(in_doc(&format!("```\ncat {place}x\n```")), [fault(3)]);
    assert_eq!(in_doc(&format!("var{place}x and http://host{place}x")), Vec::<String>::new());
    // Programs may name the temporary folder, but no folder of a machine.
    assert_eq!(found(&[("scripts/a.sh", &format!("cd {place}x"))]), Vec::<String>::new());
    assert_eq!(found(&[("scripts/a.sh", &format!("cd {}x", PLACES[0]))]).len(), 1);
    assert_eq!(in_doc(&format!("the {} folder", DOCUMENT_PLACES[1])).len(), 1);
    assert_eq!(
        in_doc(&format!("a net{} or {}ing", DOCUMENT_PLACES[1], DOCUMENT_PLACES[1])),
        Vec::<String>::new()
    );
}

#[test]
fn documents_talk_about_the_program() {
    assert_eq!(
        in_doc("done in session 12"),
        ["docs/a.md:2 'session <number>' is talk about the work, not about the program"]
    );
    assert_eq!(in_doc("As requested, faster").len(), 1);
    assert_eq!(in_doc("a session ends, sessions end; 12 sessions; the promptness"), Vec::<String>::new());
}

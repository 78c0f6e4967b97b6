//! Comments in plain English: phrases that make a sentence read as translated, counted per crate.
//!
//! A phrase may be right in its place, so a few are allowed. The number per crate can only fall.

use super::{Finding, Tree};
use crate::rust_text::words;

/// Pairs of words: each of the first list before each of the second.
const PAIRS: &[(&[&str], &[&str])] = &[
    (
        &["what"],
        &[
            "is", "was", "has", "had", "it", "they", "comes", "came", "goes", "went", "lies", "can",
            "cannot", "may", "must", "a", "an", "the", "each", "every",
        ],
    ),
    (
        &["who", "whoever"],
        &[
            "is", "was", "has", "had", "ask", "asks", "read", "reads", "give", "gives", "take", "takes",
            "watch", "watches", "may", "can", "cannot", "does", "do", "want", "wants", "come", "comes",
            "call", "calls", "wait", "waits", "listen", "listens", "end", "ends",
        ],
    ),
    (&["so"], &["many", "much", "long", "far", "few", "little"]),
    (&["is to", "are to", "was to", "were to"], &["be", "have"]),
    (&["of", "by", "with", "for", "from"], &["that", "which", "whom"]),
];

/// Words and phrases that count wherever they stand.
const PHRASES: &[&str] = &[
    "told",
    "tells",
    "says",
    "said",
    "be had",
    "anew",
    "put together",
    "believed",
    "made whole",
    "nobody",
    "somebody",
];

/// Comment lines with such a phrase: the crate's folder, and how many it has.
const COUNTS: &[(&str, usize)] = &[
    ("crates/client/", 4),
    ("crates/core/", 3),
    ("crates/engine/", 3),
    ("crates/lab/", 7),
    ("crates/link/", 0),
    ("crates/load/", 0),
    ("crates/make/", 2),
    ("crates/media/", 0),
    ("crates/netio/", 10),
    ("crates/objects/", 0),
    ("crates/offload/", 5),
    ("crates/preload/", 5),
    ("crates/rights/", 0),
    ("crates/server/", 16),
    ("crates/store/", 19),
    ("crates/stream/", 4),
    ("crates/tcp/", 5),
    ("crates/tls/", 0),
    ("crates/ts/", 1),
    ("crates/web/", 5),
    ("xtask/", 0),
];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    check_against(COUNTS, tree, findings);
}

fn check_against(counts: &[(&str, usize)], tree: &Tree, findings: &mut Vec<Finding>) {
    let phrases = phrases();
    for (folder, allowed) in counts {
        let files =
            tree.files.iter().filter(|file| file.path.starts_with(folder) && file.path.ends_with(".rs"));
        let lines = files.flat_map(|file| file.text.lines());
        let found = lines.filter(|line| comment(line).is_some_and(|text| has_one_of(&phrases, text))).count();
        let remedy = match found.cmp(allowed) {
            std::cmp::Ordering::Equal => continue,
            std::cmp::Ordering::Greater => {
                "write the new comment with a subject and a standard noun (docs/ref/glossary.md); \
                 `git diff` shows which it is"
            }
            std::cmp::Ordering::Less => "lower its number in xtask/src/tidy/prose.rs",
        };
        findings.push(Finding {
            path: (*folder).to_owned(),
            line: 0,
            what: format!("{found} comment lines read as translated, {allowed} are listed"),
            remedy: remedy.to_owned(),
        });
    }
}

/// The text of a line that is only a comment; quotations of RFCs are not ours.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']);
    (!text.starts_with(['=', '#'])).then_some(text)
}

fn phrases() -> Vec<String> {
    let pairs = PAIRS.iter().flat_map(|(first, second)| {
        first.iter().flat_map(|a| second.iter().map(move |b| format!("{a} {b}")))
    });
    pairs.chain(PHRASES.iter().map(|phrase| (*phrase).to_owned())).collect()
}

fn has_one_of(phrases: &[String], text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    phrases.iter().any(|phrase| words(&text, phrase).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_hit(line: &str) -> bool {
        comment(line).is_some_and(|text| has_one_of(&phrases(), text))
    }

    #[test]
    fn phrases_in_comments_are_counted() {
        for bad in
            ["/// What is sent.", "    // whoever asks", "//! of that", "// So many bytes", "// is to be had"]
        {
            assert!(is_hit(bad), "{bad}");
        }
        for good in [
            "/// The bytes sent.",
            "let told = 1; // a counter",
            "//# what is said in an RFC",
            "//= https://example.org/what is",
            "// somewhat isolated",
        ] {
            assert!(!is_hit(good), "{good}");
        }
    }

    #[test]
    fn number_per_crate_can_only_fall() {
        let tree = Tree::of(&[("crates/a/src/x.rs", "// What is sent.\n// Nobody.\nfn f() {}\n")]);
        let found = |counts: &[(&str, usize)]| {
            let mut findings = Vec::new();
            check_against(counts, &tree, &mut findings);
            findings.into_iter().map(|finding| finding.remedy.starts_with("lower")).collect::<Vec<_>>()
        };
        assert_eq!(found(&[("crates/a/", 2), ("crates/b/", 0)]), [] as [bool; 0]);
        assert_eq!(found(&[("crates/a/", 1)]), [false]);
        assert_eq!(found(&[("crates/a/", 3)]), [true]);
    }
}

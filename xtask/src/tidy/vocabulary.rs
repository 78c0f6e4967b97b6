//! One word for one thing: words that were used for something that has a standard name, see `docs/ref/glossary.md`.

use super::{Finding, Tree};
use crate::rust_text::words;

/// Not to be used anywhere, and what stands for it. Compared without regard to case; parts of identifiers count.
const RETIRED: &[(&str, &str)] = &[
    ("errand", "a blocking call"),
    ("patience", "a timeout"),
    ("noanswer", "TimedOut"),
    ("shelf", "the extent table (cache), the open titles (library)"),
    ("minder", "the device supervisor"),
    ("door", "a handle, a port, a socket"),
    ("way out", "an egress path"),
    ("ways out", "egress paths"),
    ("mended", "repaired"),
    ("mends", "repairs"),
    ("mending", "repairing"),
    ("made anew", "rebuilt"),
    ("computed anew", "recomputed"),
    ("not to be believed", "stale"),
    ("quiet corruption", "silent corruption"),
    ("goodbye", "RTCP BYE"),
];

/// The same, each in one folder.
const RETIRED_IN: &[(&str, (&str, &str))] = &[("crates/lab/", ("film", "a title, media, a media file"))];

/// Where the words may stand: the list itself, and options that are named for people with films.
const EXCEPT: &[&str] = &["xtask/src/tidy/vocabulary.rs", "crates/lab/src/cmds/load.rs"];

pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let files = tree.files.iter().filter(|file| !EXCEPT.contains(&&*file.path));
    for file in files.filter(|file| file.path.ends_with(".rs") || file.path.ends_with(".md")) {
        let here =
            RETIRED_IN.iter().filter(|(folder, _)| file.path.starts_with(folder)).map(|(_, entry)| entry);
        let retired: Vec<_> = RETIRED.iter().chain(here).collect();
        for (number, line) in file.text.lines().enumerate() {
            // So that the parts of an identifier in snake case are words too.
            let line = line.to_ascii_lowercase().replace('_', " ");
            let found = retired.iter().filter(|(word, _)| {
                words(&line, word).next().is_some() || words(&line, &format!("{word}s")).next().is_some()
            });
            findings.extend(found.map(|(word, instead)| Finding {
                path: file.path.clone(),
                line: number + 1,
                what: format!("'{word}' is not a term of the field"),
                remedy: format!("say {instead}"),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn retired_words_are_found_in_code_comments_and_documents() {
        assert_eq!(found("crates/a/src/x.rs", "let udp_patience = 1;\n// the errands\nfn ok() {}\n"), [1, 2]);
        assert_eq!(found("docs/a.md", "Which way out it takes.\nIt was made anew.\n"), [1, 2]);
    }

    #[test]
    fn retired_words_can_apply_to_one_folder() {
        let text = "let film_bytes = 1;\nfn play(films: &[u8]) {}\n// the title\n";
        assert_eq!(found("crates/lab/src/x.rs", text), [1, 2]);
        assert_eq!(found("crates/store/src/x.rs", text).len(), 0);
    }

    #[test]
    fn longer_words_and_other_files_are_left_alone() {
        assert_eq!(
            found("crates/a/src/x.rs", "struct Doorbell; // the remainder, a reminder, recommended\n").len(),
            0
        );
        assert_eq!(found("scripts/a.sh", "# the door\n").len(), 0);
        assert_eq!(found(EXCEPT[0], "\"errand\"\n").len(), 0);
    }
}

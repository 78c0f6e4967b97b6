//! Words that belong to certain places only, and words that belong nowhere.

use super::allow::{Exceptions, Rule};
use super::{Finding, Tree};

/// Calls that are at home in some folders and need an exception anywhere else outside of tests.
struct Banned {
    calls: &'static [&'static str],
    /// Where the rule holds; everywhere if empty.
    within: &'static [&'static str],
    /// Folders and files that need no exception.
    home: &'static [&'static str],
    /// The exception that excuses a file, if there is one.
    rule: Option<Rule>,
    remedy: &'static str,
}

const BANNED: &[Banned] = &[
    Banned {
        calls: &["Instant::now", "SystemTime::now", "Utc::now", "clock_gettime"],
        within: &[],
        home: &[],
        rule: Some(Rule::Clock),
        remedy: "take the time as an argument, or list the file in xtask/src/tidy/allow.rs with the reason",
    },
    Banned {
        calls: &["println!", "print!", "eprintln!", "eprint!"],
        within: &[],
        // A build script talks to cargo by it.
        home: &[
            "crates/cli/src/",
            "crates/server/src/cmds/",
            "crates/server/src/main.rs",
            "crates/web/build.rs",
            "crates/lab/",
            "crates/manual/src/main.rs",
            "crates/sim/src/main.rs",
            "crates/sim/src/world.rs",
            "xtask/",
        ],
        rule: Some(Rule::Print),
        remedy: "return the text or use tracing; only commands print",
    },
    Banned {
        calls: &["io::stdout", "io::stderr", "std::print", "std::println", "std::eprint", "std::eprintln"],
        within: &["crates/cli/src/", "crates/server/src/"],
        home: &["crates/cli/src/terminal.rs"],
        rule: None,
        remedy: "print through crates/cli/src/terminal.rs: it lets no escape sequence from outside reach the terminal",
    },
    Banned {
        calls: &["dbg!"],
        within: &[],
        home: &[],
        rule: None,
        remedy: "remove it, or make it a tracing event if it is of use",
    },
    Banned {
        calls: &[
            "std::fs",
            "std::io",
            "std::thread",
            "std::time",
            "std::env",
            "std::process",
            "std::sync",
            "Socket::",
        ],
        within: &["crates/engine/src/"],
        home: &[],
        rule: None,
        remedy: "the engine reaches the world through the traits of crates/core/src/seam.rs only",
    },
    Banned {
        calls: &[
            "std::fs",
            "std::thread",
            "std::time::Instant",
            "std::time::SystemTime",
            "std::env",
            "std::process",
        ],
        within: &["crates/core/src/"],
        home: &[],
        rule: None,
        remedy: "core holds words; what touches the machine lies behind a trait of crates/core/src/seam.rs",
    },
    Banned {
        calls: &["crate::rtsp", "crate::session", "crate::sdp", "crate::control", "rtsp_types"],
        within: &["crates/server/src/service/"],
        home: &[],
        rule: None,
        remedy: "the service knows no protocol: say it in titles, streams, media time and refusals, and translate in crates/server/src/session/",
    },
];

/// Marks of unfinished work, concatenated here so that this file does not contain them.
const LEFT_OVER: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];

pub(super) fn check(tree: &Tree, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    banned(tree, exceptions, findings);
    left_over(tree, findings);
}

fn banned(tree: &Tree, exceptions: &Exceptions, findings: &mut Vec<Finding>) {
    for (file, rust) in tree.rust().filter(|(file, _)| !file.is_test()) {
        let starts = |place: &&str| file.path.starts_with(place);
        for banned in BANNED {
            if !banned.within.is_empty() && !banned.within.iter().any(starts)
                || banned.home.iter().any(starts)
            {
                continue;
            }
            let hits = banned.calls.iter().flat_map(|&call| rust.words(call).map(move |at| (at, call)));
            for (at, call) in hits.filter(|&(at, _)| !rust.in_test(at)) {
                if banned.rule.is_some_and(|rule| exceptions.allows(rule, &file.path)) {
                    continue;
                }
                findings.push(Finding {
                    path: file.path.clone(),
                    line: rust.line(at),
                    what: format!("`{call}` has no place here"),
                    remedy: banned.remedy.into(),
                });
            }
        }
    }
}

fn left_over(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            let found = LEFT_OVER.iter().filter(|mark| crate::rust_text::words(line, mark).next().is_some());
            findings.extend(found.map(|mark| Finding {
                path: file.path.clone(),
                line: number + 1,
                what: format!("{mark} was left over"),
                remedy: "do it now, or write down the limit as a fact".into(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::allow::AllowEntry;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        static LIST: &[AllowEntry] =
            &[AllowEntry { rule: Rule::Clock, path: "crates/offload/src/clock.rs", reason: "the clock" }];
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &Exceptions::new(LIST), &mut findings);
        findings.into_iter().map(|f| (f.line, f.what)).collect()
    }

    #[test]
    fn service_using_protocol_modules_is_reported() {
        let text = "use crate::rtsp::Reply;\nfn f(_: &rtsp_types::Url) -> crate::session::State {}\n";
        let found_in = |path: &str| found(path, text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
        assert_eq!(found_in("crates/server/src/service/fec/x.rs"), [1, 2, 2]);
        assert_eq!(found_in("crates/server/src/session/x.rs").len(), 0);
        let own = "use crate::service::Refusal;\n// what crate::session makes of it\n";
        assert_eq!(found("crates/server/src/service/x.rs", own), []);
    }

    #[test]
    fn clocks_are_read_in_listed_files_only() {
        let text = "fn f() {\n    let now = std::time::Instant::now();\n}\n";
        assert_eq!(found("crates/store/src/x.rs", text), [(2, "`Instant::now` has no place here".into())]);
        assert_eq!(found("crates/offload/src/clock.rs", text), []);
    }

    #[test]
    fn print_outside_terminal_module_is_reported() {
        for call in ["std::io::stdout().lock();", "let log = io::stderr;", "std::println!(\"{name}\");"] {
            assert_eq!(found("crates/server/src/cmds/x.rs", call).len(), 1, "{call}");
            assert_eq!(found("crates/cli/src/terminal.rs", call), [], "{call}");
        }
        assert_eq!(found("crates/server/src/cmds/x.rs", "println!(\"{name}\");"), []);
    }

    #[test]
    fn tests_comments_and_strings_are_free() {
        let call = "Instant::now()";
        assert_eq!(found("crates/store/src/x_tests.rs", call), []);
        assert_eq!(found("crates/store/tests/x.rs", call), []);
        assert_eq!(
            found("crates/store/src/x.rs", &format!("// not {call}\nconst A: &str = \"{call}\";")),
            []
        );
        assert_eq!(
            found("crates/store/src/x.rs", &format!("#[cfg(test)]\nmod tests {{\n    {call};\n}}\n")),
            []
        );
    }

    #[test]
    fn print_is_allowed_only_in_commands() {
        let text = "println!(\"\");";
        assert_eq!(found("crates/store/src/x.rs", text).len(), 1);
        assert_eq!(found("crates/server/src/session.rs", "eprintln!(\"\");").len(), 1);
        assert_eq!(found("crates/server/src/cmds/ls.rs", text), []);
        assert_eq!(found("crates/lab/src/x.rs", text), []);
    }

    #[test]
    fn engine_using_std_io_or_time_is_reported() {
        let text = "use std::fs::File;\nuse std::time::Duration;\n";
        assert_eq!(found("crates/engine/src/x.rs", text).len(), 2);
        assert_eq!(found("crates/core/src/x.rs", text).len(), 1);
        assert_eq!(found("crates/store/src/x.rs", text), []);
    }

    #[test]
    fn left_overs_are_found_in_any_text() {
        let mark = LEFT_OVER[0];
        assert_eq!(
            found("scripts/a.sh", &format!("ok\n# {mark}: more\n")),
            [(2, format!("{mark} was left over"))]
        );
        assert_eq!(found("crates/core/src/a_tests.rs", &format!("// {mark}")).len(), 1);
        assert_eq!(found("scripts/a.sh", "mktemp -d /x/demo.XXXXXX  # methods"), []);
        assert_eq!(found("crates/lab/src/x.rs", concat!("db", "g!(1);")).len(), 1);
    }
}

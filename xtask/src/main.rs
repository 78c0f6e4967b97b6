//! Chores of the workspace. `cargo xtask` without an argument prints the list.
#![forbid(unsafe_code)]

mod ci;
mod edges;
mod errors;
mod fuzz;
mod interop;
mod loom;
mod miri;
mod notices;
mod rfc;
mod rust_text;
mod suite;
mod tidy;
mod turns;
mod workspace;

use std::process::ExitCode;

/// One chore: its word, its description, and the function that runs it with the remaining
/// arguments.
struct Chore {
    word: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<(), String>,
}

const CHORES: &[Chore] = &[
    Chore {
        word: "ci",
        help: "everything that CI runs, failures collected (ci --list names the parts)",
        run: ci::run,
    },
    Chore {
        word: "test",
        help: "all tests, several programs at a time: test [--at-once N] [TEXT...]",
        run: suite::run,
    },
    Chore { word: "tidy", help: "the house rules that no compiler holds", run: tidy::run },
    Chore {
        word: "figures",
        help: "code lines, circles of files and shared names of types, counted: figures [CHECKOUT]",
        run: tidy::figures::run,
    },
    Chore { word: "edges", help: "which crate may depend on which, against cargo metadata", run: edges::run },
    Chore {
        word: "errors",
        help: "write docs/ref/errors.md, the messages that the code can print [--check]",
        run: errors::run,
    },
    Chore {
        word: "notices",
        help: "print the licences of the crates that are linked into the programs",
        run: notices::run,
    },
    Chore {
        word: "rfc",
        help: "sentences of RFCs quoted in the code, against their texts: rfc [--list]",
        run: rfc::run,
    },
    Chore {
        word: "interop",
        help: "real players against the millrace program (interop --help)",
        run: interop::run,
    },
    Chore {
        word: "loom",
        help: "every order in which threads can run, for what core shares without locks: loom [--long]",
        run: loom::run,
    },
    Chore {
        word: "miri",
        help: "the unsafe code of core, every access to memory checked (needs a nightly with miri)",
        run: miri::run,
    },
    Chore {
        word: "fuzz",
        help: "all property tests for longer: fuzz [--seconds N] [NAME...]",
        run: fuzz::run,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((word, rest)) = args.split_first() else {
        print!("{}", list());
        return ExitCode::SUCCESS;
    };
    if matches!(word.as_str(), "help" | "-h" | "--help") {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    let Some(chore) = CHORES.iter().find(|c| c.word == word) else {
        eprint!("xtask: there is no chore '{word}'\n\n{}", list());
        return ExitCode::from(2);
    };
    match (chore.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {word}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> String {
    let mut text = String::from("usage: cargo xtask CHORE [ARGUMENTS]\n\n");
    for chore in CHORES {
        text += &format!("  {:<8} {}\n", chore.word, chore.help);
    }
    text
}

//! Writes man pages and shell completions. The packages contain them; the programs do not contain their generators.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Below `/usr/share`: the shell, its folder and the name of the file that it looks for.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "bash-completion/completions", "millrace"),
    (Shell::Zsh, "zsh/vendor-completions", "_millrace"),
    (Shell::Fish, "fish/vendor_completions.d", "millrace.fish"),
];

fn main() -> ExitCode {
    let Some(share) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("millrace-manual: no folder given; usage: millrace-manual DIR");
        return ExitCode::from(2);
    };
    match write_to(&share) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-manual: {}: {error}; choose another folder", share.display());
            ExitCode::FAILURE
        }
    }
}

/// `load` and `bench` take their options from the other program, which runs them.
fn command() -> Command {
    let lab = millrace_lab::cmds::command();
    let described = |name: &str| lab.find_subcommand(name).cloned();
    let mut command = millrace_server::cmds::command();
    for name in ["load", "bench"] {
        if let Some(described) = described(name) {
            command = command.mut_subcommand(name, |_| described);
        }
    }
    command
}

/// Writes into a folder with the structure of `/usr/share`.
fn write_to(share: &Path) -> std::io::Result<()> {
    let man = share.join("man/man1");
    std::fs::create_dir_all(&man)?;
    clap_mangen::generate_to(command(), &man)?;
    for (shell, folder, name) in COMPLETIONS {
        let folder = share.join(folder);
        std::fs::create_dir_all(&folder)?;
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command(), "millrace", &mut text);
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn write_to_makes_a_page_for_each_command_and_completions_for_each_shell() {
        let dir = tempfile::tempdir().unwrap();
        write_to(dir.path()).unwrap();
        let page = |name: &str| fs::read_to_string(dir.path().join("man/man1").join(name)).unwrap();
        assert!(page("millrace.1").contains("millrace\\-serve(1)"));
        assert!(page("millrace-serve.1").contains("\\-\\-max\\-rate"));
        assert!(page("millrace-volume-create.1").contains(".TH millrace-volume-create 1"));
        // Described by millrace-lab.
        assert!(
            page("millrace-load.1").contains("\\-\\-streams")
                && page("millrace-bench.1").contains("\\-\\-tiny")
        );
        let pages = fs::read_dir(dir.path().join("man/man1")).unwrap().count();
        let hidden = dir.path().join("man/man1/millrace-bench-sender.1");
        assert!(pages > 25 && !hidden.exists(), "{pages} pages");
        for (_, folder, name) in COMPLETIONS {
            let text = fs::read_to_string(dir.path().join(folder).join(name)).unwrap();
            assert!(text.contains("max-rate") && text.contains("volume"), "{name}: {text}");
        }
    }
}

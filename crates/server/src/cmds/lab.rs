//! Commands of `millrace-lab`, the program for measurements: installed apart, and run under this program's name.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

/// The program; it lies beside this one or on the search path.
const PROGRAM: &str = "millrace-lab";

/// The whole command line, `--help` included, goes to the other program.
#[derive(Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
pub(super) struct LabArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// `millrace help load`: the other program describes its options.
pub(super) fn help(argv: &[OsString]) -> Option<anyhow::Result<ExitCode>> {
    match argv {
        [_, help, command] if help == "help" && (command == "load" || command == "bench") => {
            Some(run(&command.to_string_lossy(), &LabArgs { arguments: vec!["--help".into()] }))
        }
        _ => None,
    }
}

/// Becomes the other program.
pub(super) fn run(command: &str, args: &LabArgs) -> anyhow::Result<ExitCode> {
    match become_lab(command, args) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(anyhow::anyhow!(
            "{command}: the program {PROGRAM} is not installed; install the package {PROGRAM}, or build it: make build"
        )),
        Err(error) => Err(anyhow::anyhow!("{command}: {PROGRAM} cannot be started: {error}")),
        Ok(never) => match never {},
    }
}

fn become_lab(command: &str, args: &LabArgs) -> std::io::Result<Infallible> {
    let beside =
        std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|path| path.exists());
    let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
    Err(Command::new(program).arg(command).args(&args.arguments).exec())
}

//! The `millrace` program: parse, run, exit code.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_server::cmds::main()
}

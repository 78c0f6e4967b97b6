//! The `millrace-lab` program: benchmarks and the load generator.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_lab::cmds::main()
}

//! Errors of a command, and its exit code: 0 success, 1 an error, 2 an invalid command line.

use std::process::ExitCode;

use crate::terminal;

/// An error that another command line would avoid.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Usage(anyhow::Error);

/// Marks an error as the command line's.
pub fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(error).into()
}

/// Reports the error of a command, and returns its exit code. `millrace ls | head` ends when head has seen enough: that is no
/// failure.
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::from(code_of(&error))
        }
    }
}

/// Whether another command line would avoid an error.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>()
}

/// The exit code that goes with an error.
pub fn code_of(error: &anyhow::Error) -> u8 {
    if is_usage(error) { 2 } else { 1 }
}

/// Reports an error on standard error.
pub fn complain(error: &anyhow::Error) {
    terminal::eprint(format_args!("millrace: {}", words(error)), "\n");
}

/// Returns an error and its causes, each stated once: many already name their cause in their own
/// words.
pub fn words(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.contains(&cause) {
            let colon = if said.is_empty() { "" } else { ": " };
            said.push_str(colon);
            said.push_str(&cause);
        }
    }
    said
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes one JSON document to standard output.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(value)?;
    terminal::print(format_args!("{}", terminal::printable_json(&json)), "\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_error_state_each_cause_once() {
        let refused = || std::io::Error::from_raw_os_error(111);
        let error = anyhow::Error::new(refused()).context(format!("host: {}; look there", refused()));
        assert_eq!(words(&error), "host: Connection refused (os error 111); look there");
        let error = anyhow::Error::new(refused()).context("listen");
        assert_eq!(words(&error), "listen: Connection refused (os error 111)");
    }

    #[test]
    fn code_of_an_invalid_command_line_is_2() {
        assert_eq!(code_of(&usage(anyhow::anyhow!("--x: is unknown"))), 2);
        assert_eq!(code_of(&anyhow::anyhow!("disk full")), 1);
    }
}

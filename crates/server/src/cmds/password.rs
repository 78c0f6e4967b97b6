//! Passwords are typed without being shown, or piped in; never arguments, which every user of the machine can read.

use std::io::{BufRead, IsTerminal, stdin};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, ensure};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::SignalKind;

/// Reads a new password: typed twice, or the first line of piped input.
pub(super) fn new_password(user: &str) -> anyhow::Result<String> {
    if !stdin().is_terminal() {
        return line().context("standard input: cannot be read");
    }
    super::on_signals(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()], || {
        show();
        eprintln!();
        std::process::exit(130);
    })?;
    let password = typed(&format!("Password of {user}: "))?;
    // A user that cannot see the input mistypes it sooner or later.
    let again = typed("The same again: ")?;
    ensure!(password == again, "the two passwords are not the same; try again");
    Ok(password)
}

fn typed(prompt: &str) -> anyhow::Result<String> {
    // First, because input at a prompt must not be shown.
    let hidden = Hidden::begin().context("terminal: its echo cannot be turned off; pipe the password in")?;
    eprint!("{prompt}");
    let password = line();
    drop(hidden);
    eprintln!();
    password.context("terminal: cannot be read")
}

/// One line of standard input, without its end.
fn line() -> std::io::Result<String> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    let length = line.trim_end_matches(['\r', '\n']).len();
    line.truncate(length);
    Ok(line)
}

/// The terminal's previous state, while it does not show input.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// While it lives, the terminal does not show input. It does again if a signal ends the program
/// meanwhile, see [`new_password`].
struct Hidden(());

impl Hidden {
    fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // Neither stops it nor ends it past the signals above.
        hidden.special_codes[SpecialCodeIndex::VSUSP] = 0;
        hidden.special_codes[SpecialCodeIndex::VQUIT] = 0;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let begun = Self(());
        tcsetattr(stdin(), OptionalActions::Flush, &hidden)?;
        Ok(begun)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        show();
    }
}

fn show() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // If it cannot be set back, `stty sane` helps; an error cannot be reported here.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

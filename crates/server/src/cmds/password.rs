//! Passwords are typed without being shown, or piped in; never arguments, which every user of the machine can read.

use std::io::{BufRead, IsTerminal, stdin};

use anyhow::{Context, ensure};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// A new password: typed twice, or the first line of what is piped in.
pub(super) fn new_password(user: &str) -> anyhow::Result<String> {
    if !stdin().is_terminal() {
        return line().context("standard input: cannot be read");
    }
    let password = typed(&format!("Password of {user}: "))?;
    // Whoever cannot see what is typed mistypes it sooner or later.
    let again = typed("The same again: ")?;
    ensure!(password == again, "the two passwords are not the same; try again");
    Ok(password)
}

fn typed(prompt: &str) -> anyhow::Result<String> {
    eprint!("{prompt}");
    let hidden = Hidden::begin().context("terminal: its echo cannot be turned off; pipe the password in")?;
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

/// While it lives, the terminal does not show what is typed.
struct Hidden(rustix::termios::Termios);

impl Hidden {
    fn begin() -> std::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // If it cannot be set back, `stty sane` helps; there is nobody to tell.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

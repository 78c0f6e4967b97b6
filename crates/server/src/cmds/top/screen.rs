//! The terminal while `top` draws on it: keys come one by one, and the previous contents come back,
//! whatever ends the program.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::ensure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::cmds::terminal;
use crate::limits::control::TOP_KEY_WAIT;

/// The other screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the upper left; to the end of a line, of the screen.
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Where a terminal does not say how large it is.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// How the terminal was, while it is not.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPress {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
}

/// The terminal, drawn on. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Screen(());

impl Screen {
    pub(super) fn enter() -> anyhow::Result<Self> {
        let is_terminal = io::stdin().is_terminal() && terminal::stdout_is_terminal();
        ensure!(is_terminal, "top needs a terminal; use --once to print the state of the server");
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        // Ctrl-C stays a signal.
        raw.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        // Stopped by Ctrl-Z, or killed by Ctrl-\, it would leave the terminal as it is.
        raw.special_codes[SpecialCodeIndex::VSUSP] = 0;
        raw.special_codes[SpecialCodeIndex::VQUIT] = 0;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let screen = Self(());
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        restore_on_panic();
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(terminal::screen()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows these lines, and nothing else. They are printable.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        // In one piece, so that nothing flickers; no line end behind the last, which would scroll.
        let ends = format!("{REST_OF_LINE}\r\n");
        write(&format!("{HOME}{}{REST_OF_LINE}{REST_OF_SCREEN}", lines.join(&ends)))
    }

    /// Returns the keys pressed since the last call; waits a moment for one.
    pub(super) fn keys(&self) -> io::Result<Vec<KeyPress>> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: TOP_KEY_WAIT.subsec_nanos().into() })) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut bytes = [0; 64];
        match rustix::io::read(&stdin, &mut bytes) {
            // The terminal is gone.
            Ok(0) => Ok(vec![KeyPress::Char('q')]),
            Ok(count) => Ok(keys(&bytes[..count])),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, once.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // There is nothing left to do where the terminal takes neither. What takes no time first: the other may wait for the terminal to read.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
        let _ = write(LEAVE);
    }
}

/// Gives the terminal back while a draw may be waiting for it, with the lock of standard output: nothing here waits.
pub(super) fn leave_at_once() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
    let out = terminal::screen_without_lock();
    let mut fds = [PollFd::new(&out, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
        let _ = rustix::io::write(&out, LEAVE.as_bytes());
    }
}

/// Ensures that a panic message is not lost with the other screen.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            said(info);
        }));
    });
}

fn write(text: &str) -> io::Result<()> {
    let mut out = terminal::screen();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Returns the keys in a terminal's input; unknown ones are skipped.
fn keys(mut bytes: &[u8]) -> Vec<KeyPress> {
    const SEQUENCES: [(&[u8], KeyPress); 6] = [
        (b"\x1b[A", KeyPress::Up),
        (b"\x1b[B", KeyPress::Down),
        (b"\x1bOA", KeyPress::Up),
        (b"\x1bOB", KeyPress::Down),
        (b"\x1b[5~", KeyPress::PageUp),
        (b"\x1b[6~", KeyPress::PageDown),
    ];
    let mut found = Vec::new();
    while let Some(&first) = bytes.first() {
        let sequence = SEQUENCES.iter().find(|(sequence, _)| bytes.starts_with(sequence));
        match sequence {
            Some((sequence, key)) => {
                found.push(*key);
                bytes = &bytes[sequence.len()..];
            }
            None => {
                // Of other sequences nothing may be taken for a letter.
                let length = if first == 0x1b { bytes.len() } else { 1 };
                found.extend((first != 0x1b && first.is_ascii()).then(|| KeyPress::Char(first.into())));
                bytes = &bytes[length..];
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn keys_that_mean_something() {
        use KeyPress::{Char, Down, PageDown, PageUp, Up};
        assert_eq!(keys(b"rl"), [Char('r'), Char('l')]);
        assert_eq!(keys(b"\x1b[A\x1bOB\x1b[5~q\x1b[6~"), [Up, Down, PageUp, Char('q'), PageDown]);
        assert_eq!(keys(b"\x1b[1;5Cq"), [], "Ctrl and an arrow end nothing");
        assert_eq!(keys(b"\xc3\xa4"), []);
    }

    #[test]
    #[ignore = "for the test below, which gives it a terminal"]
    fn panics() {
        let _screen = Screen::enter().unwrap();
        panic!("this is why");
    }

    #[test]
    fn screen_on_panic_restores_terminal_before_message() {
        let test = std::env::current_exe().unwrap();
        let panics =
            format!("'{}' --exact cmds::top::screen::tests::panics --ignored --nocapture", test.display());
        let script = Command::new("script")
            .args(["-q", "-e", "-c", &format!("{panics}; stty -a"), "/dev/null"])
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null())
            .output()
            .expect("script of util-linux can be started");
        let said = String::from_utf8_lossy(&script.stdout);
        let place = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text:?} in {said:?}"));
        assert!(place(ENTER) < place(LEAVE) && place(LEAVE) < place("this is why"), "{said:?}");
        assert!(said.contains(" icanon") && said.contains(" echo "), "{said}");
    }
}

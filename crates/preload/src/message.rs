//! Messages to the user: on standard error, each once.

use std::sync::Mutex;

use crate::limits::MAX_TEXTS;

/// Messages already printed. They are few: each names a function or a setting.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says it, if it is new.
pub(crate) fn once(text: &str) {
    if is_new(text) {
        let line = format!("millrace preload: {text}\n");
        // Past the standard library: nothing of the program's is locked, and a closed descriptor is no error.
        let _ = rustix::io::write(std::io::stderr(), line.as_bytes());
    }
}

fn is_new(text: &str) -> bool {
    // A signal handler may interrupt here: then the message is not printed.
    let Ok(mut said) = SAID.try_lock() else { return false };
    if said.len() >= MAX_TEXTS || said.iter().any(|known| known == text) {
        return false;
    }
    said.push(text.to_owned());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_new_rejects_repeated_and_excess_messages() {
        assert!(is_new("splice: no"));
        assert!(!is_new("splice: no"));
        let new = (0..1000).filter(|number| is_new(&number.to_string())).count();
        assert!(new < MAX_TEXTS);
    }
}

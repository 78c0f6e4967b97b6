//! Results from elsewhere that requests wait for: whether a password is right, and the answer of
//! the operator's program.

use millrace_rights::{Check, Question};

use super::hub::Hub;
use crate::service::ConnKey;

impl Hub {
    /// Starts the check of a password on another thread, which reports its end through the channel
    /// that [`Hub::password_checked`] is called from.
    pub(super) fn check_password(&self, conn: ConnKey, check: Check) {
        let checked = self.checked.clone();
        // When the server ends, there is no receiver any more.
        let done = move || {
            let _ = checked.send(conn);
        };
        match self.server.gate() {
            Some(gate) => gate.check(check, Box::new(done)),
            None => done(),
        }
    }

    /// Asks the operator's program; its answer is reported like a checked password.
    pub(super) fn ask_beside(&self, conn: ConnKey, question: Question) {
        let checked = self.checked.clone();
        // When the server ends, there is no receiver any more.
        let done = move || {
            let _ = checked.send(conn);
        };
        match self.server.gate().and_then(|gate| gate.advised()) {
            Some(advised) => advised.ask(question, Box::new(done)),
            None => done(),
        }
    }

    /// A password that a request has waited for has been checked.
    pub(super) fn password_checked(&mut self, conn: ConnKey) {
        let now = self.now();
        self.rtsp().password_checked(now, conn);
        self.flush();
        if let Some(line) = self.lines.get(&conn) {
            line.wake.notify_one();
        }
    }
}

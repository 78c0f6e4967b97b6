//! What requests wait for that is found out elsewhere: whether a password is right, and what the operator's program says.

use millrace_rights::{Check, Question};

use super::hub::Hub;
use crate::service::ConnKey;

impl Hub {
    /// Has a password checked on another thread, which says so on the way that [`Hub::password_checked`] is called from.
    pub(super) fn check_password(&self, conn: ConnKey, check: Check) {
        let checked = self.checked.clone();
        // Nobody hears it any more when the server ends.
        let done = move || {
            let _ = checked.send(conn);
        };
        match self.server.gate() {
            Some(gate) => gate.check(check, Box::new(done)),
            None => done(),
        }
    }

    /// Has the operator's program asked, which is told as a checked password is.
    pub(super) fn ask_beside(&self, conn: ConnKey, question: Question) {
        let checked = self.checked.clone();
        // Nobody hears it any more when the server ends.
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
        self.server.password_checked(now, conn);
        self.flush();
        if let Some(line) = self.lines.get(&conn) {
            line.wake.notify_one();
        }
    }
}

//! Notices as log lines: those that strangers can cause at will at a bounded rate.

use millrace_core::time::{Instant, NS_PER_S};

use crate::session::Notice;

/// Lines a second that strangers can cause.
const HOSTILE_LINES_PER_S: u32 = 10;

/// Writes lines, or counts them.
#[derive(Debug, Default)]
pub(super) struct NoticeLog {
    second: u64,
    lines: u32,
    suppressed: u64,
}

impl NoticeLog {
    pub(super) fn write(&mut self, now: Instant, notice: &Notice) {
        let suppressed = match self.admit(now, notice.is_hostile()) {
            Some(suppressed) => suppressed,
            None => return,
        };
        if suppressed > 0 {
            tracing::warn!("{suppressed} lines about refused or broken requests were left out");
        }
        if notice.is_warning() { tracing::warn!("{notice}") } else { tracing::info!("{notice}") }
    }

    /// `None`: leave this line out. Otherwise write it, after saying how many have been left out before.
    fn admit(&mut self, now: Instant, hostile: bool) -> Option<u64> {
        if !hostile {
            return Some(0);
        }
        let second = now.0 / NS_PER_S;
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        if self.lines >= HOSTILE_LINES_PER_S {
            self.suppressed += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_fill_no_disk() {
        let mut log = NoticeLog::default();
        let second = |s: u64| Instant(s * NS_PER_S);
        let written = (0..1000).filter(|_| log.admit(second(5), true).is_some()).count();
        assert_eq!(written, HOSTILE_LINES_PER_S as usize);
        // What matters is always written, and says nothing of the others.
        assert_eq!(log.admit(second(5), false), Some(0));
        assert_eq!(log.admit(second(6), true), Some(990));
        assert_eq!(log.admit(second(6), true), Some(0));
    }
}

//! Whether all that was sent again was sent for nothing: then the reduction is taken back (RFC 3522 by time stamps, RFC 2883 by reports
//! of duplicates).

use crate::rtt::is_stamp_before;

/// Whether a reduction may be taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Episode {
    #[default]
    Over,
    /// Nothing was sent again yet.
    Begun,
    Retransmitted,
}

/// State of an episode of loss.
#[derive(Debug, Default)]
pub(crate) struct Undo {
    /// Segments sent again that the receiver has not reported as duplicates.
    unreported: u16,
    /// Time stamp of the first of them (RFC 3522: RetransmitTS).
    stamp: u32,
    episode: Episode,
    /// A D-SACK came at any time of the connection.
    has_seen_dsack: bool,
}

/// Information from an acknowledgment about the episode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) echo: Option<u32>,
    pub(crate) has_advanced: bool,
    pub(crate) acks_all: bool,
    /// Segments reported to have come twice.
    pub(crate) duplicates: Option<u32>,
}

impl Undo {
    /// A recovery begins, and with it an episode.
    pub(crate) fn begin(&mut self) {
        (self.unreported, self.episode) = (0, Episode::Begun);
    }

    /// The episode is over.
    pub(crate) fn end(&mut self) {
        self.episode = Episode::Over;
    }

    /// A segment was sent again.
    pub(crate) fn sent(&mut self, stamp: u32) {
        //= RFC 3522 section 3.2
        //# A
        //# TCP sender must ensure that RetransmitTS does not get
        //# overwritten as loss recovery progresses, e.g., in case of
        //# a second timeout and subsequent second retransmit of the
        //# same octet.
        if self.episode == Episode::Begun {
            (self.stamp, self.episode) = (stamp, Episode::Retransmitted);
        }
        self.unreported = self.unreported.saturating_add(1);
    }

    /// Whether the acknowledgment shows that the reduction was for nothing.
    pub(crate) fn acked(&mut self, evidence: &Evidence) -> bool {
        let had_seen_dsack = self.has_seen_dsack;
        self.has_seen_dsack |= evidence.duplicates.is_some();
        if self.episode != Episode::Retransmitted {
            return false;
        }
        if let Some(duplicates) = evidence.duplicates {
            //= RFC 3522 section 3.2
            //# (5)     If the acceptable ACK carries a DSACK option [RFC2883],
            //# then proceed to step (DONE),
            self.unreported = self.unreported.saturating_sub(duplicates.min(u32::from(u16::MAX)) as u16);
            return self.unreported == 0;
        }
        //= RFC 3522 section 3.2
        //# (4)     If the value of the Timestamp Echo Reply field of the
        //# acceptable ACK's Timestamps option is smaller than the
        //# value of RetransmitTS, then proceed to step (5),
        //# else proceed to step (DONE).
        evidence.has_advanced
            && evidence.echo.is_some_and(|echo| is_stamp_before(echo, self.stamp))
            && (had_seen_dsack || !evidence.acks_all)
    }
}

#[cfg(test)]
#[path = "undo_tests.rs"]
mod tests;

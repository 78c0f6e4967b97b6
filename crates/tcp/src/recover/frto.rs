//! F-RTO: whether a retransmission time-out was spurious (RFC 5682 section 3, with SACK).

use crate::seq::Seq;

/// How far the algorithm is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Frto {
    /// Not running.
    #[default]
    Off,
    /// Step 2: waits for the acknowledgment of the data that was sent again.
    Retransmitted,
    /// Step 2b: two segments of new data may go, then step 3.
    SendsTwo,
    /// One more of them.
    SendsOne,
    /// Step 3: waits for the next acknowledgment.
    Decides,
}

/// Result of the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeoutVerdict {
    /// Nothing yet, or nothing any more.
    None,
    /// The time-out was genuine: the window must be at most this number of segments.
    Genuine(u32),
    /// The time-out was spurious.
    Spurious,
}

/// An acknowledgment as it looks at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrtoAck {
    pub(crate) ack: Seq,
    pub(crate) has_advanced: bool,
    /// End of the last data that it selectively acknowledges for the first time.
    pub(crate) sacked_until: Option<Seq>,
    pub(crate) recovery_point: Seq,
}

impl Frto {
    /// Whether new data goes before retransmissions.
    pub(crate) fn sends_new(self) -> bool {
        self.segments().is_some()
    }

    /// How many segments of new data may go, where it has a say in it.
    pub(crate) fn segments(self) -> Option<u32> {
        match self {
            Self::Off | Self::Retransmitted => None,
            Self::SendsTwo => Some(2),
            Self::SendsOne => Some(1),
            Self::Decides => Some(0),
        }
    }

    /// A segment of new data was sent.
    pub(crate) fn sent_new(&mut self) {
        *self = match *self {
            Self::SendsTwo => Self::SendsOne,
            Self::SendsOne => Self::Decides,
            other => other,
        };
    }

    /// There is nothing new to send.
    pub(crate) fn cannot_send(&mut self) {
        //= RFC 5682 section 3.1
        //# If the
        //# TCP sender is not able to transmit any previously unsent data
        //# -- either due to receiver window limitation or because it does
        //# not have any new data to send -- the recommended action is to
        //# refrain from entering step 3 of this algorithm.
        *self = match *self {
            // One of the two segments went: its acknowledgment decides as well.
            Self::SendsOne | Self::Decides => Self::Decides,
            _ => Self::Off,
        };
    }

    pub(crate) fn acked(&mut self, ack: &FrtoAck) -> TimeoutVerdict {
        match *self {
            Self::Off => TimeoutVerdict::None,
            Self::Retransmitted if !ack.has_advanced => TimeoutVerdict::None,
            //= RFC 5682 section 3.1
            //# a) If the Cumulative Acknowledgment field covers "RecoveryPoint"
            //# but not more than "RecoveryPoint", revert to the conventional
            //# RTO recovery and set the congestion window to no more than 2 *
            //# MSS, like a regular TCP would do.
            Self::Retransmitted if !ack.ack.before(ack.recovery_point) => {
                *self = Self::Off;
                TimeoutVerdict::Genuine(2)
            }
            //= RFC 5682 section 3.1
            //# b) Else, if the Cumulative Acknowledgment field does not cover
            //# "RecoveryPoint" but is larger than SND.UNA, transmit up to two
            //# new (previously unsent) segments and proceed to step 3.
            Self::Retransmitted => {
                *self = Self::SendsTwo;
                TimeoutVerdict::None
            }
            Self::SendsTwo | Self::SendsOne | Self::Decides => {
                *self = Self::Off;
                let is_past = |end: Seq| end.after(ack.recovery_point);
                let is_new = ack.has_advanced || ack.sacked_until.is_some();
                //= RFC 5682 section 3.1
                //# b) If the Cumulative Acknowledgment field or a SACK information in
                //# the ACK does not cover more than "RecoveryPoint" AND it
                //# acknowledges data that was not acknowledged earlier (either
                //# with cumulative acknowledgment or using SACK information),
                //# declare the timeout spurious and set SpuriousRecovery to
                //# SPUR_TO.
                if is_new && !is_past(ack.ack) && !ack.sacked_until.is_some_and(is_past) {
                    TimeoutVerdict::Spurious
                } else {
                    TimeoutVerdict::Genuine(3)
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "frto_tests.rs"]
mod tests;

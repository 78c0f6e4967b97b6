//! Segments for a connection that does not exist (RFC 9293 section 3.10.7.1), and for a listener (section 3.10.7.2).

use crate::seq::Seq;
use crate::wire::{Flags, Head, Segment};

/// CLOSED: the reset to send.
pub(crate) fn answer_closed(segment: &Segment<'_>) -> Option<Head> {
    //= RFC 9293 section 3.10.7.1
    //# all data in the incoming segment is discarded.  An incoming
    //# segment containing a RST is discarded.  An incoming segment not
    //# containing a RST causes a RST to be sent in response.
    if segment.flags.has(Flags::RST) {
        return None;
    }
    Some(if segment.flags.has(Flags::ACK) {
        //= RFC 9293 section 3.10.7.1
        //# If the ACK bit is on,
        //#
        //# <SEQ=SEG.ACK><CTL=RST>
        reset_for_ack(segment)
    } else {
        //= RFC 9293 section 3.10.7.1
        //# If the ACK bit is off, sequence number zero is used,
        //#
        //# <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>
        let ack = segment.seq + segment.seq_len();
        Head { seq: Seq(0), ack, flags: Flags::RST.with(Flags::ACK), ..Head::default() }
    })
}

/// LISTEN, and the segment is no SYN that must be answered: returns the reset to send.
pub(crate) fn answer_listen(segment: &Segment<'_>) -> Option<Head> {
    //= RFC 9293 section 3.10.7.2
    //# An incoming RST should be ignored.  Return.
    if segment.flags.has(Flags::RST) {
        return None;
    }
    //= RFC 9293 section 3.10.7.2
    //# Any acknowledgment is bad if it arrives on a connection still
    //# in the LISTEN state.  An acceptable reset segment should be
    //# formed for any arriving ACK-bearing segment.
    if segment.flags.has(Flags::ACK) {
        return Some(reset_for_ack(segment));
    }
    //= RFC 9293 section 3.10.7.2
    //# This should not be reached.  Drop the segment and return.
    None
}

/// `<SEQ=SEG.ACK><CTL=RST>`
pub(super) fn reset_for_ack(segment: &Segment<'_>) -> Head {
    Head { seq: segment.ack, flags: Flags::RST, ..Head::default() }
}

//! Sixth, check the URG bit. Urgent data is delivered in line; the application is notified that
//! there is some, and where it ends.

use super::{ArrivalStep, Connection, NEXT};
use crate::conn::{Happened, Marks};
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn check_urgent(&mut self, segment: &Segment<'_>) -> ArrivalStep {
        //= RFC 9293 section 3.10.7.4
        //# This should not occur since a FIN has been received from the
        //# remote side.  Ignore the URG.
        if !segment.flags.has(Flags::URG) || !self.may_receive() {
            return NEXT;
        }
        //= RFC 9293 section 3.8.5
        //# The urgent pointer MUST point to the sequence number of the octet
        //# following the urgent data (MUST-62).
        //= RFC 9293 section 3.8.5
        //# However, TCP implementations MUST still include support for the
        //# urgent mechanism (MUST-30).
        //= RFC 9293 section 3.8.5
        //# A TCP implementation MUST support a sequence of urgent data of any
        //# length (MUST-31) [19].
        let end = segment.seq + u32::from(segment.urgent);
        //= RFC 9293 section 3.10.7.4
        //# If the URG bit is set, RCV.UP <- max(RCV.UP,SEG.UP), and
        //# signal the user that the remote side has urgent data if the
        //# urgent pointer (RCV.UP) is in advance of the data consumed.
        let is_pending = self.marks.has(Marks::URGENT) && self.rcv_up.after(self.read_up_to());
        let has_advanced = end.after(self.rcv_up);
        if has_advanced {
            self.rcv_up = end;
        }
        if self.rcv_up.after(self.read_up_to()) {
            //= RFC 9293 section 3.10.7.4
            //# If the user has already been signaled (or is still in the
            //# "urgent mode") for this continuous sequence of urgent data,
            //# do not signal the user again.
            //= RFC 9293 section 3.8.5
            //# A TCP implementation MUST (MUST-32) inform the application layer
            //# asynchronously whenever it receives an urgent pointer and there was
            //# previously no pending urgent data, or whenever the urgent pointer
            //# advances in the data stream.
            if !is_pending || has_advanced {
                self.happened.insert(Happened::URGENT);
            }
            self.marks.insert(Marks::URGENT);
        }
        NEXT
    }

    //= RFC 9293 section 3.8.5
    //# The TCP implementation MUST (MUST-33)
    //# provide a way for the application to learn how much urgent data
    //# remains to be read from the connection, or at least to determine
    //# whether more urgent data remains to be read [19].
    /// Bytes up to the end of the urgent data that are not read; 0: none.
    pub(crate) fn urgent_bytes(&self) -> u32 {
        if !self.marks.has(Marks::URGENT) {
            return 0;
        }
        self.rcv_up.since(self.read_up_to()).max(0) as u32
    }
}

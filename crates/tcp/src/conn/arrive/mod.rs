//! SEGMENT ARRIVES (RFC 9293 section 3.10.7): each step of section 3.10.7.4 in its own file, in the order of the text.
//!
//! The third step, the check of security and compartment, has nothing to check: neither is used here.

mod ack;
mod closed;
mod fin;
mod reset;
mod sequence;
mod syn;
mod syn_sent;
mod text;
mod urgent;

use std::ops::ControlFlow;

use millrace_core::time::Instant;

use super::{Connection, ConnectionState, Env};
use crate::recv::Offered;
use crate::wire::{Head, Segment};

use self::text::Sum;

pub(crate) use self::closed::{answer_closed, answer_listen};

/// Information about a segment besides its content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentArrival {
    /// When it came.
    pub(crate) at: Instant,
    /// The network has marked it: congestion experienced (RFC 3168).
    pub(crate) is_marked: bool,
    /// Sum that the payload must have; `None`: it was checked.
    pub(crate) expected_sum: Option<u16>,
}

/// Whether the next step is taken, or this was the last; then the reset to send, if any.
type ArrivalStep = ControlFlow<Option<Head>>;

/// The segment is done with.
const DONE: ArrivalStep = ControlFlow::Break(None);
/// On to the next step.
const NEXT: ArrivalStep = ControlFlow::Continue(());

impl Connection {
    /// A segment for this connection, with the right checksum as far as the header goes. The reset to send in answer, if one is due; all other answers are
    /// noted and go out with the next segment.
    pub(crate) fn arrive(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> Option<Head> {
        let taken = match self.check_sum(env, segment, arrival) {
            Sum::Right => None,
            Sum::Taken(offered) => Some(offered),
            Sum::Wrong => {
                env.counters.bad_checksums += 1;
                return None;
            }
        };
        let step = match self.state {
            ConnectionState::Closed => ControlFlow::Break(answer_closed(segment)),
            ConnectionState::SynSent => self.arrive_syn_sent(env, segment, arrival),
            _ => match taken {
                Some(offered) => self.arrive_plain(env, segment, arrival, offered),
                None => self.arrive_other(env, segment, arrival),
            },
        };
        match step {
            ControlFlow::Break(reset) => reset,
            ControlFlow::Continue(()) => None,
        }
    }

    /// A plain ACK that was noted: of the steps of section 3.10.7.4 those that do anything with one that is in order and in the window.
    pub(crate) fn arrive_noted(&mut self, env: &mut Env<'_>, segment: &Segment<'_>, arrival: SegmentArrival) {
        if self.is_synchronized() && self.state != ConnectionState::TimeWait {
            self.note_stamp(segment, env.now);
            // Whatever it is that an ACK in order ends, nothing is sent back.
            let _ = self.check_ack(env, segment, arrival);
        }
    }

    /// Its data was in order and is taken in: does the remaining steps, which will not refuse it.
    fn arrive_plain(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
        offered: Offered,
    ) -> ArrivalStep {
        self.note_stamp(segment, env.now);
        self.check_ack(env, segment, arrival)?;
        self.took_text(env, segment, arrival, offered)
    }

    fn arrive_other(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> ArrivalStep {
        let mut segment = *segment;
        self.check_sequence(env, &mut segment)?;
        self.check_reset(env, &segment)?;
        self.check_syn(env, &segment)?;
        self.check_ack(env, &segment, arrival)?;
        self.check_urgent(&segment)?;
        self.take_text(env, &segment, arrival)
    }
}

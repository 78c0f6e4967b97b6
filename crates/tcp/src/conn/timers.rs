//! Time-outs (RFC 9293 section 3.10.8): of the connection itself; retransmission is the sender's.

use millrace_core::time::Instant;

use super::stamps::ms;
use super::{Connection, ConnectionState, Env, Happened, Marks, NEVER, Reason};
use crate::limits::{
    FIN_WAIT_2_NS, KEEP_ALIVE_PROBES, KEEP_ALIVE_RETRY_NS, STALL_TIMEOUTS, SYN_TIMEOUT_NS, UNPIN_AFTER_NS,
};
use crate::recv::AckDue;
use crate::sender::Fired;

impl Connection {
    /// Returns when [`Connection::fired`] must be called next.
    pub(crate) fn due(&self, env: &Env<'_>) -> Option<Instant> {
        if matches!(self.state, ConnectionState::Closed | ConnectionState::TimeWait) {
            return None;
        }
        let mut due = self.timer;
        if self.is_synchronized() {
            let others = [
                self.sender.due(),
                self.ack_at(),
                self.unpin_at(),
                self.keep_alive_at(env),
                self.fin_wait_2_at(env),
                self.give_up_at(env),
            ];
            due = others.into_iter().fold(due, |due, other| due.min(other.unwrap_or(NEVER)));
        }
        (due != NEVER).then_some(due)
    }

    /// Does everything that is due now.
    pub(crate) fn fired(&mut self, env: &mut Env<'_>) {
        if !self.is_synchronized() {
            return self.fire_syn(env);
        }
        if self.is_past(env, self.give_up_at(env)) || self.is_past(env, self.fin_wait_2_at(env)) {
            return self.give_up(env);
        }
        if let Fired::TimedOut { times } = self.sender.fired(env.records, env.now) {
            //= RFC 9293 section 3.10.8
            //# For any state if the retransmission timeout expires on a segment
            //# in the retransmission queue, send the segment at the front of the
            //# retransmission queue again, reinitialize the retransmission timer,
            //# and return.
            env.counters.timeouts += 1;
            self.tell_if_stalled(times);
        }
        if self.is_past(env, self.ack_at()) {
            self.marks.insert(Marks::ACK_NOW);
        }
        if self.marks.has(Marks::PERSISTS) && self.is_past(env, Some(self.timer)) {
            self.marks.insert(Marks::PROBE_NOW);
            self.tries = self.tries.saturating_add(1);
            self.timer = env.now.plus_ns(self.persist_ns());
        }
        if self.is_past(env, self.unpin_at()) {
            self.marks.insert(Marks::UNPINNED);
            env.counters.unpinned += u64::from(env.store.unpin(&self.queue));
        }
        if self.is_past(env, self.keep_alive_at(env)) {
            self.fire_keep_alive(env);
        }
    }

    //= RFC 9293 section 3.8.3
    //# The following
    //# procedure MUST be used to handle excessive retransmissions of data
    //# segments (MUST-20):
    //= RFC 9293 section 3.8.3
    //# When the number of transmissions of the same segment reaches or
    //# exceeds threshold R1, pass negative advice (see Section 3.3.1.4
    //# of [19]) to the IP layer, to trigger dead-gateway diagnosis.
    fn tell_if_stalled(&mut self, times: u8) {
        if times == STALL_TIMEOUTS {
            self.happened.insert(Happened::STALLED);
        }
    }

    fn is_past(&self, env: &Env<'_>, due: Option<Instant>) -> bool {
        due.is_some_and(|due| due <= env.now)
    }

    fn fire_syn(&mut self, env: &mut Env<'_>) {
        if self.state == ConnectionState::Closed || !self.is_past(env, Some(self.timer)) {
            return;
        }
        //= RFC 9293 section 3.8.3
        //# In particular, R2 for a SYN segment MUST
        //# be set large enough to provide retransmission of the segment for at
        //# least 3 minutes (MUST-23).
        if env.now.ns_since(self.progress) >= SYN_TIMEOUT_NS {
            env.counters.timed_out += 1;
            return self.shut(env, Reason::TimedOut);
        }
        self.marks.insert(Marks::SYN_NOW);
        self.marks.insert(Marks::SYN_REPEATED);
        self.tries = self.tries.saturating_add(1);
        //= RFC 9293 section 3.8.3
        //# SYN retransmissions
        //# MUST be handled in the general way just described for data
        //# retransmissions, including notification of the application layer.
        self.tell_if_stalled(self.tries);
        self.timer = env.now.plus_ns(self.syn_wait_ns());
    }

    /// Whether something that was sent, or waits to be, is not acknowledged.
    fn has_unacked(&self) -> bool {
        self.snd_end() != self.snd_una()
    }

    /// When something acceptable last came, to the millisecond: within the last 49 days.
    fn heard(&self, env: &Env<'_>) -> Instant {
        let ago_ms = ms(env.now).wrapping_sub(self.heard_ms);
        Instant((env.now.0 / 1_000_000).saturating_sub(u64::from(ago_ms)) * 1_000_000)
    }

    /// When the user time-out ends the connection.
    fn give_up_at(&self, env: &Env<'_>) -> Option<Instant> {
        //= RFC 9293 section 3.8.6.1
        //# As long as the receiving TCP peer continues to
        //# send acknowledgments in response to the probe segments, the sending
        //# TCP peer MUST allow the connection to stay open (MUST-37).
        let is_shut = self.snd_wnd == 0 || self.marks.has(Marks::PERSISTS);
        // But not if no application is left to end it: a peer that requests much and takes nothing
        // would collect connections (RFC 6429 section 4).
        let is_shut = is_shut && !self.marks.has(Marks::ORPHAN);
        let since = if is_shut { self.heard(env).max(self.progress) } else { self.progress };
        self.has_unacked().then(|| since.plus_ns(u64::from(self.user_timeout_s) * 1_000_000_000))
    }

    /// Returns when FIN-WAIT-2 has lasted too long without an application to read data that may
    /// come.
    fn fin_wait_2_at(&self, env: &Env<'_>) -> Option<Instant> {
        (self.state == ConnectionState::FinWait2 && self.marks.has(Marks::ORPHAN))
            .then(|| self.heard(env).plus_ns(FIN_WAIT_2_NS))
    }

    fn give_up(&mut self, env: &mut Env<'_>) {
        //= RFC 9293 section 3.10.8
        //# For any state if the user timeout expires, flush all queues,
        //# signal the user "error: connection aborted due to user timeout" in
        //# general and for any outstanding calls, delete the TCB, enter the
        //# CLOSED state, and return.
        env.counters.timed_out += 1;
        self.shut(env, Reason::TimedOut);
    }

    /// When extents go back for want of progress.
    fn unpin_at(&self) -> Option<Instant> {
        let is_pinned = !self.marks.has(Marks::UNPINNED) && !self.queue.is_empty();
        is_pinned.then(|| self.progress.plus_ns(UNPIN_AFTER_NS))
    }

    fn ack_at(&self) -> Option<Instant> {
        match self.receiver.ack_due() {
            AckDue::At(due) if !self.marks.has(Marks::ACK_NOW) => Some(due),
            _ => None,
        }
    }

    //= RFC 9293 section 3.8.4
    //# Keep-alive packets MUST only be sent when no sent data is
    //# outstanding, and no data or acknowledgment packets have been received
    //# for the connection within an interval (MUST-26).
    fn keep_alive_at(&self, env: &Env<'_>) -> Option<Instant> {
        let is_on = self.marks.has(Marks::KEEP_ALIVE) && !self.has_unacked();
        let tries = if self.marks.has(Marks::PERSISTS) { 0 } else { u64::from(self.tries) };
        is_on.then(|| self.heard(env).plus_ns(env.config.keep_alive_ns + tries * KEEP_ALIVE_RETRY_NS))
    }

    fn fire_keep_alive(&mut self, env: &mut Env<'_>) {
        //= RFC 9293 section 3.8.4
        //# Consequently, if a
        //# keep-alive mechanism is implemented it MUST NOT interpret failure to
        //# respond to any specific probe as a dead connection (MUST-29).
        if self.tries >= KEEP_ALIVE_PROBES {
            env.counters.timed_out += 1;
            return self.shut(env, Reason::Silent);
        }
        self.tries += 1;
        self.marks.insert(Marks::KEEP_ALIVE_NOW);
    }
}

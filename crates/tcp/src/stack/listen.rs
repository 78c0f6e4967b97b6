//! Listeners: passive OPEN, the bounds of their backlogs, SYN cookies.

use std::net::SocketAddr;

use millrace_core::time::Instant;

use super::{CallError, ListenerId, Reply, Stack};
use crate::conn::Agreed;
use crate::conn::arrive::answer_listen;
use crate::cookies::{Cookies, Offered};
use crate::isn::initial_seq;
use crate::seq::Seq;
use crate::wire::{Flags, FlowKey, Segment};

/// A listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    /// Most connections that the application has not seen, and most requests.
    backlog: u32,
    unseen: u32,
    half_open: u32,
}

impl Listener {
    fn is_for(&self, local: SocketAddr) -> bool {
        self.local.port() == local.port()
            && (self.local.ip().is_unspecified() || self.local.ip() == local.ip())
    }
}

impl Stack {
    //= RFC 9293 section 3.9.1.1
    //= type=exception
    //= reason=listeners take calls from anybody; who may call is decided above
    //# A passive OPEN may have either a
    //# fully specified remote socket to wait for a particular connection or
    //# an unspecified remote socket to wait for any call.
    /// OPEN, passive: any number of connections to `local`, whose address may be unspecified. `backlog`: most connections that were not polled yet,
    /// those that are being opened among them.
    ///
    /// # Errors
    /// There is a listener for it already, or no room for another.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<ListenerId, CallError> {
        //= RFC 9293 section 3.9.1.1
        //# Every passive OPEN call either creates a new connection record in
        //# LISTEN state, or it returns an error; it MUST NOT affect any
        //# previously created connection record (MUST-41).
        //= RFC 9293 section 3.9.1.1
        //# A TCP implementation that supports multiple concurrent connections
        //# MUST provide an OPEN call that will functionally allow an application
        //# to LISTEN on a port while a connection block with the same local port
        //# is in SYN-SENT or SYN-RECEIVED state (MUST-42).
        if self.listeners.iter().flatten().any(|listener| listener.local == local) {
            return Err(CallError::Exists);
        }
        let number = self.listeners.iter().position(Option::is_none).ok_or(CallError::NoRoom)?;
        self.listeners[number] = Some(Listener { local, backlog, unseen: 0, half_open: 0 });
        Ok(ListenerId(number as u8))
    }

    /// Changes the backlog of a listener, for an application that keeps connections waiting after
    /// it has polled them: one bound covers everything that waits there. With 0 no connection gets
    /// in.
    pub fn set_backlog(&mut self, listener: ListenerId, backlog: u32) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.backlog = backlog;
        }
    }

    /// CLOSE of a listener: requests that it has are forgotten when they time out, connections stay.
    pub fn unlisten(&mut self, listener: ListenerId) {
        if let Some(slot) = self.listeners.get_mut(usize::from(listener.0)) {
            *slot = None;
        }
    }

    fn listener(&self, id: ListenerId) -> Option<&Listener> {
        self.listeners.get(usize::from(id.0))?.as_ref()
    }

    fn listener_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(usize::from(id.0))?.as_mut()
    }

    /// The listener for a local end: one for just this address before one for all.
    fn find_listener(&self, local: SocketAddr) -> Option<ListenerId> {
        let matching = self.listeners.iter().enumerate().filter_map(|(number, listener)| {
            listener.as_ref().filter(|listener| listener.is_for(local)).map(|listener| (number, listener))
        });
        let best = matching.min_by_key(|(_, listener)| listener.local.ip().is_unspecified())?;
        Some(ListenerId(best.0 as u8))
    }

    /// Whether the listener may have another connection.
    pub(super) fn has_room_for(&self, listener: ListenerId) -> bool {
        self.free_count > 0
            && self.listener(listener).is_some_and(|listener| listener.unseen < listener.backlog)
    }

    pub(super) fn unseen(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.unseen += 1;
        }
    }

    pub(super) fn seen(&mut self, listener: ListenerId) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.unseen = listener.unseen.saturating_sub(1);
        }
    }

    pub(super) fn half_open(&mut self, listener: ListenerId, change: i32) {
        if let Some(listener) = self.listener_mut(listener) {
            listener.half_open = listener.half_open.saturating_add_signed(change);
        }
    }

    /// LISTEN (RFC 9293 section 3.10.7.2). Returns false if there is no listener. `above`: the
    /// sequence number that the last connection between these ends has reached, if the SYN reopens
    /// it.
    pub(super) fn arrive_for_listener(
        &mut self,
        flow: &FlowKey,
        segment: &Segment<'_>,
        above: Option<Seq>,
        now: Instant,
    ) -> bool {
        let Some(id) = self.find_listener(flow.local()) else { return false };
        let is_request = segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::RST);
        if is_request && !segment.flags.has(Flags::ACK) {
            self.request(flow, segment, id, above, now);
        } else if !(segment.flags.has(Flags::ACK) && self.take_cookie(flow, segment, id, now))
            && let Some(head) = answer_listen(segment)
        {
            self.reply(Reply { flow: *flow, head });
        }
        true
    }

    fn request(
        &mut self,
        flow: &FlowKey,
        syn: &Segment<'_>,
        id: ListenerId,
        above: Option<Seq>,
        now: Instant,
    ) {
        let Some(&Listener { backlog, half_open, unseen, .. }) = self.listener(id) else { return };
        if !self.has_room_for(id) {
            self.shared.counters.syns_dropped += 1;
            return;
        }
        // Each of those that are being opened may be one to be polled before anybody has looked.
        if half_open + unseen >= backlog || self.requests.is_full() {
            return self.send_cookie(flow, syn, now);
        }
        let iss = initial_seq(&self.keys.isn, flow, now);
        //= RFC 9293 section 3.6.1
        //# (1)  assigns its initial sequence number for the new connection to be
        //# larger than the largest sequence number it used on the previous
        //# connection incarnation, and
        let iss = above.map_or(iss, |above| iss.max(above + 1));
        let agreed = self.shared.config.agree(flow.is_v4(), syn, iss, self.stamp_offset(flow));
        self.add_request(flow, id, agreed, now);
    }

    /// Answers a SYN without remembering it.
    fn send_cookie(&mut self, flow: &FlowKey, syn: &Segment<'_>, now: Instant) {
        let agreed = self.shared.config.agree(flow.is_v4(), syn, Seq(0), self.stamp_offset(flow));
        let seq = self.cookies.as_ref().and_then(|cookies| cookies.seq(flow, syn.seq, agreed.peer_mss, now));
        let Some(iss) = seq else {
            self.shared.counters.syns_dropped += 1;
            return;
        };
        let has_stamps = agreed.ts_recent.is_some();
        // Without time stamps there is nowhere to remember the other options in.
        let agreed = Agreed {
            iss,
            snd_scale: agreed.snd_scale.filter(|_| has_stamps),
            has_sack: agreed.has_sack && has_stamps,
            has_ecn: agreed.has_ecn && has_stamps,
            rcv_scale: if has_stamps { agreed.rcv_scale } else { 0 },
            ..agreed
        };
        let mut head = self.syn_ack(flow, &agreed, now);
        if let Some(stamps) = &mut head.options.stamps {
            let offered = Offered {
                mss: agreed.peer_mss,
                scale: agreed.snd_scale,
                is_sack_permitted: agreed.has_sack,
                is_ecn: agreed.has_ecn,
            };
            stamps.value = Cookies::stamp(stamps.value, &offered);
        }
        self.shared.counters.cookies_sent += 1;
        self.reply(Reply { flow: *flow, head });
    }

    /// Returns whether an ACK ends a handshake that was answered with a cookie. Then there is a
    /// connection; without room for it there is a request, and without room for a request either it
    /// counts as an ACK that ends nothing: it is reset.
    fn take_cookie(&mut self, flow: &FlowKey, segment: &Segment<'_>, id: ListenerId, now: Instant) -> bool {
        let Some(cookies) = self.cookies.as_ref().filter(|_| !segment.flags.has(Flags::SYN)) else {
            return false;
        };
        let (iss, irs) = (segment.ack - 1, segment.seq - 1);
        let stamps = segment.options.stamps;
        let Some(offered) = cookies.open(flow, iss, irs, stamps.map(|stamps| stamps.echo), now) else {
            return false;
        };
        if segment.flags.has(Flags::RST) {
            return true;
        }
        let agreed = Agreed {
            iss,
            irs,
            peer_mss: offered.mss,
            snd_scale: offered.scale,
            rcv_scale: if offered.scale.is_some() { self.shared.config.scale() } else { 0 },
            has_sack: offered.is_sack_permitted,
            has_ecn: offered.is_ecn,
            ts_recent: stamps.map(|stamps| stamps.value),
            ts_offset: self.stamp_offset(flow),
            is_repeated: false,
        };
        if !self.has_room_for(id) {
            self.shared.counters.overflows += 1;
            return self.add_acked_request(flow, id, agreed, now);
        }
        self.shared.counters.cookies_taken += 1;
        self.accept(flow, &agreed, id, None, segment, now);
        true
    }
}

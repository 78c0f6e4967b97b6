//! SEND, RECEIVE and STATUS of one connection (RFC 9293 sections 3.10.2, 3.10.3 and 3.10.6).

use millrace_core::pool::Lease;

use super::{Connection, ConnectionState, Env, Marks};
use crate::recv::{Receiver, ReceiverSettings};
use crate::send::{ExtentRange, QueueRefusal};
use crate::seq::Seq;
use crate::stack::ListenerId;

/// No listener.
pub(super) const NO_LISTENER: u8 = u8::MAX;

impl Connection {
    pub(super) fn new_receiver(&self, env: &Env<'_>, next: Seq) -> Receiver {
        let mut receiver = Receiver::new(&ReceiverSettings {
            next,
            limit_bytes: env.config.receive_bytes,
            scale: self.rcv_scale,
            mss: env.config.mss(self.marks.has(Marks::IS_V4)),
            is_sack_permitted: self.marks.has(Marks::HAS_SACK),
        });
        receiver.set_group(self.group());
        receiver
    }

    /// SEND of bytes of the application's own; how many were taken.
    pub(crate) fn write(
        &mut self,
        env: &mut Env<'_>,
        most: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> usize {
        self.before_append(env);
        //= RFC 9293 section 3.10.2
        //# Queue the data for transmission after entering ESTABLISHED state.
        //# If no space to queue, respond with "error: insufficient
        //# resources".
        env.store.append_from(&mut self.queue, most, fill)
    }

    /// SEND of a range of an extent.
    pub(crate) fn send_extent(
        &mut self,
        env: &mut Env<'_>,
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        self.before_append(env);
        env.store.append_extent(&mut self.queue, lease, range)
    }

    /// SEND of a range of an extent behind a head.
    pub(crate) fn send_framed(
        &mut self,
        env: &mut Env<'_>,
        head: &[u8],
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        self.before_append(env);
        env.store.append_framed(&mut self.queue, head, lease, range)
    }

    /// SEND of bytes of the application's own, all of them or none.
    pub(crate) fn write_whole(&mut self, env: &mut Env<'_>, parts: &[&[u8]]) -> bool {
        self.before_append(env);
        env.store.append_whole(&mut self.queue, parts)
    }

    /// SEND of a range of an extent whose lease stays.
    pub(crate) fn send_held(
        &mut self,
        env: &mut Env<'_>,
        lease: Lease,
        range: ExtentRange,
    ) -> Result<(), (QueueRefusal, Lease)> {
        self.before_append(env);
        env.store.append_held(&mut self.queue, lease, range)
    }

    /// SEND of a range of an area.
    pub(crate) fn send_area(
        &mut self,
        env: &mut Env<'_>,
        area: u16,
        at: u32,
        bytes: u32,
    ) -> Result<(), QueueRefusal> {
        self.before_append(env);
        env.store.append_area(&mut self.queue, area, at, bytes)
    }

    /// Makes the queued data independent of all areas; returns false if some of it still needs one.
    pub(crate) fn keep_areas(&mut self, env: &mut Env<'_>) -> bool {
        env.store.keep_areas(&mut self.queue)
    }

    fn before_append(&mut self, env: &Env<'_>) {
        if self.queue.is_empty() && self.is_synchronized() {
            // Data queued now begins to wait now.
            self.progress = self.progress.max(env.now);
        }
        // Data queued now is pinned, and goes back like the data before it.
        self.marks.remove(Marks::UNPINNED);
    }

    //= RFC 9293 section 3.9.1.2
    //# If the URGENT flag is set, segments sent to the destination TCP peer
    //# will have the urgent pointer set.
    /// Marks the queued data as urgent.
    pub(crate) fn mark_urgent(&mut self) {
        self.snd_up = self.queue.end();
        self.marks.insert(Marks::SENDS_URGENT);
    }

    /// An extent came back.
    pub(crate) fn supply(&mut self, env: &mut Env<'_>, lease: &Lease) -> bool {
        self.marks.remove(Marks::STARVED);
        env.store.supply(&self.queue, lease, self.marks.has(Marks::UNPINNED)) > 0
    }

    /// RECEIVE.
    pub(crate) fn read(&mut self, env: &mut Env<'_>, most: usize, take: &mut dyn FnMut(&[u8])) -> usize {
        let bytes = self.receiver.read_to(env.pages, most, take);
        if self.marks.has(Marks::URGENT) && !self.rcv_up.after(self.read_up_to()) {
            //= RFC 9293 section 3.8.5
            //# when the receive sequence number catches up to the urgent
            //# pointer, the TCP implementation must tell user to go into "normal
            //# mode".
            self.marks.remove(Marks::URGENT);
        }
        bytes
    }

    /// The sequence number of the next byte that the application reads.
    pub(super) fn read_up_to(&self) -> Seq {
        let fin = u32::from(self.receiver.is_finished());
        self.rcv_nxt() - fin - self.receiver.unread_bytes()
    }

    pub(crate) fn unread_bytes(&self) -> u32 {
        self.receiver.unread_bytes()
    }

    /// Bytes queued and not acknowledged.
    pub(crate) fn unacked_bytes(&self) -> u32 {
        match self.state {
            ConnectionState::Closed | ConnectionState::TimeWait => 0,
            ConnectionState::SynSent | ConnectionState::SynReceived => {
                self.queue.end().since(self.sender.una()).max(0) as u32
            }
            _ => self.queue.end().since(self.snd_una()).max(0) as u32,
        }
    }

    /// Bytes queued and never sent.
    pub(crate) fn unsent_bytes(&self) -> u32 {
        self.queue.end().since(self.sender.nxt()).max(0) as u32
    }

    /// Gives everything back: it has no use any more.
    pub(crate) fn dissolve(&mut self, env: &mut Env<'_>) {
        self.release_all(env);
        self.receiver.clear(env.pages);
    }

    pub(crate) fn set_listener(&mut self, listener: ListenerId) {
        self.listener = listener.0;
        self.marks.insert(Marks::UNSEEN);
    }

    pub(crate) fn listener(&self) -> Option<ListenerId> {
        (self.listener != NO_LISTENER).then_some(ListenerId(self.listener))
    }

    pub(crate) fn group(&self) -> u8 {
        self.receiver.group()
    }

    pub(crate) fn set_group(&mut self, group: u8) {
        self.receiver.set_group(group);
    }

    /// The listener that waits for the application to see this connection.
    pub(crate) fn unseen_of(&self) -> Option<ListenerId> {
        self.listener().filter(|_| self.marks.has(Marks::UNSEEN))
    }

    pub(crate) fn recent_stamp(&self) -> Option<u32> {
        self.marks.has(Marks::HAS_STAMPS).then_some(self.ts_recent)
    }
}

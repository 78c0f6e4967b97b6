//! Yes and no of a connection, a bit each.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks(u32);

impl Marks {
    /// It came from a listener.
    pub(crate) const PASSIVE: Self = Self(1);
    /// A SYN or SYN,ACK must be sent.
    pub(crate) const SYN_NOW: Self = Self(1 << 1);
    /// An ACK must be sent.
    pub(crate) const ACK_NOW: Self = Self(1 << 2);
    /// The application has closed: a FIN follows the queue.
    pub(crate) const FIN_QUEUED: Self = Self(1 << 3);
    /// The FIN was sent.
    pub(crate) const FIN_SENT: Self = Self(1 << 4);
    /// A window probe must be sent, or the data that silly-window avoidance holds back.
    pub(crate) const PROBE_NOW: Self = Self(1 << 5);
    /// One byte behind SND.NXT was sent as a window probe.
    pub(crate) const PROBED: Self = Self(1 << 6);
    /// A keep-alive probe must be sent.
    pub(crate) const KEEP_ALIVE_NOW: Self = Self(1 << 7);
    pub(crate) const HAS_STAMPS: Self = Self(1 << 8);
    pub(crate) const HAS_SACK: Self = Self(1 << 9);
    pub(crate) const HAS_ECN: Self = Self(1 << 10);
    /// The SYN was sent more than once.
    pub(crate) const SYN_REPEATED: Self = Self(1 << 11);
    pub(crate) const NAGLE: Self = Self(1 << 12);
    /// The application has more to say: a segment that is not full waits for it.
    pub(crate) const CORKED: Self = Self(1 << 29);
    pub(crate) const KEEP_ALIVE: Self = Self(1 << 13);
    /// ECE goes with every ACK until CWR comes (RFC 3168 section 6.1.3).
    pub(crate) const ECHO_CE: Self = Self(1 << 14);
    /// The application was notified of urgent data that it has not reached.
    pub(crate) const URGENT: Self = Self(1 << 15);
    /// The leases went back for want of progress.
    pub(crate) const UNPINNED: Self = Self(1 << 16);
    /// Scaling was agreed upon.
    pub(crate) const HAS_SCALE: Self = Self(1 << 17);
    /// Urgent data is queued.
    pub(crate) const SENDS_URGENT: Self = Self(1 << 18);
    /// ECN was asked for by our SYN.
    pub(crate) const ASKED_ECN: Self = Self(1 << 19);
    /// TS.Recent is valid.
    pub(crate) const HAS_RECENT: Self = Self(1 << 20);
    /// In the stack's queue of connections that may have something to send.
    pub(crate) const IS_READY: Self = Self(1 << 21);
    /// In the stack's queue of those with something to tell.
    pub(crate) const IS_TOLD: Self = Self(1 << 22);
    /// The application has let go of it.
    pub(crate) const ORPHAN: Self = Self(1 << 23);
    /// Waits for an extent that was asked for.
    pub(crate) const STARVED: Self = Self(1 << 24);
    /// The timer is a window probe's.
    pub(crate) const PERSISTS: Self = Self(1 << 25);
    /// Not polled by the application since a listener accepted it.
    pub(crate) const UNSEEN: Self = Self(1 << 26);

    pub(crate) const IS_V4: Self = Self(1 << 27);
    /// The segment last received acknowledged something new, or was new data in order.
    pub(crate) const MOVED: Self = Self(1 << 28);

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(crate) const fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(crate) const fn set(&mut self, other: Self, on: bool) {
        if on { self.insert(other) } else { self.remove(other) }
    }

    /// Removes it; whether it was there.
    pub(crate) const fn take(&mut self, other: Self) -> bool {
        let had = self.has(other);
        self.remove(other);
        had
    }
}

//! A queue pair: how its memory is divided, and the two ends of it.
//!
//! ```text
//!   state word ─ who sleeps ─ request ring ─ event ring ─ counts ─ area to send from ─ receive buffers
//!   (engine)     (both)       (host fills)   (engine)     (engine) (host)             (whose turn it is)
//! ```
//!
//! Who sleeps: a word for each side, used where the sides are two processes (`remote/`).
//!
//! Counts: per socket, the bytes acknowledged since it became a connection. The engine writes them,
//! the host reads them when it likes: no thread is woken for them.

use std::io;
use std::sync::Arc;

use millrace_core::pool::Lease;
use millrace_core::shared::{ENTRY_WORDS, RingConsumer, RingProducer, WORD_BYTES, Words};
use millrace_tcp::send::{Area, ExtentRange};

use crate::bell::EventBell;
use crate::limits::{
    EXTENTS_UNDER_WAY, LISTENERS, MAX_AREA_BYTES, MAX_BUFFER_BYTES, MAX_PAIR_SOCKETS, MIN_BUFFER_BYTES,
    SEND_SHARE_BYTES, WAKE_BYTES,
};

/// How large a queue pair is. Nothing grows after the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairSettings {
    /// Sockets at once.
    pub sockets: u32,
    /// Those among them that may be listeners.
    pub listeners: u8,
    /// Entries of the request ring, a power of two.
    pub requests: u32,
    /// Bytes of a chunk to send: what one request hands over at most.
    pub send_bytes: u32,
    /// How many chunks.
    pub send_buffers: u32,
    /// Those of them that only a connection without any gets: peers that take nothing of long replies leave the others room for short ones.
    pub send_reserve: u32,
    /// Bytes of a receive buffer, which is filled before it is handed over.
    pub receive_bytes: u32,
    /// How many.
    pub receive_buffers: u32,
    /// Receive buffers of one connection that the host may hold at once: a slow reader holds no
    /// more, and others have the rest.
    pub receive_share: u32,
    /// Bytes of one connection that may be given and not acknowledged; then its writer sleeps.
    pub send_share_bytes: u32,
    /// Bytes that have to be acknowledged before it is woken.
    pub wake_bytes: u32,
}

impl Default for PairSettings {
    fn default() -> Self {
        Self {
            sockets: 1024,
            listeners: LISTENERS,
            requests: 1024,
            send_bytes: 8192,
            send_buffers: 1024,
            send_reserve: 0,
            receive_bytes: 8192,
            receive_buffers: 1024,
            receive_share: 64,
            send_share_bytes: SEND_SHARE_BYTES,
            wake_bytes: WAKE_BYTES,
        }
    }
}

/// The engine's value in the state word.
pub(super) const STOPPED: u64 = 1;
/// Where it is: alone in its cache line.
const STATE: usize = 0;
/// Whether the host sleeps, and whether the engine does: a cache line each.
pub(super) const HOST_SLEEPS: usize = STATE + ENTRY_WORDS;
pub(super) const ENGINE_SLEEPS: usize = HOST_SLEEPS + ENTRY_WORDS;
/// Events of one socket that may wait to be read, apart from data: an answer, an end, room, closed, and one to spare for the next connection of
/// that number.
const EVENTS_PER_SOCKET: u32 = 6;

/// Where everything lies, in words; the last two in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    requests: usize,
    events: usize,
    event_entries: u32,
    counts: usize,
    send: usize,
    pub(super) send_bytes: u32,
    receive: usize,
    pub(super) words: usize,
}

impl Layout {
    /// # Errors
    /// Which setting cannot be.
    pub(super) fn new(of: &PairSettings) -> io::Result<Self> {
        let refuse = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let sizes = MIN_BUFFER_BYTES..=MAX_BUFFER_BYTES;
        for (name, bytes) in [("send", of.send_bytes), ("receive", of.receive_bytes)] {
            if !sizes.contains(&bytes) || bytes % WORD_BYTES as u32 != 0 {
                return refuse(format!(
                    "a {name} buffer of {bytes} bytes: choose a multiple of {WORD_BYTES} from {MIN_BUFFER_BYTES} to {MAX_BUFFER_BYTES}"
                ));
            }
        }
        let (send, receive) = (
            u64::from(of.send_bytes) * u64::from(of.send_buffers),
            u64::from(of.receive_bytes) * u64::from(of.receive_buffers),
        );
        if send.max(receive) > MAX_AREA_BYTES || send.min(receive) == 0 {
            return refuse(format!(
                "buffers of {send} and {receive} bytes in all: choose up to {MAX_AREA_BYTES}"
            ));
        }
        if !(1..=MAX_PAIR_SOCKETS).contains(&of.sockets)
            || !of.requests.is_power_of_two()
            || of.requests > MAX_PAIR_SOCKETS
        {
            return refuse(format!(
                "{} sockets and {} requests: choose 1 to {MAX_PAIR_SOCKETS}, and a power of two up to that",
                of.sockets, of.requests
            ));
        }
        if of.wake_bytes == 0 || of.send_share_bytes < of.wake_bytes || of.receive_share == 0 {
            return refuse(format!(
                "shares of {} bytes (woken after {}) and {} buffers: choose them above 0, and the first not below the second",
                of.send_share_bytes, of.wake_bytes, of.receive_share
            ));
        }
        // A host that reads its events, however late, finds each of them: there is an entry for everything that can be under way at once.
        let most = of.receive_buffers + of.sockets * EVENTS_PER_SOCKET + of.requests;
        let event_entries = most.next_power_of_two();
        let requests = ENGINE_SLEEPS + ENTRY_WORDS;
        let events = requests + of.requests as usize * ENTRY_WORDS;
        let counts = events + event_entries as usize * ENTRY_WORDS;
        let send_at = counts + (of.sockets as usize).next_multiple_of(ENTRY_WORDS);
        let receive_at = send_at + send as usize / WORD_BYTES;
        Ok(Self {
            requests,
            events,
            event_entries,
            counts,
            send: send_at * WORD_BYTES,
            send_bytes: send as u32,
            receive: receive_at * WORD_BYTES,
            words: receive_at + receive as usize / WORD_BYTES,
        })
    }

    /// Word of a socket's count.
    pub(super) fn count(&self, socket: u32) -> usize {
        self.counts + socket as usize
    }

    /// Byte of the memory where a byte of the area to send from lies.
    pub(super) fn send(&self, offset: u32) -> usize {
        self.send + offset as usize
    }

    /// Byte where a receive buffer begins.
    pub(super) fn receive(&self, buffer: u32, bytes: u32) -> usize {
        self.receive + buffer as usize * bytes as usize
    }
}

/// A range of a leased extent.
pub(super) type Extent = (Lease, ExtentRange);

/// The engine's end.
pub(super) struct EngineEnd {
    pub(super) words: Words,
    pub(super) layout: Layout,
    pub(super) requests: RingConsumer,
    pub(super) events: RingProducer,
    /// Ranges of leased extents, in the order of their requests: of a host of this program.
    pub(super) extents: Option<rtrb::Consumer<Extent>>,
    /// User of the host's process.
    pub(super) user: u32,
    /// Wakes the host's thread.
    pub(super) bell: Arc<EventBell>,
    /// The bell that the host rings if it is another process; the engine's own bell otherwise.
    pub(super) doorbell: Option<EventBell>,
}

impl EngineEnd {
    /// # Errors
    /// `words` is not the memory of such a pair.
    pub(super) fn new(
        settings: &PairSettings,
        words: Words,
        bell: Arc<EventBell>,
        doorbell: Option<EventBell>,
    ) -> io::Result<Self> {
        let layout = Layout::new(settings)?;
        let requests = RingConsumer::new(&words, layout.requests, settings.requests).ok_or_else(too_small)?;
        let events = RingProducer::new(&words, layout.events, layout.event_entries).ok_or_else(too_small)?;
        let user = rustix::process::geteuid().as_raw();
        Ok(Self { words, layout, requests, events, extents: None, user, bell, doorbell })
    }

    /// An end without a host: nothing is ever asked there.
    ///
    /// # Errors
    /// None: it takes no descriptor.
    pub(super) fn nobody(bell: Arc<EventBell>) -> io::Result<Self> {
        let words = Words::new(3 * ENTRY_WORDS);
        let (requests, events) = (ENTRY_WORDS, 2 * ENTRY_WORDS);
        let end = words.count();
        let at = end * WORD_BYTES;
        let layout = Layout {
            requests,
            events,
            event_entries: 1,
            counts: end,
            send: at,
            send_bytes: 0,
            receive: at,
            words: end,
        };
        let requests = RingConsumer::new(&words, requests, 1).ok_or_else(too_small)?;
        let events = RingProducer::new(&words, events, 1).ok_or_else(too_small)?;
        Ok(Self { words, layout, requests, events, extents: None, user: u32::MAX, bell, doorbell: None })
    }

    /// The area that the host's bytes are sent from; `None`: there is no host.
    pub(super) fn area(&self) -> Option<Area> {
        let area = Area { words: self.words.clone(), first: self.layout.send, bytes: self.layout.send_bytes };
        (area.bytes > 0).then_some(area)
    }

    /// Marks the engine as gone and notifies waiting threads.
    pub(super) fn stop(&self) {
        self.words.store(STATE, STOPPED);
        self.bell.ring();
    }
}

/// The host's end.
pub(super) struct HostEnd {
    pub(super) words: Words,
    pub(super) layout: Layout,
    pub(super) requests: RingProducer,
    pub(super) events: RingConsumer,
    /// The other end of the engine's.
    pub(super) extents: Option<rtrb::Producer<Extent>>,
    /// Wakes this host's thread.
    pub(super) bell: Arc<EventBell>,
}

impl HostEnd {
    /// # Errors
    /// `words` is not the memory of such a pair.
    pub(super) fn new(settings: &PairSettings, words: Words, bell: Arc<EventBell>) -> io::Result<Self> {
        let layout = Layout::new(settings)?;
        let requests = RingProducer::new(&words, layout.requests, settings.requests).ok_or_else(too_small)?;
        let events = RingConsumer::new(&words, layout.events, layout.event_entries).ok_or_else(too_small)?;
        Ok(Self { words, layout, requests, events, extents: None, bell })
    }

    /// Returns whether the engine has reported its end, or its process is known to be gone.
    pub(super) fn is_stopped(&self) -> bool {
        self.words.load(STATE) == STOPPED || self.bell.is_hung_up()
    }
}

fn too_small() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the memory of a queue pair does not hold its rings")
}

/// A queue pair within this process, with all its memory.
///
/// # Errors
/// A setting that cannot be, or no descriptor for the bell.
pub(super) fn pair(settings: &PairSettings) -> io::Result<(EngineEnd, HostEnd)> {
    let words = Words::new(Layout::new(settings)?.words);
    let bell = Arc::new(EventBell::new()?);
    let mut engine = EngineEnd::new(settings, words.clone(), Arc::clone(&bell), None)?;
    let mut host = HostEnd::new(settings, words, bell)?;
    let (give, take) = rtrb::RingBuffer::new(EXTENTS_UNDER_WAY as usize);
    (engine.extents, host.extents) = (Some(take), Some(give));
    Ok((engine, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_parts_do_not_overlap() {
        let settings = PairSettings { sockets: 5, ..PairSettings::default() };
        let layout = Layout::new(&settings).unwrap();
        let parts = [
            (STATE, 1),
            (HOST_SLEEPS, 1),
            (ENGINE_SLEEPS, 1),
            (layout.requests, settings.requests as usize * ENTRY_WORDS),
            (layout.events, layout.event_entries as usize * ENTRY_WORDS),
            (layout.count(0), 5),
            (
                layout.send(0) / WORD_BYTES,
                (settings.send_bytes * settings.send_buffers) as usize / WORD_BYTES,
            ),
            (
                layout.receive(0, settings.receive_bytes) / WORD_BYTES,
                (settings.receive_bytes * settings.receive_buffers) as usize / WORD_BYTES,
            ),
        ];
        for two in parts.windows(2) {
            assert!(two[0].0 + two[0].1 <= two[1].0, "{parts:?}");
        }
        assert_eq!(parts[7].0 + parts[7].1, layout.words);
    }

    #[test]
    fn settings_that_cannot_be_are_refused_with_the_reason() {
        let good = PairSettings::default();
        let bad = [
            PairSettings { sockets: 0, ..good.clone() },
            PairSettings { sockets: u32::MAX, ..good.clone() },
            PairSettings { requests: 3, ..good.clone() },
            PairSettings { requests: 1 << 31, ..good.clone() },
            PairSettings { send_bytes: 4097, ..good.clone() },
            PairSettings { send_bytes: 1 << 21, ..good.clone() },
            PairSettings { receive_bytes: 8, ..good.clone() },
            PairSettings { send_buffers: 0, ..good.clone() },
            PairSettings { receive_buffers: u32::MAX, ..good.clone() },
            PairSettings { wake_bytes: 0, ..good.clone() },
            PairSettings { send_share_bytes: 1, ..good.clone() },
            PairSettings { receive_share: 0, ..good.clone() },
        ];
        for settings in bad {
            let error = Layout::new(&settings).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{settings:?}");
            assert!(error.to_string().contains("choose"), "{error}");
        }
        assert!(Layout::new(&good).is_ok());
    }
}

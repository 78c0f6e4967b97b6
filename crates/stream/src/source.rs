//! Sources: titles of a volume, files as they are stored, buffers that are written while they are
//! sent.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_store::cache::{Cache, ReadyTitle};
use millrace_store::transform::{NamedTransform, Transforms, timeline_of};
use millrace_store::volume::TitleFiles;

use crate::outcome::{OpenError, RunRefusal};

/// How packets lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketFraming {
    /// Behind RTP headers.
    Rtp,
    /// With nothing around them.
    Raw,
}

/// A place in a source, as a caller names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePosition {
    /// A packet, by its number.
    Packet(u32),
    /// A byte of the source. In datagrams, which are sent whole, it must be the first of one.
    Byte(u64),
    /// The first packet at or behind this media time.
    Time(Duration),
    /// The last packet at or before this media time where a decoder can start.
    Access(Duration),
    /// Behind the data written to a buffer until now; behind the last packet of any other source.
    Newest,
}

impl SourcePosition {
    /// The beginning.
    pub const START: Self = Self::Packet(0);
}

/// From times to packets and back.
pub(crate) trait Times: Send + Sync {
    /// The first packet at or behind a time.
    fn packet_at(&self, time: MediaTicks) -> u32;
    /// The last one at or before it where a decoder can start.
    fn access_before(&self, time: MediaTicks) -> u32;
    /// When a packet leaves.
    fn time_of(&self, packet: u32) -> MediaTicks;
}

impl Times for TitleFiles {
    fn packet_at(&self, time: MediaTicks) -> u32 {
        TitleFiles::packet_at(self, time).unwrap_or_else(|_| self.packet_by_index(time))
    }
    fn access_before(&self, time: MediaTicks) -> u32 {
        self.packet_of_default(self.index.access_at_or_before(time).packet)
    }
    fn time_of(&self, packet: u32) -> MediaTicks {
        self.time_by_index(packet)
    }
}

/// A source in one wire layout, open in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened {
    pub(crate) title: TitleRef,
    pub(crate) layout: WireLayout,
    pub(crate) timeline: Timeline,
    pub(crate) packets: u32,
}

/// Makes the source again in this wire layout, transformed if a transformation is given; `None`: it
/// has no such layout.
pub(crate) type Reopen = dyn Fn(PacketFraming, Option<&Arc<NamedTransform>>) -> Result<Option<ReadyTitle>, OpenError>
    + Send
    + Sync;

/// How a source lies in a wire layout: layout, timeline, packets; `None`: not at all.
pub(crate) type Lies = Box<dyn Fn(PacketFraming) -> Option<(WireLayout, Timeline, u32)> + Send + Sync>;

/// Components of a source.
pub(crate) struct SourceParts {
    /// How it is opened in another layout; none: it is open in all that it has.
    pub(crate) reopen: Option<Box<Reopen>>,
    /// How it lies.
    pub(crate) lies: Lies,
    pub(crate) times: Box<dyn Times>,
    pub(crate) rate: BitRate,
    /// `None`: of a buffer, which has no end yet.
    pub(crate) bytes: Option<u64>,
    /// Number of the next packet of a buffer.
    pub(crate) edge: Option<Arc<AtomicU32>>,
    /// Where a stream begins if it sets no place.
    pub(crate) begins_at: SourcePosition,
    /// The transformations that it supports; none: it cannot be transformed.
    pub(crate) transforms: Option<Transforms>,
}

impl SourceParts {
    fn named(&self, name: &str) -> Result<&Arc<NamedTransform>, OpenError> {
        let not_so = |what: String| OpenError::NotSo { path: "source".into(), what };
        let known = self.transforms.as_ref().ok_or_else(|| {
            not_so("only titles of a volume can be transformed; add it to one and send the title".into())
        })?;
        known.find(name).ok_or_else(|| {
            not_so(format!("no transformation is called {name}; name it in `transforms` of the engine"))
        })
    }
}

/// A wire layout, and the number of the transformation.
pub(crate) type OpenAs = (PacketFraming, Option<u8>);

pub(crate) struct SourceInner {
    cache: Weak<Cache>,
    parts: SourceParts,
    opened: Mutex<Vec<(OpenAs, Opened)>>,
}

/// A source of media, open in an engine. Clones are the same source; all streams of it share the
/// data read. It is closed with the last of its clones and of the contexts that name it.
#[derive(Clone)]
pub struct MediaSource {
    pub(crate) inner: Arc<SourceInner>,
}

impl fmt::Debug for MediaSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("rate", &self.rate())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl MediaSource {
    pub(crate) fn new(cache: &Arc<Cache>, parts: SourceParts, opened: Vec<(OpenAs, Opened)>) -> Self {
        Self {
            inner: Arc::new(SourceInner { cache: Arc::downgrade(cache), parts, opened: Mutex::new(opened) }),
        }
    }

    /// Its mean bit rate; of a buffer and of a plain file the one that it was given.
    pub fn rate(&self) -> BitRate {
        self.inner.parts.rate
    }

    /// Its length; `None` of a buffer.
    pub fn bytes(&self) -> Option<u64> {
        self.inner.parts.bytes
    }

    /// Number of the packet that is written next, of a buffer; of anything else, of the one behind its last.
    pub fn newest(&self) -> u32 {
        let parts = &self.inner.parts;
        let ends =
            || [PacketFraming::Rtp, PacketFraming::Raw].into_iter().find_map(|wire| (parts.lies)(wire));
        match &parts.edge {
            Some(edge) => edge.load(Ordering::Acquire),
            None => ends().map_or(0, |(_, _, packets)| packets),
        }
    }

    /// Media time from its beginning to this packet.
    pub fn time_of(&self, packet: u32) -> Duration {
        Duration::from_nanos(self.inner.parts.times.time_of(packet).to_ns())
    }

    /// The byte at which a place is.
    ///
    /// # Errors
    /// [`RunRefusal::OutOfRange`]
    pub fn byte_at(&self, place: SourcePosition) -> Result<u64, RunRefusal> {
        let opened = self.inner.opened.lock().unwrap_or_else(PoisonError::into_inner).first().copied();
        let opened = match opened {
            Some((_, opened)) => opened,
            // No stream has opened it yet: it lies in any layout as it will.
            None => {
                let lies = [PacketFraming::Rtp, PacketFraming::Raw]
                    .into_iter()
                    .find_map(|wire| (self.inner.parts.lies)(wire));
                let (layout, timeline, packets) = lies.ok_or(RunRefusal::OutOfRange("it has no packets"))?;
                Opened { title: TitleRef(u32::MAX), layout, timeline, packets }
            }
        };
        let (packet, head) = self.locate(place, &opened)?;
        Ok(self.byte_of(packet, head, &opened))
    }

    /// Returns where a stream begins if it sets no place.
    pub(crate) fn begins_at(&self) -> SourcePosition {
        self.inner.parts.begins_at
    }

    /// Whether it is written while it is sent.
    pub fn is_buffer(&self) -> bool {
        self.inner.parts.edge.is_some()
    }

    /// Whether it is a source of this cache.
    pub(crate) fn is_of(&self, cache: &Arc<Cache>) -> bool {
        std::ptr::eq(self.inner.cache.as_ptr(), Arc::as_ptr(cache))
    }

    /// Opens it in this layout, transformed by the transformation of this name, unless it is open
    /// already.
    pub(crate) fn open(&self, wire: PacketFraming, transform: Option<&str>) -> Result<Opened, OpenError> {
        let inner = &*self.inner;
        let named = transform.map(|name| inner.parts.named(name)).transpose()?;
        let open_as = (wire, named.map(|named| named.number()));
        let mut opened = inner.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, opened)) = opened.iter().find(|(open, _)| *open == open_as) {
            return Ok(*opened);
        }
        let unsuitable = || {
            let what = match wire {
                PacketFraming::Rtp => "it cannot be sent in RTP; send it as bytes or in plain datagrams",
                PacketFraming::Raw => "it cannot be sent in plain datagrams; make the buffer a raw one",
            };
            OpenError::NotSo { path: "source".into(), what: what.into() }
        };
        let cache = inner.cache.upgrade().ok_or(millrace_store::cache::CacheError::Stopped)?;
        let reopen = inner.parts.reopen.as_ref().ok_or_else(unsuitable)?;
        let ready = reopen(wire, named)?.ok_or_else(unsuitable)?;
        let (layout, timeline, packets) = (inner.parts.lies)(wire).ok_or_else(unsuitable)?;
        let timeline = named.map_or(timeline, |named| timeline_of(timeline, named.number()));
        let title = cache.open_ready(ready)?;
        let now_open = Opened { title, layout, timeline, packets };
        opened.push((open_as, now_open));
        Ok(now_open)
    }

    /// A wire layout that it has, and whether that is this one if it has it.
    pub(crate) fn has(&self, wire: PacketFraming) -> bool {
        (self.inner.parts.lies)(wire).is_some()
    }

    /// A place: the packet and the bytes of it that lie before.
    ///
    /// # Errors
    /// If the place lies behind the end, or a buffer has no times.
    pub(crate) fn locate(&self, place: SourcePosition, opened: &Opened) -> Result<(u32, u16), RunRefusal> {
        let size = opened.layout.packet_bytes() as u64;
        let times = &self.inner.parts.times;
        let found = match place {
            SourcePosition::Packet(packet) => (u64::from(packet), 0),
            SourcePosition::Byte(byte) if self.bytes().is_some_and(|bytes| byte > bytes) => (u64::MAX, 0),
            SourcePosition::Byte(byte) => (byte / size, (byte % size) as u16),
            SourcePosition::Time(time) => (u64::from(times.packet_at(ticks(time))), 0),
            SourcePosition::Access(time) => (u64::from(times.access_before(ticks(time))), 0),
            SourcePosition::Newest => (u64::from(self.newest()), 0),
        };
        match u32::try_from(found.0) {
            Ok(packet) if (packet, found.1) <= (opened.packets, 0) => Ok((packet, found.1)),
            _ => Err(RunRefusal::OutOfRange("there is no such place")),
        }
    }

    /// The byte at which a packet begins, or the end.
    pub(crate) fn byte_of(&self, packet: u32, head: u16, opened: &Opened) -> u64 {
        let byte = u64::from(packet) * opened.layout.packet_bytes() as u64 + u64::from(head);
        self.bytes().map_or(byte, |bytes| byte.min(bytes))
    }
}

fn ticks(time: Duration) -> MediaTicks {
    MediaTicks::from_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl SourceInner {
    /// Closes it, even if it still has owners: the writer of a buffer is notified.
    pub(crate) fn close(&self) {
        let Some(cache) = self.cache.upgrade() else { return };
        let opened = std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        opened.into_iter().for_each(|(_, opened)| cache.close_title(opened.title));
    }
}

impl Drop for SourceInner {
    fn drop(&mut self) {
        self.close();
    }
}

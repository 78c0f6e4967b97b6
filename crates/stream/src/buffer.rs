//! Sources of type BUFFER (Stream Engine 2003, section 4.1): memory that the caller fills while it is sent.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::limits::{
    DEFAULT_PACKET_BYTES, EXTENT_BYTES, MAX_LIVE_EXTENTS, MIN_LIVE_EXTENTS, TS_PACKET_BYTES,
};
use millrace_core::packet::WireLayout;
use millrace_core::seam::Doorbell;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;
use millrace_store::cache::{Cache, FeedError, Feeder, Keep, LiveTitle};

use crate::file::BlockPacing;
use crate::limits::MIN_BUFFER_BYTES;
use crate::outcome::OpenError;
use crate::source::{MediaSource, Opened, PacketFraming, SourceParts, SourcePosition, Times};

/// What becomes of a writer that has filled a circular buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It overwrites the oldest data. A run that needed this data ends with
    /// [`Reason::Lapped`](crate::Reason::Lapped).
    Overwrite,
    /// It waits until all active runs have sent the oldest data; while there are none, it waits for
    /// one.
    Wait,
}

/// A buffer: transport packets (188 bytes each), sent at a constant rate.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    rate: BitRate,
    bytes: u64,
    keep: Keep,
    wire: PacketFraming,
}

impl Buffer {
    /// Creates a circular buffer that holds the last `bytes`, rounded up to whole extents of 256
    /// KiB. `rate` is the highest rate of the data written: data that arrives later than that is
    /// sent as it arrives.
    pub fn circular(rate: BitRate, bytes: u64, when_full: WhenFull) -> Self {
        let keep = match when_full {
            WhenFull::Overwrite => Keep::Newest,
            WhenFull::Wait => Keep::Unread,
        };
        Self { rate, bytes: bytes.max(MIN_BUFFER_BYTES), keep, wire: PacketFraming::Rtp }
    }

    /// Creates a buffer that is written once, from its beginning to byte `end`, a multiple of 188,
    /// and keeps all of it: runs end there.
    pub fn linear(rate: BitRate, end: u64) -> Self {
        Self { rate, bytes: end, keep: Keep::All, wire: PacketFraming::Rtp }
    }

    /// The same for plain datagrams without RTP headers; connections take either.
    pub fn raw(self) -> Self {
        Self { wire: PacketFraming::Raw, ..self }
    }

    /// Opens it in a cache.
    pub(crate) fn open(self, cache: &Arc<Cache>) -> Result<(MediaSource, BufferWriter), OpenError> {
        let config = |what: &str| OpenError::Config(format!("buffer: {what}"));
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).ok_or_else(|| config("no packet size"))?;
        let layout = match self.wire {
            PacketFraming::Rtp => layout,
            PacketFraming::Raw => layout.raw().ok_or_else(|| config("no raw layout"))?,
        };
        let pace = BlockPacing::at_rate(self.rate, DEFAULT_PACKET_BYTES)
            .ok_or_else(|| config("a bit rate below 1 kb/s"))?;
        let per_extent = u64::from(layout.packets_per_extent()) * DEFAULT_PACKET_BYTES as u64;
        let needed = match self.keep {
            Keep::All => self.bytes.div_ceil(per_extent),
            Keep::Newest | Keep::Unread => self.bytes.div_ceil(EXTENT_BYTES as u64),
        };
        let extents = usize::try_from(needed).unwrap_or(usize::MAX).max(MIN_LIVE_EXTENTS);
        if self.keep == Keep::All && (self.bytes == 0 || !self.bytes.is_multiple_of(TS_PACKET_BYTES as u64)) {
            return Err(config("its end is no end of a transport packet; give a multiple of 188"));
        }
        if extents > MAX_LIVE_EXTENTS {
            return Err(config("more than 1 GiB; choose less"));
        }
        let random = RandomState::new();
        let mut id = [0; 16];
        id[..8].copy_from_slice(&random.hash_one(0).to_le_bytes());
        id[8..].copy_from_slice(&random.hash_one(1).to_le_bytes());
        let timeline =
            Timeline { ssrc: random.hash_one(2) as u32, timestamp_base: random.hash_one(3) as u32 };
        let title = LiveTitle { id: TitleId(id), layout, timeline, extents, keep: self.keep };
        let bell = Arc::new(WriterBell::default());
        let (title, feeder) = cache.open_live(title, Arc::clone(&bell) as Arc<dyn Doorbell>)?;
        let edge = Arc::new(AtomicU32::new(0));
        let (wire, end) = (self.wire, (self.keep == Keep::All).then_some(self.bytes));
        // At most those of the extents.
        let packets = end.map_or(u32::MAX, |end| end.div_ceil(DEFAULT_PACKET_BYTES as u64) as u32);
        let parts = SourceParts {
            reopen: None,
            lies: Box::new(move |asked| (asked == wire).then_some((layout, timeline, packets))),
            times: Box::new(BufferTimes { pace, edge: Arc::clone(&edge) }),
            rate: self.rate,
            bytes: None,
            edge: Some(Arc::clone(&edge)),
            begins_at: if self.keep == Keep::Newest { SourcePosition::Newest } else { SourcePosition::START },
            transforms: None,
        };
        let opened = Opened { title, layout, timeline, packets };
        let writer = BufferWriter {
            feeder: Some(feeder),
            bell,
            pace,
            part: Vec::with_capacity(DEFAULT_PACKET_BYTES),
            end,
            edge,
        };
        Ok((MediaSource::new(cache, parts, vec![((wire, None), opened)]), writer))
    }
}

struct BufferTimes {
    pace: BlockPacing,
    edge: Arc<AtomicU32>,
}

impl Times for BufferTimes {
    fn packet_at(&self, time: MediaTicks) -> u32 {
        self.pace.packet_at(time).min(self.edge.load(Ordering::Acquire))
    }
    fn access_before(&self, time: MediaTicks) -> u32 {
        self.pace.access_before(time).min(self.edge.load(Ordering::Acquire))
    }
    fn time_of(&self, packet: u32) -> MediaTicks {
        self.pace.time_of(packet)
    }
}

/// Rung when the writer can go on.
#[derive(Default)]
struct WriterBell {
    has_rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell for WriterBell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

impl WriterBell {
    fn wait(&self) {
        let has_rung = self.has_rung.lock().unwrap_or_else(PoisonError::into_inner);
        let has_rung = self.changed.wait_while(has_rung, |has_rung| !*has_rung);
        *has_rung.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Writes into a buffer. Everything that was written can be sent when a call of [`Write::write`] returns, but for what does not fill a packet of 1316
/// bytes yet: [`Write::flush`] fills that up with null packets. Dropped before [`BufferWriter::finish`], the source counts as lost.
///
/// The data written should be transport packets from the first byte on; this is not checked. For
/// other bytes, which need not fill their last packet of 1316 bytes, use a connection and a file.
pub struct BufferWriter {
    feeder: Option<Feeder>,
    bell: Arc<WriterBell>,
    pace: BlockPacing,
    /// The beginning of the next packet.
    part: Vec<u8>,
    /// Bytes that may be written.
    end: Option<u64>,
    edge: Arc<AtomicU32>,
}

impl BufferWriter {
    /// Returns the number of bytes written until now.
    pub fn written(&self) -> u64 {
        let packets = self.feeder.as_ref().map_or(0, Feeder::next_packet);
        u64::from(packets) * DEFAULT_PACKET_BYTES as u64 + self.part.len() as u64
    }

    /// As [`Write::write`], but never waits.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room now, and those of [`Write::write`].
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes, false)
    }

    /// This was all: runs send it to its end.
    ///
    /// # Errors
    /// If the remaining bytes do not consist of transport packets, or the source was closed.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        if let Some(feeder) = self.feeder.take() {
            feeder.finish();
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], may_wait: bool) -> io::Result<usize> {
        let mut taken = 0;
        let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.written()));
        if left == 0 && !bytes.is_empty() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "buffer: its end is reached"));
        }
        let bytes = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
        let result = loop {
            let rest = &bytes[taken..];
            if self.part.len() == DEFAULT_PACKET_BYTES {
                // It was gathered whole, and there was no room for it.
                let part = std::mem::take(&mut self.part);
                let pushed = self.push(&part, may_wait);
                self.part = part;
                if pushed.is_err() {
                    break pushed;
                }
                self.part.clear();
            } else if self.part.is_empty() && rest.len() >= DEFAULT_PACKET_BYTES {
                let pushed = self.push(&rest[..DEFAULT_PACKET_BYTES], may_wait);
                if pushed.is_err() {
                    break pushed;
                }
                taken += DEFAULT_PACKET_BYTES;
            } else if rest.is_empty() {
                break Ok(());
            } else {
                let count = rest.len().min(DEFAULT_PACKET_BYTES - self.part.len());
                self.part.extend_from_slice(&rest[..count]);
                let is_end = self.end.is_some_and(|end| end == self.written());
                if let Err(error) = if is_end { self.fill_up(may_wait) } else { Ok(()) } {
                    // The bytes that complete the buffer are taken only with their packet: the
                    // caller would not come back for it.
                    self.part.truncate(self.part.len() - count);
                    break Err(error);
                }
                taken += count;
            }
        };
        self.publish()?;
        match result {
            Err(error) if taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends the beginning of a packet, with null packets behind it.
    fn fill_up(&mut self, may_wait: bool) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        if !self.part.len().is_multiple_of(TS_PACKET_BYTES) {
            let what = "buffer: its last bytes are no whole transport packet; write the rest of it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut part = std::mem::take(&mut self.part);
        let own = part.len();
        while part.len() < DEFAULT_PACKET_BYTES {
            // A null packet (ISO/IEC 13818-1 section 2.4.1: PID 0x1FFF), payload only.
            part.extend_from_slice(&[0x47, 0x1f, 0xff, 0x10]);
            part.resize(part.len() + TS_PACKET_BYTES - 4, 0xff);
        }
        let pushed = self.push(&part, may_wait);
        part.truncate(if pushed.is_ok() { 0 } else { own });
        self.part = part;
        pushed
    }

    fn push(&mut self, packet: &[u8], may_wait: bool) -> io::Result<()> {
        loop {
            let feeder = self.feeder.as_mut().ok_or_else(closed)?;
            let time = self.pace.time_of(feeder.next_packet());
            match feeder.push(packet, 0, time) {
                Ok(()) => return Ok(()),
                Err(FeedError::NoRoom) if may_wait => {
                    self.publish()?;
                    self.bell.wait();
                }
                Err(FeedError::NoRoom) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(FeedError::Closed) => return Err(closed()),
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    fn publish(&mut self) -> io::Result<()> {
        let feeder = self.feeder.as_mut().ok_or_else(closed)?;
        let published = feeder.publish();
        self.edge.store(feeder.next_packet(), Ordering::Release);
        published.map_err(|_| closed())
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "buffer: its source was closed")
}

impl Write for BufferWriter {
    /// Takes all of `bytes`, up to the end of a linear buffer; waits for room if the buffer is set
    /// to wait when it is full.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] behind the end of a linear buffer, [`io::ErrorKind::BrokenPipe`] if the source was closed.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes, true)
    }

    /// Lets everything be sent that was written: fills the last packet up with null packets.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if it does not consist of transport packets.
    fn flush(&mut self) -> io::Result<()> {
        self.fill_up(true)?;
        self.publish()
    }
}

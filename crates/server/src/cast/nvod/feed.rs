//! The thread that reads ahead what all channels send next, in the order of time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_store::StoreError;
use millrace_store::volume::{MediaReader, Volume};

use super::title::SegmentedTitle;
use crate::limits::cast::{NVOD_BATCH_PACKETS, NVOD_STEP_NS, NVOD_STEPS};

/// A packet of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvodPacket {
    /// Time since the beginning of slot 0.
    pub due_ns: u64,
    /// Channel.
    pub channel: u8,
    /// Number in the title.
    pub number: u32,
    /// Media time.
    pub time: MediaTicks,
    /// Place of the payload in the step's bytes.
    pub payload: Range<usize>,
}

/// What all channels send in [`NVOD_STEP_NS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvodStep {
    /// By time.
    pub packets: Vec<NvodPacket>,
    /// The payloads.
    pub bytes: Vec<u8>,
}

/// The running thread. It ends when this is dropped, or with an error.
pub struct NvodFeed {
    steps: Receiver<Result<NvodStep, StoreError>>,
    stop: Arc<AtomicBool>,
}

impl NvodFeed {
    /// Starts it.
    ///
    /// # Errors
    /// If the title cannot be opened, or no thread be started.
    pub fn start(volume: &Volume, title: &Arc<SegmentedTitle>) -> anyhow::Result<Self> {
        let readers = (0..title.plan.channels()).map(|channel| {
            let media = title.open(volume);
            media.map(|media| ChannelReader::new(channel, Arc::clone(title), media))
        });
        let readers = readers.collect::<Result<Vec<_>, StoreError>>()?;
        let (sender, steps) = sync_channel(NVOD_STEPS);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("nvod-feed".into())
            .spawn(move || feed(readers, &sender, &stopped))?;
        Ok(Self { steps, stop })
    }

    /// The steps, in order.
    pub fn steps(&self) -> &Receiver<Result<NvodStep, StoreError>> {
        &self.steps
    }
}

impl Drop for NvodFeed {
    fn drop(&mut self) {
        // The thread is not waited for: a disk may hold it.
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn feed(
    mut readers: Vec<ChannelReader>,
    sender: &SyncSender<Result<NvodStep, StoreError>>,
    stop: &AtomicBool,
) {
    for step in 1.. {
        let mut next = NvodStep::default();
        let read =
            readers.iter_mut().try_for_each(|reader| reader.read_until(step * NVOD_STEP_NS, &mut next));
        next.packets.sort_by_key(|packet| packet.due_ns);
        let has_failed = read.is_err();
        let is_gone = sender.send(read.map(|()| next)).is_err();
        if is_gone || has_failed || stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Reads the slots of one channel.
struct ChannelReader {
    channel: u8,
    title: Arc<SegmentedTitle>,
    media: MediaReader,
    slot: u64,
    /// Packets of its segment that are not sent yet.
    packets: Range<u32>,
    /// The next of them, read already.
    metas: Vec<PacketMeta>,
    bytes: Vec<u8>,
    at: usize,
}

impl ChannelReader {
    fn new(channel: u8, title: Arc<SegmentedTitle>, media: MediaReader) -> Self {
        let packets = title.packets_of(title.plan.segment_at(channel, 0));
        Self { channel, title, media, slot: 0, packets, metas: Vec::new(), bytes: Vec::new(), at: 0 }
    }

    /// Appends the packets before `end_ns`.
    fn read_until(&mut self, end_ns: u64, step: &mut NvodStep) -> Result<(), StoreError> {
        let (channel, title) = (self.channel, Arc::clone(&self.title));
        let plan = &title.plan;
        loop {
            let slot_start = plan.slot_start_ns(self.slot);
            if slot_start >= end_ns {
                return Ok(());
            }
            let segment = plan.segment_at(channel, self.slot);
            if self.packets.is_empty() {
                self.slot += 1;
                self.packets = title.packets_of(plan.segment_at(channel, self.slot));
                self.at = 0;
                self.metas.clear();
                continue;
            }
            if self.at == self.metas.len() {
                self.read_batch()?;
            }
            let time = self.metas[self.at].time();
            let within = time.to_ns().saturating_sub(plan.slot_start_ns(segment.into()));
            let due_ns = slot_start + within;
            if due_ns >= end_ns {
                return Ok(());
            }
            let payload = self.bytes.chunks(DEFAULT_PACKET_BYTES).nth(self.at).unwrap_or_default();
            let start = step.bytes.len();
            step.bytes.extend_from_slice(payload);
            let payload = start..step.bytes.len();
            step.packets.push(NvodPacket { due_ns, channel, number: self.packets.start, time, payload });
            self.packets.start += 1;
            self.at += 1;
        }
    }

    fn read_batch(&mut self) -> Result<(), StoreError> {
        let count = self.packets.len().min(NVOD_BATCH_PACKETS);
        let first = self.packets.start;
        self.metas.resize(count, PacketMeta::default());
        self.media.files().read_metas(first, &mut self.metas)?;
        let start = u64::from(first) * DEFAULT_PACKET_BYTES as u64;
        let left = self.title.info.bytes.saturating_sub(start);
        self.bytes.resize(left.min((count * DEFAULT_PACKET_BYTES) as u64) as usize, 0);
        self.media.read_exact(start, &mut self.bytes)?;
        self.at = 0;
        Ok(())
    }
}

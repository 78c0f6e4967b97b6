//! Packets of all channels at their times, and announcements between them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use hdrhistogram::Histogram;
use millrace_client::lateness::{LatenessSummary, histogram_us, summarize};
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{FIRST_SEQUENCE, PAYLOAD_TYPE_MP2T, RtpHeader};
use millrace_nvod::limits::{ANNOUNCE_NS, GUARD_NS};
use millrace_nvod::{Announcement, PlacedPacket};
use millrace_store::StoreError;

use super::feed::{NvodFeed, NvodPacket, NvodStep};
use super::title::SegmentedTitle;
use super::url::NvodUrl;
use crate::cast::pace::PacedSink;
use crate::cast::sender::{CastCounts, CastSender, OpenCastError};
use crate::limits::cast::CAST_STOP_LOOK;

/// Why a cast is over.
#[derive(Debug)]
pub enum NvodEnd {
    /// The caller asked to stop.
    Stopped,
    /// The time is over.
    TimeOver,
    /// The title can no longer be read.
    Failed(StoreError),
}

/// See the module's text.
pub struct NvodSender<C> {
    clock: C,
    title: Arc<SegmentedTitle>,
    control: CastSender,
    channels: Vec<CastSender>,
    sequences: Vec<u16>,
    session: u32,
    origin: Option<Instant>,
    announce_at: Instant,
    lateness_us: Histogram<u64>,
    skipped: u64,
}

impl<C: Clock> NvodSender<C> {
    /// Opens the sockets, in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`OpenCastError`].
    pub fn open(url: &NvodUrl, title: Arc<SegmentedTitle>, clock: C) -> Result<Self, OpenCastError> {
        let destinations = (0..url.channels).filter_map(|channel| url.channel(channel));
        let channels = destinations.map(|url| CastSender::open(&url)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            announce_at: clock.now(),
            clock,
            title,
            control: CastSender::open(url.control())?,
            sequences: vec![FIRST_SEQUENCE; channels.len()],
            channels,
            session: RandomState::new().hash_one(0) as u32,
            origin: None,
            lateness_us: histogram_us(),
            skipped: 0,
        })
    }

    /// Sends until `stop`, for `time_ns`, or until the title cannot be read. `turn` is called at least every [`CAST_STOP_LOOK`].
    pub fn run(
        &mut self,
        feed: &NvodFeed,
        time_ns: u64,
        stop: &AtomicBool,
        turn: &mut dyn FnMut(&Self, Instant),
    ) -> NvodEnd {
        loop {
            if stop.load(Ordering::Relaxed) {
                return NvodEnd::Stopped;
            }
            match feed.steps().recv_timeout(CAST_STOP_LOOK) {
                Ok(Ok(step)) => {
                    if let Some(end) = self.send_step(&step, time_ns, stop, turn) {
                        return end;
                    }
                }
                Ok(Err(error)) => return NvodEnd::Failed(error),
                // The disk is slow; viewers wait for it in vain.
                Err(RecvTimeoutError::Timeout) => self.flush(turn),
                Err(RecvTimeoutError::Disconnected) => return NvodEnd::Stopped,
            }
        }
    }

    fn send_step(
        &mut self,
        step: &NvodStep,
        time_ns: u64,
        stop: &AtomicBool,
        turn: &mut dyn FnMut(&Self, Instant),
    ) -> Option<NvodEnd> {
        // Slot 0 begins when its media is there.
        let origin = *self.origin.get_or_insert(self.clock.now());
        for packet in &step.packets {
            if packet.due_ns >= time_ns {
                self.flush(turn);
                return Some(NvodEnd::TimeOver);
            }
            let due = origin.plus_ns(packet.due_ns);
            let mut now = self.clock.now();
            while now < due {
                self.flush(turn);
                if stop.load(Ordering::Relaxed) {
                    return Some(NvodEnd::Stopped);
                }
                std::thread::sleep(Duration::from_nanos(due.ns_since(now)).min(CAST_STOP_LOOK));
                now = self.clock.now();
            }
            let late = now.ns_since(due);
            self.lateness_us.saturating_record(late / 1000);
            if late > GUARD_NS {
                // Receivers have gone on without it; a burst of such packets would cost others.
                self.skipped += 1;
            } else {
                self.enqueue(packet, &step.bytes[packet.payload.clone()]);
            }
        }
        // Also where each packet is a little late.
        self.flush(turn);
        None
    }

    fn enqueue(&mut self, packet: &NvodPacket, payload: &[u8]) {
        let channel = usize::from(packet.channel);
        let header = RtpHeader {
            marker: false,
            payload_type: PAYLOAD_TYPE_MP2T,
            sequence: self.sequences[channel],
            timestamp: MediaTicks::from_ns(packet.due_ns).0 as u32,
            ssrc: self.session,
        };
        self.sequences[channel] = header.sequence.wrapping_add(1);
        let placed = PlacedPacket { header, number: packet.number, time: packet.time, payload };
        self.channels[channel].enqueue_parts(&placed.emit_header(), payload);
    }

    /// Sends the queues, and an announcement if it is time.
    fn flush(&mut self, turn: &mut dyn FnMut(&Self, Instant)) {
        let now = self.clock.now();
        for channel in &mut self.channels {
            channel.flush(now);
        }
        if let Some(origin) = self.origin
            && now >= self.announce_at
        {
            self.announce_at = now.plus_ns(ANNOUNCE_NS);
            let announcement = Announcement {
                plan: self.title.plan.clone(),
                session: self.session,
                packets: self.title.packets(),
                largest_segment: self.title.largest_segment(),
                bytes: self.title.info.bytes,
                position_ns: now.ns_since(origin),
                name: self.title.info.display_name(),
            };
            self.control.enqueue_parts(&announcement.emit(), &[]);
            self.control.flush(now);
        }
        turn(self, now);
    }

    /// Sent on all channels, with announcements.
    pub fn counts(&self) -> CastCounts {
        let all = self.channels.iter().chain([&self.control]).map(CastSender::counts);
        all.fold(CastCounts::default(), |sum, counts| CastCounts {
            datagrams: sum.datagrams + counts.datagrams,
            bytes: sum.bytes + counts.bytes,
            refused: sum.refused + counts.refused,
        })
    }

    /// The last error of a socket, once.
    pub fn take_error(&mut self) -> Option<std::io::Error> {
        self.channels
            .iter_mut()
            .chain([&mut self.control])
            .map(CastSender::take_error)
            .fold(None, |last, error| error.or(last))
    }

    /// How late packets were.
    pub fn lateness(&self) -> LatenessSummary {
        summarize(&self.lateness_us)
    }

    /// Packets that were too late to be sent.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

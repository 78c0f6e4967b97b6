//! Bytes of a title in a connection: what HTTP asks for. A stream of bytes has one run: it is admitted and counted as any other, is never moved, and
//! nothing of it is sent at another speed or rate. Behind its run its engine closes it and gives the connection back, so that nothing has to be asked for.
//!
//! ```text
//!   admit (StreamPath::Bytes) ─► reserve_bytes ─► what goes before is written ─► play_bytes ─► ServiceEvent::BytesSent, Ended ─► ConnectionReturned
//! ```

use std::ops::Range;

use millrace_core::time::Instant;
use millrace_offload::command::{Command, Numbering, RunMedia as Sent, RunSpec};

use super::keys::{ConnKey, StreamKey, StreamPath};
use super::ports::TitleEntry;
use super::refusal::Refusal;
use super::run::{ActiveRun, DeliveryState, Stop};
use super::speed::Speed;
use super::state::Service;

/// No viewer of bytes repairs anything: lost data is decoded from its parity. Null packets stand in for data beyond it, so that
/// every byte keeps its place.
const SPARE: u8 = 0;

/// The packets that hold these bytes, and where in the first and the last one they begin and end (0: with the packet's end).
fn packets_of(entry: &TitleEntry, bytes: &Range<u64>) -> Option<(Range<u32>, Numbering)> {
    if entry.is_endless() && bytes.end == u64::MAX {
        // A live title from the last access point on, a recording from its beginning, as long as it comes.
        let join = entry.access.join().packet;
        return Some((join..entry.packets, Numbering::Bytes { head: 0, last: 0 }));
    }
    let size = entry.layout.packet_bytes() as u64;
    let from = u32::try_from(bytes.start / size).ok()?;
    let until = u32::try_from(bytes.end.div_ceil(size)).ok()?;
    let is_there = bytes.start < bytes.end && until <= entry.packets;
    let numbering = Numbering::Bytes { head: (bytes.start % size) as u16, last: (bytes.end % size) as u16 };
    is_there.then_some((from..until, numbering))
}

impl Service {
    /// Reserves room for bytes that are about to be sent: after this nothing that is full keeps [`Service::play_bytes`] from it.
    ///
    /// # Errors
    /// The resource that is used up; [`Refusal::EmptyRange`] if the title has no such bytes.
    pub fn reserve_bytes(&mut self, now: Instant, key: StreamKey, bytes: &Range<u64>) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        packets_of(&stream.entry, bytes).ok_or(Refusal::EmptyRange)?;
        let entry = stream.entry.clone();
        self.check_members(&entry)?;
        self.reserve(now, key)
    }

    /// Sends bytes of the title, once: the first `ahead_ms` of media as fast as the viewer takes
    /// it, the rest at the title's pace. [`ServiceEvent::BytesSent`](super::ServiceEvent::BytesSent) reports that
    /// the last one has been taken, [`ServiceEvent::Ended`](super::ServiceEvent::Ended) that the stream ended
    /// otherwise.
    ///
    /// # Errors
    /// As [`Service::reserve_bytes`]; [`Refusal::Busy`] if it has been played before.
    pub fn play_bytes(
        &mut self,
        now: Instant,
        key: StreamKey,
        bytes: &Range<u64>,
        ahead_ms: u16,
    ) -> Result<(), Refusal> {
        self.reserve_bytes(now, key, bytes)?;
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        if !stream.is_fresh() || !matches!(stream.path, StreamPath::Bytes { .. }) {
            return Err(Refusal::Busy);
        }
        let (packets, numbering) = packets_of(&stream.entry, bytes).ok_or(Refusal::EmptyRange)?;
        let TitleEntry { packets: all, layout, .. } = stream.entry;
        let media =
            Sent { title: stream.title, packets: all, timeline: stream.timeline, layout, spare: SPARE };
        let run = RunSpec {
            run: stream.next_run(),
            media,
            from: packets.start,
            until: packets.end,
            numbering,
            scale_permille: Speed::NORMAL.permille(),
            step: None,
        };
        // Only for observers of the progress: reading a page for it would cost more than everything
        // else here.
        let time_of = |packet| stream.entry.access.time_near(packet);
        let end = if packets.end < all { time_of(packets.end) } else { None };
        stream.media = DeliveryState::Running(ActiveRun {
            serial: run.run,
            from: run.from,
            sequence: 0,
            from_time: time_of(packets.start),
            at: now,
            due: Instant(0),
            stop: Stop { packet: packets.end, time: end.unwrap_or(stream.entry.duration) },
            speed: Speed::NORMAL,
            ahead_ms,
        });
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Play { stream: place, at: now, ahead_ms, run });
        Ok(())
    }

    /// The engine that writes to the connection is to give it back when all has been written: [`ServiceEvent::ConnectionReturned`](super::ServiceEvent::ConnectionReturned)
    /// or [`ServiceEvent::ConnectionLost`](super::ServiceEvent::ConnectionLost) follows. `false`: none writes to it.
    pub fn take_back(&mut self, conn: ConnKey) -> bool {
        let Some((engine, id)) = self.attachment(conn) else { return false };
        self.command(engine, Command::ConnReturn { conn: id });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample_tests;
    use super::*;

    #[test]
    fn bytes_are_parts_of_packets() {
        let entry = sample_tests::entry();
        let of = |from, to| packets_of(&entry, &(from..to));
        let bytes = |head, last| Numbering::Bytes { head, last };
        assert_eq!(of(0, 13_160), Some((0..10, bytes(0, 0))));
        assert_eq!(of(0, 1), Some((0..1, bytes(0, 1))));
        assert_eq!(of(1315, 1317), Some((0..2, bytes(1315, 1))));
        assert_eq!(of(1316, 2632), Some((1..2, bytes(0, 0))));
        assert_eq!(of(13_159, 13_160), Some((9..10, bytes(1315, 0))));
        for (from, to) in [(0, 0), (5, 5), (6, 5), (13_160, 13_161), (0, 13_161), (0, u64::MAX)] {
            assert_eq!(of(from, to), None, "{from}..{to}");
        }
    }
}

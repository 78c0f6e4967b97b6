//! Elementary streams out of TS packets (ISO/IEC 13818-1 section 2.4.3): the bytes of each, and where its PES packets begin.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::ts_packet::{PesStart, TsPacket};

/// Where a PES packet begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Its first byte in [`Elementary::bytes`].
    pub(crate) at: usize,
    /// Offset of its first TS packet in the title.
    pub(crate) byte: u64,
    /// Presentation and decoding time stamp as they are stored: 33 bits, 90 kHz.
    pub(crate) stamps: Option<(u64, u64)>,
}

/// A piece of an elementary stream, from the first PES packet on that begins in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elementary {
    pub(crate) bytes: Vec<u8>,
    /// In ascending order.
    pub(crate) marks: Vec<Mark>,
    pub(crate) counter: Option<u8>,
}

impl Elementary {
    /// The number of the PES packet that has this byte.
    pub(crate) fn mark_of(&self, at: usize) -> Option<usize> {
        self.marks.partition_point(|mark| mark.at <= at).checked_sub(1)
    }

    fn push(&mut self, byte: u64, packet: TsPacket<'_>) {
        let jumps = packet.adaptation().is_some_and(|adaptation| adaptation.is_discontinuity());
        let before = self.counter.replace(packet.continuity());
        // A packet sent twice (section 2.4.3.3).
        if before == Some(packet.continuity()) && !jumps {
            return;
        }
        if packet.has_error() || packet.is_scrambled() {
            return;
        }
        let payload = packet.payload();
        if !packet.starts_unit() {
            if !self.marks.is_empty() {
                self.bytes.extend_from_slice(payload);
            }
            return;
        }
        if let Some(start) = PesStart::parse(payload) {
            let stamps = start.presentation_stamp.zip(start.decode_stamp);
            self.marks.push(Mark { at: self.bytes.len(), byte, stamps });
            self.bytes.extend_from_slice(start.payload);
        }
    }
}

/// Takes the packets of some PIDs apart.
#[derive(Debug)]
pub(crate) struct Demux {
    streams: Vec<(u16, Elementary)>,
}

impl Demux {
    pub(crate) fn new(pids: impl IntoIterator<Item = u16>) -> Self {
        Self { streams: pids.into_iter().map(|pid| (pid, Elementary::default())).collect() }
    }

    /// Takes whole packets, the first of them at `byte` of the title. Keeps packets of `wanted`
    /// PIDs only.
    pub(crate) fn push(&mut self, mut byte: u64, bytes: &[u8], wanted: impl Fn(u16) -> bool) {
        for packet in bytes.as_chunks::<TS_PACKET_BYTES>().0 {
            let packet = TsPacket(packet);
            let pid = packet.pid();
            if packet.has_payload()
                && let Some((_, stream)) = self.streams.iter_mut().find(|(other, _)| *other == pid)
                && wanted(pid)
            {
                stream.push(byte, packet);
            }
            byte += TS_PACKET_BYTES as u64;
        }
    }

    /// Forgets the stamps that are of no use: what begins there is counted from the one before.
    pub(crate) fn forget_stamps(&mut self, is_usable: impl Fn(&Mark) -> bool) {
        for (_, stream) in &mut self.streams {
            stream.marks.iter_mut().filter(|mark| !is_usable(mark)).for_each(|mark| mark.stamps = None);
        }
    }

    /// Returns the data received on a PID.
    pub(crate) fn stream(&self, pid: u16) -> &Elementary {
        static NONE: Elementary = Elementary { bytes: Vec::new(), marks: Vec::new(), counter: None };
        self.streams.iter().find(|(other, _)| *other == pid).map_or(&NONE, |(_, stream)| stream)
    }
}

#[cfg(test)]
pub(crate) use tests::packet;

#[cfg(test)]
#[path = "demux_tests.rs"]
mod tests;

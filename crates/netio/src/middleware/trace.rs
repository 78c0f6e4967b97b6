//! Counting and remembering what goes out.

use std::collections::VecDeque;
use std::fmt;

use millrace_core::ids::StreamId;
use millrace_core::seam::{PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};
use millrace_core::wire::rtp::RtpHeader;

use crate::null::{Target, taken};
use crate::shape::Shape;

/// What a [`CountTx`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Entries answered `Sent`.
    pub sent: u64,
    /// Entries answered `Blocked`.
    pub blocked: u64,
    /// Entries answered `Unreachable`.
    pub unreachable: u64,
    /// Entries answered `Closed`.
    pub closed: u64,
    /// Datagrams taken.
    pub datagrams: u64,
    /// Bytes of the datagrams taken.
    pub bytes: u64,
}

/// Counts outcomes, datagrams and bytes.
#[derive(Clone, Debug)]
pub struct CountTx<T> {
    inner: T,
    counts: SendCounts,
}

impl<T> CountTx<T> {
    /// Around `inner`.
    pub fn new(inner: T) -> Self {
        Self { inner, counts: SendCounts::default() }
    }

    /// What went through so far.
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    /// The device inside.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The device inside, for good.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: PacketTx> PacketTx for CountTx<T> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.inner.send(batch, outcomes);
        for (index, outcome) in outcomes[..batch.len()].iter().enumerate() {
            match outcome {
                SendOutcome::Sent => self.counts.sent += 1,
                SendOutcome::Blocked { .. } => self.counts.blocked += 1,
                SendOutcome::Unreachable { .. } => self.counts.unreachable += 1,
                SendOutcome::Closed { .. } => self.counts.closed += 1,
            }
            if let Ok(shape) = Shape::of(batch.get(index).payload) {
                let count = taken(outcome, shape.datagrams());
                self.counts.datagrams += count as u64;
                self.counts.bytes += shape.bytes_in(0, count) as u64;
            }
        }
    }
}

/// One entry as a [`TraceTx`] remembers it. Prints as one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Number of the entry since the start, from 0.
    pub serial: u64,
    /// Whose it is.
    pub stream: StreamId,
    /// Where it goes.
    pub to: Target,
    /// Whether it is RTCP.
    pub rtcp: bool,
    /// Sequence number of the first packet, if it is RTP.
    pub sequence: Option<u16>,
    /// Datagrams.
    pub datagrams: usize,
    /// Bytes of all datagrams.
    pub bytes: usize,
    /// What became of it.
    pub outcome: SendOutcome,
}

impl Traced {
    fn new(serial: u64, transmit: &Transmit<'_>, outcome: SendOutcome) -> Self {
        let rtcp = matches!(transmit.payload, Payload::Rtcp(_));
        let shape = Shape::of(transmit.payload).ok().filter(|shape| shape.datagrams() > 0);
        let first = shape.and_then(|shape| shape.parts(0, 1).next());
        Self {
            serial,
            stream: transmit.stream,
            to: Target::of(transmit),
            rtcp,
            sequence: first.filter(|_| !rtcp).and_then(RtpHeader::parse).map(|(header, _)| header.sequence),
            datagrams: shape.map_or(0, |shape| shape.datagrams()),
            bytes: shape.map_or(0, |shape| shape.bytes_in(0, shape.datagrams())),
            outcome,
        }
    }
}

impl fmt::Display for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} stream {}.{} -> ", self.serial, self.stream.index, self.stream.generation)?;
        match self.to {
            Target::Udp(addr) => write!(f, "{addr}")?,
            Target::Tcp { conn, channel } => write!(f, "connection {} channel {channel}", conn.0)?,
        }
        match (self.rtcp, self.sequence) {
            (true, _) => write!(f, " RTCP {} bytes", self.bytes)?,
            (false, Some(sequence)) => {
                write!(f, " RTP {} packets from sequence {sequence}, {} bytes", self.datagrams, self.bytes)?;
            }
            (false, None) => write!(f, " {} datagrams, {} bytes", self.datagrams, self.bytes)?,
        }
        match self.outcome {
            SendOutcome::Sent => f.write_str(": sent"),
            SendOutcome::Blocked { taken } => write!(f, ": blocked after {taken}"),
            SendOutcome::Unreachable { errno } => write!(f, ": unreachable (errno {errno})"),
            SendOutcome::Closed { errno } => write!(f, ": closed (errno {errno})"),
        }
    }
}

/// Remembers the last entries, in memory allocated once.
#[derive(Clone, Debug)]
pub struct TraceTx<T> {
    inner: T,
    ring: VecDeque<Traced>,
    keep: usize,
    serial: u64,
}

impl<T> TraceTx<T> {
    /// Around `inner`; remembers `keep` entries, at least one.
    pub fn new(inner: T, keep: usize) -> Self {
        let keep = keep.max(1);
        Self { inner, ring: VecDeque::with_capacity(keep), keep, serial: 0 }
    }

    /// What is remembered, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Traced> {
        self.ring.iter()
    }

    /// The device inside.
    pub fn inner(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The device inside, for good.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl<T: PacketTx> PacketTx for TraceTx<T> {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.inner.send(batch, outcomes);
        for (index, outcome) in outcomes[..batch.len()].iter().enumerate() {
            if self.ring.len() == self.keep {
                self.ring.pop_front();
            }
            self.ring.push_back(Traced::new(self.serial, &batch.get(index), *outcome));
            self.serial += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{CollectTx, SliceBatch};
    use millrace_core::seam::Dest;

    fn packets(sequence: u16) -> Vec<u8> {
        let header = RtpHeader { marker: false, payload_type: 33, sequence, timestamp: 1, ssrc: 2 };
        let mut bytes = header.emit().to_vec();
        bytes.resize(40, 7);
        bytes
    }

    fn entry(payload: Payload<'_>) -> Transmit<'_> {
        let dest =
            Dest::Udp { rtp: "192.0.2.1:6000".parse().unwrap(), rtcp: "192.0.2.1:6001".parse().unwrap() };
        Transmit { stream: StreamId { index: 4, generation: 2 }, dest, payload }
    }

    #[test]
    fn trace_keeps_the_last_and_prints_them() {
        let bytes = packets(9);
        let batch = [
            entry(Payload::Rtcp(&bytes[..8])),
            entry(Payload::Wire { bytes: &bytes, segment: 20 }),
            entry(Payload::Wire { bytes: &bytes[20..], segment: 20 }),
        ];
        let mut tx = TraceTx::new(CollectTx::default(), 2);
        tx.inner().answers.extend([SendOutcome::Sent, SendOutcome::Blocked { taken: 1 }]);
        let mut outcomes = [SendOutcome::Sent; 3];
        tx.send(&SliceBatch(&batch), &mut outcomes);
        let lines: Vec<String> = tx.entries().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "#1 stream 4.2 -> 192.0.2.1:6000 RTP 2 packets from sequence 9, 40 bytes: blocked after 1",
                "#2 stream 4.2 -> 192.0.2.1:6000 1 datagrams, 20 bytes: sent"
            ]
        );
        tx.send(&SliceBatch(&batch[..1]), &mut outcomes);
        assert_eq!(
            tx.entries().last().map(ToString::to_string).as_deref(),
            Some("#3 stream 4.2 -> 192.0.2.1:6001 RTCP 8 bytes: sent")
        );
    }

    #[test]
    fn counts_are_of_what_was_taken() {
        let bytes = packets(1);
        let batch = [entry(Payload::Wire { bytes: &bytes, segment: 16 }); 4];
        let mut tx = CountTx::new(CollectTx::default());
        tx.inner().answers.extend([
            SendOutcome::Blocked { taken: 2 },
            SendOutcome::Unreachable { errno: 1 },
            SendOutcome::Closed { errno: 1 },
        ]);
        tx.send(&SliceBatch(&batch), &mut [SendOutcome::Sent; 4]);
        let wanted = SendCounts { sent: 1, blocked: 1, unreachable: 1, closed: 1, datagrams: 5, bytes: 72 };
        assert_eq!(tx.counts(), wanted);
        assert_eq!(tx.into_inner().sent.len(), 5);
    }
}

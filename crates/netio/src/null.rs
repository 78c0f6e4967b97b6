//! Devices that send nothing: one that counts, one that keeps the data it was given.

use std::collections::VecDeque;

use millrace_core::ids::StreamId;
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit, TransmitBatch};

use crate::errno::errno_of;

/// Takes everything and counts it: what remains of a measurement when the sending is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullTx {
    /// Calls.
    pub batches: u64,
    /// Entries.
    pub entries: u64,
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes of the datagrams.
    pub bytes: u64,
}

impl PacketTx for NullTx {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self.batches += 1;
        for (index, outcome) in outcomes[..batch.len()].iter_mut().enumerate() {
            *outcome = match batch.shape(index, batch.get(index).payload) {
                Ok(shape) => {
                    self.entries += 1;
                    self.datagrams += shape.datagrams() as u64;
                    self.bytes += shape.bytes_in(0, shape.datagrams()) as u64;
                    SendOutcome::Sent
                }
                Err(why) => SendOutcome::Unreachable { errno: errno_of(why) },
            };
        }
    }
}

/// One datagram as it would have been on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collected {
    /// Whose it is.
    pub stream: StreamId,
    /// Where it goes.
    pub dest: Dest,
    /// Whether it is RTCP.
    pub is_rtcp: bool,
    /// RTP or RTCP packet.
    pub bytes: Vec<u8>,
}

/// Keeps a copy of every datagram, for tests; answers `Sent` or the given answers.
#[derive(Clone, Debug, Default)]
pub struct CollectTx {
    /// Everything taken, in order.
    pub sent: Vec<Collected>,
    /// Answers for the entries to come; `Sent` when there are none left. For a `Blocked` entry it
    /// keeps the datagrams reported as taken (an entry taken whole is `Sent` after all), for an
    /// `Unreachable` or `Closed` one none.
    pub answers: VecDeque<SendOutcome>,
}

impl PacketTx for CollectTx {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        for (index, outcome) in outcomes[..batch.len()].iter_mut().enumerate() {
            let transmit = batch.get(index);
            let shape = match batch.shape(index, transmit.payload) {
                Ok(shape) => shape,
                Err(why) => {
                    *outcome = SendOutcome::Unreachable { errno: errno_of(why) };
                    continue;
                }
            };
            *outcome = self.answers.pop_front().unwrap_or(SendOutcome::Sent);
            let count = taken(outcome, shape.datagrams());
            if count == shape.datagrams() {
                *outcome = SendOutcome::Sent;
            }
            let Transmit { stream, dest, payload } = transmit;
            let is_rtcp = matches!(payload, Payload::Rtcp(_));
            for place in 0..count {
                let bytes = shape.parts(place, 1).flatten().copied().collect();
                self.sent.push(Collected { stream, dest, is_rtcp, bytes });
            }
        }
    }
}

/// Datagrams of an entry with `datagrams` that a device took.
pub(crate) fn taken(outcome: &SendOutcome, datagrams: usize) -> usize {
    match outcome {
        SendOutcome::Sent => datagrams,
        SendOutcome::Blocked { taken } => usize::from(*taken).min(datagrams),
        SendOutcome::Unreachable { .. } | SendOutcome::Closed { .. } => 0,
    }
}

/// Entries in a slice, as a batch.
#[derive(Clone, Copy, Debug)]
pub struct SliceBatch<'a>(pub &'a [Transmit<'a>]);

impl TransmitBatch for SliceBatch<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Transmit<'_> {
        self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::ids::ConnId;

    fn entry(payload: Payload<'_>) -> Transmit<'_> {
        let dest = Dest::Interleaved { conn: ConnId(3), rtp_channel: 0, rtcp_channel: 1 };
        Transmit { stream: StreamId { index: 1, generation: 0 }, dest, payload }
    }

    #[test]
    fn null_counts() {
        let bytes = [0; 50];
        let batch = [entry(Payload::Wire { bytes: &bytes, segment: 20 }), entry(Payload::Rtcp(&bytes[..9]))];
        let mut outcomes = [SendOutcome::Closed { errno: 0 }; 2];
        let mut tx = NullTx::default();
        tx.send(&SliceBatch(&batch), &mut outcomes);
        assert_eq!(outcomes, [SendOutcome::Sent; 2]);
        assert_eq!(tx, NullTx { batches: 1, entries: 2, datagrams: 4, bytes: 59 });
    }

    #[test]
    fn collect_keeps_what_was_taken_and_answers_as_told() {
        let bytes: Vec<u8> = (0..50).collect();
        let headers = [9; 36];
        let batch = [
            entry(Payload::Patched { headers: &headers, bytes: &bytes[..44], segment: 16 }),
            entry(Payload::Wire { bytes: &bytes, segment: 20 }),
            entry(Payload::Rtcp(&bytes[..9])),
            entry(Payload::Wire { bytes: &bytes, segment: 0 }),
        ];
        let mut tx = CollectTx::default();
        tx.answers.extend([SendOutcome::Blocked { taken: 2 }, SendOutcome::Closed { errno: 1 }]);
        let mut outcomes = [SendOutcome::Sent; 4];
        tx.send(&SliceBatch(&batch), &mut outcomes);
        assert_eq!(
            outcomes,
            [
                SendOutcome::Blocked { taken: 2 },
                SendOutcome::Closed { errno: 1 },
                SendOutcome::Sent,
                SendOutcome::Unreachable { errno: libc::EINVAL }
            ]
        );
        let sent: Vec<_> = tx.sent.iter().map(|s| (s.is_rtcp, s.bytes.as_slice())).collect();
        let first = [[9; 12].as_slice(), &bytes[12..16]].concat();
        let second = [[9; 12].as_slice(), &bytes[28..32]].concat();
        assert_eq!(sent, [(false, &first[..]), (false, &second[..]), (true, &bytes[..9])]);
    }
}

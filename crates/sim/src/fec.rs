//! The column FEC (SMPTE ST 2022-1) beside a viewer's media, compared with the title.

use std::collections::VecDeque;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::time::Instant;

use crate::titles::StoredTitle;

/// Distance from the media port to the FEC port.
pub const FEC_PORT_OFFSET: u16 = 2;
/// Length of a FEC header.
const FEC_HEADER_BYTES: usize = 16;
/// A FEC packet waits this long for the media packets that it protects.
const MATCH_NS: u64 = 2_000_000_000;

/// The FEC packets of a session.
#[derive(Default)]
pub struct FecReception {
    waiting: VecDeque<(Instant, Vec<u8>)>,
    /// FEC packets that were compared.
    pub packets: u64,
}

impl FecReception {
    /// A FEC packet has come, or was lost on the way.
    pub fn take(&mut self, now: Instant, datagram: &[u8]) {
        self.waiting.push_back((now, datagram.to_vec()));
    }

    /// Compares the packets with the title. `shifts` are the differences that sequence numbers of the
    /// session have had from those of the title.
    ///
    /// # Errors
    /// A packet is not the parity of any packets of the title.
    pub fn check(&mut self, now: Instant, title: &StoredTitle, shifts: &[u16]) -> Result<(), String> {
        let mut rest = VecDeque::new();
        for (came, datagram) in self.waiting.drain(..) {
            if shifts.iter().any(|shift| is_parity(title, &datagram, *shift)) {
                self.packets += 1;
            } else if now.ns_since(came) > MATCH_NS {
                let header = datagram.get(..RTP_HEADER_BYTES + FEC_HEADER_BYTES);
                return Err(format!("a FEC packet is no parity of the title: {header:?}, shifts {shifts:?}"));
            } else {
                rest.push_back((came, datagram));
            }
        }
        self.waiting = rest;
        Ok(())
    }

    /// FEC packets are not compared: on a damaged volume their payload is unknown here.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }
}

/// Whether the payload is the sum of the packets that the FEC header names.
fn is_parity(title: &StoredTitle, datagram: &[u8], shift: u16) -> bool {
    let Some((header, parity)) =
        datagram.get(RTP_HEADER_BYTES..).and_then(|fec| fec.split_at_checked(FEC_HEADER_BYTES))
    else {
        return false;
    };
    let base = u16::from_be_bytes([header[0], header[1]]);
    let (offset, count) = (usize::from(header[13]), usize::from(header[14]));
    let first = usize::from(base.wrapping_sub(1).wrapping_sub(shift));
    let mut sum = vec![0; DEFAULT_PACKET_BYTES];
    for packet in (0..count).map(|index| first + index * offset) {
        let start = (packet * DEFAULT_PACKET_BYTES).min(title.bytes.len());
        let end = (start + DEFAULT_PACKET_BYTES).min(title.bytes.len());
        sum.iter_mut().zip(&title.bytes[start..end]).for_each(|(sum, byte)| *sum ^= byte);
    }
    count > 0 && sum == parity
}

//! The column FEC (SMPTE ST 2022-1) beside a viewer's media, compared with the title.

use std::collections::{BTreeSet, VecDeque};

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
    /// The service has granted it.
    pub is_granted: bool,
    /// FEC packets that were compared.
    pub packets: u64,
    /// Media packets that these protect.
    protected: BTreeSet<usize>,
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
            if let Some(column) = shifts.iter().find_map(|shift| column_of(title, &datagram, *shift)) {
                self.packets += 1;
                self.protected.extend(column.packets());
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

    /// Looks whether each packet of the title is protected, from the first row of stripes behind
    /// `start` on: all of them have come.
    ///
    /// # Errors
    /// FEC packets are missing.
    pub fn check_whole(&self, title: &StoredTitle, start: u32, row_packets: usize) -> Result<(), String> {
        if !self.is_granted {
            return Ok(());
        }
        let first = (start as usize).next_multiple_of(row_packets);
        let missing = (first..title.packets() as usize).find(|packet| !self.protected.contains(packet));
        missing.map_or(Ok(()), |packet| Err(format!("no FEC packet protects packet {packet}")))
    }

    /// FEC packets are not compared: on a damaged volume their payload is unknown here.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }
}

/// The packets that a FEC packet protects.
struct FecColumn {
    first: usize,
    offset: usize,
    count: usize,
}

impl FecColumn {
    fn packets(&self) -> impl Iterator<Item = usize> + use<> {
        let &Self { first, offset, count } = self;
        (0..count).map(move |index| first + index * offset)
    }
}

/// The packets that the FEC header names, if the payload is their sum.
fn column_of(title: &StoredTitle, datagram: &[u8], shift: u16) -> Option<FecColumn> {
    let fec = datagram.get(RTP_HEADER_BYTES..)?;
    let (header, parity) = fec.split_at_checked(FEC_HEADER_BYTES)?;
    let base = u16::from_be_bytes([header[0], header[1]]);
    let (offset, count) = (usize::from(header[13]), usize::from(header[14]));
    let first = usize::from(base.wrapping_sub(1).wrapping_sub(shift));
    let column = FecColumn { first, offset, count };
    let mut sum = vec![0; DEFAULT_PACKET_BYTES];
    for packet in column.packets() {
        let start = (packet * DEFAULT_PACKET_BYTES).min(title.bytes.len());
        let end = (start + DEFAULT_PACKET_BYTES).min(title.bytes.len());
        sum.iter_mut().zip(&title.bytes[start..end]).for_each(|(sum, byte)| *sum ^= byte);
    }
    (count > 0 && sum == parity).then_some(column)
}

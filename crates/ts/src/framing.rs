//! Bytes to packets: where they begin is found by their sync bytes, lost and found again (TR 101 290 checks 1.1 and 1.2). How the bytes are cut
//! into pieces makes no difference.

use millrace_core::limits::TS_PACKET_BYTES;

use crate::limits::{FRAMING_BYTES, SYNC_PACKETS};
use crate::packet::{Bytes, SYNC};

/// A piece of the input.
#[derive(Debug)]
pub(crate) enum InputPiece<'a> {
    /// A packet with its sync byte.
    Packet { at: u64, bytes: &'a Bytes },
    /// A packet whose first byte is wrong; the next one's is right.
    BadSync { at: u64, got: u8 },
    /// Two sync bytes in a row are wrong, or the stream does not begin with packets: this many
    /// bytes belong to no packet.
    Skipped { at: u64, bytes: u64 },
    /// The stream ends within a packet.
    Cut { at: u64, bytes: u64 },
}

#[derive(Debug, Default)]
pub(crate) struct Framer {
    pending: Vec<u8>,
    /// Offset of the first pending byte.
    at: u64,
    in_sync: bool,
    /// Where the search began.
    lost_at: u64,
}

enum Search {
    Found(usize),
    /// Nothing before this place; more bytes are needed.
    Up(usize),
}

impl Framer {
    /// Creates a framer whose input begins at this offset and has no connection to earlier input.
    pub(crate) fn at(offset: u64) -> Self {
        Self { at: offset, lost_at: offset, ..Self::default() }
    }

    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut impl FnMut(InputPiece<'_>)) {
        for part in bytes.chunks(FRAMING_BYTES) {
            self.pending.extend_from_slice(part);
            self.process(false, out);
        }
    }

    /// Ends the input: no more follows, or the next input has no connection to it.
    pub(crate) fn finish(&mut self, out: &mut impl FnMut(InputPiece<'_>)) {
        self.process(true, out);
        let rest = self.pending.len() as u64;
        if rest > 0 && self.in_sync {
            out(InputPiece::Cut { at: self.at, bytes: rest });
        } else if !self.in_sync && self.at + rest > self.lost_at {
            out(InputPiece::Skipped { at: self.lost_at, bytes: self.at + rest - self.lost_at });
        }
        self.at += rest;
        self.pending.clear();
        (self.in_sync, self.lost_at) = (false, self.at);
    }

    fn process(&mut self, is_end: bool, out: &mut impl FnMut(InputPiece<'_>)) {
        let pending = std::mem::take(&mut self.pending);
        let mut used = 0;
        loop {
            let rest = &pending[used..];
            let at = self.at + used as u64;
            if !self.in_sync {
                match self.search(rest, at, is_end) {
                    Search::Up(places) => {
                        used += places;
                        break;
                    }
                    Search::Found(place) => {
                        used += place;
                        let skipped = at + place as u64 - self.lost_at;
                        if skipped > 0 {
                            out(InputPiece::Skipped { at: self.lost_at, bytes: skipped });
                        }
                        self.in_sync = true;
                    }
                }
                continue;
            }
            let Some(bytes) = rest.first_chunk::<TS_PACKET_BYTES>() else { break };
            if bytes[0] != SYNC {
                match rest.get(TS_PACKET_BYTES) {
                    None if !is_end => break,
                    None | Some(&SYNC) => out(InputPiece::BadSync { at, got: bytes[0] }),
                    Some(_) => {
                        (self.in_sync, self.lost_at) = (false, at);
                        continue;
                    }
                }
            } else {
                out(InputPiece::Packet { at, bytes });
            }
            used += TS_PACKET_BYTES;
        }
        self.at += used as u64;
        self.pending = pending;
        self.pending.drain(..used);
    }

    /// Five sync bytes in a row; at the end of the stream as many as there are, if there is more than one or nothing before.
    fn search(&self, rest: &[u8], at: u64, is_end: bool) -> Search {
        for place in 0..rest.len() {
            if rest[place] != SYNC {
                continue;
            }
            let mut syncs = rest[place..].iter().step_by(TS_PACKET_BYTES).take(SYNC_PACKETS);
            if !syncs.all(|&byte| byte == SYNC) {
                continue;
            }
            let left = rest.len() - place;
            if left > (SYNC_PACKETS - 1) * TS_PACKET_BYTES {
                return Search::Found(place);
            }
            let enough =
                left > TS_PACKET_BYTES || left == TS_PACKET_BYTES && at + place as u64 == self.lost_at;
            match (is_end, enough) {
                (false, _) => return Search::Up(place),
                (true, true) => return Search::Found(place),
                (true, false) => {}
            }
        }
        Search::Up(rest.len())
    }
}

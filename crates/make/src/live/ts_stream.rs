//! TS packets in a stream of bytes that comes in pieces of any length, by a connection.

use crate::ingest::framing::Framer;
use crate::limits::live::{OTHER_FORMAT_BYTES, STREAM_BUFFER_BYTES};

/// Finds TS packets and steps over damage.
#[derive(Debug)]
pub struct TsStream {
    framer: Framer,
    /// Bytes since the last packet.
    fruitless: u64,
}

impl Default for TsStream {
    fn default() -> Self {
        Self { framer: Framer::new(STREAM_BUFFER_BYTES), fruitless: 0 }
    }
}

impl TsStream {
    /// Takes the next bytes; calls `out` with runs of whole packets. A packet is known when the next one has begun.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut dyn FnMut(&[u8])) {
        while !bytes.is_empty() {
            let space = self.framer.space();
            let (now, later) = bytes.split_at(bytes.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            self.framer.filled(now.len());
            self.fruitless += now.len() as u64;
            bytes = later;
            while let Some((run, _)) = self.framer.next_run() {
                self.fruitless = 0;
                out(run);
            }
        }
    }

    /// Whether there is no packet in the last bytes, more than damage explains.
    pub fn is_other_format(&self) -> bool {
        self.fruitless > OTHER_FORMAT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use millrace_testkit::mux::usual_film;

    use super::*;

    fn runs(bytes: &[u8], piece: usize) -> (Vec<u8>, TsStream) {
        let (mut stream, mut out) = (TsStream::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            stream.push(piece, &mut |run| {
                assert!(run.len().is_multiple_of(188));
                out.extend_from_slice(run);
            });
        }
        (out, stream)
    }

    #[test]
    fn packets_are_found_in_pieces_of_any_length() {
        let film = usual_film();
        for piece in [1, 187, 188, 1000, 70_000, film.len()] {
            let (out, _) = runs(&film, piece);
            assert!(out.len() + 4 * 188 >= film.len() && film.starts_with(&out), "{piece}: {}", out.len());
        }
        let damaged = [&film[..18_800], &[0x11; 77], &film[18_800..]].concat();
        let (out, stream) = runs(&damaged, 500);
        assert!(!stream.is_other_format());
        assert!(out.len() + 8 * 188 >= film.len(), "{}", out.len());
    }

    #[test]
    fn other_formats_are_seen() {
        let other: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 64) as u8).collect();
        let (out, stream) = runs(&other, 1000);
        assert!(out.is_empty() && stream.is_other_format());
    }
}

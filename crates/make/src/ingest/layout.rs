//! Collects the layouts of a title: the video and audio streams that the program map in force
//! announces, with the decoder configuration of each.

use crc_fast::CrcAlgorithm;
use millrace_store::index::LayoutStream;
use millrace_store::limits::volume::MAX_CODEC_NAME_BYTES;

use crate::limits::ingest::MAX_LAYOUT_STREAMS;

use millrace_media::codec::{self, StreamKind};
use millrace_media::psi::PmtStream;

/// Bytes examined in an audio header.
const HEADER_BYTES: usize = 8;

/// Collects the title's layouts.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayoutList {
    done: Vec<LayoutStream>,
    now: Vec<LayoutStream>,
    /// Audio formats seen once: PID, checksum, offset. A change counts only when it is seen again,
    /// so that a damaged header is not taken for one.
    unsure: Vec<(u16, u32, u64)>,
    /// Whether the current layout has an access point.
    has_access: bool,
}

impl LayoutList {
    /// A program map at `byte` announces these streams. Streams that stay keep their known codec
    /// and configuration.
    pub(crate) fn announce(&mut self, byte: u64, streams: &[PmtStream]) {
        let is_wanted = |s: &&PmtStream| s.kind != StreamKind::Other || s.codec == codec::PRIVATE;
        let old = std::mem::take(&mut self.now);
        let mut new: Vec<LayoutStream> = Vec::new();
        for stream in streams.iter().filter(is_wanted) {
            let known = old.iter().find(|s| s.pid == stream.pid && s.stream_type == stream.stream_type);
            let has_name = stream.codec == codec::PRIVATE || stream.codec == codec::MPEG_AUDIO;
            let codec = known.filter(|_| has_name).map_or(&stream.codec, |known| &known.codec);
            new.push(LayoutStream {
                byte,
                pid: stream.pid,
                stream_type: stream.stream_type,
                codec: codec.chars().filter(char::is_ascii).take(MAX_CODEC_NAME_BYTES).collect(),
                language: stream.language.clone(),
                config: known.filter(|known| known.codec == *codec).map_or(0, |known| known.config),
            });
        }
        self.begin(byte, old, new);
    }

    /// Begins a new layout, unless `new` differs from `old` only in its place.
    fn begin(&mut self, byte: u64, old: Vec<LayoutStream>, mut new: Vec<LayoutStream>) {
        // Data before the first program map belongs to the streams that this map announces.
        let byte = if self.done.is_empty() && old.is_empty() { 0 } else { byte };
        let is_same = old.len() == new.len()
            && old.iter().zip(&new).all(|(old, new)| LayoutStream { byte: old.byte, ..new.clone() } == *old);
        let is_full = self.done.len() + old.len() + new.len() > MAX_LAYOUT_STREAMS;
        if is_same || new.is_empty() || is_full {
            self.now = old;
            return;
        }
        // A layout that is replaced at the same byte was never in force.
        if old.first().is_some_and(|old| old.byte < byte) {
            self.done.extend(old);
        }
        let byte = self.done.last().map_or(byte, |last| byte.max(last.byte + 1));
        new.iter_mut().for_each(|stream| stream.byte = byte);
        self.now = new;
        self.unsure.clear();
        self.has_access = false;
    }

    /// Sets the codec of a stream that the tables do not name.
    pub(crate) fn name(&mut self, pid: u16, codec: &str) {
        let is_placeholder = |s: &&mut LayoutStream| {
            s.pid == pid && (s.codec == codec::PRIVATE || s.codec == codec::MPEG_AUDIO)
        };
        let all = self.done.iter_mut().chain(&mut self.now);
        all.filter(is_placeholder).for_each(|stream| stream.codec = codec.to_owned());
    }

    /// Sets the decoder configuration of a stream from `byte` on.
    pub(crate) fn config(&mut self, pid: u16, config: u32, byte: u64) {
        let Some(at) = self.now.iter().position(|stream| stream.pid == pid) else { return };
        if self.now[at].config == config {
            return;
        }
        if self.now[at].config == 0 {
            self.now[at].config = config;
            return;
        }
        let old = std::mem::take(&mut self.now);
        let mut new = old.clone();
        new[at].config = config;
        self.begin(byte, old, new);
    }

    /// A PES packet with this payload begins at `byte`, on a PID that may carry audio.
    pub(crate) fn sound(&mut self, pid: u16, payload: &[u8], byte: u64) {
        let Some(stream) = self.now.iter().find(|stream| stream.pid == pid) else { return };
        let Some(config) = sound_config(&stream.codec, payload) else { return };
        let at = self.unsure.iter().position(|(other, ..)| *other == pid);
        if stream.config == config || stream.config == 0 {
            at.map(|at| self.unsure.swap_remove(at));
            self.config(pid, config, byte);
            return;
        }
        match at.map(|at| &mut self.unsure[at]) {
            Some((_, again, first)) if *again == config => {
                let first = *first;
                self.config(pid, config, first);
            }
            Some(other) => *other = (pid, config, byte),
            None => self.unsure.push((pid, config, byte)),
        }
    }

    /// Records an access point. Returns whether it is the first one of its layout.
    pub(crate) fn take_first_access(&mut self) -> bool {
        !std::mem::replace(&mut self.has_access, true)
    }

    /// All layouts of a title of this length.
    pub(crate) fn into_streams(mut self, bytes: u64) -> Vec<LayoutStream> {
        self.done.append(&mut self.now);
        // Layouts that follow one another within a packet may end up behind the last packet.
        self.done.retain(|stream| stream.codec != codec::PRIVATE && stream.byte < bytes);
        // The first layout begins at byte 0, even if earlier ones had only private data and were
        // dropped.
        if let Some(first) = self.done.first().map(|stream| stream.byte) {
            self.done.iter_mut().filter(|stream| stream.byte == first).for_each(|stream| stream.byte = 0);
        }
        self.done
    }
}

/// Never returns 0, which means unknown.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    (crc_fast::checksum(CrcAlgorithm::Crc32Mpeg2, bytes) as u32).max(1)
}

/// Checksum of the audio format in the first frame header of a PES packet, for codecs whose
/// decoders need it in advance.
fn sound_config(codec: &str, payload: &[u8]) -> Option<u32> {
    let format = |h: &[u8]| match codec {
        // ADTS (ISO/IEC 13818-7 section 6.2): profile, sampling frequency, channels.
        "AAC" if h[0] == 0xff && h[1] & 0xf6 == 0xf0 && h[2] >> 2 & 0x0f < 13 => {
            Some([1, h[2] & 0xfd, h[3] & 0xc0])
        }
        // ETSI TS 102 366 section 4.3: sampling rate, identification, channels; the rate in bits may change from frame to frame.
        "AC-3" if h.starts_with(&[0x0b, 0x77]) && h[5] >> 3 <= 10 => {
            Some([2 | h[4] & 0xc0, h[5] >> 3, low_of_ac3(h)])
        }
        // Section E.1.2; a dependent substream continues the previous frame.
        "E-AC-3" if h.starts_with(&[0x0b, 0x77]) && h[5] >> 3 > 10 && h[2] >> 6 != 1 => {
            Some([3, h[4], h[5] >> 3])
        }
        _ => None,
    };
    payload.windows(HEADER_BYTES).find_map(format).map(|format| checksum(&format))
}

/// `acmod`, and whether there is a low-frequency channel. Its bit follows the mix levels that some
/// modes have.
fn low_of_ac3(h: &[u8]) -> u8 {
    let mode = h[6] >> 5;
    let levels = [mode & 1 == 1 && mode != 1, mode & 4 != 0, mode == 2];
    let before = 3 + 2 * levels.iter().filter(|&&has| has).count();
    mode << 1 | (u16::from_be_bytes([h[6], h[7]]) >> (15 - before) & 1) as u8
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;

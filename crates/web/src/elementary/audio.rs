//! Frames of sound: AAC in ADTS, AC-3 and E-AC-3 become samples, with the time of each.

use millrace_core::time::MEDIA_HZ;
use millrace_core::units::BitRate;
use millrace_media::pce::{self, Pce};

use super::demux::Elementary;
use crate::limits::{LEAST_SOUND_RATE, MAX_SOUND_FRAME_BYTES};

/// Which coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Aac,
    Ac3,
    Eac3,
}

/// Decoder configuration of an audio stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AudioConfig {
    pub(crate) coding: Coding,
    /// Samples a second.
    pub(crate) rate: u32,
    pub(crate) channels: u16,
    /// Samples of a frame.
    pub(crate) frame: u32,
    /// What `esds`, `dac3` or `dec3` say: AAC's object type, frequency index and channels; AC-3's and E-AC-3's `fscod`, `bsid`, `bsmod`, `acmod`, `lfeon`,
    /// and AC-3's code for its bit rate.
    pub(crate) header: [u8; 6],
    /// AAC only: the channel layout, if the ADTS header does not give it.
    pub(crate) pce: Option<Pce>,
}

/// A frame in an elementary stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AudioFrame {
    /// Its sample.
    pub(crate) at: usize,
    pub(crate) length: usize,
    /// The configuration from the header of this frame.
    pub(crate) config: AudioConfig,
    /// The frame's time: the PES packet whose time stamp is the base, and the offset from it in
    /// ticks of 90 kHz plus samples.
    pub(crate) mark: usize,
    pub(crate) ticks: u64,
    pub(crate) samples: u64,
}

/// A frame's header.
struct Header {
    config: AudioConfig,
    /// Bytes that come before the sample, and those of both.
    skip: usize,
    length: usize,
    /// Whether it goes on with the frame before (E-AC-3: further channels of it).
    is_more: bool,
}

const AAC_RATES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];
/// Of AC-3 and E-AC-3 (ETSI TS 102 366 table 4.1).
const AC3_RATES: [u32; 3] = [48_000, 44_100, 32_000];
/// kbit/s of AC-3 (table 4.13).
const AC3_BIT_RATES: [u32; 19] =
    [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640];
/// Full channels by `acmod` (table 4.3).
const AC3_CHANNELS: [u16; 8] = [2, 1, 2, 3, 3, 4, 4, 5];

impl Coding {
    fn header(self, bytes: &[u8]) -> Option<Header> {
        match self {
            Self::Aac => aac(bytes),
            Self::Ac3 => ac3(bytes),
            Self::Eac3 => eac3(bytes),
        }
    }
}

/// ADTS (ISO/IEC 13818-7 section 6.2), with one block in a frame.
fn aac(bytes: &[u8]) -> Option<Header> {
    let h = bytes.get(..7)?;
    if h[0] != 0xff || h[1] & 0xf6 != 0xf0 || h[6] & 3 != 0 {
        return None;
    }
    let (object, index) = ((h[2] >> 6) + 1, h[2] >> 2 & 0x0f);
    let rate = *AAC_RATES.get(usize::from(index))?;
    let channels = (h[2] & 1) << 2 | h[3] >> 6;
    let length = usize::from(h[3] & 3) << 11 | usize::from(h[4]) << 3 | usize::from(h[5] >> 5);
    let skip = if h[1] & 1 == 0 { 9 } else { 7 };
    let pce = if channels == 0 { pce::read(bytes.get(skip..).unwrap_or_default()) } else { None };
    let named = [0, 1, 2, 3, 4, 5, 6, 8][usize::from(channels)];
    let header = [object, index, channels, 0, 0, 0];
    let count = pce.map_or(named, |pce| pce.channels);
    let config = AudioConfig { coding: Coding::Aac, rate, channels: count, frame: 1024, header, pce };
    (length > skip).then_some(Header { config, skip, length, is_more: false })
}

/// ETSI TS 102 366 section 4.3.
fn ac3(bytes: &[u8]) -> Option<Header> {
    let h = bytes.get(..8).filter(|h| h.starts_with(&[0x0b, 0x77]))?;
    let (code, size, bsid, bsmod, acmod) = (h[4] >> 6, h[4] & 0x3f, h[5] >> 3, h[5] & 7, h[6] >> 5);
    let rate = *AC3_RATES.get(usize::from(code))?;
    let bit_rate = *AC3_BIT_RATES.get(usize::from(size >> 1))?;
    if bsid > 8 {
        return None;
    }
    // 1,536 samples in words of 16 bits, rounded down unless the last bit indicates otherwise.
    let words = bit_rate * 1000 * 1536 / 16 / rate + u32::from(code == 1) * u32::from(size & 1);
    // Levels of mixing stand before the bit for the low frequencies' channel.
    let levels = [acmod & 1 == 1 && acmod != 1, acmod & 4 != 0, acmod == 2];
    let before = 3 + 2 * levels.iter().filter(|&&has| has).count();
    let bits = u16::from_be_bytes([h[6], h[7]]);
    let low = (bits >> (15 - before) & 1) as u8;
    let channels = AC3_CHANNELS[usize::from(acmod)] + u16::from(low);
    let header = [code, bsid, bsmod, acmod, low, size >> 1];
    let config = AudioConfig { coding: Coding::Ac3, rate, channels, frame: 1536, header, pce: None };
    Some(Header { config, skip: 0, length: words as usize * 2, is_more: false })
}

/// ETSI TS 102 366 section E.1.2.
fn eac3(bytes: &[u8]) -> Option<Header> {
    let h = bytes.get(..6).filter(|h| h.starts_with(&[0x0b, 0x77]))?;
    let (kind, stream) = (h[2] >> 6, h[2] >> 3 & 7);
    let length = ((usize::from(h[2] & 7) << 8 | usize::from(h[3])) + 1) * 2;
    let (code, second) = (h[4] >> 6, h[4] >> 4 & 3);
    let (rate, blocks) = match code {
        3 => (*AC3_RATES.get(usize::from(second))? / 2, 6),
        _ => (AC3_RATES[usize::from(code)], [1, 2, 3, 6][usize::from(second)]),
    };
    let (acmod, low, bsid) = (h[4] >> 1 & 7, h[4] & 1, h[5] >> 3);
    if !(11..=16).contains(&bsid) || kind == 3 {
        return None;
    }
    let channels = AC3_CHANNELS[usize::from(acmod)] + u16::from(low);
    let header = [code, bsid, 0, acmod, low, 0];
    let config = AudioConfig { coding: Coding::Eac3, rate, channels, frame: 256 * blocks, header, pce: None };
    Some(Header { config, skip: 0, length, is_more: kind == 1 || stream != 0 })
}

/// Returns the decoder configuration, from the first two frames in a row that agree.
pub(crate) fn config(stream: &Elementary, coding: Coding) -> Option<AudioConfig> {
    let bytes = &stream.bytes;
    let agrees = |at: usize| {
        let first =
            coding.header(&bytes[at..]).filter(|first| !first.is_more && first.config.channels > 0)?;
        let next = following(coding, bytes, at + first.length)?;
        next.is_like(&first.config).then_some(first.config)
    };
    (0..bytes.len()).find_map(agrees)
}

/// Returns the configuration of the next frame, skipping further channels of the previous one.
fn following(coding: Coding, bytes: &[u8], mut at: usize) -> Option<AudioConfig> {
    loop {
        let header = coding.header(bytes.get(at..)?)?;
        if !header.is_more {
            return Some(header.config);
        }
        at += header.length;
    }
}

/// Returns all whole frames, starting with the first PES packet that has a time stamp. Frames whose
/// header differs from `config` are included, so that no frame is lost where the format changes.
pub(crate) fn frames(stream: &Elementary, config: &AudioConfig) -> Vec<AudioFrame> {
    let (bytes, coding) = (&stream.bytes, config.coding);
    let mut list: Vec<AudioFrame> = Vec::new();
    let (mut at, mut is_sure) = (0, false);
    let mut base: Option<(usize, u64, u64)> = None;
    while at < bytes.len() {
        let Some(found) = coding.header(&bytes[at..]).filter(|found| {
            let end = at + found.length;
            let is_last = end == bytes.len();
            // After a gap, bytes that look like a frame count as one only if a similar frame
            // follows. The same rule applies to a frame whose format differs from the previous one.
            let before = list.last().map_or(*config, |last| last.config);
            let is_known = found.is_more || found.config.is_like(config) || found.config.is_like(&before);
            let is_next = match is_known {
                true => is_sure || is_last || coding.header(&bytes[end.min(bytes.len())..]).is_some(),
                false => following(coding, bytes, end).is_some_and(|next| next.is_like(&found.config)),
            };
            end <= bytes.len() && found.length <= MAX_SOUND_FRAME_BYTES && is_next
        }) else {
            (at, is_sure) = (at + 1, false);
            continue;
        };
        is_sure = true;
        let sample = (at + found.skip, found.length - found.skip);
        if found.is_more {
            if let Some(last) = list.last_mut().filter(|last| last.at + last.length == at) {
                last.length += sample.1;
            }
            at += found.length;
            continue;
        }
        // A stamp is that of the first frame that begins in its PES packet.
        let mark = stream.mark_of(at).filter(|&mark| stream.marks[mark].stamps.is_some());
        base = match (mark, base) {
            (Some(mark), before) if before.is_none_or(|(before, ..)| before < mark) => Some((mark, 0, 0)),
            (_, Some((mark, ticks, samples))) => {
                let last = list.last().map_or(found.config, |last| last.config);
                let samples = samples + u64::from(last.frame);
                match last.rate == found.config.rate {
                    true => Some((mark, ticks, samples)),
                    false => Some((mark, ticks + samples * MEDIA_HZ / u64::from(last.rate), 0)),
                }
            }
            (_, None) => None,
        };
        if let Some((mark, ticks, samples)) = base {
            list.push(AudioFrame {
                at: sample.0,
                length: sample.1,
                config: found.config,
                mark,
                ticks,
                samples,
            });
        }
        at += found.length;
    }
    list
}

/// What admission counts for who fetches this sound alone: what its frames here have, and no less than is usual.
pub(crate) fn bit_rate(stream: &Elementary, config: &AudioConfig) -> BitRate {
    let list = frames(stream, config);
    let bits: u64 = list.iter().map(|frame| frame.length as u64 * 8).sum();
    let samples = list.len() as u64 * u64::from(config.frame);
    let measured = (bits * u64::from(config.rate)).checked_div(samples).unwrap_or(0);
    BitRate(measured.max(u64::from(config.channels) * LEAST_SOUND_RATE))
}

impl AudioConfig {
    /// Whether a decoder configured for one also decodes frames of the other. The bit rate of AC-3
    /// may change from frame to frame, and AAC frames need not repeat the channel layout.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let used = if self.coding == Coding::Ac3 { 5 } else { 6 };
        (self.coding, self.rate, self.frame) == (other.coding, other.rate, other.frame)
            && self.header[..used] == other.header[..used]
            && (self.pce == other.pce || self.pce.is_none() || other.pce.is_none())
    }

    /// Length of a frame in samples of another rate.
    pub(crate) fn length_at(&self, rate: u32) -> u32 {
        (u64::from(self.frame) * u64::from(rate) / u64::from(self.rate)) as u32
    }

    /// As RFC 6381 spells it.
    pub(crate) fn codec(&self) -> String {
        match self.coding {
            Coding::Aac => format!("mp4a.40.{}", self.header[0]),
            Coding::Ac3 => "ac-3".to_owned(),
            Coding::Eac3 => "ec-3".to_owned(),
        }
    }

    /// Returns the nearest number of samples for `scaled`: ticks of 90 kHz times the sample rate,
    /// so that the ticks of a number of samples are exact.
    pub(crate) fn samples(&self, scaled: i64) -> i64 {
        let hz = MEDIA_HZ.cast_signed();
        (scaled + hz / 2).div_euclid(hz)
    }
}

#[cfg(test)]
#[path = "audio_tests.rs"]
mod tests;

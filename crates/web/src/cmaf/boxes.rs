//! Boxes of the ISO base media file format (ISO/IEC 14496-12): a track's init segment, and its media segments (ISO/IEC 23000-19).

use crate::elementary::audio::{AudioConfig, Coding};
use crate::elementary::video::{Syntax, VideoConfig};
use crate::elementary::{Colour, Config};

/// A sample of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mp4Sample {
    pub(crate) bytes: u32,
    pub(crate) duration: u32,
    pub(crate) is_sync: bool,
    /// How much later than decoded it is shown.
    pub(crate) offset: i32,
}

/// The number of the only track of each file.
const TRACK: u32 = 1;
/// What these segments conform to, the major brand first.
const BRANDS: [&[u8; 4]; 2] = [b"iso6", b"cmfc"];
const IDENTITY: [u32; 9] = [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000];
/// Sample flags: needs no other; needs others, and is no place to start.
const SYNC: u32 = 0x0200_0000;
const NO_SYNC: u32 = 0x0101_0000;

/// Appends numbers and boxes.
#[derive(Debug, Default)]
struct BoxWriter(Vec<u8>);

impl BoxWriter {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn zeros(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    fn boxed(&mut self, name: &[u8; 4], content: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.u32(0);
        self.bytes(name);
        content(self);
        // No box but `mdat`, which is not made here, is anywhere near 4 GiB.
        let length = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn full(&mut self, name: &[u8; 4], version: u8, flags: u32, content: impl FnOnce(&mut Self)) {
        self.boxed(name, |w| {
            w.u32(u32::from(version) << 24 | flags);
            content(w);
        });
    }

    fn brands(&mut self, name: &[u8; 4]) {
        self.boxed(name, |w| {
            w.bytes(BRANDS[0]);
            w.u32(0);
            BRANDS.iter().for_each(|brand| w.bytes(*brand));
        });
    }
}

/// The init segment of a track. `language`: ISO 639-2.
pub(crate) fn init(config: &Config, language: Option<&str>) -> Vec<u8> {
    let mut w = BoxWriter::default();
    w.brands(b"ftyp");
    w.boxed(b"moov", |w| {
        w.full(b"mvhd", 0, 0, |w| {
            w.zeros(8);
            w.u32(config.timescale());
            w.u32(0);
            w.u32(0x1_0000);
            w.u16(0x100);
            w.zeros(10);
            IDENTITY.iter().for_each(|&value| w.u32(value));
            w.zeros(24);
            w.u32(TRACK + 1);
        });
        w.boxed(b"trak", |w| track(w, config, language));
        w.boxed(b"mvex", |w| {
            w.full(b"trex", 0, 0, |w| {
                w.u32(TRACK);
                w.u32(1);
                w.zeros(12);
            });
        });
    });
    w.0
}

fn track(w: &mut BoxWriter, config: &Config, language: Option<&str>) {
    let (width, height) = match config {
        Config::Video(video) => (video.pictures.width, video.pictures.height),
        Config::Audio(_) => (0, 0),
    };
    let is_audio = matches!(config, Config::Audio(_));
    // Enabled, in the movie.
    w.full(b"tkhd", 0, 3, |w| {
        w.zeros(8);
        w.u32(TRACK);
        w.zeros(16);
        w.u16(0);
        w.u16(u16::from(is_audio));
        w.u16(if is_audio { 0x100 } else { 0 });
        w.u16(0);
        IDENTITY.iter().for_each(|&value| w.u32(value));
        w.u32(width << 16);
        w.u32(height << 16);
    });
    w.boxed(b"mdia", |w| {
        w.full(b"mdhd", 0, 0, |w| {
            w.zeros(8);
            w.u32(config.timescale());
            w.u32(0);
            w.u16(packed_language(language.unwrap_or("und")));
            w.u16(0);
        });
        w.full(b"hdlr", 0, 0, |w| {
            w.u32(0);
            w.bytes(if is_audio { b"soun" } else { b"vide" });
            w.zeros(12);
            w.bytes(b"millrace\0");
        });
        w.boxed(b"minf", |w| {
            match is_audio {
                true => w.full(b"smhd", 0, 0, |w| w.zeros(4)),
                false => w.full(b"vmhd", 0, 1, |w| w.zeros(8)),
            }
            w.boxed(b"dinf", |w| {
                w.full(b"dref", 0, 0, |w| {
                    w.u32(1);
                    w.full(b"url ", 0, 1, |_| {});
                });
            });
            w.boxed(b"stbl", |w| {
                w.full(b"stsd", 0, 0, |w| {
                    w.u32(1);
                    match config {
                        Config::Video(video) => video_entry(w, video),
                        Config::Audio(audio) => audio_entry(w, audio),
                    }
                });
                for (name, zeros) in [(b"stts", 4), (b"stsc", 4), (b"stsz", 8), (b"stco", 4)] {
                    w.full(name, 0, 0, |w| w.zeros(zeros));
                }
            });
        });
    });
}

/// Three letters of five bits (ISO/IEC 14496-12 section 8.4.2.3).
fn packed_language(language: &str) -> u16 {
    let letters = language.as_bytes();
    match letters {
        [_, _, _] if letters.iter().all(u8::is_ascii_lowercase) => {
            letters.iter().fold(0, |packed, letter| packed << 5 | u16::from(letter - 0x60))
        }
        _ => packed_language("und"),
    }
}

fn video_entry(w: &mut BoxWriter, video: &VideoConfig) {
    let name = match video.syntax {
        Syntax::H264 => b"avc1",
        Syntax::H265 => b"hvc1",
    };
    w.boxed(name, |w| {
        w.zeros(6);
        w.u16(1);
        w.zeros(16);
        // At most `MAX_PICTURE_SIDE`.
        w.u16(video.pictures.width as u16);
        w.u16(video.pictures.height as u16);
        w.u32(0x48_0000);
        w.u32(0x48_0000);
        w.u32(0);
        w.u16(1);
        w.zeros(32);
        w.u16(0x18);
        w.u16(0xffff);
        match video.syntax {
            Syntax::H264 => w.boxed(b"avcC", |w| avc_config(w, video)),
            Syntax::H265 => w.boxed(b"hvcC", |w| hevc_config(w, video)),
        }
        // ISO/IEC 14496-12 section 12.1.5.
        if let Some(Colour { primaries, transfer, matrix, is_full_range }) = video.pictures.colour {
            w.boxed(b"colr", |w| {
                w.bytes(b"nclx");
                [primaries, transfer, matrix].iter().for_each(|&number| w.u16(u16::from(number)));
                w.u8(u8::from(is_full_range) << 7);
            });
        }
    });
}

fn set(w: &mut BoxWriter, set: &[u8]) {
    // At most `MAX_SPS_BYTES`.
    w.u16(set.len() as u16);
    w.bytes(set);
}

/// ISO/IEC 14496-15 section 5.3.3.1.
fn avc_config(w: &mut BoxWriter, video: &VideoConfig) {
    let (sps, pps): (Vec<_>, Vec<_>) = (video.sets_of(7).collect(), video.sets_of(8).collect());
    let said = sps.first().and_then(|sps| sps.get(1..4)).unwrap_or(&[0, 0, 0]);
    w.u8(1);
    w.bytes(said);
    // Lengths have four bytes.
    w.u8(0xff);
    w.u8(0xe0 | sps.len() as u8);
    sps.iter().for_each(|sps| set(w, sps));
    w.u8(pps.len() as u8);
    pps.iter().for_each(|pps| set(w, pps));
    if [100, 110, 122, 144, 244].contains(&said[0]) {
        w.u8(0xfc | video.pictures.chroma);
        w.u8(0xf8 | (video.pictures.depths.0 - 8));
        w.u8(0xf8 | (video.pictures.depths.1 - 8));
        w.u8(0);
    }
}

/// ISO/IEC 14496-15 section 8.3.3.1.
fn hevc_config(w: &mut BoxWriter, video: &VideoConfig) {
    let sps = video.sets_of(33).next().unwrap_or_default();
    let head = millrace_media::bits::unescape(sps.get(2..).unwrap_or_default(), 13);
    let layers = head.first().copied().unwrap_or_default();
    w.u8(1);
    w.bytes(head.get(1..13).unwrap_or(&[0; 12]));
    w.u16(0xf000);
    w.u8(0xfc);
    w.u8(0xfc | video.pictures.chroma);
    w.u8(0xf8 | (video.pictures.depths.0 - 8));
    w.u8(0xf8 | (video.pictures.depths.1 - 8));
    w.u16(0);
    // Temporal layers, whether each may be gone up to at any picture, lengths of four bytes.
    w.u8(((layers >> 1 & 7) + 1) << 3 | (layers & 1) << 2 | 3);
    w.u8(3);
    for kind in 32..=34 {
        let sets: Vec<_> = video.sets_of(kind).collect();
        w.u8(0x80 | kind);
        w.u16(sets.len() as u16);
        sets.iter().for_each(|one| set(w, one));
    }
}

fn audio_entry(w: &mut BoxWriter, audio: &AudioConfig) {
    let name = match audio.coding {
        Coding::Aac => b"mp4a",
        Coding::Ac3 => b"ac-3",
        Coding::Eac3 => b"ec-3",
    };
    w.boxed(name, |w| {
        w.zeros(6);
        w.u16(1);
        w.zeros(8);
        w.u16(audio.channels);
        w.u16(16);
        w.u32(0);
        w.u32(u16::try_from(audio.rate).map_or(0, |rate| u32::from(rate) << 16));
        let [code, bsid, bsmod, acmod, low, bit_rate] = audio.header;
        match audio.coding {
            Coding::Aac => w.full(b"esds", 0, 0, |w| aac_config(w, audio)),
            // ETSI TS 102 366 sections F.4 and F.6.
            Coding::Ac3 => w.boxed(b"dac3", |w| {
                w.u8(code << 6 | bsid << 1 | bsmod >> 2);
                w.u8(bsmod << 6 | acmod << 3 | low << 2 | bit_rate >> 3);
                w.u8(bit_rate << 5);
            }),
            Coding::Eac3 => w.boxed(b"dec3", |w| {
                w.u16(0);
                w.u8(code << 6 | bsid << 1);
                w.u8(bsmod << 4 | acmod << 1 | low);
                w.u8(0);
            }),
        }
    });
}

/// Descriptors of ISO/IEC 14496-1 section 7.2.6, with the AudioSpecificConfig of ISO/IEC 14496-3 section 1.6.2.1.
fn aac_config(w: &mut BoxWriter, audio: &AudioConfig) {
    let [object, index, channels, ..] = audio.header;
    // If the header names no channels, a program config element follows. Its size is below 128
    // bytes, so each length fits one byte.
    let places = audio.pce.as_ref().map_or(&[][..], |pce| pce.bytes());
    let more = places.len() as u8;
    w.bytes(&[3, 25 + more, 0, 0, 0]);
    w.bytes(&[4, 17 + more, 0x40, 0x15, 0, 0, 0]);
    w.zeros(8);
    w.bytes(&[5, 2 + more, object << 3 | index >> 1, index << 7 | channels << 3]);
    w.bytes(places);
    w.bytes(&[6, 1, 2]);
}

/// Returns the part of a media segment before its samples: everything up to and including the head
/// of `mdat`. `time`: when the first of them is decoded.
pub(crate) fn before_samples(number: u32, time: u64, samples: &[Mp4Sample]) -> Vec<u8> {
    let mut w = BoxWriter(Vec::with_capacity(256 + samples.len() * 16));
    w.brands(b"styp");
    let moof = w.0.len();
    let mut offset = 0;
    w.boxed(b"moof", |w| {
        w.full(b"mfhd", 0, 0, |w| w.u32(number + 1));
        w.boxed(b"traf", |w| {
            // Offsets count from `moof`; without samples, its duration is empty.
            let is_empty = if samples.is_empty() { 0x1_0000 } else { 0 };
            w.full(b"tfhd", 0, 0x2_0000 | is_empty, |w| w.u32(TRACK));
            w.full(b"tfdt", 1, 0, |w| w.u64(time));
            if !samples.is_empty() {
                // With an offset of the data, and of each sample: duration, size, flags, composition offset.
                w.full(b"trun", 1, 0xf01, |w| {
                    w.u32(samples.len() as u32);
                    offset = w.0.len();
                    w.u32(0);
                    for sample in samples {
                        w.u32(sample.duration);
                        w.u32(sample.bytes);
                        w.u32(if sample.is_sync { SYNC } else { NO_SYNC });
                        w.u32(sample.offset.cast_unsigned());
                    }
                });
            }
        });
    });
    let from_moof = (w.0.len() - moof + 8) as u32;
    if offset > 0 {
        w.0[offset..offset + 4].copy_from_slice(&from_moof.to_be_bytes());
    }
    // A segment has less than 4 GiB.
    let bytes: u32 = samples.iter().map(|sample| sample.bytes).sum();
    w.u32(8 + bytes);
    w.bytes(b"mdat");
    w.0
}

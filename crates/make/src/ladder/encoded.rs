//! Reads what ffmpeg has encoded: pictures group by group, sound frame by frame.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::volume::CHECK_READ_BYTES;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PesStart, TsPacket};
use millrace_store::StoreError;

use super::error::LadderError;
use super::time::Times;
use crate::limits::ladder::MAX_GROUP_BYTES;

/// PID of the first stream that ffmpeg writes.
pub(super) const FIRST_PID: u16 = 0x100;

/// A transport stream in a file.
#[derive(Debug)]
struct Packets {
    path: PathBuf,
    name: String,
    file: BufReader<File>,
}

impl Packets {
    fn open(path: &Path, name: &str) -> Result<Self, LadderError> {
        let file = File::open(path).map_err(StoreError::io("open", path))?;
        let file = BufReader::with_capacity(CHECK_READ_BYTES, file);
        Ok(Self { path: path.to_path_buf(), name: name.to_owned(), file })
    }

    /// The next packet; `false` at the end.
    fn next(&mut self, packet: &mut [u8; TS_PACKET_BYTES]) -> Result<bool, LadderError> {
        match self.file.read_exact(packet) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(StoreError::io("read", &self.path)(error).into()),
        }
    }

    fn wrong(&self, what: String) -> LadderError {
        LadderError::Encoded { name: self.name.clone(), what, path: self.path.clone() }
    }
}

/// An encoded picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) bytes: Vec<u8>,
    /// Its place in the order of showing.
    pub(super) shown: u64,
    is_key: bool,
}

/// A picture as it lies in the file.
struct CodedPicture {
    pts: u64,
    dts: u64,
    bytes: Vec<u8>,
}

/// The pictures of a rung, in the order of decoding.
#[derive(Debug)]
pub(super) struct Pictures {
    packets: Packets,
    times: Times,
    open: Option<(u64, u64, Vec<u8>)>,
    /// Stamps of the first picture, which is shown first.
    first: Option<(u64, u64)>,
    sent: u64,
    ended: bool,
}

impl Pictures {
    pub(super) fn open(path: &Path, name: &str, times: Times) -> Result<Self, LadderError> {
        let packets = Packets::open(path, name)?;
        Ok(Self { packets, times, open: None, first: None, sent: 0, ended: false })
    }

    /// How many pictures showing is behind decoding; known when the first group was read.
    pub(super) fn reorder(&self) -> u64 {
        let behind = self.first.map_or(0, |(pts, dts)| difference(pts, dts));
        u64::try_from(self.times.count(behind)).unwrap_or(0)
    }

    /// The next group, whole: it begins with a key picture and shows as many pictures as every group; the last may show fewer. Empty at
    /// the end.
    pub(super) fn group(&mut self) -> Result<Vec<Picture>, LadderError> {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while (group.len() as u64) < self.times.group {
            let Some(picture) = self.picture()? else { break };
            bytes += picture.bytes.len();
            if bytes > MAX_GROUP_BYTES {
                return Err(self.packets.wrong(format!("a group of more than {MAX_GROUP_BYTES} bytes")));
            }
            group.push(picture);
        }
        let first = self.sent - group.len() as u64;
        let mut shown: Vec<u64> = group.iter().map(|picture| picture.shown).collect();
        shown.sort_unstable();
        let is_whole = shown.into_iter().eq(first..self.sent);
        let is_closed = group.iter().enumerate().all(|(at, picture)| picture.is_key == (at == 0));
        if !is_whole || !is_closed {
            let group = first / self.times.group;
            return Err(self
                .packets
                .wrong(format!("group {group} does not stand alone, or shows other pictures")));
        }
        Ok(group)
    }

    fn picture(&mut self) -> Result<Option<Picture>, LadderError> {
        let Some(CodedPicture { pts, dts, bytes }) = self.unit()? else { return Ok(None) };
        let (first_pts, _) = *self.first.get_or_insert((pts, dts));
        // Stamps wrap after 26 hours: about where it must be is known.
        let about = self.times.ticks(self.sent);
        let ahead = difference(pts.wrapping_sub(first_pts), about % PTS_MODULUS);
        let shown = self.times.count(about.cast_signed() + ahead);
        let shown = u64::try_from(shown)
            .map_err(|_| self.packets.wrong("a picture is shown before the first".to_owned()))?;
        self.sent += 1;
        Ok(Some(Picture { is_key: is_key(&bytes), bytes, shown }))
    }

    /// What one PES packet holds: ffmpeg writes one for each picture.
    fn unit(&mut self) -> Result<Option<CodedPicture>, LadderError> {
        let mut bytes = [0; TS_PACKET_BYTES];
        while !self.ended {
            if !self.packets.next(&mut bytes)? {
                self.ended = true;
                break;
            }
            let packet = TsPacket(&bytes);
            if packet.pid() != FIRST_PID || !packet.has_payload() {
                continue;
            }
            if !packet.starts_unit() {
                if let Some((_, _, bytes)) = &mut self.open {
                    bytes.extend_from_slice(packet.payload());
                    if bytes.len() > MAX_GROUP_BYTES {
                        return Err(self
                            .packets
                            .wrong(format!("a picture of more than {MAX_GROUP_BYTES} bytes")));
                    }
                }
                continue;
            }
            let start = PesStart::parse(packet.payload());
            let Some((start, pts, dts)) =
                start.and_then(|start| Some((start, start.presentation_stamp?, start.decode_stamp?)))
            else {
                return Err(self.packets.wrong("a picture without time stamps".to_owned()));
            };
            let before = self.open.replace((pts, dts, start.payload.to_vec()));
            if let Some((pts, dts, bytes)) = before {
                return Ok(Some(CodedPicture { pts, dts, bytes }));
            }
        }
        Ok(self.open.take().map(|(pts, dts, bytes)| CodedPicture { pts, dts, bytes }))
    }
}

/// Stamps apart, the shorter way round.
pub(super) fn difference(a: u64, b: u64) -> i64 {
    let apart = a.wrapping_sub(b) % PTS_MODULUS;
    if apart < PTS_MODULUS / 2 {
        apart.cast_signed()
    } else {
        apart.cast_signed() - PTS_MODULUS.cast_signed()
    }
}

/// Whether a picture of H.264 is an IDR picture with its parameter sets.
fn is_key(picture: &[u8]) -> bool {
    let has = |kind: u8| picture.windows(4).any(|w| w[..3] == [0, 0, 1] && w[3] & 0x1f == kind);
    has(5) && has(7) && has(8)
}

/// Frames of one audio stream.
#[derive(Debug, Default)]
struct AudioFrames {
    /// Bytes that are no whole frame yet.
    rest: Vec<u8>,
    frames: VecDeque<Vec<u8>>,
}

/// All sounds of a ladder, as frames of AAC in ADTS.
#[derive(Debug)]
pub(super) struct Sounds {
    packets: Packets,
    tracks: Vec<AudioFrames>,
    ended: bool,
}

impl Sounds {
    pub(super) fn open(path: &Path, count: usize) -> Result<Self, LadderError> {
        let mut tracks = Vec::new();
        tracks.resize_with(count, AudioFrames::default);
        Ok(Self { packets: Packets::open(path, "sound")?, tracks, ended: false })
    }

    /// The next frame of a sound; `None` at the end.
    pub(super) fn next(&mut self, track: usize) -> Result<Option<Vec<u8>>, LadderError> {
        while self.tracks[track].frames.is_empty() && !self.ended {
            self.read()?;
        }
        Ok(self.tracks[track].frames.pop_front())
    }

    /// One more packet.
    fn read(&mut self) -> Result<(), LadderError> {
        let mut bytes = [0; TS_PACKET_BYTES];
        if !self.packets.next(&mut bytes)? {
            self.ended = true;
            return Ok(());
        }
        let packet = TsPacket(&bytes);
        let track = packet.pid().checked_sub(FIRST_PID).map(usize::from);
        let Some(track) = track.and_then(|track| self.tracks.get_mut(track)) else { return Ok(()) };
        let payload = match packet.starts_unit() {
            true => PesStart::parse(packet.payload()).map_or(&[][..], |start| start.payload),
            false => packet.payload(),
        };
        track.rest.extend_from_slice(payload);
        while let Some(length) = frame_length(&track.rest) {
            if length < 7 {
                return Err(self.packets.wrong("sound that is no ADTS".to_owned()));
            }
            if track.rest.len() < length {
                break;
            }
            track.frames.push_back(track.rest.drain(..length).collect());
        }
        if self.tracks.iter().map(|track| track.frames.len()).sum::<usize>() > MAX_GROUP_BYTES / 1024 {
            return Err(self.packets.wrong("sounds of very different length".to_owned()));
        }
        Ok(())
    }
}

/// Returns the length of the frame that begins here (ISO/IEC 13818-7 section 6.2); 0 if none does,
/// `None` if this is not known yet.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let &[sync, second, _, a, b, c, ..] = bytes else { return None };
    if sync != 0xff || second & 0xf6 != 0xf0 {
        return Some(0);
    }
    Some(usize::from(a & 3) << 11 | usize::from(b) << 3 | usize::from(c) >> 5)
}

//! The beginning of a title: its program, and the place and time at which its media begins.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::codec::StreamKind;
use millrace_media::psi::{self, Pmt, SectionAssembler};
use millrace_media::ts_packet::{PCR_MODULUS, PTS_MODULUS, PesStart, SYSTEM_TICKS_PER_MEDIA_TICK, TsPacket};

use super::splicer::SpliceError;
use crate::ingest::access::{PictureAccess, PictureLook};
use crate::ingest::program::Programs;
use crate::limits::channel::{MAX_AUDIO_LEAD_TICKS, SPLICE_HEAD_TICKS};

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TitleHead {
    /// The program's table, and the section that it came in.
    pub pmt: Pmt,
    pub section: Vec<u8>,
    pub table_pid: u16,
    /// The first picture that a decoder can start at: number of its packet, and PID.
    pub picture: Option<(usize, u16)>,
    pub start: MediaStart,
}

/// Where and when the media of a title begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MediaStart {
    /// Number of the first packet that is used.
    pub packet: usize,
    /// The clock there; 27 MHz.
    pub pcr: u64,
    /// Whether the clock reference is in an earlier packet, which is not used.
    pub is_pcr_before: bool,
    /// Time from there to the first presentation; 90 kHz.
    pub presents_after: Option<i64>,
    /// Audio presented earlier than this after the clock's value is left out; 90 kHz.
    pub audio_from: Option<i64>,
}

/// Signed distance of two time stamps that wrap at 33 bits.
pub(crate) fn stamp_distance(from: u64, to: u64) -> i64 {
    let ahead = (to + PTS_MODULUS - from % PTS_MODULUS) % PTS_MODULUS;
    if ahead < PTS_MODULUS / 2 {
        ahead.cast_signed()
    } else {
        ahead.cast_signed() - PTS_MODULUS.cast_signed()
    }
}

/// A presentation, and the packet in which its PES packet begins.
#[derive(Clone, Copy)]
struct FirstStamp {
    packet: usize,
    stamp: u64,
}

/// Facts of the media behind the tables.
#[derive(Default)]
struct TitleHeadScan {
    /// Clock references and their packets.
    clocks: Vec<(usize, u64)>,
    picture: Option<FirstStamp>,
    /// The first picture of any kind.
    any_picture: Option<FirstStamp>,
    /// Of all audio streams, with their PIDs.
    audio: Vec<(u16, FirstStamp)>,
    scrambled: Option<u16>,
}

/// Reads the head of a title from its first packets. `Ok(None)`: more packets are needed. `is_all`: no more will come.
pub(crate) fn read_head(bytes: &[u8], is_all: bool) -> Result<Option<TitleHead>, SpliceError> {
    let (packets, _) = bytes.as_chunks::<TS_PACKET_BYTES>();
    let Some((pmt, section, table_pid)) = program_of(packets, is_all) else {
        return if is_all { Err(SpliceError::NoProgram) } else { Ok(None) };
    };
    let video = pmt.streams.iter().find_map(|stream| match stream.kind {
        StreamKind::Video(syntax) => Some((stream.pid, syntax)),
        _ => None,
    });
    let scan = scan(packets, &pmt, video.map(|(pid, syntax)| (pid, PictureLook::new(syntax))));
    let mut audio = pmt.streams.iter().filter(|stream| stream.kind == StreamKind::Audio);
    let has_all_audio = audio.all(|stream| scan.audio.iter().any(|(pid, _)| *pid == stream.pid));
    let elapsed = match (scan.clocks.first(), scan.clocks.last()) {
        (Some((_, first)), Some((_, last))) => (last + PCR_MODULUS - first) % PCR_MODULUS,
        _ => 0,
    };
    let has_video = video.is_none() || scan.picture.is_some();
    let has_audio = has_all_audio || elapsed >= SPLICE_HEAD_TICKS;
    let is_known = has_video && has_audio && !scan.clocks.is_empty();
    if !(is_all || is_known) {
        return Ok(None);
    }
    let first_picture = scan.picture.or(scan.any_picture);
    if first_picture.is_none() && scan.audio.is_empty() {
        return Err(scan.scrambled.map_or(SpliceError::NoMedia, |pid| SpliceError::Scrambled { pid }));
    }
    let start = media_start(&scan, first_picture).ok_or(SpliceError::NoClock)?;
    let picture = first_picture.zip(video).map(|(picture, (pid, _))| (picture.packet, pid));
    Ok(Some(TitleHead { pmt, section, table_pid, picture, start }))
}

/// The program of the tables, its section and the PID of the section.
fn program_of(packets: &[[u8; TS_PACKET_BYTES]], is_all: bool) -> Option<(Pmt, Vec<u8>, u16)> {
    let mut programs = Programs::default();
    for packet in packets.iter().map(TsPacket) {
        if programs.table_pids().any(|pid| pid == packet.pid()) {
            programs.push(packet);
        }
    }
    if is_all {
        programs.choose_now();
    }
    let (pmt, table_pid) = (programs.chosen()?.clone(), programs.chosen_table_pid()?);
    let mut assembler = SectionAssembler::default();
    let mut found = None;
    for packet in packets.iter().map(TsPacket).filter(|packet| packet.pid() == table_pid) {
        assembler.push(packet, |section| {
            let is_it = psi::parse_pmt(section).is_some_and(|table| table.program == pmt.program);
            if is_it && found.is_none() {
                found = Some(section.to_vec());
            }
        });
    }
    let section = found?;
    // The first one: the streams may be others before the head ends.
    Some((psi::parse_pmt(&section)?, section, table_pid))
}

/// The video that access points are looked for in.
struct VideoScan {
    pid: u16,
    look: PictureLook,
    /// The picture that more bytes decide about.
    undecided: Option<FirstStamp>,
}

fn scan(packets: &[[u8; TS_PACKET_BYTES]], pmt: &Pmt, video: Option<(u16, PictureLook)>) -> TitleHeadScan {
    let mut scan = TitleHeadScan::default();
    let mut video = video.map(|(pid, look)| VideoScan { pid, look, undecided: None });
    let audio = pmt.streams.iter().filter(|stream| stream.kind == StreamKind::Audio);
    let audio: Vec<u16> = audio.map(|stream| stream.pid).collect();
    for (number, packet) in packets.iter().map(TsPacket).enumerate() {
        let pid = packet.pid();
        if let Some(pcr) = packet.adaptation().filter(|_| pid == pmt.pcr_pid).and_then(|field| field.pcr()) {
            scan.clocks.push((number, pcr));
        }
        let is_video = video.as_ref().is_some_and(|video| video.pid == pid);
        if packet.has_error() || !(is_video || audio.contains(&pid)) {
            continue;
        }
        if packet.is_scrambled() {
            scan.scrambled = Some(pid);
            continue;
        }
        let start = packet.starts_unit().then(|| PesStart::parse(packet.payload())).flatten();
        let first = start.and_then(|start| start.presentation_stamp);
        let first = first.map(|stamp| FirstStamp { packet: number, stamp });
        match (&mut video, first) {
            (Some(video), _) if is_video && scan.picture.is_none() => {
                scan.any_picture = scan.any_picture.or(first);
                scan.picture = video.look_at(packet, start, first);
            }
            (_, Some(first)) if !is_video => scan.audio.push((pid, first)),
            _ => {}
        }
    }
    scan
}

impl VideoScan {
    /// Takes the next packet; returns the first picture that a decoder can start at, once it is found.
    fn look_at(
        &mut self,
        packet: TsPacket<'_>,
        start: Option<PesStart<'_>>,
        first: Option<FirstStamp>,
    ) -> Option<FirstStamp> {
        let verdict = if packet.starts_unit() {
            if self.undecided.is_some() && self.look.end() == PictureAccess::Access {
                return self.undecided;
            }
            self.undecided = first;
            let start = start?;
            self.look.begin(packet.adaptation().is_some_and(|field| field.is_random_access()));
            self.look.push(start.payload)
        } else {
            self.undecided?;
            self.look.push(packet.payload())
        };
        match verdict {
            PictureAccess::Access => return self.undecided,
            PictureAccess::More => {}
            PictureAccess::Bare | PictureAccess::NoAccess => self.undecided = None,
        }
        None
    }
}

fn media_start(scan: &TitleHeadScan, picture: Option<FirstStamp>) -> Option<MediaStart> {
    let &(_, origin) = scan.clocks.first()?;
    let after = |pcr: u64, stamp: u64| stamp_distance(pcr / SYSTEM_TICKS_PER_MEDIA_TICK, stamp);
    let earliest = picture.map(|picture| after(origin, picture.stamp) - MAX_AUDIO_LEAD_TICKS);
    let is_kept = |first: &FirstStamp| earliest.is_none_or(|earliest| after(origin, first.stamp) >= earliest);
    let kept = || scan.audio.iter().map(|(_, first)| *first).filter(is_kept).chain(picture);
    let packet = kept().map(|first| first.packet).min()?;
    let before = scan.clocks.iter().rev().find(|(number, _)| *number <= packet);
    let &(clock_packet, pcr) = before.or(scan.clocks.first())?;
    let is_pcr_before = clock_packet < packet;
    let presents_after = kept().map(|first| after(pcr, first.stamp)).min();
    let audio_from = picture.map(|picture| after(pcr, picture.stamp) - MAX_AUDIO_LEAD_TICKS);
    Some(MediaStart { packet, pcr, is_pcr_before, presents_after, audio_from })
}

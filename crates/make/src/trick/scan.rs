//! One pass over a title: its pictures, when each is shown, and which stand alone.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::MediaTicks;
use millrace_media::codec::{StreamKind, VideoSyntax};
use millrace_media::psi::Pmt;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::TsPacket;
use millrace_store::index::TitleIndex;

use super::error::TrickError;
use super::pictures::{ElementaryOffset, Finder, FoundPicture, Parameters};
use super::source::{PacketSource, is_repeated, stream_of};
use crate::ingest::program::Programs;
use crate::limits::trick::{MAX_PICTURE_BYTES, MAX_TRICK_PICTURES};

/// A picture of the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) found: FoundPicture,
    /// When it is shown and decoded, in ticks from where the parent's first picture is shown. Before that: negative.
    pub(super) times: Option<(i64, i64)>,
}

/// The tables' description of the program that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScannedProgram {
    pub(super) number: u16,
    pub(super) table_pid: u16,
    pub(super) table_version: u8,
    pub(super) pid: u16,
    pub(super) stream_type: u8,
    pub(super) syntax: VideoSyntax,
}

/// All that is known of the parent's pictures.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) program: ScannedProgram,
    /// In decoding order; only those that stand alone, unless all were asked for.
    pub(super) pictures: Vec<Picture>,
    pub(super) parameters: Vec<Parameters>,
    /// Pictures there are.
    pub(super) count: u64,
}

/// The stream that is followed.
struct Followed {
    program: ScannedProgram,
    finder: Finder,
    /// Continuity counter of its last packet.
    last: Option<u8>,
    scrambled: u64,
}

/// Reads all of `source`. `all`: pictures that need others are kept too. `tell` receives the number
/// of bytes read and returns whether to continue.
pub(super) fn scan(
    source: &mut PacketSource,
    all: bool,
    tell: &mut dyn FnMut(u64) -> bool,
) -> Result<Scanned, TrickError> {
    let (mut programs, mut tables, mut followed) = (Programs::default(), vec![0u16], None::<Followed>);
    let mut version = 0;
    let mut kept = KeptPictures {
        index: source.files().index.clone(),
        all,
        pictures: Vec::new(),
        count: 0,
        first: None,
    };
    let mut byte = 0;
    loop {
        if !tell(byte) {
            return Err(TrickError::Cancelled);
        }
        let (packets, _) = source.at(byte)?.as_chunks::<TS_PACKET_BYTES>();
        if packets.is_empty() {
            break;
        }
        for packet in packets {
            let packet = TsPacket(packet);
            let pid = packet.pid();
            if let Some(followed) = followed.as_mut().filter(|followed| followed.program.pid == pid) {
                followed.packet(packet, byte, &mut |found| kept.take(found));
            } else if tables.contains(&pid) {
                let news = programs.push(packet);
                if Some(pid) == programs.chosen_table_pid() {
                    version = version_of(packet).unwrap_or(version);
                }
                if news.pids_changed {
                    tables = programs.table_pids().collect();
                }
                if news.changed {
                    follow(&programs, version, &mut followed)?;
                }
            }
            byte += TS_PACKET_BYTES as u64;
        }
        if kept.pictures.len() > MAX_TRICK_PICTURES {
            return Err(TrickError::TooManyPictures { most: MAX_TRICK_PICTURES });
        }
    }
    let mut followed = followed.ok_or(TrickError::NoPictures)?;
    followed.finder.finish(&mut |found| kept.take(found));
    if kept.count == 0 && followed.scrambled > 0 {
        return Err(TrickError::Scrambled);
    }
    let parameters = followed.finder.parameters().to_vec();
    Ok(Scanned { program: followed.program, pictures: kept.pictures, parameters, count: kept.count })
}

/// The version of a table that begins in this packet (ISO/IEC 13818-1 section 2.4.4.9).
fn version_of(packet: TsPacket<'_>) -> Option<u8> {
    let payload = packet.payload();
    let section = payload.get(1 + usize::from(*payload.first()?)..).filter(|_| packet.starts_unit())?;
    Some(section.get(5)? >> 1 & 31)
}

/// Follows the pictures of the chosen program. Once they were found, a new table may move them but not make others of them.
fn follow(programs: &Programs, version: u8, followed: &mut Option<Followed>) -> Result<(), TrickError> {
    let Some(table) = programs.chosen() else { return Ok(()) };
    let found = first_pictures(table);
    if let Some(followed) = followed {
        if let Some((pid, _, syntax, _)) = found
            && followed.program.syntax == syntax
            && followed.program.pid != pid
        {
            followed.finder.lost();
            (followed.program.pid, followed.last) = (pid, None);
        }
        return Ok(());
    }
    let (pid, stream_type, syntax, codec) = found.ok_or(TrickError::NoPictures)?;
    let finder = Finder::new(syntax);
    let finder = finder.ok_or_else(|| TrickError::Codec { codec: codec.to_owned() })?;
    let table_pid = programs.chosen_table_pid().unwrap_or_default();
    let (number, table_version) = (table.program, version);
    let program = ScannedProgram { number, table_pid, table_version, pid, stream_type, syntax };
    *followed = Some(Followed { program, finder, last: None, scrambled: 0 });
    Ok(())
}

fn first_pictures(table: &Pmt) -> Option<(u16, u8, VideoSyntax, &str)> {
    table.streams.iter().find_map(|stream| match stream.kind {
        StreamKind::Video(syntax) => Some((stream.pid, stream.stream_type, syntax, stream.codec.as_str())),
        _ => None,
    })
}

impl Followed {
    fn packet(&mut self, packet: TsPacket<'_>, byte: u64, each: &mut impl FnMut(FoundPicture)) {
        self.scrambled += u64::from(packet.is_scrambled());
        let before = self.last;
        if !packet.has_payload() || is_repeated(packet, &mut self.last) {
            return;
        }
        let is_next = before.is_none_or(|before| (before + 1) & 15 == packet.continuity());
        if !is_next || packet.has_error() || packet.is_scrambled() {
            self.finder.lost();
        }
        let (payload, stamps) = stream_of(packet);
        let place = ElementaryOffset { packet: byte, skip: 0, pid: packet.pid() };
        self.finder.push(place, stamps, payload, each);
    }
}

/// The pictures that are remembered.
struct KeptPictures {
    index: std::sync::Arc<TitleIndex>,
    all: bool,
    pictures: Vec<Picture>,
    count: u64,
    /// The first time stamp, for a title whose index has none.
    first: Option<u64>,
}

impl KeptPictures {
    fn take(&mut self, found: FoundPicture) {
        self.count += 1;
        let is_kept = found.alone.is_some() && found.bytes as usize <= MAX_PICTURE_BYTES || self.all;
        if !is_kept || self.pictures.len() > MAX_TRICK_PICTURES {
            return;
        }
        let times = found.stamps.map(|stamps| {
            let pts = self.time(found.place.packet, stamps.pts);
            (
                pts,
                pts - stamps.pts.wrapping_sub(stamps.dts).cast_signed().rem_euclid(PTS_MODULUS.cast_signed()),
            )
        });
        self.pictures.push(Picture { found, times });
    }

    /// When a picture is shown whose packets are at `byte`, from its stamp and the time base there. Stamps wrap after 26 hours, so the
    /// place decides which round it is.
    fn time(&mut self, byte: u64, stamp: u64) -> i64 {
        let bases = self.index.bases();
        let base = bases.partition_point(|base| base.byte <= byte).checked_sub(1).map(|at| bases[at]);
        let (time, first) = match base {
            Some(base) => (base.time, base.first_pts),
            None => (MediaTicks(0), *self.first.get_or_insert(stamp)),
        };
        let about = self.index.time_of(byte).0.cast_signed();
        let modulus = PTS_MODULUS.cast_signed();
        let ahead =
            (stamp.cast_signed() - first.cast_signed() - (about - time.0.cast_signed())).rem_euclid(modulus);
        about + if ahead < modulus / 2 { ahead } else { ahead - modulus }
    }
}

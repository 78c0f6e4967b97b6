//! Streams left out: their packets become null packets (ISO/IEC 13818-1 section 2.4.1), and program map tables do not name them any more.
//!
//! | packet | becomes |
//! | --- | --- |
//! | of a stream that is left out | a null packet |
//! | the same with a clock reference that a program counts by | its adaptation field alone |
//! | a map table that ends in the packet in which it begins | the same without those streams, with its CRC |
//! | a longer one, as it was at the title's beginning | the shorter one in the first packet, stuffing in the others |
//! | any other | itself |
//!
//! The change of a packet depends on its own contents alone.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::codec::{self, StreamKind};
use millrace_media::psi::{self, PmtStream};
use millrace_media::ts_packet::{PID_NULL, PIDS, SYNC, TsPacket};

use super::block::{Applied, BindError, PacketBlock, Transform, TransformError, TsBytes};
use super::tables::{ProgramTable, StreamTables};

/// Which streams of a kind are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// All.
    #[default]
    All,
    /// None.
    None,
    /// Those in one of these languages (ISO 639-2, three letters; `und`: those without a known
    /// language).
    Languages(Vec<String>),
}

/// Which streams are kept. Pictures always are, unless their PID is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectSpec {
    /// Of sound.
    pub audio: Choice,
    /// Of subtitles and teletext.
    pub subtitles: Choice,
    /// Of everything else.
    pub data: Choice,
    /// PIDs that are left out, whatever they carry.
    pub drop: Vec<u16>,
}

/// Payload of a TS packet without adaptation field.
const PAYLOAD_BYTES: usize = TS_PACKET_BYTES - 4;
/// Room for a table that begins there, behind the pointer to it.
const TABLE_BYTES: usize = PAYLOAD_BYTES - 1;
const STUFFING: u8 = 0xff;

/// A packet without information.
pub const NULL_PACKET: TsBytes = {
    let mut packet = [STUFFING; TS_PACKET_BYTES];
    [packet[0], packet[1], packet[2], packet[3]] = [SYNC, (PID_NULL >> 8) as u8, PID_NULL as u8, 0x10];
    packet
};

/// Action on the packets of a PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PidAction {
    Keep,
    Drop,
    /// Dropped but for its clock.
    Clock,
    /// A map table, by its place among those that change.
    Table(u8),
}

/// A program map table that is rewritten.
struct RewrittenTable {
    /// If it is longer than a packet: the section as it was, and without the streams.
    long: Option<(Vec<u8>, Vec<u8>)>,
}

/// Leaves streams out.
pub struct SelectPids {
    fates: Box<[PidAction; PIDS]>,
    tables: Vec<RewrittenTable>,
}

impl SelectPids {
    /// Selects the streams to leave out of a title with these programmes.
    ///
    /// # Errors
    /// [`BindError`]: there is no table, none of the languages, or a table that cannot be replaced.
    pub fn new(spec: &SelectSpec, tables: &StreamTables) -> Result<Self, BindError> {
        if tables.is_empty() {
            return Err(BindError::NoTables(millrace_core::limits::transform::MAX_TABLE_LOOK_BYTES));
        }
        check_audio(spec, tables)?;
        let streams = || tables.programs.iter().flat_map(|program| &program.pmt.streams);
        let kept: Vec<u16> =
            streams().filter(|stream| is_kept(spec, stream)).map(|stream| stream.pid).collect();
        let mut fates = Box::new([PidAction::Keep; PIDS]);
        let dropped = streams().map(|stream| stream.pid).filter(|pid| !kept.contains(pid));
        for pid in dropped.chain(spec.drop.iter().copied()) {
            fates[usize::from(pid)] = PidAction::Drop;
        }
        // A PID with tables belongs to no stream, whatever a damaged table claims.
        fates[usize::from(millrace_media::ts_packet::PID_PAT)] = PidAction::Keep;
        for program in &tables.programs {
            let clock = &mut fates[usize::from(program.pmt.pcr_pid) % PIDS];
            if *clock == PidAction::Drop {
                *clock = PidAction::Clock;
            }
        }
        let mut changed = Vec::new();
        for program in &tables.programs {
            changed.extend(change(program, &mut fates, changed.len())?);
        }
        Ok(Self { fates, tables: changed })
    }

    fn is_dropped(fates: &[PidAction; PIDS], pid: u16) -> bool {
        matches!(fates[usize::from(pid) % PIDS], PidAction::Drop | PidAction::Clock)
    }

    fn rewrite(&self, packet: &mut TsBytes, table: u8) {
        let view = TsPacket(packet);
        let (starts, start) = (view.starts_unit(), TS_PACKET_BYTES - view.payload().len());
        let is_readable = !view.has_error() && !view.is_scrambled() && start < TS_PACKET_BYTES;
        let Some(table) = self.tables.get(usize::from(table)).filter(|_| is_readable) else { return };
        let payload = &mut packet[start..];
        if starts && thin(payload, |pid| Self::is_dropped(&self.fates, pid)) {
            return;
        }
        let Some((before, after)) = &table.long else { return };
        if !starts {
            payload.fill(STUFFING);
        } else if payload[0] == 0 && before.starts_with(&payload[1..]) && payload.len() > after.len() {
            payload[1..=after.len()].copy_from_slice(after);
            payload[1 + after.len()..].fill(STUFFING);
        }
    }
}

impl Transform for SelectPids {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        block.for_each(|packet| match self.fates[usize::from(TsPacket(packet).pid()) % PIDS] {
            PidAction::Keep => {}
            PidAction::Drop => *packet = NULL_PACKET,
            PidAction::Clock => keep_clock(packet),
            PidAction::Table(table) => self.rewrite(packet, table),
        });
        Ok(Applied::default())
    }
}

/// Checks that a language of the selection is present; a title without any audio matches every
/// language.
fn check_audio(spec: &SelectSpec, tables: &StreamTables) -> Result<(), BindError> {
    let Choice::Languages(wanted) = &spec.audio else { return Ok(()) };
    let streams = tables.programs.iter().flat_map(|program| &program.pmt.streams);
    let mut has: Vec<&str> = streams
        .filter(|stream| stream.kind == StreamKind::Audio)
        .map(|stream| stream.language.as_deref().unwrap_or("und"))
        .collect();
    if has.is_empty() || has.iter().any(|has| wanted.iter().any(|wanted| wanted == has)) {
        return Ok(());
    }
    has.dedup();
    Err(BindError::NoSuchAudio { wanted: wanted.join(" or "), has: has.join(", ") })
}

fn is_kept(spec: &SelectSpec, stream: &PmtStream) -> bool {
    let choice = match stream.kind {
        StreamKind::Video(_) => return true,
        StreamKind::Audio => &spec.audio,
        StreamKind::Other if codec::is_subtitles(&stream.codec) => &spec.subtitles,
        StreamKind::Other => &spec.data,
    };
    match choice {
        Choice::All => true,
        Choice::None => false,
        Choice::Languages(wanted) => {
            let language = stream.language.as_deref().unwrap_or("und");
            wanted.iter().any(|wanted| wanted == language)
        }
    }
}

/// The table of a program, if it names a stream that is left out. Tables that share a PID are one.
fn change(
    program: &ProgramTable,
    fates: &mut [PidAction; PIDS],
    number: usize,
) -> Result<Option<RewrittenTable>, BindError> {
    let section = &program.section;
    let mut out = vec![0; section.len()];
    let dropped = |pid| SelectPids::is_dropped(fates, pid);
    let (length, is_changed) = psi::without_streams(section, dropped, &mut out);
    out.truncate(length);
    let fate = &mut fates[usize::from(program.table_pid) % PIDS];
    if !is_changed || matches!(fate, PidAction::Table(_)) {
        return Ok(None);
    }
    if length > TABLE_BYTES {
        return Err(BindError::TableTooLong { program: program.pmt.program, bytes: length });
    }
    // There are fewer programmes than numbers.
    *fate = PidAction::Table(number as u8);
    let long = (section.len() > TABLE_BYTES).then(|| (section.clone(), out));
    Ok(Some(RewrittenTable { long }))
}

/// Leaves streams out of the sections in a payload that begins with a pointer; `false` if one of them does not end in it, or the payload
/// makes no sense: it has not been changed then.
fn thin(payload: &mut [u8], is_dropped: impl Fn(u16) -> bool) -> bool {
    let length = payload.len();
    let mut out = [STUFFING; TS_PACKET_BYTES];
    let mut from = 1 + usize::from(payload[0]);
    if from > length {
        return false;
    }
    out[..from].copy_from_slice(&payload[..from]);
    let mut to = from;
    while from < length && payload[from] != STUFFING {
        let section = psi::section_bytes(&payload[from..]).and_then(|bytes| payload.get(from..from + bytes));
        let Some(section) = section else { return false };
        to += psi::without_streams(section, &is_dropped, &mut out[to..]).0;
        from += section.len();
    }
    payload.copy_from_slice(&out[..length]);
    true
}

/// Leaves of a packet what other streams need: the adaptation field with its clock, if it has one.
fn keep_clock(packet: &mut TsBytes) {
    let clock = TsPacket(packet).adaptation().and_then(|adaptation| adaptation.pcr());
    if clock.is_none() {
        *packet = NULL_PACKET;
        return;
    }
    let end = 5 + usize::from(packet[4]);
    packet[end..].fill(STUFFING);
    packet[1] &= !0x40; // nothing begins here
    // Not scrambled, no payload; without one the counter stands still (section 2.4.3.3).
    packet[3] = 0x20;
    packet[4] = (TS_PACKET_BYTES - 5) as u8;
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;

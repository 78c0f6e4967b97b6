//! The programmes of a title, as its beginning announces them.

use millrace_core::limits::TS_PACKET_BYTES;

use millrace_media::limits::MAX_PROGRAMS;
use millrace_media::psi::{self, Pmt, SectionAssembler};
use millrace_media::ts_packet::{PID_PAT, TsPacket};

/// A program and its map table.
#[derive(Debug)]
pub(super) struct ProgramTable {
    /// PID of its map table.
    pub(super) table_pid: u16,
    /// The table.
    pub(super) pmt: Pmt,
    /// Its section as it came.
    pub(super) section: Vec<u8>,
}

/// The programmes of a transport stream.
#[derive(Debug, Default)]
pub struct StreamTables {
    pub(super) programs: Vec<ProgramTable>,
}

impl StreamTables {
    /// From the beginning of a stream, whole TS packets. Of each program the first table counts.
    pub fn of(head: &[u8]) -> Self {
        let mut reader = TableReader::default();
        head.as_chunks::<TS_PACKET_BYTES>().0.iter().for_each(|packet| reader.push(packet));
        Self { programs: reader.programs }
    }

    /// Whether anything is known.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Whether the map tables of all programmes have come that are announced in the beginning of a stream.
    pub fn are_complete(head: &[u8]) -> bool {
        let mut reader = TableReader::default();
        head.as_chunks::<TS_PACKET_BYTES>().0.iter().any(|packet| {
            reader.push(packet);
            !reader.announced.is_empty() && reader.programs.len() == reader.announced.len()
        })
    }
}

#[derive(Default)]
struct TableReader {
    pat: SectionAssembler,
    /// Number and PID of the map table of each program.
    announced: Vec<(u16, u16)>,
    tables: Vec<(u16, SectionAssembler)>,
    programs: Vec<ProgramTable>,
}

impl TableReader {
    fn push(&mut self, packet: &[u8; TS_PACKET_BYTES]) {
        let packet = TsPacket(packet);
        if packet.has_error() {
            return;
        }
        let pid = packet.pid();
        if pid == PID_PAT {
            let Self { pat, announced, tables, .. } = self;
            pat.push(packet, |section| {
                for (number, pid) in psi::parse_pat(section).into_iter().flat_map(|pat| pat.programs) {
                    if announced.len() < MAX_PROGRAMS && !announced.contains(&(number, pid)) {
                        announced.push((number, pid));
                        if tables.iter().all(|(known, _)| *known != pid) {
                            tables.push((pid, SectionAssembler::default()));
                        }
                    }
                }
            });
            return;
        }
        let Self { announced, tables, programs, .. } = self;
        let Some((_, table)) = tables.iter_mut().find(|(table_pid, _)| *table_pid == pid) else { return };
        table.push(packet, |section| {
            let Some(pmt) = psi::parse_pmt(section) else { return };
            let is_new = programs.iter().all(|known| known.pmt.program != pmt.program);
            if is_new && announced.contains(&(pmt.program, pid)) {
                programs.push(ProgramTable { table_pid: pid, pmt, section: section.to_vec() });
            }
        });
    }
}

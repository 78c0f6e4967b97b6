//! PES packets: the header with its time stamps, and whether the length is as stated (ISO/IEC
//! 13818-1 sections 2.4.3.6 and 2.4.3.7).

use crate::check::FindingKind;
use crate::section::ElementaryKind;
use crate::start::Start;

/// Start code, length, flags, and both time stamps.
const HEAD_BYTES: usize = 19;

/// The time stamps of a PES packet, in ticks of 90 kHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamps {
    pub(crate) pts: u64,
    /// The same as PTS where there is none.
    pub(crate) dts: u64,
}

/// The PES packets of one PID.
#[derive(Debug, Default)]
pub(crate) struct Pes {
    head: [u8; HEAD_BYTES],
    filled: usize,
    /// Bytes received; `None` outside of a packet, or if part of it is missing.
    bytes: Option<u32>,
    is_parsed: bool,
    /// Number of its first transport packet.
    pub(crate) begins: u64,
    /// Where the elementary stream begins in the payload that was taken last.
    pub(crate) media_at: usize,
    /// PES packets, and those with a PTS.
    pub(crate) packets: u64,
    pub(crate) stamped: u64,
    /// Checks whether decoding can start at marked access points.
    pub(crate) start: Start,
}

/// State of a partly received header.
enum Head {
    Incomplete,
    Fault(&'static str),
    /// Length of the header, and its time stamps.
    Whole(usize, Option<Stamps>),
}

impl Pes {
    /// Part of it is missing.
    pub(crate) fn lose(&mut self) {
        self.bytes = None;
    }

    /// Returns the bytes of the elementary stream in the payload that was taken last; none outside
    /// of a packet.
    pub(crate) fn media<'a>(&self, payload: &'a [u8]) -> &'a [u8] {
        let is_media = self.bytes.is_some() && self.is_parsed;
        if is_media { payload.get(self.media_at..).unwrap_or_default() } else { &[] }
    }

    /// Ends the previous packet, because another begins or the input ends, and checks its stated
    /// length.
    pub(crate) fn end(&mut self, is_last: bool) -> Option<FindingKind> {
        let got = self.bytes.take()?;
        if !self.is_parsed {
            let is_fault = !is_last;
            return is_fault.then_some(FindingKind::BadPes { what: "a PES packet shorter than its header" });
        }
        let said = u32::from(u16::from_be_bytes([self.head[4], self.head[5]]));
        let is_wrong = said != 0 && (got > said + 6 || got < said + 6 && !is_last);
        is_wrong.then_some(FindingKind::PesLength { said: said + 6, got })
    }

    /// Takes a payload; time stamps if its header is whole now and has some.
    pub(crate) fn push(
        &mut self,
        payload: &[u8],
        start: bool,
        packet: u64,
        kind: ElementaryKind,
        found: &mut impl FnMut(FindingKind),
    ) -> Option<Stamps> {
        self.media_at = 0;
        if start {
            self.end(false).into_iter().for_each(&mut *found);
            (self.bytes, self.filled, self.is_parsed, self.begins) = (Some(0), 0, false, packet);
            self.packets += 1;
        }
        let bytes = self.bytes?;
        self.bytes = Some(bytes.saturating_add(payload.len() as u32));
        if self.is_parsed {
            return None;
        }
        let taken = payload.len().min(HEAD_BYTES - self.filled);
        self.head[self.filled..self.filled + taken].copy_from_slice(&payload[..taken]);
        self.filled += taken;
        match self.parse(kind) {
            Head::Incomplete => None,
            Head::Fault(what) => {
                found(FindingKind::BadPes { what });
                self.bytes = None;
                None
            }
            Head::Whole(length, stamps) => {
                self.is_parsed = true;
                self.media_at = length.saturating_sub(bytes as usize);
                self.stamped += u64::from(stamps.is_some());
                stamps
            }
        }
    }

    fn parse(&self, kind: ElementaryKind) -> Head {
        let head = &self.head[..self.filled];
        let [a, b, c, id, high, low, rest @ ..] = head else { return Head::Incomplete };
        if (*a, *b, *c) != (0, 0, 1) {
            return Head::Fault("a payload that begins and is no PES packet");
        }
        let length = u16::from_be_bytes([*high, *low]);
        if length == 0 && kind != ElementaryKind::Video {
            return Head::Fault("PES_packet_length 0, which only video may have");
        }
        // Table 2-21: these have no further header.
        if matches!(id, 0xbc | 0xbe | 0xbf | 0xf0 | 0xf1 | 0xf2 | 0xf8 | 0xff) {
            return Head::Whole(6, None);
        }
        let [first, flags, more, ..] = *rest else { return Head::Incomplete };
        if first & 0xc0 != 0x80 {
            return Head::Fault("a PES header that does not begin with the bits 10");
        }
        let more = usize::from(more);
        if length != 0 && usize::from(length) < 3 + more {
            return Head::Fault("a PES header longer than its packet");
        }
        let needed = match flags >> 6 {
            0 => return Head::Whole(9 + more, None),
            1 => return Head::Fault("PTS_DTS_flags 01, which is forbidden"),
            2 => 5,
            _ => 10,
        };
        if more < needed {
            return Head::Fault("a PES header too short for its time stamps");
        }
        let Some(stamps) = head.get(9..9 + needed) else { return Head::Incomplete };
        let Some(pts) = stamp(&stamps[..5], if needed == 5 { 2 } else { 3 }) else {
            return Head::Fault("a PTS with wrong marker bits");
        };
        if needed == 5 {
            return Head::Whole(9 + more, Some(Stamps { pts, dts: pts }));
        }
        match stamp(&stamps[5..], 1) {
            Some(dts) => Head::Whole(9 + more, Some(Stamps { pts, dts })),
            None => Head::Fault("a DTS with wrong marker bits"),
        }
    }
}

/// Decodes 33 bits in five bytes: they follow four bits that give their kind, and a marker bit
/// follows each part.
fn stamp(bytes: &[u8], kind: u8) -> Option<u64> {
    let &[a, b, c, d, e] = bytes else { return None };
    let is_right = a >> 4 == kind && a & c & e & 1 == 1;
    let parts = [
        (u64::from(a) >> 1 & 7, 30),
        (u64::from(b), 22),
        (u64::from(c) >> 1, 15),
        (u64::from(d), 7),
        (u64::from(e) >> 1, 0),
    ];
    is_right.then(|| parts.iter().map(|(part, shift)| part << shift).sum())
}

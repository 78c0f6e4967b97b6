//! The FEC that a title offers, the modes that a viewer may ask for, and the FEC packets that
//! belong to a run of media packets.

use std::fmt;

use millrace_core::fec::Spread;
use millrace_core::wire::fec::PAYLOAD_TYPE_FEC;

/// How a title's packets are protected: rows of `k` data units and `m` parity units, units of `U` packets. On the wire a row is a
/// matrix of SMPTE ST 2022-1 with `L` = `U` columns and `D` = `k` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecMatrix {
    /// Data units of a row, "k"; not 0.
    pub data_units: u8,
    /// Parity units of a row, "m"; not 0.
    pub parity_units: u8,
    /// Packets of a unit, "U"; not 0.
    pub unit_packets: u8,
}

/// How much of a title's parity is sent to a viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FecMode {
    /// Nothing.
    Off,
    /// The first parity: what ST 2022-1 calls column FEC.
    Xor,
    /// All parities.
    All,
}

/// The FEC that a viewer asks for beside its title.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FecWish {
    /// The request does not mention FEC.
    #[default]
    Silent,
    /// The value is meaningless.
    Unclear,
    /// This much.
    Mode(FecMode),
}

/// The track of the first parity.
pub const TRACK_XOR: u8 = 1;
/// The track of the further parities.
pub const TRACK_RS: u8 = 2;

impl FecMode {
    /// As viewers write it.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Off, Self::Xor, Self::All].into_iter().find(|mode| text.eq_ignore_ascii_case(mode.as_str()))
    }

    /// As viewers read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Xor => "xor",
            Self::All => "all",
        }
    }

    /// The tracks that are sent.
    pub fn tracks(self) -> &'static [u8] {
        match self {
            Self::Off => &[],
            Self::Xor => &[TRACK_XOR],
            Self::All => &[TRACK_XOR, TRACK_RS],
        }
    }
}

impl fmt::Display for FecMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FecMatrix {
    /// Returns the most that the title can provide of the requested mode.
    pub fn at_most(self, wish: FecMode) -> FecMode {
        if wish == FecMode::All && self.parity_units == 1 { FecMode::Xor } else { wish }
    }

    /// Packets of one codeword that a viewer can repair with this much FEC.
    pub fn spare(self, mode: FecMode) -> u8 {
        match mode {
            FecMode::Off => 0,
            FecMode::Xor => 1,
            FecMode::All => self.parity_units,
        }
    }

    /// Bits a second of FEC beside a title of `rate`: parity costs as many packets as data, a little longer ones.
    pub fn rate(self, mode: FecMode, rate: u64) -> u64 {
        rate.saturating_mul(u64::from(self.spare(mode))).div_ceil(u64::from(self.data_units))
    }

    /// FEC packets in `track` for each column; as many leave in each slot.
    pub fn column_packets(self, track: u8) -> u32 {
        self.spread().parities(track).len() as u32
    }

    /// The order in which FEC packets leave.
    fn spread(self) -> Spread {
        let Self { data_units, parity_units, unit_packets } = self;
        Spread::new(data_units.into(), parity_units.into(), unit_packets.into())
    }

    fn row_packets(self) -> u64 {
        u64::from(self.data_units) * u64::from(self.unit_packets)
    }

    /// Columns of a title of `packets` packets, which are its slots too.
    pub fn columns(self, packets: u32) -> u32 {
        let columns = u64::from(packets).div_ceil(self.row_packets()) * u64::from(self.unit_packets);
        u32::try_from(columns).unwrap_or(u32::MAX)
    }

    /// Returns the media packet that the FEC of a slot leaves with: the FEC of a row is spread over
    /// the row behind it. This is the last packet of the title for all FEC that would leave after
    /// it.
    pub fn departure(self, slot: u32, packets: u32) -> u32 {
        self.spread().departs_with(slot).min(u64::from(packets).saturating_sub(1)) as u32
    }

    /// Returns the first slot of a track that contains FEC of a column without packets before
    /// packet `from`.
    pub fn first_whole(self, track: u8, from: u32) -> u32 {
        let (row, place) = (u64::from(from) / self.row_packets(), u64::from(from) % self.row_packets());
        let unit = u64::from(self.unit_packets);
        // Within the first unit the columns not yet passed are whole; behind it none is.
        let is_whole = |slot: &u64| self.columns_in(track, *slot).any(|column| column >= place);
        let slot = (0..unit).find(is_whole).unwrap_or(unit);
        u32::try_from(row * unit + slot).unwrap_or(u32::MAX)
    }

    /// First slot whose FEC leaves at or behind packet `next`.
    pub fn first_due(self, next: u32) -> u32 {
        self.spread().first_due(next)
    }

    /// Returns the slots of a track up to the first that contains FEC of a column with packets at
    /// or behind `until`, in a title of `packets`: a viewer that does not get those packets must
    /// not reconstruct them.
    pub fn whole_until(self, track: u8, until: u32, packets: u32) -> u32 {
        if until >= packets {
            return self.columns(packets);
        }
        let (row, place) = (u64::from(until) / self.row_packets(), u64::from(until) % self.row_packets());
        let unit = u64::from(self.unit_packets);
        let whole = place.saturating_sub((u64::from(self.data_units) - 1) * unit);
        let is_whole = |slot: &u64| self.columns_in(track, *slot).all(|column| column < whole);
        let slots = (0..unit).take_while(is_whole).count() as u64;
        u32::try_from(row * unit + slots).unwrap_or(u32::MAX)
    }

    /// Returns the columns whose FEC is in a slot of a row.
    fn columns_in(self, track: u8, slot: u64) -> impl Iterator<Item = u64> {
        let spread = self.spread();
        spread.parities(track).map(move |parity| u64::from(spread.column(slot as u32, parity)))
    }

    /// Returns the available modes in SDP notation: the value of `a=x-millrace-fec:`.
    pub fn offer(self) -> String {
        let most = self.at_most(FecMode::All);
        let modes = if most == FecMode::All { "xor,all" } else { "xor" };
        format!("{modes}{}", self.parameters(most, |track| format!("+{}", port_offset(track))))
    }

    /// Returns the FEC sent to a viewer with this RTP port, in the notation of a reply.
    pub fn grant(self, mode: FecMode, rtp_port: u16) -> String {
        let port = |track| (u32::from(rtp_port) + u32::from(port_offset(track))).to_string();
        match mode {
            FecMode::Off => mode.as_str().to_owned(),
            _ => format!("{mode}{}", self.parameters(mode, port)),
        }
    }

    fn parameters(self, mode: FecMode, port: impl Fn(u8) -> String) -> String {
        let Self { data_units: k, parity_units: m, unit_packets: u } = self;
        let rs = match mode {
            FecMode::All => format!(";rs_port={}", port(TRACK_RS)),
            _ => String::new(),
        };
        let xor = port(TRACK_XOR);
        format!(";xor_port={xor}{rs};pt={PAYLOAD_TYPE_FEC};L={u};D={k};k={k};m={m};U={u}")
    }
}

/// How far from the RTP port a track's port is. 4 is left to the row FEC of ST 2022-1.
pub fn port_offset(track: u8) -> u16 {
    if track == TRACK_XOR { 2 } else { 6 }
}

#[cfg(test)]
#[path = "matrix_tests.rs"]
mod tests;

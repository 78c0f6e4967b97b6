//! The checks and their findings.

use std::fmt;

use serde::ser::{Serialize, SerializeStruct, Serializer};

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The stream breaks a rule.
    Fault,
    /// Data is missing that the caller reports as lost on the way: not the stream's fault.
    Loss,
    /// Worth knowing, and allowed.
    Note,
}

macro_rules! checks {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $clause:literal, $severity:ident;)*) => {
        /// One check, by its number in ETSI TR 101 290 or by the section of ISO/IEC 13818-1.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Check { $($(#[$doc])* $name,)* }

        impl Check {
            /// All, in the order of reports.
            pub const ALL: &[Check] = &[$(Check::$name,)*];

            /// Its name in reports and JSON.
            pub fn id(self) -> &'static str {
                match self { $(Check::$name => $id,)* }
            }

            /// Where its rule stands: a number of TR 101 290, or a section of ISO/IEC 13818-1.
            pub fn clause(self) -> &'static str {
                match self { $(Check::$name => $clause,)* }
            }

            /// Its severity.
            pub fn severity(self) -> Severity {
                match self { $(Check::$name => Severity::$severity,)* }
            }
        }
    };
}

checks! {
    /// Two sync bytes in a row are wrong, or bytes belong to no packet.
    SyncLoss = "sync_loss", "1.1", Fault;
    /// A sync byte is wrong.
    SyncByte = "sync_byte", "1.2", Fault;
    /// The PAT is missing, scrambled, or something else is in its place.
    Pat = "pat", "1.3.a", Fault;
    /// A continuity counter does not follow.
    Continuity = "continuity", "1.4", Fault;
    /// A PMT is missing or scrambled.
    Pmt = "pmt", "1.5.a", Fault;
    /// A PID that a PMT names does not come.
    Pid = "pid", "1.6", Fault;
    /// A packet is marked as damaged.
    TransportError = "transport_error", "2.1", Fault;
    /// The CRC of a table is wrong.
    Crc = "crc", "2.2", Fault;
    /// Clock references are too far apart.
    PcrRepetition = "pcr_repetition", "2.3.a", Fault;
    /// A clock reference jumps without discontinuity_indicator.
    PcrDiscontinuity = "pcr_discontinuity", "2.3.b", Fault;
    /// A clock reference is off although the rate is constant.
    PcrAccuracy = "pcr_accuracy", "2.4", Fault;
    /// Presentation times are too far apart.
    PtsRepetition = "pts_repetition", "2.5", Fault;
    /// Something is scrambled and there is no CAT, or something else is in its place.
    Cat = "cat", "2.6", Fault;
    /// The stream ends within a packet.
    Cut = "cut", "ISO 2.4.3.2", Fault;
    /// A header or an adaptation field that cannot be.
    PacketHeader = "packet_header", "ISO 2.4.3", Fault;
    /// A section that cannot be.
    Section = "section", "ISO 2.4.4", Fault;
    /// A table changed and its version did not.
    TableVersion = "table_version", "ISO 2.4.4", Fault;
    /// A PES header is invalid, or a PES packet has another length than its header states.
    PesHeader = "pes_header", "ISO 2.4.3.6", Fault;
    /// Decoding times run back, or presentation times do not fit them.
    TimestampOrder = "timestamp_order", "ISO 2.4.3.7", Fault;
    /// A picture is marked as an access point, but its parameter sets are missing.
    AccessPoint = "access_point", "ISO 2.4.3.5", Fault;
    /// A unit must be decoded before it has arrived, or more than 10 s later.
    DecodeTime = "decode_time", "ISO 2.4.2.3", Fault;
    /// A transport buffer of the decoder model overflows.
    TransportBuffer = "transport_buffer", "ISO 2.4.2.3", Fault;
    /// A main buffer of the decoder model overflows.
    MainBuffer = "main_buffer", "ISO 2.4.2.3", Fault;
    /// A unit must be decoded before the last of it has arrived.
    Underflow = "underflow", "ISO 2.4.2.6", Fault;
    /// Data was lost on the way, as reported by the caller.
    Lost = "lost", "-", Loss;
    /// Clock references are further apart than 40 ms, which DVB asks for.
    PcrSpacing = "pcr_spacing", "TS 101 154", Note;
    /// Decoding could start at a picture if its parameter sets came with it, but the picture is not
    /// marked.
    BareStart = "bare_start", "-", Note;
    /// A clock restarts, and signals it.
    NewClock = "new_clock", "ISO 2.4.3.5", Note;
    /// A table has a new version.
    NewTable = "new_table", "ISO 2.4.4", Note;
    /// More of something than is looked at.
    NotChecked = "not_checked", "-", Note;
}

/// A finding, with its numbers. Times are ticks of 27 MHz unless named otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the text of each is below
pub enum FindingKind {
    Skipped {
        bytes: u64,
    },
    WrongSync {
        got: u8,
    },
    PatMissing {
        ticks: i64,
    },
    PatTable {
        table: u8,
    },
    PatScrambled,
    Counter {
        expected: u8,
        got: u8,
    },
    /// The same counter as before, and other bytes.
    CounterRepeated {
        counter: u8,
    },
    PmtMissing {
        program: u16,
        ticks: i64,
    },
    PmtScrambled,
    PidMissing {
        program: u16,
        ticks: i64,
    },
    PidNever {
        program: u16,
    },
    Marked,
    WrongCrc {
        table: u8,
    },
    PcrLate {
        ticks: i64,
    },
    PcrNever {
        program: u16,
    },
    PcrJump {
        ticks: i64,
    },
    PcrOff {
        ns: i64,
    },
    PtsApart {
        ms: i64,
    },
    CatMissing,
    CatTable {
        table: u8,
    },
    Ends {
        bytes: u64,
    },
    BadHeader {
        what: &'static str,
    },
    BadSection {
        what: &'static str,
    },
    SameVersion {
        table: u8,
        program: u16,
        version: u8,
    },
    BadPes {
        what: &'static str,
    },
    PesLength {
        said: u32,
        got: u32,
    },
    DtsBack {
        ms: i64,
    },
    PtsBeforeDts {
        ms: i64,
    },
    PtsFar {
        ms: i64,
    },
    PtsTwice,
    NoParameterSets,
    BareStart,
    DecodedEarly {
        ms: i64,
    },
    DecodedLate {
        ms: i64,
    },
    TransportFull {
        bytes: u64,
    },
    MainFull {
        bytes: u64,
        size: u64,
    },
    Incomplete {
        ms: i64,
    },
    LostOnTheWay,
    PcrSlow {
        ticks: i64,
    },
    ClockAnnounced {
        ticks: i64,
    },
    NewVersion {
        table: u8,
        program: u16,
        version: u8,
    },
    TooMany {
        what: &'static str,
    },
}

impl FindingKind {
    /// Which check it belongs to.
    pub fn check(&self) -> Check {
        match self {
            Self::Skipped { .. } => Check::SyncLoss,
            Self::WrongSync { .. } => Check::SyncByte,
            Self::PatMissing { .. } | Self::PatTable { .. } | Self::PatScrambled => Check::Pat,
            Self::Counter { .. } | Self::CounterRepeated { .. } => Check::Continuity,
            Self::PmtMissing { .. } | Self::PmtScrambled => Check::Pmt,
            Self::PidMissing { .. } | Self::PidNever { .. } => Check::Pid,
            Self::Marked => Check::TransportError,
            Self::WrongCrc { .. } => Check::Crc,
            Self::PcrLate { .. } | Self::PcrNever { .. } => Check::PcrRepetition,
            Self::PcrJump { .. } => Check::PcrDiscontinuity,
            Self::PcrOff { .. } => Check::PcrAccuracy,
            Self::PtsApart { .. } => Check::PtsRepetition,
            Self::CatMissing | Self::CatTable { .. } => Check::Cat,
            Self::Ends { .. } => Check::Cut,
            Self::BadHeader { .. } => Check::PacketHeader,
            Self::BadSection { .. } => Check::Section,
            Self::SameVersion { .. } => Check::TableVersion,
            Self::BadPes { .. } | Self::PesLength { .. } => Check::PesHeader,
            Self::DtsBack { .. } | Self::PtsBeforeDts { .. } | Self::PtsFar { .. } | Self::PtsTwice => {
                Check::TimestampOrder
            }
            Self::NoParameterSets => Check::AccessPoint,
            Self::BareStart => Check::BareStart,
            Self::DecodedEarly { .. } | Self::DecodedLate { .. } => Check::DecodeTime,
            Self::TransportFull { .. } => Check::TransportBuffer,
            Self::MainFull { .. } => Check::MainBuffer,
            Self::Incomplete { .. } => Check::Underflow,
            Self::LostOnTheWay => Check::Lost,
            Self::PcrSlow { .. } => Check::PcrSpacing,
            Self::ClockAnnounced { .. } => Check::NewClock,
            Self::NewVersion { .. } => Check::NewTable,
            Self::TooMany { .. } => Check::NotChecked,
        }
    }
}

/// Ticks as milliseconds.
struct Ms(i64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 27_000.0)
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Skipped { bytes } => write!(f, "{bytes} bytes belong to no packet"),
            Self::WrongSync { got } => write!(f, "sync byte is {got:#04x}"),
            Self::PatMissing { ticks } => write!(f, "no PAT for {}; 500 ms are allowed", Ms(ticks)),
            Self::PatTable { table } => write!(f, "table {table:#04x} on the PID of the PAT"),
            Self::PatScrambled => f.write_str("the PAT is scrambled"),
            Self::Counter { expected, got } => write!(f, "counter is {got}, expected {expected}"),
            Self::CounterRepeated { counter } => write!(f, "counter {counter} again, with other bytes"),
            Self::PmtMissing { program, ticks } => {
                write!(f, "no PMT of programme {program} for {}; 500 ms are allowed", Ms(ticks))
            }
            Self::PmtScrambled => f.write_str("a PMT is scrambled"),
            Self::PidMissing { program, ticks } => {
                write!(f, "nothing for {} (programme {program})", Ms(ticks))
            }
            Self::PidNever { program } => {
                write!(f, "the PMT of programme {program} names it, and it never comes")
            }
            Self::Marked => f.write_str("transport_error_indicator is set"),
            Self::WrongCrc { table } => write!(f, "wrong CRC of table {table:#04x}"),
            Self::PcrLate { ticks } => write!(f, "no PCR for {}; 100 ms are allowed", Ms(ticks)),
            Self::PcrNever { program } => {
                write!(f, "no PCR at all, though programme {program} takes its time from here")
            }
            Self::PcrJump { ticks } => {
                write!(f, "PCR jumps by {} without discontinuity_indicator", Ms(ticks))
            }
            Self::PcrOff { ns } => write!(f, "PCR is {ns} ns off; 500 ns are allowed"),
            Self::PtsApart { ms } => write!(f, "next PTS {ms} ms later; 700 ms are allowed"),
            Self::CatMissing => f.write_str("scrambled, and there is no CAT"),
            Self::CatTable { table } => write!(f, "table {table:#04x} on the PID of the CAT"),
            Self::Ends { bytes } => write!(f, "the stream ends {bytes} bytes into a packet"),
            Self::BadHeader { what } | Self::BadSection { what } | Self::BadPes { what } => f.write_str(what),
            Self::SameVersion { table, program, version } => {
                write!(f, "table {table:#04x} of {program} changed and still has version {version}")
            }
            Self::PesLength { said, got } => write!(f, "a PES packet of {got} bytes says {said}"),
            Self::DtsBack { ms } => write!(f, "DTS goes {ms} ms back, or stands still"),
            Self::PtsBeforeDts { ms } => write!(f, "PTS {ms} ms before DTS"),
            Self::PtsFar { ms } => write!(f, "PTS {ms} ms after DTS"),
            Self::PtsTwice => f.write_str("a PTS that was there already"),
            Self::NoParameterSets => f.write_str(
                "marked for random access, and no parameter sets (sequence header) come before the picture",
            ),
            Self::BareStart => {
                f.write_str("decoding cannot start here: no parameter sets come before the picture")
            }
            Self::DecodedEarly { ms } => write!(f, "to be decoded {ms} ms before it arrives"),
            Self::DecodedLate { ms } => write!(f, "to be decoded {ms} ms after it arrives; 10 s are allowed"),
            Self::TransportFull { bytes } => write!(f, "{bytes} bytes in the transport buffer of 512"),
            Self::MainFull { bytes, size } => write!(f, "{bytes} bytes in buffers of {size}"),
            Self::Incomplete { ms } => write!(f, "its last byte comes {ms} ms after its decoding time"),
            Self::LostOnTheWay => f.write_str("data were lost on the way here"),
            Self::PcrSlow { ticks } => write!(f, "no PCR for {}", Ms(ticks)),
            Self::ClockAnnounced { ticks } => write!(f, "PCR jumps by {}, as announced", Ms(ticks)),
            Self::NewVersion { table, program, version } => {
                write!(f, "table {table:#04x} of {program} has version {version} now")
            }
            Self::TooMany { what } => write!(f, "more {what} than are looked at"),
        }
    }
}

/// One finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub what: FindingKind,
    /// On which PID, if it is of one.
    pub pid: Option<u16>,
    /// Number of the packet, from 0: those that were taken for packets.
    pub packet: u64,
    /// Offset in the stream, in bytes.
    pub byte: u64,
    /// Media time since the first packet; `None` without clock references.
    pub time_ns: Option<u64>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let check = self.what.check();
        match self.time_ns {
            Some(ns) => write!(f, "{:.3} s", ns as f64 / 1e9)?,
            None => f.write_str("? s")?,
        }
        write!(f, ", byte {}", self.byte)?;
        if let Some(pid) = self.pid {
            write!(f, ", PID {pid}")?;
        }
        write!(f, ": {} [{} {}]", self.what, check.clause(), check.id())
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let check = self.what.check();
        let mut out = serializer.serialize_struct("Finding", 8)?;
        out.serialize_field("check", check.id())?;
        out.serialize_field("clause", check.clause())?;
        out.serialize_field("severity", &check.severity())?;
        out.serialize_field("pid", &self.pid)?;
        out.serialize_field("packet", &self.packet)?;
        out.serialize_field("byte", &self.byte)?;
        out.serialize_field("time_ns", &self.time_ns)?;
        out.serialize_field("what", &self.what.to_string())?;
        out.end()
    }
}

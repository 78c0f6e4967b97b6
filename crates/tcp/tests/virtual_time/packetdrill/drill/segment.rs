//! Segments: their notation, and their form on the wire, which is written and read here without the code that is tested.

use std::fmt;
use std::net::IpAddr;

use super::text::{Fault, Text};

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
const FLAGS: [(char, u8); 8] =
    [('F', FIN), ('S', SYN), ('R', RST), ('P', PSH), ('.', ACK), ('U', 0x20), ('E', 0x40), ('W', 0x80)];

/// The ECN field of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ecn {
    None,
    Ect,
    Ce,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opt {
    Mss(u16),
    Nop,
    Eol,
    SackOk,
    Scale(u8),
    Sack(Vec<(u32, u32)>),
    Stamps(u32, u32),
    /// Any other, byte by byte.
    Raw(Vec<u8>),
}

impl Opt {
    fn bytes(&self) -> usize {
        match self {
            Self::Nop | Self::Eol => 1,
            Self::SackOk => 2,
            Self::Scale(_) => 3,
            Self::Mss(_) => 4,
            Self::Stamps(..) => 10,
            Self::Sack(blocks) => 2 + 8 * blocks.len(),
            Self::Raw(bytes) => bytes.len(),
        }
    }
}

/// As a script writes it, or translated into its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// `None`: it does not matter.
    pub(super) ecn: Option<Ecn>,
    pub(super) is_spoiled: bool,
    /// From and to.
    pub(super) ports: Option<(u16, u16)>,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) length: u32,
    pub(super) ack: u32,
    /// `None`: it does not matter.
    pub(super) window: Option<u16>,
    pub(super) urgent: u16,
    /// `None`: they do not matter.
    pub(super) options: Option<Vec<Opt>>,
}

impl Segment {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Behind `<` or `>`.
pub(super) fn parse(text: &mut Text<'_>, is_inbound: bool) -> Result<Segment, Fault> {
    let (mut ecn, mut is_spoiled, mut ports) = (None, false, None);
    while text.take("[") {
        match text.take_until("]")? {
            "noecn" => ecn = Some(Ecn::None),
            "ect0" => ecn = Some(Ecn::Ect),
            "ce" => ecn = Some(Ecn::Ce),
            "badsum" if is_inbound => is_spoiled = true,
            other => {
                return Err(text.fault(format!("[{other}] is neither [noecn], [ect0], [ce] nor [badsum]")));
            }
        }
    }
    if text.take("(") {
        let from = text.field()?;
        text.expect(">")?;
        ports = Some((from, text.field()?));
        text.expect(")")?;
    }
    let mut flags = 0;
    let letters = text.take_while(|c| !c.is_whitespace());
    for letter in letters.chars().filter(|&c| c != '-') {
        let known = FLAGS.iter().find(|(known, _)| *known == letter);
        let (_, flag) = known.ok_or_else(|| text.fault(format!("'{letters}' are no TCP flags")))?;
        flags |= flag;
    }
    let seq: u32 = text.field()?;
    text.expect(":")?;
    let end: u32 = text.field()?;
    text.expect("(")?;
    let length: u32 = text.field()?;
    text.expect(")")?;
    if seq.wrapping_add(length) != end {
        return Err(text.fault(format!("{seq}:{end} are not {length} bytes")));
    }
    let mut segment = Segment {
        ecn,
        is_spoiled,
        ports,
        flags,
        seq,
        length,
        ack: 0,
        window: None,
        urgent: 0,
        options: Some(vec![]),
    };
    let mut has_ack = false;
    loop {
        if text.take("ack ") {
            segment.ack = text.field()?;
            has_ack = true;
        } else if text.take("win ") {
            segment.window = Some(text.field()?);
        } else if text.take("urg ") {
            segment.urgent = text.field()?;
        } else if text.take("<") {
            segment.options = options(text)?;
        } else {
            break;
        }
    }
    if has_ack != segment.has(ACK) {
        return Err(text.fault("'ack' and the flag '.' go together"));
    }
    if is_inbound && (segment.window.is_none() || segment.options.is_none()) {
        return Err(text.fault("a segment that arrives has a window (win) and known options"));
    }
    if segment.options.iter().flatten().map(Opt::bytes).sum::<usize>() > 40 {
        return Err(text.fault("options have 40 bytes at the most"));
    }
    Ok(segment)
}

fn options(text: &mut Text<'_>) -> Result<Option<Vec<Opt>>, Fault> {
    if text.take("...") {
        text.expect(">")?;
        return Ok(None);
    }
    let mut options = Vec::new();
    while !text.take(">") {
        if !options.is_empty() {
            text.expect(",")?;
        }
        options.push(option(text)?);
    }
    Ok(Some(options))
}

fn option(text: &mut Text<'_>) -> Result<Opt, Fault> {
    Ok(match text.word() {
        "mss" => Opt::Mss(text.field()?),
        "nop" => Opt::Nop,
        "eol" => Opt::Eol,
        "sackOK" => Opt::SackOk,
        "wscale" => Opt::Scale(text.field()?),
        "sack" => {
            let mut blocks = Vec::new();
            loop {
                let from = text.field()?;
                text.expect(":")?;
                blocks.push((from, text.field()?));
                text.skip()?;
                if !text.rest().starts_with(|c: char| c.is_ascii_digit()) {
                    break Opt::Sack(blocks);
                }
            }
        }
        "TS" => {
            text.expect("val")?;
            let value = text.field()?;
            text.expect("ecr")?;
            Opt::Stamps(value, text.field()?)
        }
        "md5" => Opt::Raw(raw(text, Some(19))?),
        "FO" => Opt::Raw(raw(text, Some(34))?),
        "hex" => Opt::Raw(raw(text, None)?),
        other => return Err(text.fault(format!("the option '{other}' is not known"))),
    })
}

fn raw(text: &mut Text<'_>, kind: Option<u8>) -> Result<Vec<u8>, Fault> {
    let digits = text.word();
    let byte = |at: usize| digits.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let data: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    let data = data.ok_or_else(|| text.fault("an option's bytes are hexadecimal digits, two each"))?;
    Ok(match kind {
        Some(kind) => [vec![kind, (data.len() + 2) as u8], data].concat(),
        None => data,
    })
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mss(mss) => write!(f, "mss {mss}"),
            Self::Nop => write!(f, "nop"),
            Self::Eol => write!(f, "eol"),
            Self::SackOk => write!(f, "sackOK"),
            Self::Scale(scale) => write!(f, "wscale {scale}"),
            Self::Sack(blocks) => {
                write!(f, "sack")?;
                blocks.iter().try_for_each(|(from, to)| write!(f, " {from}:{to}"))
            }
            Self::Stamps(value, echo) => write!(f, "TS val {value} ecr {echo}"),
            Self::Raw(bytes) => {
                write!(f, "hex ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ecn {
            Some(Ecn::None) => write!(f, "[noecn] ")?,
            Some(Ecn::Ect) => write!(f, "[ect0] ")?,
            Some(Ecn::Ce) => write!(f, "[ce] ")?,
            None => {}
        }
        if let Some((from, to)) = self.ports {
            write!(f, "({from} > {to}) ")?;
        }
        let flags: String = FLAGS.iter().filter(|flag| self.has(flag.1)).map(|flag| flag.0).collect();
        let end = self.seq.wrapping_add(self.length);
        write!(f, "{} {}:{end}({})", if flags.is_empty() { "-" } else { &flags }, self.seq, self.length)?;
        if self.has(ACK) {
            write!(f, " ack {}", self.ack)?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if self.urgent > 0 {
            write!(f, " urg {}", self.urgent)?;
        }
        match &self.options {
            None => write!(f, " <...>"),
            Some(options) if options.is_empty() => Ok(()),
            Some(options) => {
                let options: Vec<String> = options.iter().map(Opt::to_string).collect();
                write!(f, " <{}>", options.join(","))
            }
        }
    }
}

/// A segment as it is on the wire, numbers and all.
pub(super) fn write(segment: &Segment, ports: (u16, u16), ends: (IpAddr, IpAddr), payload: &[u8]) -> Vec<u8> {
    let mut options = Vec::new();
    for option in segment.options.iter().flatten() {
        match option {
            Opt::Mss(mss) => options.extend([&[2, 4][..], &mss.to_be_bytes()].concat()),
            Opt::Nop => options.push(1),
            Opt::Eol => options.push(0),
            Opt::SackOk => options.extend([4, 2]),
            Opt::Scale(scale) => options.extend([3, 3, *scale]),
            Opt::Sack(blocks) => {
                options.extend([5, 2 + 8 * blocks.len() as u8]);
                blocks.iter().for_each(|(from, to)| {
                    options.extend([from.to_be_bytes(), to.to_be_bytes()].concat());
                });
            }
            Opt::Stamps(value, echo) => {
                options.extend([&[8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat());
            }
            Opt::Raw(bytes) => options.extend(bytes),
        }
    }
    options.resize(options.len().next_multiple_of(4), 0);
    let words = (20 + options.len()) / 4;
    let mut bytes = [
        &ports.0.to_be_bytes()[..],
        &ports.1.to_be_bytes(),
        &segment.seq.to_be_bytes(),
        &segment.ack.to_be_bytes(),
        &[(words as u8) << 4, segment.flags],
        &segment.window.unwrap_or(0).to_be_bytes(),
        &[0, 0],
        &segment.urgent.to_be_bytes(),
        &options,
        payload,
    ]
    .concat();
    let sum = if segment.is_spoiled { !sum(ends, &bytes) ^ 0x0100 } else { !sum(ends, &bytes) };
    bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Takes a segment apart that the stack has sent. Its checksum has to be right, and nothing in it may be what RFC 9293 forbids.
pub(super) fn read(bytes: &[u8], ends: (IpAddr, IpAddr), ecn: Ecn) -> Result<(Segment, &[u8]), String> {
    let at =
        |from: usize| bytes.get(from..from + 4).and_then(|four| four.try_into().ok()).map(u32::from_be_bytes);
    let header = || Some([at(0)?, at(4)?, at(8)?, at(12)?, at(16)?]);
    let [ports, seq, ack, control, urgent] = header().ok_or("a header of less than 20 bytes")?;
    if sum(ends, bytes) != 0xffff {
        return Err("a wrong checksum".into());
    }
    if control >> 24 & 0xf != 0 {
        return Err("reserved bits that are not zero".into());
    }
    let length = (control >> 28) as usize * 4;
    let options = bytes.get(20..length).ok_or("a header longer than the segment")?;
    let payload = &bytes[length..];
    let segment = Segment {
        ecn: Some(ecn),
        is_spoiled: false,
        ports: Some(((ports >> 16) as u16, ports as u16)),
        flags: (control >> 16) as u8,
        seq,
        length: payload.len() as u32,
        ack,
        window: Some(control as u16),
        urgent: urgent as u16,
        options: Some(read_options(options)?),
    };
    if !segment.has(ACK) && ack != 0 {
        return Err("an acknowledgment number without the flag".into());
    }
    Ok((segment, payload))
}

fn read_options(mut bytes: &[u8]) -> Result<Vec<Opt>, String> {
    let mut options = Vec::new();
    while let Some((&kind, behind)) = bytes.split_first() {
        if kind < 2 {
            options.push(if kind == 0 { Opt::Eol } else { Opt::Nop });
            if kind == 0 && behind.iter().any(|&byte| byte != 0) {
                return Err("padding that is not zero".into());
            }
            bytes = if kind == 0 { &[] } else { behind };
            continue;
        }
        let length = usize::from(*behind.first().ok_or("an option without a length")?);
        let (option, behind) = bytes.split_at_checked(length).ok_or("an option beyond the header")?;
        bytes = behind;
        let word =
            |at: usize| u32::from_be_bytes([option[at], option[at + 1], option[at + 2], option[at + 3]]);
        options.push(match (kind, length) {
            (2, 4) => Opt::Mss(u16::from_be_bytes([option[2], option[3]])),
            (3, 3) => Opt::Scale(option[2]),
            (4, 2) => Opt::SackOk,
            (5, 10 | 18 | 26 | 34) => {
                Opt::Sack((2..length).step_by(8).map(|at| (word(at), word(at + 4))).collect())
            }
            (8, 10) => Opt::Stamps(word(2), word(6)),
            (_, 0 | 1) => return Err("an option of no length".into()),
            _ => Opt::Raw(option.to_vec()),
        });
    }
    Ok(options)
}

/// The sum of RFC 1071 over pseudo-header and segment.
fn sum((from, to): (IpAddr, IpAddr), bytes: &[u8]) -> u16 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let pseudo = [octets(from), octets(to), vec![0, 6], (bytes.len() as u16).to_be_bytes().to_vec()].concat();
    let words = |bytes: &[u8]| -> u64 {
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let mut sum = words(&pseudo) + words(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

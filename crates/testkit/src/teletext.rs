//! Writes teletext subtitles, for tests: there is no program here that does. It shares nothing with the decoder.

/// A data unit with one teletext packet: id, length, line, framing code, address, 40 bytes.
pub type Unit = [u8; 46];

/// Characters of the places that differ by nation (0x23, 0x24, 0x40, 0x5b to 0x60, 0x7b to 0x7e), by C12 to C14, the first one lowest.
pub const NATIONS: [(&str, &str); 7] = [
    ("English", "£$@←½→↑#—¼‖¾÷"),
    ("French", "éïàëêùî#èâôûç"),
    ("Swedish", "#¤ÉÄÖÅÜ_éäöåü"),
    ("Czech", "#ůčťžýířéáěúš"),
    ("German", "#$§ÄÖÜ^_°äöüß"),
    ("Spanish", "ç$¡áéíóú¿üñèà"),
    ("Italian", "£$é°ç→↑#ùàòèì"),
];
const PLACES: [u8; 13] = *b"#$@[\\]^_`{|}~";

/// Four bits and what protects them, as EN 300 706 lists it.
const HAMMING: [u8; 16] =
    [0x15, 0x02, 0x49, 0x5e, 0x64, 0x73, 0x38, 0x2f, 0xd0, 0xc7, 0x8c, 0x9b, 0xa1, 0xb6, 0xfd, 0xea];

/// Contents of a header.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// From 1 to 8.
    pub magazine: u8,
    /// Two hexadecimal digits.
    pub page: u8,
    pub erases: bool,
    pub is_subtitle: bool,
    pub is_hidden: bool,
    pub is_serial: bool,
    pub national: u8,
}

/// A page of subtitles as they are sent: erased first.
pub fn subtitles(number: u16, national: u8) -> Header {
    let (magazine, page) = (number / 100, number % 100);
    Header {
        magazine: magazine as u8,
        page: (page / 10 * 16 + page % 10) as u8,
        erases: true,
        is_subtitle: true,
        is_hidden: false,
        is_serial: false,
        national,
    }
}

fn unit(magazine: u8, packet: u8, data: &[u8; 40]) -> Unit {
    let mut unit = [0; 46];
    // Field 1, lines from 7 on.
    unit[..4].copy_from_slice(&[0x03, 44, 0xe7, 0xe4]);
    let address = packet << 3 | magazine & 7;
    unit[4] = HAMMING[usize::from(address & 0x0f)].reverse_bits();
    unit[5] = HAMMING[usize::from(address >> 4)].reverse_bits();
    for (byte, data) in unit[6..].iter_mut().zip(data) {
        *byte = data.reverse_bits();
    }
    unit
}

fn odd(code: u8) -> u8 {
    code | u8::from(code.count_ones().is_multiple_of(2)) << 7
}

/// Builds a header. The text that it shows is irrelevant.
pub fn header(of: Header) -> Unit {
    let flag = |is: bool, bit: u8| u8::from(is) << bit;
    let digits = [
        of.page & 0x0f,
        of.page >> 4,
        0,
        flag(of.erases, 3),
        0,
        flag(of.is_subtitle, 3),
        flag(of.is_hidden, 3),
        flag(of.is_serial, 0) | of.national << 1,
    ];
    let mut data = [odd(b' '); 40];
    for (byte, digit) in data.iter_mut().zip(digits) {
        *byte = HAMMING[usize::from(digit)];
    }
    unit(of.magazine, 0, &data)
}

/// The header of no page, which ends the one before.
pub fn filler(magazine: u8) -> Unit {
    header(Header {
        page: 0xff,
        erases: false,
        is_subtitle: false,
        ..subtitles(u16::from(magazine) * 100, 0)
    })
}

/// A row of these codes, spaces behind them.
pub fn row(magazine: u8, number: u8, codes: &[u8]) -> Unit {
    let mut data = [odd(b' '); 40];
    for (byte, code) in data.iter_mut().zip(codes) {
        *byte = odd(*code);
    }
    unit(magazine, number, &data)
}

/// The codes of a text.
pub fn codes(text: &str, national: u8) -> Vec<u8> {
    let (_, own) = NATIONS[usize::from(national)];
    let code = |letter: char| match own.chars().position(|other| other == letter) {
        Some(at) => PLACES[at],
        None => {
            u8::try_from(letter).ok().filter(|code| !PLACES.contains(code)).expect("a letter of this subset")
        }
    };
    text.chars().map(code).collect()
}

/// A row as subtitles have it: in the middle, of double height, in a box.
pub fn boxed(magazine: u8, number: u8, text: &[u8]) -> Unit {
    let indent = 36usize.saturating_sub(text.len()) / 2;
    row(magazine, number, &[&vec![b' '; indent][..], &[0x0d, 0x0b, 0x0b], text, &[0x0a, 0x0a]].concat())
}

/// A page with these lines, and what ends it; without any it shows nothing.
pub fn page(number: u16, national: u8, lines: &[&str]) -> Vec<Unit> {
    let of = subtitles(number, national);
    let mut units = vec![header(of)];
    let first = 24 - 2 * lines.len() as u8;
    for (at, line) in lines.iter().enumerate() {
        units.push(boxed(of.magazine, first + 2 * at as u8 - 1, &codes(line, national)));
    }
    units.push(filler(of.magazine));
    units
}

/// The payload of a PES packet: whole TS packets with its header of 45 bytes.
pub fn payload(units: &[Unit]) -> Vec<u8> {
    let mut payload = vec![0x10];
    payload.extend(units.concat());
    while !(45 + payload.len()).is_multiple_of(184) {
        payload.extend([&[0xff, 44][..], &[0xff; 44]].concat());
    }
    payload
}

fn pes(pts: u64, units: &[Unit]) -> Vec<u8> {
    let payload = payload(units);
    let length = (39 + payload.len()) as u16;
    let mut pes = vec![0, 0, 1, 0xbd, (length >> 8) as u8, length as u8, 0x84, 0x80, 0x24];
    let pts = pts % (1 << 33);
    pes.extend([0x21 | (pts >> 29) as u8 & 0x0e, (pts >> 22) as u8, (pts >> 14) as u8 | 1]);
    pes.extend([(pts >> 7) as u8, (pts << 1) as u8 | 1]);
    pes.resize(45, 0xff);
    pes.extend(payload);
    pes
}

pub fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte) << 24, |crc, _| (crc << 1) ^ ((crc >> 31) * 0x04c1_1db7))
    })
}

/// A page that the PMT names: language, type, number.
pub type Named = (&'static str, u8, u16);

/// Type of a page with subtitles, and of one with subtitles for the hard of hearing.
pub const SUBTITLES: u8 = 2;
pub const HEARING_IMPAIRED: u8 = 5;

/// Adds a stream of teletext to a transport stream of one programme whose PMT is one packet: the
/// pages of `named`, and the units of `sent` at their time stamps, in ascending order. Each PES
/// packet comes a tenth of a second before its time by the stream's clock, or at its beginning:
/// ffmpeg takes the clock as the time of a packet that comes 140 ms or more early.
pub fn mux(stream: &[u8], pmt: u16, pid: u16, named: &[Named], sent: &[(u64, Vec<Unit>)]) -> Vec<u8> {
    const AHEAD: u64 = 9_000;
    let mut out = Vec::with_capacity(stream.len() + sent.len() * 376);
    let mut left = sent.iter().peekable();
    let mut counter = 0u8;
    for packet in stream.chunks_exact(188) {
        let of = u16::from_be_bytes([packet[1] & 0x1f, packet[2]]);
        match of == pmt && packet[1] & 0x40 != 0 {
            true => out.extend(with_stream(packet, pid, named)),
            false => out.extend_from_slice(packet),
        }
        let has_clock = packet[3] & 0x20 != 0 && packet[4] >= 7 && packet[5] & 0x10 != 0;
        if !has_clock {
            continue;
        }
        let base = packet[6..10].iter().fold(0, |base, byte| base << 8 | u64::from(*byte));
        let clock = base << 1 | u64::from(packet[10] >> 7);
        while let Some((pts, units)) = left.next_if(|(pts, _)| clock + AHEAD >= *pts) {
            for (at, piece) in pes(*pts, units).chunks_exact(184).enumerate() {
                let start = if at == 0 { 0x40 } else { 0 };
                out.extend([0x47, start | (pid >> 8) as u8, pid as u8, 0x10 | counter]);
                out.extend_from_slice(piece);
                counter = (counter + 1) & 0x0f;
            }
        }
    }
    assert!(left.peek().is_none(), "the stream ends before the subtitles do");
    out
}

/// A packet with a PMT that has one stream more.
fn with_stream(packet: &[u8], pid: u16, named: &[Named]) -> Vec<u8> {
    let length = usize::from(u16::from_be_bytes([packet[6] & 0x0f, packet[7]]));
    assert_eq!(packet[4], 0, "the section begins at once");
    let mut section = packet[5..5 + 3 + length - 4].to_vec();
    let descriptor: Vec<u8> = named
        .iter()
        .flat_map(|(language, kind, number)| {
            let of = subtitles(*number, 0);
            [language.as_bytes(), &[kind << 3 | of.magazine & 7, of.page]].concat()
        })
        .collect();
    section.extend([0x06, 0xe0 | (pid >> 8) as u8, pid as u8, 0xf0, descriptor.len() as u8 + 2]);
    section.extend([0x56, descriptor.len() as u8]);
    section.extend(descriptor);
    let length = (section.len() + 4 - 3) as u16;
    (section[1], section[2]) = (section[1] & 0xf0 | (length >> 8) as u8, length as u8);
    section.extend(crc(&section).to_be_bytes());
    let mut packet = [&packet[..5], &section].concat();
    assert!(packet.len() <= 188);
    packet.resize(188, 0xff);
    packet
}

//! A multiplexer for tests: as simple as the standard allows, no code in common with the indexer.

/// Ticks of the system clock a second.
pub const HZ: u64 = 27_000_000;
/// Values of a PCR.
pub const WRAP: u64 = (1 << 33) * 300;
/// At this rate a TS packet takes exactly one millisecond.
pub const PACKET_A_MS: u64 = 1_504_000;
pub const VIDEO: u16 = 0x100;
pub const AUDIO: u16 = 0x101;
pub const PMT: u16 = 0x1000;

/// Writes packets one by one.
pub struct Mux {
    pub out: Vec<u8>,
    counters: Vec<u8>,
}

/// Content of an adaptation field.
#[derive(Clone, Copy, Default)]
pub struct Adapt {
    pub pcr: Option<u64>,
    pub random_access: bool,
    pub discontinuity: bool,
}

impl Default for Mux {
    fn default() -> Self {
        Self::new()
    }
}

impl Mux {
    pub fn new() -> Self {
        Self { out: Vec::new(), counters: vec![0; 8192] }
    }

    /// Returns the number of packets written until now.
    pub fn packets(&self) -> u64 {
        self.out.len() as u64 / 188
    }

    /// The continuity counter of `pid` skips `by`, as if packets were lost.
    pub fn lose(&mut self, pid: u16, by: u8) {
        let counter = &mut self.counters[usize::from(pid)];
        *counter = (*counter + by) & 15;
    }

    /// One packet; payload that does not fill it is preceded by stuffing. Returns how much of the payload fitted.
    pub fn packet(&mut self, pid: u16, start: bool, adapt: Adapt, payload: &[u8]) -> usize {
        let mut field = vec![];
        if adapt.pcr.is_some() || adapt.random_access || adapt.discontinuity {
            field.push(
                u8::from(adapt.discontinuity) << 7
                    | u8::from(adapt.random_access) << 6
                    | u8::from(adapt.pcr.is_some()) << 4,
            );
            if let Some(pcr) = adapt.pcr {
                let (base, ext) = (pcr % WRAP / 300, pcr % 300);
                let bits = base << 15 | 0x7e00 | ext;
                field.extend(&bits.to_be_bytes()[2..]);
            }
        }
        let room = 184 - if field.is_empty() { 0 } else { field.len() + 1 };
        let taken = payload.len().min(room);
        let has_field = !field.is_empty() || taken < 184;
        if has_field {
            let length = 183 - taken;
            if field.is_empty() && length > 0 {
                field.push(0);
            }
            field.resize(length, 0xff);
            field.insert(0, length as u8);
        }
        let counter = &mut self.counters[usize::from(pid)];
        let has_payload = taken > 0;
        let control = u8::from(has_field) << 5 | u8::from(has_payload) << 4 | *counter;
        if has_payload {
            *counter = (*counter + 1) & 15;
        }
        self.out.extend([0x47, u8::from(start) << 6 | (pid >> 8) as u8, pid as u8, control]);
        self.out.extend(field);
        self.out.extend(&payload[..taken]);
        assert!(self.out.len().is_multiple_of(188), "a packet has 188 bytes");
        taken
    }

    /// A section in one packet.
    pub fn section(&mut self, pid: u16, table: u8, extension: u16, version: u8, body: &[u8]) {
        let length = 5 + body.len() + 4;
        let mut bytes = vec![0, table, 0xb0 | (length >> 8) as u8, length as u8];
        bytes.extend(extension.to_be_bytes());
        bytes.extend([0xc1 | version << 1, 0, 0]);
        bytes.extend(body);
        bytes.extend(crc(&bytes[1..]).to_be_bytes());
        bytes.resize(184, 0xff);
        self.packet(pid, true, Adapt::default(), &bytes);
    }

    /// Program number and PID of the map table of each program.
    pub fn pat(&mut self, programs: &[(u16, u16)]) {
        let body: Vec<u8> = programs
            .iter()
            .flat_map(|(n, pid)| [n.to_be_bytes(), (0xe000 | pid).to_be_bytes()].concat())
            .collect();
        self.section(0, 0, 1, 0, &body);
    }

    /// Stream type, PID and descriptors of each stream.
    pub fn pmt(&mut self, pid: u16, program: u16, pcr_pid: u16, streams: &[(u8, u16, &[u8])]) {
        let mut body = [(0xe000 | pcr_pid).to_be_bytes(), [0xf0, 0]].concat();
        for (kind, pid, info) in streams {
            body.push(*kind);
            body.extend((0xe000 | pid).to_be_bytes());
            body.extend((0xf000 | info.len() as u16).to_be_bytes());
            body.extend(*info);
        }
        self.section(pid, 2, program, 0, &body);
    }

    /// H.264 and AAC with a language, clock on the video.
    pub fn usual_tables(&mut self) {
        self.pat(&[(1, PMT)]);
        let english = &[0x0a, 4, b'e', b'n', b'g', 0][..];
        self.pmt(PMT, 1, VIDEO, &[(0x1b, VIDEO, &[]), (0x0f, AUDIO, english)]);
    }

    /// The first packet of a PES packet with a decoding time stamp, filled up with `first` and more.
    pub fn pes_start(&mut self, pid: u16, adapt: Adapt, stamp: u64, first: &[u8]) {
        let mut bytes = vec![0, 0, 1, if pid == AUDIO { 0xc0 } else { 0xe0 }, 0, 0, 0x80, 0xc0, 10];
        for mark in [3u64, 1] {
            let v = stamp % (1 << 33);
            let bits = mark << 36
                | (v >> 30) << 33
                | 1 << 32
                | (v >> 15 & 0x7fff) << 17
                | 1 << 16
                | (v & 0x7fff) << 1
                | 1;
            bytes.extend(&bits.to_be_bytes()[3..]);
        }
        bytes.extend(first);
        bytes.resize(184, 0x5a);
        self.packet(pid, true, adapt, &bytes);
    }

    /// A packet in the middle of a PES packet.
    pub fn more(&mut self, pid: u16) {
        let fill = [self.packets() as u8 | 1; 184];
        self.packet(pid, false, Adapt::default(), &fill);
    }
}

fn crc(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xffff_ffff, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |c, _| c << 1 ^ if c >> 31 == 1 { 0x04c1_1db7 } else { 0 })
    })
}

/// Access unit that starts with an IDR picture, and one that does not.
pub const IDR: &[u8] =
    &[0, 0, 1, 9, 0xf0, 0, 0, 1, 0x67, 1, 2, 3, 0, 0, 1, 0x68, 1, 0, 0, 1, 0x65, 0x88, 9, 9, 9];
pub const NON_IDR: &[u8] = &[0, 0, 1, 9, 0xf0, 0, 0, 1, 0x41, 0x9a, 9, 9, 9, 9, 9, 9];

/// A title at [`PACKET_A_MS`]: a PCR every 20 packets, a picture every 40 packets (ms), every 25th a key picture, tables
/// before each of those; clock starting at `start`.
pub struct Film {
    pub start: u64,
    pub packets: u64,
    pub pcr: bool,
    pub stamps: bool,
    pub indicator: bool,
    pub key_every: u64,
    pub null_every: u64,
}

impl Default for Film {
    fn default() -> Self {
        Self {
            start: 0,
            packets: 4000,
            pcr: true,
            stamps: true,
            indicator: true,
            key_every: 25,
            null_every: 7,
        }
    }
}

impl Film {
    /// Appends to `mux`. Time of packet n is `start` + n ms.
    pub fn write(&self, mux: &mut Mux) {
        let first = mux.packets();
        for n in 0..self.packets {
            self.one(mux, n, self.start + n * HZ / 1000);
        }
        assert_eq!(mux.packets() - first, self.packets);
    }

    fn one(&self, mux: &mut Mux, n: u64, now: u64) {
        let key_picture = (n / 40).is_multiple_of(self.key_every);
        let pcr = (self.pcr && n.is_multiple_of(20)).then_some(now);
        match n % 40 {
            38 if (n / 40 + 1).is_multiple_of(self.key_every) => mux.pat(&[(1, PMT)]),
            39 if (n / 40 + 1).is_multiple_of(self.key_every) => {
                let english = &[0x0a, 4, b'e', b'n', b'g', 0][..];
                mux.pmt(PMT, 1, VIDEO, &[(0x1b, VIDEO, &[]), (0x0f, AUDIO, english)]);
            }
            0 => {
                let adapt = Adapt { pcr, random_access: self.indicator && key_picture, ..Adapt::default() };
                let unit = if key_picture { IDR } else { NON_IDR };
                self.pes(mux, VIDEO, adapt, now / 300 + 45_000, unit);
            }
            20 => {
                mux.packet(VIDEO, false, Adapt { pcr, ..Adapt::default() }, &[0x3c; 184]);
            }
            10 => self.pes(
                mux,
                AUDIO,
                Adapt { random_access: self.indicator, ..Adapt::default() },
                now / 300 + 45_000,
                &[0xff, 0xf1],
            ),
            11..=13 => mux.more(AUDIO),
            _ if n.is_multiple_of(self.null_every) => {
                mux.packet(0x1fff, false, Adapt::default(), &[0xff; 184]);
            }
            _ => mux.more(VIDEO),
        }
    }

    fn pes(&self, mux: &mut Mux, pid: u16, adapt: Adapt, stamp: u64, unit: &[u8]) {
        if self.stamps {
            return mux.pes_start(pid, adapt, stamp, unit);
        }
        let mut bytes = vec![0, 0, 1, 0xe0, 0, 0, 0x80, 0, 0];
        bytes.extend(unit);
        bytes.resize(184, 0x5a);
        mux.packet(pid, true, adapt, &bytes);
    }
}

/// Tables and [`Film::default`] with a constant rate: packet n leaves at n ms.
pub fn usual_film() -> Vec<u8> {
    film(&Film::default())
}

/// The tables in two packets that belong to the title's time, then the title.
pub fn film(film: &Film) -> Vec<u8> {
    let mut mux = Mux::new();
    mux.usual_tables();
    film.write(&mut mux);
    mux.out
}

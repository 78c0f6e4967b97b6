use std::collections::BTreeSet;

use millrace_core::fec::Spread;
use millrace_core::wire::fec::PAYLOAD_TYPE_FEC;
use millrace_core::wire::rtp::PAYLOAD_TYPE_MP2T;

use super::*;

/// Just below where the 16 bits of the wire wrap.
const START: u64 = (1 << 32) + 65_530;
const SHAPE: CodeShape = CodeShape { data_units: 4, parity_units: 2, unit_packets: 2 };

/// The packets delivered: in rising order, none twice.
struct Log {
    next: u64,
    given: Vec<(u64, Vec<u8>)>,
    gaps: u64,
}

impl Log {
    fn new() -> Self {
        Self { next: START, given: Vec::new(), gaps: 0 }
    }
}

impl InOrder for Log {
    fn payload(&mut self, ext: u64, bytes: &[u8]) {
        assert_eq!(ext, self.next, "out of order");
        self.next += 1;
        self.given.push((ext, bytes.to_vec()));
    }

    fn gap(&mut self, from: u64, count: u64) {
        assert!(from == self.next && count > 0, "gap {from}+{count} at {}", self.next);
        self.next += count;
        self.gaps += count;
    }
}

/// A title whose packets are all different, the last one shorter.
struct TestTitle {
    packets: u64,
    bytes: usize,
}

impl TestTitle {
    fn payload(&self, n: u64) -> Vec<u8> {
        let bytes = if n + 1 == self.packets { self.bytes / 2 } else { self.bytes };
        (0..bytes as u64).map(|at| ((n + 1) * 0x9e37_79b9 + at * 7919).to_be_bytes()[5]).collect()
    }

    fn header(&self, n: u64) -> RtpHeader {
        RtpHeader {
            marker: false,
            payload_type: PAYLOAD_TYPE_MP2T,
            sequence: (START + n) as u16,
            timestamp: 0xffff_ff00u32.wrapping_add(n as u32 * 300),
            ssrc: 5,
        }
    }

    fn symbol(&self, n: u64) -> Vec<u8> {
        let (header, payload) = (self.header(n), self.payload(n));
        let mut symbol =
            protected_fields(payload.len() as u16, header.payload_type, header.timestamp).to_vec();
        symbol.extend(payload);
        symbol
    }
}

/// An FEC packet and the model's knowledge of it.
#[derive(Clone)]
struct Fec {
    word: usize,
    members: Vec<u64>,
    /// Whether it is one of the further parities, which are a stream of their own.
    is_further: bool,
    /// Media packets sent before it.
    after: u64,
    datagram: Vec<u8>,
}

fn datagram(film: &TestTitle, members: &[u64], header: FecHeader, symbol: &[u8]) -> Vec<u8> {
    let rtp = RtpHeader { payload_type: PAYLOAD_TYPE_FEC, ssrc: 0, ..film.header(members[0]) };
    let (fields, parity) = symbol.split_first_chunk::<FIELDS>().unwrap();
    let header = FecHeader { sn_base: (START + members[0]) as u16, count: members.len() as u8, ..header };
    let mut bytes = rtp.emit().to_vec();
    bytes.extend(header.with_recovery(*fields).emit());
    bytes.extend(parity);
    bytes
}

fn encode(film: &TestTitle, members: &[u64], code: &millrace_core::fec::Code) -> Vec<Vec<u8>> {
    let symbols: Vec<_> = members.iter().map(|n| film.symbol(*n)).collect();
    let data: Vec<&[u8]> = symbols.iter().map(Vec::as_slice).collect();
    let mut parities = vec![vec![0; FIELDS + film.bytes]; code.m()];
    let mut out: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut out);
    parities
}

/// The FEC of our server, column by column; each knows when it leaves: while the next row does, or with the end of the title.
fn columns(film: &TestTitle, shape: CodeShape) -> Vec<Fec> {
    let code = shape.code().unwrap();
    let spread = Spread::new(shape.data_units, shape.parity_units, shape.unit_packets as u32);
    let (k, unit) = (shape.data_units as u64, shape.unit_packets as u64);
    let mut fec = Vec::new();
    for row in 0..film.packets.div_ceil(k * unit) {
        for column in 0..unit {
            let first = row * k * unit + column;
            let members: Vec<_> = (0..k).map(|u| first + u * unit).filter(|n| *n < film.packets).collect();
            if members.is_empty() {
                continue;
            }
            for (index, symbol) in encode(film, &members, &code).iter().enumerate() {
                let kind = if index == 0 { FecKind::Xor } else { FecKind::ReedSolomon };
                let header =
                    FecHeader { kind, index: index as u8, offset: unit as u8, ..FecHeader::default() };
                let slot = spread.slot(row as u32, column as u32, index);
                fec.push(Fec {
                    word: (row * unit + column) as usize,
                    is_further: index > 0,
                    after: (spread.departs_with(slot) + 1).min(film.packets),
                    datagram: datagram(film, &members, header, symbol),
                    members: members.clone(),
                });
            }
        }
    }
    fec
}

/// Rows of ST 2022-1 right behind their packets, of the whole matrices.
fn rows(film: &TestTitle, l: u64, from_word: usize) -> Vec<Fec> {
    let code = millrace_core::fec::Code::new(l as usize, 1).unwrap();
    let row = |n: u64| {
        let members: Vec<_> = (n * l..(n + 1) * l).collect();
        let symbol = encode(film, &members, &code).remove(0);
        let header = FecHeader { row: true, offset: 1, ..FecHeader::default() };
        let datagram = datagram(film, &members, header, &symbol);
        Fec { word: from_word + n as usize, is_further: false, after: (n + 1) * l, members, datagram }
    };
    (0..film.packets / l).map(row).collect()
}

/// Returns the packets that can be known once these have come: words with as many parities as
/// missing packets, again and again.
fn model(film: &TestTitle, media: &BTreeSet<u64>, fec: &[Fec]) -> BTreeSet<u64> {
    let mut known = media.clone();
    loop {
        let before = known.len();
        for some in fec {
            let parities = fec.iter().filter(|other| other.word == some.word).count();
            let missing: Vec<_> = some.members.iter().filter(|n| !known.contains(n)).copied().collect();
            if missing.len() <= parities {
                known.extend(missing);
            }
        }
        if known.len() == before {
            assert!(known.iter().all(|n| *n < film.packets));
            return known;
        }
    }
}

/// The packets sent, in order: media packets, and FEC behind the packets that it waits for.
enum Sent<'a> {
    Media(u64),
    Fec(&'a Fec),
}

fn in_order<'a>(media: &BTreeSet<u64>, fec: &'a [Fec]) -> Vec<Sent<'a>> {
    let mut sent: Vec<_> = media.iter().map(|n| (*n, 0, Sent::Media(*n))).collect();
    sent.extend(fec.iter().map(|fec| (fec.after.saturating_sub(1), 1, Sent::Fec(fec))));
    sent.sort_by_key(|(at, kind, _)| (*at, *kind));
    sent.into_iter().map(|(_, _, sent)| sent).collect()
}

fn receive<'a>(window: &mut Window, film: &TestTitle, sent: impl IntoIterator<Item = &'a Sent<'a>>) -> Log {
    let mut log = Log::new();
    window.begin(START, &mut log);
    for (now, sent) in sent.into_iter().enumerate() {
        let now = Instant(now as u64);
        match sent {
            Sent::Media(n) => {
                window.media(now, START + n, &film.header(*n), &film.payload(*n), &mut log);
            }
            Sent::Fec(fec) => window.fec(now, &fec.datagram, &mut log),
        }
    }
    window.flush(&mut log);
    log
}

/// Everything that the model knows is given out, bit by bit, and nothing else.
fn check(shape: Option<CodeShape>, film: &TestTitle, media: &BTreeSet<u64>, fec: &[Fec], sent: &[Sent<'_>]) {
    let mut window = Window::new(1000, shape);
    let log = receive(&mut window, film, sent);
    let known = model(film, media, fec);
    let given: BTreeSet<_> = log.given.iter().map(|(ext, _)| ext - START).collect();
    assert_eq!(
        given,
        known,
        "of {media:?} and words {:?}",
        fec.iter().map(|fec| fec.word).collect::<Vec<_>>()
    );
    for (ext, payload) in &log.given {
        assert_eq!(*payload, film.payload(ext - START), "packet {}", ext - START);
    }
    let counts = window.counts();
    assert_eq!(counts.repaired, (known.len() - media.len()) as u64);
    assert_eq!((counts.lost, counts.unfit, counts.late), (log.gaps, 0, 0));
    let last = fec.iter().flat_map(|fec| &fec.members).chain(media).max().map_or(0, |n| n + 1);
    assert_eq!(log.gaps + known.len() as u64, last, "all that is known to exist is given out or named");
    assert!(window.words.len() <= window.slots.len() && window.slots.len() <= MAX_FEC_WINDOW_PACKETS);
}

fn check_all_patterns(shape: Option<CodeShape>, film: &TestTitle, fec: &[Fec]) {
    let all = film.packets as usize + fec.len();
    assert!(all <= 16);
    for lost in 0..1u32 << all {
        let media: BTreeSet<u64> = (0..film.packets).filter(|n| lost >> n & 1 == 0).collect();
        let came = |at: usize| lost >> (film.packets as usize + at) & 1 == 0;
        let fec: Vec<_> =
            fec.iter().enumerate().filter(|(at, _)| came(*at)).map(|(_, fec)| fec.clone()).collect();
        check(shape, film, &media, &fec, &in_order(&media, &fec));
    }
}

#[test]
fn window_with_two_parities_repairs_all_recoverable_patterns() {
    let film = TestTitle { packets: 8, bytes: 12 };
    check_all_patterns(Some(SHAPE), &film, &columns(&film, SHAPE));
}

#[test]
fn window_with_short_last_column_repairs_all_recoverable_patterns() {
    let film = TestTitle { packets: 6, bytes: 12 }; // the columns have 2 and 1 packets of 3
    let shape = CodeShape { data_units: 3, parity_units: 3, unit_packets: 2 };
    let film_5 = TestTitle { packets: 5, ..film };
    check_all_patterns(Some(shape), &film_5, &columns(&film_5, shape));
    check_all_patterns(Some(shape), &film, &columns(&film, shape));
}

#[test]
fn window_with_rows_and_columns_repairs_all_recoverable_patterns() {
    let film = TestTitle { packets: 9, bytes: 12 };
    let shape = CodeShape { data_units: 3, parity_units: 1, unit_packets: 3 };
    let mut fec = columns(&film, shape);
    fec.extend(rows(&film, 3, fec.len()));
    check_all_patterns(None, &film, &fec);
}

/// Any shape, any loss, packets and FEC out of order by a little.
#[test]
fn random_loss_of_large_matrices_in_any_order() {
    let shapes = [
        (4, 1, 20, true),
        (4, 2, 20, false),
        (5, 5, 20, false),
        (10, 4, 10, false),
        (20, 8, 5, false),
        (10, 1, 10, true),
    ];
    bolero::check!().with_type::<(u8, u8, u8, u64)>().with_iterations(60).for_each(
        |(which, loss, order, seed)| {
            let (data_units, parity_units, unit_packets, has_rows) =
                shapes[usize::from(*which) % shapes.len()];
            let shape = CodeShape { data_units, parity_units, unit_packets };
            let mut random = *seed | 1;
            let mut below = |limit: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % limit
            };
            let film = TestTitle { packets: 3 * shape.matrix_packets() as u64 + below(100), bytes: 10 };
            let mut fec = columns(&film, shape);
            if has_rows {
                fec.extend(rows(&film, unit_packets as u64, fec.len()));
            }
            let loss = u64::from(*loss) % 60;
            let media: BTreeSet<u64> = (0..film.packets).filter(|_| below(100) >= loss).collect();
            fec.retain(|_| below(100) >= loss);
            let mut sent = in_order(&media, &fec);
            // No packet moves by more than the reordering that is allowed for.
            let reach = usize::from(*order % 40) + 1;
            for at in 0..sent.len() {
                let with = (at + below(reach as u64) as usize).min(sent.len() - 1);
                if at / reach == with / reach {
                    sent.swap(at, with);
                }
            }
            check((parity_units > 1).then_some(shape), &film, &media, &fec, &sent);
        },
    );
}

/// The table of docs/guide/fec.md: this many consecutive packets, of any streams, may be lost.
/// After a full last row it is fewer.
#[test]
fn window_repairs_guaranteed_burst_at_any_offset() {
    for (data_units, parity_units, unit_packets, burst, burst_at_end) in [
        (4, 1, 16, 16, 16),
        (4, 2, 16, 29, 28),
        (4, 4, 16, 55, 44),
        (6, 2, 16, 30, 29),
        (8, 1, 12, 12, 12),
        (8, 2, 12, 23, 22),
        (8, 3, 12, 33, 25),
        (8, 4, 12, 46, 28),
    ] {
        let shape = CodeShape { data_units, parity_units, unit_packets };
        let film = TestTitle { packets: 4 * shape.matrix_packets() as u64, bytes: 6 };
        let fec = columns(&film, shape);
        for further_first in [false, true] {
            let mut sent = in_order(&(0..film.packets).collect(), &fec);
            let end = sent.iter().rposition(|sent| matches!(sent, Sent::Media(_))).unwrap() + 1;
            // What leaves with the end of the title goes stream by stream.
            sent[end..].sort_by_key(|sent| matches!(sent, Sent::Fec(fec) if fec.is_further != further_first));
            for from in 0..sent.len() {
                let to = (from + burst).min(end.max(from + burst_at_end)).min(sent.len());
                let lost = sent[from..to].iter().filter(|sent| matches!(sent, Sent::Media(_))).count();
                let mut window = Window::new(1000, Some(shape));
                let log = receive(&mut window, &film, sent[..from].iter().chain(&sent[to..]));
                let counts = window.counts();
                assert_eq!(
                    (counts.repaired, counts.lost, log.given.len() as u64),
                    (lost as u64, 0, film.packets),
                    "{shape:?}: packets {from} to {to} of what was sent"
                );
                assert!(log.given.iter().all(|(ext, payload)| *payload == film.payload(ext - START)));
            }
        }
    }
}

/// A run that begins in the middle of a row gets the further parities of the columns that it has cut, too. They are of use only
/// where something is lost that the viewer was sent.
#[test]
fn parities_of_columns_that_begin_before_the_run() {
    let film = TestTitle { packets: 16, bytes: 12 };
    let shape = CodeShape { data_units: 4, parity_units: 3, unit_packets: 2 };
    let fec: Vec<_> = columns(&film, shape).into_iter().filter(|fec| fec.is_further).collect();
    for (lost, expected) in [(None, (0, 0)), (Some(2), (1, 0))] {
        let mut window = Window::new(1000, Some(shape));
        let mut log = Log::new();
        log.next = START + 1;
        window.begin(START + 1, &mut log);
        for n in (1..16).filter(|n| Some(*n) != lost) {
            window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
        }
        fec.iter().for_each(|fec| window.fec(Instant(20), &fec.datagram, &mut log));
        window.flush(&mut log);
        let counts = window.counts();
        assert_eq!((counts.repaired, counts.lost), expected, "{counts:?}");
        assert_eq!((log.given.len(), counts.late, counts.unfit), (15, 0, 0), "{counts:?}");
        assert!(log.given.iter().all(|(ext, payload)| *payload == film.payload(ext - START)));
        let used = if lost.is_some() { 2 } else { 0 };
        assert_eq!(counts.useless, fec.len() as u64 - used, "{counts:?}");
    }
}

#[test]
fn window_with_arbitrary_datagrams_never_panics() {
    bolero::check!().with_type::<(Vec<(u16, u8)>, Vec<Vec<u8>>, bool)>().for_each(
        |(media, datagrams, coded)| {
            let mut window = Window::new(10, coded.then_some(SHAPE));
            let mut log = Log::new();
            let film = TestTitle { packets: 1 << 20, bytes: 8 };
            window.begin(START, &mut log);
            for (at, (step, len)) in media.iter().enumerate() {
                let n = at as u64 * 3 + u64::from(step % 8);
                window.media(Instant(n), START + n, &film.header(n), &vec![1; usize::from(*len)], &mut log);
                if let Some(datagram) = datagrams.get(at) {
                    window.fec(Instant(n), datagram, &mut log);
                }
            }
            window.handle_timeout(Instant(1 << 40), &mut log);
            assert_eq!(window.poll_at(), None);
        },
    );
}

/// Sound headers with any field, behind media: the bounds hold whatever they say.
#[test]
fn window_with_arbitrary_fec_headers_stays_within_bounds() {
    type Field = (i8, u8, u8, u8, u8);
    bolero::check!().with_type::<Vec<Field>>().for_each(|fields| {
        let mut window = Window::new(10, Some(SHAPE));
        let mut log = Log::new();
        let film = TestTitle { packets: 1 << 20, bytes: 8 };
        window.begin(START, &mut log);
        for (at, (base, offset, count, kind, len)) in fields.iter().enumerate() {
            let n = 2 * at as u64;
            window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
            let header = FecHeader {
                kind: if kind & 1 == 0 { FecKind::Xor } else { FecKind::ReedSolomon },
                index: kind >> 1 & 3,
                row: kind & 0x80 != 0,
                offset: *offset,
                ..FecHeader::default()
            };
            let first = n.saturating_add_signed(i64::from(*base));
            let members = vec![first; usize::from(*count)];
            if members.is_empty() {
                continue;
            }
            let symbol = vec![*len; FIELDS + usize::from(*len)];
            window.fec(Instant(n), &datagram(&film, &members, header, &symbol), &mut log);
            assert!(window.words.len() <= window.slots.len() && window.slots.len() <= MAX_FEC_WINDOW_PACKETS);
            assert!(window.words.iter().all(|word| word.parities.len() <= 8));
        }
        window.flush(&mut log);
        assert!(log.next <= window.limit());
    });
}

#[test]
fn window_gives_up_packet_once_no_fec_can_repair_it() {
    let film = TestTitle { packets: 1000, bytes: 8 };
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    let hold = window.hold();
    assert_eq!(hold, 2 * 8 + FEC_REORDER_PACKETS as u64);
    // A packet each millisecond; packet 2 should have been repaired by the time of packet 2 + hold.
    let late = LATE_NS / 1_000_000;
    assert!(late < FEC_LATE_PACKETS as u64);
    for n in (0..=2 + hold + late).filter(|n| *n != 2) {
        assert_eq!((log.gaps, window.missing()), (0, u64::from(n > 3)), "packet {n}");
        let now = Instant(n * 1_000_000);
        assert!(window.media(now, START + n, &film.header(n), &film.payload(n), &mut log));
    }
    assert_eq!((log.gaps, window.counts().lost, window.missing()), (1, 1, 0));
    assert_eq!(log.next, START + 2 + hold + late + 1);
    // Now it comes, too late.
    assert!(!window.media(Instant(900), START + 2, &film.header(2), &film.payload(2), &mut log));
    assert_eq!((window.counts().late, window.poll_at()), (1, None));
}

#[test]
fn window_cut_by_seek_or_end_counts_missing_as_unsettled() {
    let film = TestTitle { packets: 1000, bytes: 8 };
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    for n in [0, 1, 3, 4] {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    window.begin(START + 100, &mut log);
    assert_eq!((window.counts().lost, window.counts().unsettled, log.given.len()), (0, 1, 4));
    log.next = START + 100;
    window.media(Instant(5), START + 101, &film.header(101), &film.payload(101), &mut log);
    window.pause();
    assert_eq!(window.poll_at(), None, "in a pause nothing is given up");
    window.cut(&mut log);
    assert_eq!((window.counts().lost, window.counts().unsettled, log.given.len()), (0, 2, 5));
}

/// The tracker of sequence numbers begins every run in another cycle of 65536.
#[test]
fn window_after_pause_repairs_packets_lost_before_it() {
    let film = TestTitle { packets: 16, bytes: 12 };
    let fec = columns(&film, SHAPE);
    for lost_around in [&[1, 3][..], &[4, 5, 6], &[5, 6]] {
        let mut window = Window::new(1000, Some(SHAPE));
        let mut log = Log::new();
        window.begin(START, &mut log);
        for n in (0..6).filter(|n| !lost_around.contains(n)) {
            window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
        }
        let (given, cycle) = (log.given.len() as u64, 2 << 16);
        window.pause();
        let first = (6..).find(|n| !lost_around.contains(n)).unwrap();
        window.begin(START + cycle + first, &mut log);
        log.next += cycle;
        for n in first..16 {
            window.media(Instant(n), START + cycle + n, &film.header(n), &film.payload(n), &mut log);
        }
        fec.iter().for_each(|fec| window.fec(Instant(20), &fec.datagram, &mut log));
        window.flush(&mut log);
        let counts = window.counts();
        assert_eq!(
            (counts.repaired, counts.lost, counts.unsettled),
            (lost_around.len() as u64, 0, 0),
            "{counts:?}"
        );
        assert_eq!((log.given.len(), log.next), (16, START + cycle + 16));
        for (n, (ext, payload)) in log.given.iter().enumerate() {
            let n = n as u64;
            assert_eq!((*ext - START, payload), (if n < given { n } else { cycle + n }, &film.payload(n)));
        }
    }
}

/// A seek to the packet after the last one received: the FEC of the missing packets is never sent.
#[test]
fn window_after_seek_does_not_wait_for_packets_missing_before_it() {
    let film = TestTitle { packets: 8, bytes: 12 };
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    for n in [0, 2, 3] {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    window.pause();
    window.jump();
    let cycle = 1 << 16;
    window.begin(START + cycle + 4, &mut log);
    log.next = START + cycle + 4;
    for n in 4..8 {
        window.media(Instant(n), START + cycle + n, &film.header(n), &film.payload(n), &mut log);
    }
    window.flush(&mut log);
    let counts = window.counts();
    assert_eq!((counts.repaired, counts.lost, counts.unsettled), (0, 0, 1), "{counts:?}");
    assert_eq!(log.given.len(), 7);
}

/// A server that is late may send FEC before the media that it protects.
#[test]
fn fec_that_overtakes_its_film_is_not_needed() {
    let film = TestTitle { packets: 8, bytes: 12 };
    let fec = columns(&film, SHAPE);
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    for n in 0..6 {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    fec.iter().for_each(|fec| window.fec(Instant(6), &fec.datagram, &mut log));
    assert_eq!((log.given.len(), window.counts().repaired, window.counts().useless), (8, 2, 2));
    for n in 6..8 {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    let counts = window.counts();
    assert_eq!((log.given.len(), counts.repaired, counts.useless, counts.late), (8, 0, 4, 0), "{counts:?}");
}

/// Packets come faster than the wait expires: the ring is the bound.
#[test]
fn window_gives_up_missing_packet_before_ring_is_full() {
    let film = TestTitle { packets: 5000, bytes: 8 };
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    let most = window.hold() + FEC_LATE_PACKETS as u64;
    for n in (0..=most + 2).filter(|n| *n != 2) {
        assert_eq!(log.gaps, 0, "packet {n}");
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    assert_eq!((log.gaps, log.given.len() as u64, log.next), (1, most + 2, START + most + 3));
}

#[test]
fn silence_gives_up_too() {
    let film = TestTitle { packets: 1000, bytes: 8 };
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    window.begin(START, &mut log);
    for n in [0, 1, 3, 4] {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    assert_eq!((log.given.len(), window.poll_at()), (2, Some(Instant(1004))));
    window.handle_timeout(Instant(1003), &mut log);
    assert_eq!(log.given.len(), 2);
    window.handle_timeout(Instant(1004), &mut log);
    assert_eq!((log.given.len(), log.gaps, window.poll_at()), (4, 1, None));
}

/// The last packets of a title are lost: only FEC knows of them.
#[test]
fn window_repairs_last_packets_of_title_from_fec_alone() {
    let film = TestTitle { packets: 8, bytes: 12 };
    let fec = columns(&film, SHAPE);
    let media: BTreeSet<u64> = (0..5).collect();
    let mut window = Window::new(1000, Some(SHAPE));
    let log = receive(&mut window, &film, &in_order(&media, &fec));
    assert_eq!((log.given.len(), window.counts().repaired), (8, 3));
    assert_eq!((window.behind_last(), window.counts().lost), (3, 0));
    // One parity fewer than needed: named as lost.
    let fewer: Vec<_> = fec.iter().filter(|fec| fec.word != 1).cloned().collect();
    let log = receive(&mut Window::new(1000, Some(SHAPE)), &film, &in_order(&media, &fewer));
    assert_eq!((log.given.len(), log.gaps), (6, 1), "packet 7 is in no word that came");
}

/// FEC of another place of the title whose numbers are the same mod 65536.
#[test]
fn fec_from_before_a_seek_is_not_believed() {
    let film = TestTitle { packets: 200_000, bytes: 12 };
    let elsewhere = TestTitle { packets: 8, bytes: 12 };
    let stale: Vec<_> = columns(&elsewhere, SHAPE);
    let mut window = Window::new(1000, Some(SHAPE));
    let mut log = Log::new();
    let begin = 1 << 16;
    log.next = START + begin;
    window.begin(START + begin, &mut log);
    for n in (0..20).filter(|n| *n != 3) {
        let (header, payload) = (film.header(begin + n), film.payload(begin + n));
        window.media(Instant(n), START + begin + n, &header, &payload, &mut log);
    }
    stale.iter().for_each(|fec| window.fec(Instant(30), &fec.datagram, &mut log));
    window.flush(&mut log);
    let counts = window.counts();
    assert_eq!((counts.repaired, counts.lost, counts.unfit), (0, 1, 2), "{counts:?}");
    assert_eq!(counts.useless, 2, "the other column is whole");
}

#[test]
fn fec_without_its_like_and_twice_is_of_no_use() {
    let film = TestTitle { packets: 8, bytes: 12 };
    let fec = columns(&film, SHAPE);
    let mut log = Log::new();
    let mut window = Window::new(1000, None);
    window.fec(Instant(0), &fec[0].datagram, &mut log); // before any media
    window.begin(START, &mut log);
    let media: Vec<u64> = vec![1, 3, 4, 5, 6, 7];
    for n in media {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    window.fec(Instant(9), &fec[1].datagram, &mut log); // of a code that is not known
    window.fec(Instant(9), &fec[0].datagram, &mut log); // two are missing
    window.fec(Instant(9), &fec[0].datagram, &mut log);
    window.fec(Instant(9), &fec[2].datagram, &mut log); // whole
    let counts = window.counts();
    assert_eq!(
        (counts.fec_packets, counts.unfit, counts.useless, counts.repaired),
        (5, 2, 2, 0),
        "{counts:?}"
    );
    // The other one comes late: the word's parity is enough then.
    window.media(Instant(10), START + 2, &film.header(2), &film.payload(2), &mut log);
    assert_eq!((window.counts().repaired, log.given.len(), window.words.len()), (1, 8, 0));
}

#[test]
fn window_grows_to_matrix_size_and_rejects_larger_matrix() {
    let film = TestTitle { packets: 1000, bytes: 8 };
    let mut window = Window::new(1000, None);
    let mut log = Log::new();
    window.begin(START, &mut log);
    let before = window.slots.len();
    for n in 0..100 {
        window.media(Instant(n), START + n, &film.header(n), &film.payload(n), &mut log);
    }
    let grid = |offset: u8, count: usize| {
        let members: Vec<u64> = (0..count as u64).collect();
        datagram(&film, &members, FecHeader { offset, ..FecHeader::default() }, &[0; FIELDS + 8])
    };
    window.fec(Instant(100), &grid(25, 20), &mut log);
    let grown = window.slots.len();
    assert!(grown > before && grown == ring_packets(500));
    assert!((0..100).all(|n| window.known(START + n).is_some()), "what was there still is");
    window.fec(Instant(100), &grid(255, 255), &mut log);
    assert_eq!((window.slots.len(), window.counts().unfit), (grown, 1));
}

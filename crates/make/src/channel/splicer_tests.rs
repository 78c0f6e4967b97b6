use millrace_testkit::mux::{AUDIO, Adapt, Film, HZ, IDR, Mux, PMT, VIDEO, WRAP, film, usual_film};
use millrace_ts::{Analyser, AnalyserOptions, AnalysisReport};

use super::*;

/// A spliced stream with the time of each packet.
#[derive(Default)]
struct Spliced {
    bytes: Vec<u8>,
    runs: Vec<(u64, u64, usize)>,
}

impl Spliced {
    fn take(&mut self, run: SpliceRun<'_>) {
        self.bytes.extend_from_slice(run.bytes);
        self.runs.push((run.from, run.to, run.bytes.len()));
    }

    fn packets(&self) -> impl Iterator<Item = TsPacket<'_>> {
        self.bytes.as_chunks::<188>().0.iter().map(TsPacket)
    }
}

fn splice(splicer: &mut Splicer, titles: &[&[u8]]) -> (Spliced, Vec<Result<SplicedTitle, SpliceError>>) {
    let mut spliced = Spliced::default();
    let mut reports = Vec::new();
    for title in titles {
        let mut pieces = title.chunks(188 * 500);
        let failed = pieces.find_map(|piece| splicer.push(piece, &mut |run| spliced.take(run)).err());
        reports.push(match failed {
            Some(error) => Err(error),
            None => splicer.end(&mut |run| spliced.take(run)),
        });
    }
    (spliced, reports)
}

fn analysed(bytes: &[u8]) -> AnalysisReport {
    let mut analyser = Analyser::new(AnalyserOptions::default());
    analyser.push(bytes);
    analyser.finish()
}

/// Findings of the analyser about clock, tables and counters.
fn faults(bytes: &[u8]) -> Vec<(&'static str, u64)> {
    let about = [
        "continuity",
        "pcr_repetition",
        "pcr_discontinuity",
        "pat",
        "pmt",
        "crc",
        "sync_byte",
        "table_version",
        "timestamp_order",
        "new_clock",
    ];
    let report = analysed(bytes);
    let counts = report.checks.iter().filter(|count| about.contains(&count.check) && count.count > 0);
    counts.map(|count| (count.check, count.count)).collect()
}

/// Clock references as they lie in the stream.
fn clocks(spliced: &Spliced) -> Vec<u64> {
    spliced.packets().filter_map(|packet| packet.adaptation()?.pcr()).collect()
}

/// Decoding time stamps of a PID.
fn stamps(spliced: &Spliced, pid: u16) -> Vec<u64> {
    let of_pid = spliced.packets().filter(|packet| packet.pid() == pid && packet.starts_unit());
    of_pid.filter_map(|packet| PesStart::parse(packet.payload())?.decode_stamp).collect()
}

/// Audio with its clock on an own PID of the title, and nothing else.
fn radio(audio_pid: u16, clock_pid: u16) -> Vec<u8> {
    let mut mux = Mux::new();
    mux.pat(&[(7, 0x20)]);
    mux.pmt(0x20, 7, clock_pid, &[(0x0f, audio_pid, &[])]);
    for n in 0..200 {
        let clock = Adapt { pcr: Some(n * HZ / 25), ..Adapt::default() };
        let is_apart = clock_pid != audio_pid;
        if is_apart {
            mux.packet(clock_pid, false, clock, &[]);
        }
        mux.pes_start(
            audio_pid,
            if is_apart { Adapt::default() } else { clock },
            n * 3600 + 9000,
            &[0xff, 0xf1],
        );
        (0..9).for_each(|_| mux.more(audio_pid));
    }
    mux.out
}

/// Packets of each PES packet of a PID.
fn units(bytes: &[u8], pid: u16) -> Vec<usize> {
    let mut units = Vec::new();
    for packet in bytes.as_chunks::<188>().0.iter().map(TsPacket).filter(|packet| packet.pid() == pid) {
        if packet.starts_unit() {
            units.push(0);
        }
        if let Some(last) = units.last_mut() {
            *last += usize::from(!packet.payload().is_empty());
        }
    }
    units
}

#[test]
fn title_that_is_cut_off_anywhere_ends_with_whole_pictures_and_sound() {
    let title = usual_film();
    let packets = title.as_chunks::<188>().0;
    for at in 2000..2060 {
        let (mut splicer, mut spliced) = (Splicer::new(0), Spliced::default());
        splicer.push(packets[..at].as_flattened(), &mut |run| spliced.take(run)).unwrap();
        let pieces = packets[at..].chunks(3);
        let is_over =
            |piece: &[TsBytes]| splicer.push_end(piece.as_flattened(), &mut |run| spliced.take(run)).unwrap();
        let count = pieces.map(is_over).take_while(|is_over| !is_over).count();
        assert!(count < 100, "at {at}: it ends soon");
        splicer.end(&mut |run| spliced.take(run)).unwrap();
        let seam = spliced.bytes.len();
        for (to, from) in [(0x100, VIDEO), (0x120, AUDIO)] {
            let (kept, all) = (units(&spliced.bytes, to), units(&title, from));
            let last = kept.len() - 1;
            assert!(last >= 49, "at {at}: {to}: {last}");
            assert_eq!(kept[1..], all[1..=last], "at {at}: {to}");
        }
        let (after, _) = splice(&mut splicer, &[&title]);
        spliced.bytes.extend_from_slice(&after.bytes);
        assert!(after.bytes.len() > seam / 2);
        assert_eq!(faults(&spliced.bytes), [], "at {at}");
    }
}

#[test]
fn radio_that_is_cut_off_ends_with_whole_sound() {
    for (audio, clock) in [(0x31, 0x31), (0x31, 0x32)] {
        let title = radio(audio, clock);
        let (mut splicer, mut spliced) = (Splicer::new(0), Spliced::default());
        let (begin, rest) = title.split_at(188 * 1555);
        splicer.push(begin, &mut |run| spliced.take(run)).unwrap();
        assert!(splicer.push_end(rest, &mut |run| spliced.take(run)).unwrap());
        splicer.end(&mut |run| spliced.take(run)).unwrap();
        let kept = units(&spliced.bytes, 0x120);
        assert!(kept.len() < 170 && kept.iter().all(|&packets| packets == 10), "{clock}: {kept:?}");
        assert_eq!(faults(&spliced.bytes), []);
    }
}

#[test]
fn splice_of_titles_with_any_clocks_is_one_timeline() {
    for (splice_start, starts) in [
        (0, [0, 5 * HZ, WRAP - HZ]),
        (WRAP - 5 * HZ, [WRAP - 2 * HZ, 0, WRAP / 2]),
        (WRAP / 2 - HZ, [3 * HZ, 1, WRAP - 1]),
    ] {
        let titles = starts.map(|start| film(&Film { start, ..Film::default() }));
        let mut splicer = Splicer::new(splice_start);
        let (spliced, reports) = splice(&mut splicer, &titles.each_ref().map(Vec::as_slice));
        assert!(reports.iter().all(Result::is_ok), "{reports:?}");
        assert_eq!(faults(&spliced.bytes), [], "{splice_start}");
        let clocks = clocks(&spliced);
        let steps = clocks.windows(2).map(|pair| (pair[1] + WRAP - pair[0]) % WRAP);
        assert!(steps.clone().all(|step| step <= HZ / 10), "{splice_start}: {:?}", steps.max());
        for (pid, least) in [(0x100, 299), (0x120, 299)] {
            let stamps = stamps(&spliced, pid);
            assert!(stamps.len() >= least, "{pid}: {}", stamps.len());
            let steps: Vec<_> = stamps.windows(2).map(|pair| stamp_distance(pair[0], pair[1])).collect();
            // A picture every 40 ms, across the seams too.
            assert!(
                steps.iter().all(|step| (3_600..=4_600).contains(step)),
                "{pid}: {:?}",
                steps.iter().max()
            );
        }
    }
}

#[test]
fn runs_of_splice_have_ascending_times_that_are_those_of_the_clock() {
    let mut splicer = Splicer::new(0);
    let title = usual_film();
    let (spliced, reports) = splice(&mut splicer, &[&title, &title]);
    assert!(spliced.runs.windows(2).all(|pair| pair[0].1 <= pair[1].0 && pair[0].0 <= pair[0].1));
    let mut at = 0;
    for (from, _, length) in &spliced.runs {
        let clock = spliced.bytes[at..at + length].as_chunks::<188>().0.iter();
        let clock = clock.filter_map(|packet| TsPacket(packet).adaptation()?.pcr()).next();
        assert_eq!(clock, Some(*from), "at {at}");
        at += length;
    }
    let ticks: u64 = reports.iter().map(|report| report.unwrap().ticks).sum();
    assert!(ticks.abs_diff(8 * HZ) < HZ / 10, "{ticks}");
    assert_eq!(splicer.now(), spliced.runs.last().unwrap().1);
}

#[test]
fn pids_of_splice_are_the_same_for_titles_with_others() {
    let mut other = Mux::new();
    other.pat(&[(9, 0x50)]);
    other.pmt(0x50, 9, 0x77, &[(0x0f, 0x88, &[]), (0x1b, 0x77, &[]), (0x06, 0x99, &[0x56, 0])]);
    for n in 0..100 {
        let adapt = Adapt { pcr: Some(n * HZ / 25), random_access: n.is_multiple_of(25), ..Adapt::default() };
        other.pes_start(0x77, adapt, n * 3600 + 9000, IDR);
        other.pes_start(0x88, Adapt::default(), n * 3600 + 9000, &[0xff, 0xf1]);
        other.pes_start(0x99, Adapt::default(), n * 3600 + 9000, &[0x10]);
        (0..3).for_each(|_| other.more(0x77));
    }
    let mut splicer = Splicer::new(0);
    let (spliced, reports) = splice(&mut splicer, &[&usual_film(), &other.out, &usual_film()]);
    assert!(reports.iter().all(Result::is_ok), "{reports:?}");
    let mut pids: Vec<u16> = spliced.packets().map(TsPacket::pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids, [0, 0x100, 0x120, 0x140, 0x1000, 0x1fff]);
    let mut versions = Vec::new();
    let mut table = SectionAssembler::default();
    for packet in spliced.packets().filter(|packet| packet.pid() == 0x1000) {
        table.push(packet, |section| versions.push((section[5] >> 1 & 31, section.len())));
    }
    versions.dedup();
    let numbers: Vec<u8> = versions.iter().map(|(version, _)| *version).collect();
    assert_eq!(numbers, [0, 1, 2], "{versions:?}");
    assert_eq!(faults(&spliced.bytes), []);
}

#[test]
fn clock_on_pid_of_its_own_stays_a_clock() {
    let mut splicer = Splicer::new(0);
    let (spliced, reports) = splice(&mut splicer, &[&radio(0x88, 0x77), &radio(0x99, 0x99)]);
    assert!(reports.iter().all(Result::is_ok), "{reports:?}");
    assert_eq!(faults(&spliced.bytes), []);
    assert!(
        spliced.packets().filter(|packet| packet.pid() == 0x1f0).all(|packet| packet.payload().is_empty())
    );
    assert_eq!(stamps(&spliced, 0x120).len(), 400);
}

#[test]
fn title_begins_with_a_picture_that_a_decoder_can_start_at() {
    let title = film(&Film { start: HZ, ..Film::default() });
    // From the middle of a group: the next key picture is the first one that is kept.
    let cut = &title[188 * 330..];
    let (spliced, _) = splice(&mut Splicer::new(0), &[&usual_film(), cut]);
    let starts: Vec<_> =
        spliced.packets().filter(|packet| packet.pid() == 0x100 && packet.starts_unit()).collect();
    let seam = 100;
    assert_eq!(starts.len(), 100 + 75, "pictures of the title without its first quarter");
    assert!(starts[seam].adaptation().unwrap().is_random_access());
    assert_eq!(faults(&spliced.bytes), []);
}

#[test]
fn audio_that_the_end_cuts_is_left_out() {
    let mut mux = Mux::new();
    mux.usual_tables();
    let audio_start = |mux: &mut Mux, n: u64| {
        let mut pes = vec![0, 0, 1, 0xc0, 0, 0, 0x80, 0x80, 5];
        let length = 184 * 4 - 6;
        (pes[4], pes[5]) = ((length >> 8) as u8, length as u8);
        let stamp = n * 3600 + 9000;
        pes.extend([0x21 | (stamp >> 29) as u8 & 0xe, (stamp >> 22) as u8, (stamp >> 14) as u8 | 1]);
        pes.extend([(stamp >> 7) as u8, (stamp << 1) as u8 | 1]);
        pes.resize(184, 0x33);
        mux.packet(AUDIO, true, Adapt::default(), &pes);
    };
    for n in 0..50 {
        let adapt = Adapt { pcr: Some(n * HZ / 25), random_access: n == 0, ..Adapt::default() };
        mux.pes_start(VIDEO, adapt, n * 3600 + 9000, if n == 0 { IDR } else { &[0, 0, 1, 0x41, 0x9a] });
        audio_start(&mut mux, n);
        (0..if n == 49 { 2 } else { 3 }).for_each(|_| mux.more(AUDIO));
    }
    let (spliced, _) = splice(&mut Splicer::new(0), &[&mux.out, &usual_film()]);
    let audio: Vec<_> = spliced.packets().filter(|packet| packet.pid() == 0x120).collect();
    let starts: Vec<_> = audio.iter().enumerate().filter(|(_, packet)| packet.starts_unit()).collect();
    assert_eq!(starts[49].0, 49 * 4, "the last PES packet of the first title is not there");
    assert_eq!(faults(&spliced.bytes), []);
}

#[test]
fn jump_of_a_title_clock_is_closed() {
    let mut mux = Mux::new();
    mux.usual_tables();
    Film { packets: 2000, ..Film::default() }.write(&mut mux);
    Film { packets: 2000, start: 1000 * HZ, ..Film::default() }.write(&mut mux);
    let (spliced, reports) = splice(&mut Splicer::new(0), &[&mux.out]);
    assert_eq!(reports[0].unwrap().jumps, 1);
    assert_eq!(faults(&spliced.bytes), []);
    let clocks = clocks(&spliced);
    assert!(clocks.windows(2).all(|pair| pair[1] - pair[0] <= HZ / 10));
}

#[test]
fn lost_packets_of_a_title_stay_visible() {
    let title = usual_film();
    let damaged = [&title[..188 * 1000], &title[188 * 1003..]].concat();
    let (spliced, _) = splice(&mut Splicer::new(0), &[&title, &damaged]);
    let continuity = faults(&spliced.bytes);
    assert!(continuity.iter().any(|(check, _)| check.contains("continuity")), "{continuity:?}");
}

#[test]
fn titles_that_cannot_be_spliced_are_refused_and_the_next_one_follows() {
    let no_clock = film(&Film { pcr: false, ..Film::default() });
    let no_stamps = film(&Film { stamps: false, ..Film::default() });
    let mut no_tables = Mux::new();
    (0..9000).for_each(|_| no_tables.more(VIDEO));
    let mut scrambled = usual_film();
    for packet in scrambled.as_chunks_mut::<188>().0 {
        let pid = TsPacket(packet).pid();
        packet[3] |= if pid == VIDEO || pid == AUDIO { 0x80 } else { 0 };
    }
    let good = usual_film();
    let titles = [&good, &no_clock, &no_stamps, &no_tables.out, &scrambled, &vec![], &good];
    let (spliced, reports) = splice(&mut Splicer::new(0), &titles.map(Vec::as_slice));
    let errors: Vec<_> = reports.iter().map(|report| report.err()).collect();
    let none = SpliceError::NoProgram;
    assert_eq!(errors[..3], [None, Some(SpliceError::NoClock), Some(SpliceError::NoMedia)]);
    assert!(matches!(errors[4], Some(SpliceError::Scrambled { .. })));
    assert_eq!([errors[3], errors[5], errors[6]], [Some(none), Some(none), None]);
    assert_eq!(faults(&spliced.bytes), []);
    assert_eq!(stamps(&spliced, 0x100).len(), 200);
    assert_eq!(PMT, 0x1000, "the titles' own table and the splice's are not told apart above");
}

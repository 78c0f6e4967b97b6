use millrace_core::time::NS_PER_S;

use millrace_client::lateness::histogram_us;
use millrace_client::rtsp::headers::{NptRange, RtpInfo};

use super::*;

fn packet(sequence: u16) -> Vec<u8> {
    timed_packet(sequence, u32::from(sequence) * 900, 0)
}

/// One TS packet of PID 1 with this continuity counter.
fn timed_packet(sequence: u16, timestamp: u32, counter: u8) -> Vec<u8> {
    let mut bytes = vec![0x80, PAYLOAD_TYPE_MP2T];
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(timestamp.to_be_bytes());
    bytes.extend(7u32.to_be_bytes());
    bytes.extend([0x47, 0, 1, 0x10 | counter & 0x0f]);
    bytes.resize(12 + 188, 0xff);
    bytes
}

fn reply(sequence: u16, timestamp: u32, range: Option<NptRange>) -> PlayReply {
    let rtp_info = RtpInfo { url: String::new(), sequence: Some(sequence), timestamp: Some(timestamp) };
    PlayReply { range, rtp_info: Some(rtp_info), scale: None }
}

#[test]
fn packets_that_come_before_the_reply_to_play_count_and_came_early() {
    let (mut meter, mut shared) = (Meter::default(), histogram_us());
    let second = 1_000_000_000;
    for n in 0..4u16 {
        if n == 2 {
            meter.begin_play(&PlayReply::default(), 50 * second + 15_000_000, &mut shared);
        }
        meter.rtp(&mut shared, Instant(0), 50 * second + u64::from(n) * 10_000_000, &packet(n));
    }
    let measured = meter.finish(&mut shared, 51 * second, Ending::default());
    assert_eq!((measured.counts.received, measured.first_packet_us), (4, Some(-15_000)));
    assert_eq!((measured.longest_gap_us, measured.runs), (970_000, 1));
    // Nothing that was never played has a time from its reply.
    let mut silent = Meter::default();
    silent.rtp(&mut shared, Instant(0), second, &packet(0));
    assert_eq!(silent.finish(&mut shared, second, Ending::default()).first_packet_us, None);
}

/// A server that sends a packet every 10 ms of a title whose packet `n` has the time `n * 10 ms`, and a viewer that seeks.
struct Viewing {
    meter: Meter,
    shared: Histogram<u64>,
    now_ns: u64,
    sequence: u16,
    place: u32,
    /// Time from the reply to PLAY to the next, at most.
    longest_run_ns: u64,
    run_began_ns: u64,
    /// Latest packet.
    late_ns: u64,
}

const STEP_NS: u64 = NS_PER_S / 100;
const LENGTH: u32 = 7200;

impl Viewing {
    fn new() -> Self {
        let mut meter = Meter { ts: Some(Box::default()), ..Meter::default() };
        let mut shared = histogram_us();
        let now_ns = 1000 * NS_PER_S;
        meter.begin_play(&reply(1, 0, None), now_ns, &mut shared);
        Self {
            meter,
            shared,
            now_ns,
            sequence: 1,
            place: 0,
            longest_run_ns: 0,
            run_began_ns: now_ns,
            late_ns: 0,
        }
    }

    fn send(&mut self, count: u32, late_ns: u64) {
        for n in 0..count {
            let late_ns = if n % 5 == 4 { late_ns } else { 0 };
            self.late_ns = self.late_ns.max(late_ns);
            let packet = timed_packet(self.sequence, self.place * 900, self.place as u8);
            self.meter.rtp(&mut self.shared, Instant(0), self.now_ns + late_ns, &packet);
            self.now_ns += STEP_NS;
            self.sequence = self.sequence.wrapping_add(1);
            self.place += 1;
        }
    }

    fn end_run(&mut self) {
        self.longest_run_ns = self.longest_run_ns.max(self.now_ns - self.run_began_ns + STEP_NS);
    }

    /// Seeks: `left_over` packets come after the reply to PAUSE, and `early` packets before the
    /// reply to PLAY is read.
    fn seek(&mut self, to: u32, left_over: u32, early: u32) {
        self.meter.pause();
        self.send(left_over, 0);
        self.end_run();
        self.now_ns += 3 * NS_PER_S;
        self.run_began_ns = self.now_ns;
        self.place = to;
        let announced = reply(self.sequence, to * 900, None);
        self.send(early, 0);
        self.meter.begin_play(&announced, self.now_ns, &mut self.shared);
    }

    fn finish(mut self) -> (ViewerMeasurements, u64, u64) {
        self.end_run();
        let measured = self.meter.finish(&mut self.shared, self.now_ns, Ending::default());
        assert!(
            self.shared.max() <= (self.longest_run_ns + self.late_ns) / 1000 * 1001 / 1000 + 1,
            "histogram"
        );
        (measured, self.longest_run_ns, self.late_ns)
    }
}

/// However the replies lie between the packets: nothing is late, lost or out of step because of a seek.
#[test]
fn meter_after_arbitrary_seeks_reports_no_loss_or_lateness() {
    type Seek = (u16, u16, u8, u8, u8);
    bolero::check!().with_type::<Vec<Seek>>().with_iterations(300).for_each(|seeks| {
        let mut viewing = Viewing::new();
        viewing.send(3, 0);
        let mut packets = 3;
        for &(to, plays, left_over, early, late_ms) in seeks.iter().take(30) {
            let (plays, left_over) = (u32::from(plays) % 200, u32::from(left_over) % 50);
            let early = u32::from(early) * 2; // at times more than waits
            viewing.seek(u32::from(to) % LENGTH, left_over, early);
            viewing.send(plays + 1, u64::from(late_ms % 40) * 1_000_000);
            packets += u64::from(left_over + early + plays + 1);
        }
        let (measured, _, late_ns) = viewing.finish();
        let c = measured.counts;
        assert_eq!((c.received, c.lost, c.lost_at_start), (packets, 0, 0));
        assert_eq!((c.duplicates, c.strays, c.restarts, c.reordered), (0, 0, 0, 0));
        assert_eq!(measured.rtp_info_exact, Some(true));
        assert_eq!(measured.ts.map(|ts| ts.continuity_errors), Some(0));
        assert!(measured.lateness_max_us <= late_ns / 1000, "{} us", measured.lateness_max_us);
        assert!(measured.longest_gap_us <= 50_000, "{} us", measured.longest_gap_us);
    });
}

/// Whatever a sender writes into its time stamps, and whenever a reply is read.
#[test]
fn lateness_never_exceeds_the_length_of_a_run() {
    bolero::check!().with_type::<Vec<(u8, u32, u16)>>().with_iterations(1000).for_each(|events| {
        let mut viewing = Viewing::new();
        for &(what, jump, count) in events {
            match what % 4 {
                0 => viewing.seek(jump % LENGTH, u32::from(count) % 400, jump % 600),
                1 => viewing.place = jump % 4_000_000, // without a word
                _ => viewing.send(u32::from(count) % 150, u64::from(jump % 500) * 1_000_000),
            }
        }
        let late_ns = viewing.late_ns;
        let (measured, longest_run_ns, _) = viewing.finish();
        assert!(
            measured.lateness_max_us <= (longest_run_ns + late_ns) / 1000,
            "{} us late in runs of at most {longest_run_ns} ns",
            measured.lateness_max_us
        );
    });
}

#[test]
fn meter_finish_counts_stall_only_before_end_of_title() {
    let ending_at = |end_secs: u64, hears_bye: bool, at_ns: u64| {
        let (mut meter, mut shared) = (Meter::default(), histogram_us());
        let range = NptRange { start: Some(MediaTicks(0)), end: Some(MediaTicks(end_secs * 90_000)) };
        meter.begin_play(&reply(0, 0, Some(range)), NS_PER_S, &mut shared);
        for n in 0..1000u16 {
            meter.rtp(&mut shared, Instant(0), NS_PER_S + u64::from(n) * STEP_NS, &packet(n));
        }
        meter.finish(&mut shared, at_ns, Ending { is_paused: false, hears_bye })
    };
    let ending = |end_secs: u64, hears_bye: bool| ending_at(end_secs, hears_bye, 30 * NS_PER_S);
    let waits = ending(10, false);
    assert_eq!((waits.has_ended, waits.longest_gap_us), (true, 10_000));
    // In the middle of a title, and where a BYE would have been heard, it is a stall.
    let stalled = ending(20, false);
    assert_eq!((stalled.has_ended, stalled.longest_gap_us), (false, 19_010_000));
    assert_eq!(ending(10, true).longest_gap_us, 19_010_000);
    // The BYE itself may take its time.
    let last_ns = NS_PER_S + 999 * STEP_NS;
    assert_eq!(ending_at(10, true, last_ns + BYE_WAIT_NS).longest_gap_us, 10_000);
    assert_eq!(ending_at(10, true, last_ns + BYE_WAIT_NS + 1).longest_gap_us, 5_000_000);
    assert_eq!(ending_at(20, true, last_ns + BYE_WAIT_NS).longest_gap_us, 5_000_000);
}

#[test]
fn rtp_info_of_run_without_packets_is_not_judged() {
    let (mut meter, mut shared) = (Meter::default(), histogram_us());
    meter.begin_play(&reply(5, 4500, None), NS_PER_S, &mut shared);
    meter.pause();
    meter.begin_play(&reply(5, 90_000, None), 2 * NS_PER_S, &mut shared);
    meter.rtp(&mut shared, Instant(0), 2 * NS_PER_S, &timed_packet(5, 90_000, 0));
    assert_eq!(meter.finish(&mut shared, 3 * NS_PER_S, Ending::default()).rtp_info_exact, Some(true));
    // A later announcement is judged too.
    let (mut meter, mut shared) = (Meter::default(), histogram_us());
    meter.begin_play(&reply(5, 4500, None), NS_PER_S, &mut shared);
    meter.rtp(&mut shared, Instant(0), NS_PER_S, &packet(5));
    meter.pause();
    meter.begin_play(&reply(6, 1, None), 2 * NS_PER_S, &mut shared);
    meter.rtp(&mut shared, Instant(0), 2 * NS_PER_S, &timed_packet(6, 90_000, 0));
    assert_eq!(meter.finish(&mut shared, 3 * NS_PER_S, Ending::default()).rtp_info_exact, Some(false));
}

/// Replies come by another way than packets, and may be ahead of the last ones of the run before.
#[test]
fn meter_assigns_packets_left_over_from_previous_run() {
    let at = |sequence: u16| (sequence, u32::from(sequence) * 900);
    let run = |announced: (u16, u32), packets: &[(u16, u32)]| {
        let mut meter = Meter { ts: Some(Box::default()), ..Meter::default() };
        let mut shared = histogram_us();
        meter.begin_play(&reply(1, 900, None), NS_PER_S, &mut shared);
        for sequence in 1..=5 {
            meter.rtp(&mut shared, Instant(0), NS_PER_S, &packet(sequence));
        }
        meter.pause();
        meter.begin_play(&reply(announced.0, announced.1, None), 2 * NS_PER_S, &mut shared);
        for &(sequence, timestamp) in packets {
            meter.rtp(&mut shared, Instant(0), 2 * NS_PER_S, &timed_packet(sequence, timestamp, 0));
        }
        let measured = meter.finish(&mut shared, 2 * NS_PER_S, Ending::default());
        let (c, ts) = (measured.counts, measured.ts.unwrap());
        assert_eq!((c.strays, c.restarts, c.reordered), (0, 0, 0), "{announced:?} {packets:?}");
        // Of two accepted strays only the second is inspected.
        let strays = u64::from(measured.rtp_info_exact == Some(false) && packets[0].0 < announced.0);
        assert_eq!(ts.packets + strays, c.received, "{announced:?} {packets:?}");
        (c.received, c.lost + c.lost_at_start, measured.rtp_info_exact)
    };
    let late = 90_000;
    assert_eq!(run((8, late), &[at(6), at(7), (8, late)]), (8, 0, Some(true)));
    assert_eq!(run((8, late), &[at(7), (8, late)]), (7, 1, Some(true)));
    assert_eq!(run((8, late), &[at(6), at(7)]), (7, 0, Some(true)));
    assert_eq!(run((8, late), &[at(6), at(7), (9, late + 900)]), (8, 1, Some(true)));
    // A number that is too high is seen by the time of the first packet, as one that is too low by the number.
    assert_eq!(run((8, late), &[(6, late), (7, late + 900)]), (7, 0, Some(false)));
    assert_eq!(run((6, late), &[(6, late + 900), (7, late + 1800)]), (7, 0, Some(false)));
}

/// A server that stamps packets when it sends them is never late by its timestamps.
#[test]
fn meter_with_pcr_clock_detects_lateness_hidden_by_send_timestamps() {
    use crate::ts::scan::tests::packet as ts_packet;
    let late_by = |clock: MediaClock| {
        let (mut meter, mut shared) = (Meter::default(), histogram_us());
        let description = Description {
            name: String::new(),
            payload_type: PAYLOAD_TYPE_MP2T,
            is_transport_stream: true,
            clock_hz: 90_000,
            control: None,
            session_control: None,
            range: None,
        };
        meter.describe(&description, false, clock);
        meter.begin_play(&reply(0, 0, None), NS_PER_S, &mut shared);
        for n in 0..200u16 {
            // Media of 10 ms takes 15 ms: it falls behind by a second.
            let at_ms = u64::from(n) * 15;
            let mut bytes = packet(n);
            bytes.truncate(12);
            bytes[4..8].copy_from_slice(&((at_ms * 90) as u32).to_be_bytes());
            let pcr = (n % 4 == 0).then(|| u64::from(n) * 10 * 27_000);
            bytes.extend(ts_packet(1, n as u8, pcr));
            meter.rtp(&mut shared, Instant(0), NS_PER_S + at_ms * 1_000_000, &bytes);
        }
        let measured = meter.finish(&mut shared, 4 * NS_PER_S, Ending::default());
        assert_eq!(
            (measured.counts.received, shared.len()),
            (200, if clock == MediaClock::Rtp { 200 } else { 50 })
        );
        (measured.lateness_max_us, measured.longest_gap_us)
    };
    assert_eq!(late_by(MediaClock::Rtp), (0, 15_000));
    assert_eq!(late_by(MediaClock::Pcr), (980_000, 15_000));
}

//! The media of a viewer, checked packet by packet against the title and against time.

use std::collections::VecDeque;

use millrace_core::time::Instant;
use millrace_core::wire::rtp::RtpHeader;

use crate::titles::StoredTitle;

/// Media may be this late without a reason: a burst in a connection, and the network.
const SLACK_NS: u64 = 500_000_000;
/// And this late where parity has to make up for a member: it is given up after two seconds.
const PARITY_SLACK_NS: u64 = 4_000_000_000;
/// A viewer's first packet takes openings and reads too.
const START_SLACK_NS: u64 = 1_000_000_000;
/// BYE comes 2.5 s after the last packet.
const BYE_NS: u64 = 4_000_000_000;

/// What excuses the server at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excuses {
    /// A member is at fault, and parity makes up for it.
    pub is_degraded: bool,
    /// More members are at fault than parity makes up for.
    pub is_lost: bool,
    /// At some time a member was at fault.
    pub was_degraded: bool,
    /// At some time more members were at fault than parity makes up for. What could not be read then
    /// may be missing later.
    pub was_lost: bool,
    /// A member was at fault, or the service has left FEC out: some of it may be missing.
    pub may_lack_fec: bool,
}

/// The answer to a PLAY.
#[derive(Clone, Copy, Debug)]
pub struct PlayAnswer {
    /// When it came.
    pub at: Instant,
    /// The sequence number of the first packet.
    pub sequence: Option<u16>,
    /// The first packet expected; `None`: the media continues.
    pub from: Option<u32>,
    /// In thousandths of real time, at most 1000: faster delivery may also come at normal speed.
    pub speed_permille: u16,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    at: Instant,
    sequence: u16,
    packet: u32,
    /// It follows the last packet of the title.
    is_behind_end: bool,
    /// The first packets behind the jump may be missing.
    is_excused: bool,
}

/// The media of one session.
pub struct Reception {
    last: Option<(u16, u32)>,
    /// The packet of the last jump.
    start: u32,
    /// It has asked for FEC.
    has_fec: bool,
    /// Differences of its sequence numbers from those of the title.
    shifts: Vec<u16>,
    /// Media packets that have come, or were lost on the way.
    pub packets: u64,
    /// Packets that the server left out.
    pub missing: u64,
    jumps: VecDeque<Jump>,
    answers: Vec<PlayAnswer>,
    /// A packet that came in time, and when.
    anchor: Option<(Instant, u32)>,
    /// Media should come since this moment.
    waits_since: Option<Instant>,
    speed_permille: u16,
    ended_at: Option<Instant>,
    has_bye: bool,
}

impl Reception {
    /// Nothing has come yet; whether FEC is asked for.
    pub fn new(has_fec: bool) -> Self {
        Self {
            last: None,
            start: 0,
            has_fec,
            shifts: Vec::new(),
            packets: 0,
            missing: 0,
            jumps: VecDeque::new(),
            answers: Vec::new(),
            anchor: None,
            waits_since: None,
            speed_permille: 1_000,
            ended_at: None,
            has_bye: false,
        }
    }

    /// Whether the title has come to its end, and BYE with it.
    pub fn is_finished(&self) -> bool {
        self.ended_at.is_some() && self.has_bye
    }

    /// Whether its last packet has come.
    pub fn is_at_end(&self) -> bool {
        self.ended_at.is_some()
    }

    /// The differences that its sequence numbers have had from those of the title.
    pub fn shifts(&self) -> &[u16] {
        &self.shifts
    }

    /// The packet from which on it has followed the title without a jump.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The packet behind the last one.
    pub fn next_packet(&self) -> Option<u32> {
        self.last.map(|(_, packet)| packet + 1)
    }

    /// Takes an RTP packet, or learns that it was lost.
    ///
    /// # Errors
    /// If the packet is not one that may come now.
    pub fn take(
        &mut self,
        (now, title): (Instant, &StoredTitle),
        datagram: &[u8],
        excuses: Excuses,
    ) -> Result<(), String> {
        let (header, payload) = RtpHeader::parse(datagram).ok_or("a media datagram is no RTP")?;
        let packet = title.packet_of(payload).ok_or_else(|| {
            format!("wrong bytes: RTP sequence {} is no packet of {}", header.sequence, title.name)
        })?;
        self.packets += 1;
        let jumps = match self.last {
            None => true,
            Some((sequence, before)) => {
                let step = header.sequence.wrapping_sub(sequence);
                let moved = packet.wrapping_sub(before);
                // FEC names packets by the title's own numbers, which its viewers see after a seek too.
                let has_numbers_of_title = self.has_fec && header.sequence == packet as u16 + 1;
                let is_left_out = (2..1_000).contains(&moved) && (excuses.is_lost || excuses.is_degraded);
                if has_numbers_of_title && moved != 1 && !is_left_out {
                    return self.take_jump((now, title), (header.sequence, packet), excuses);
                }
                let is_gap = step > 1 && step < 1_000;
                if step == 0 || step >= 1_000 || is_gap && !(excuses.is_lost || excuses.is_degraded) {
                    return Err(format!(
                        "sequence {} follows {sequence} (packets {packet} and {before})",
                        header.sequence
                    ));
                }
                self.missing += u64::from(step) - 1;
                u32::from(step) != moved
            }
        };
        if jumps {
            return self.take_jump((now, title), (header.sequence, packet), excuses);
        }
        self.take_packet((now, title), (header.sequence, packet), excuses)
    }

    /// A packet comes that does not follow the one before in the title.
    fn take_jump(
        &mut self,
        (now, title): (Instant, &StoredTitle),
        (sequence, packet): (u16, u32),
        excuses: Excuses,
    ) -> Result<(), String> {
        // The last packet of the title may be one of those that could not be read.
        let is_excused = self.may_lack_end(excuses);
        let is_behind_end = is_excused || self.next_packet() == Some(title.packets());
        self.jumps.push_back(Jump { at: now, sequence, packet, is_behind_end, is_excused });
        (self.anchor, self.ended_at, self.has_bye) = (None, None, false);
        self.start = packet;
        self.take_packet((now, title), (sequence, packet), excuses)
    }

    fn take_packet(
        &mut self,
        (now, title): (Instant, &StoredTitle),
        (sequence, packet): (u16, u32),
        excuses: Excuses,
    ) -> Result<(), String> {
        self.last = Some((sequence, packet));
        let shift = sequence.wrapping_sub(packet as u16 + 1);
        if !self.shifts.contains(&shift) {
            self.shifts.push(shift);
        }
        self.note_time(now, packet, excuses)?;
        if packet + 1 == title.packets() {
            self.ended_at.get_or_insert(now);
            self.waits_since = None;
        }
        Ok(())
    }

    fn note_time(&mut self, now: Instant, packet: u32, excuses: Excuses) -> Result<(), String> {
        let Some((since, first)) = self.anchor else {
            self.anchor = Some((now, packet));
            return Ok(());
        };
        let late_ns = now.ns_since(self.due(since, first, packet));
        if late_ns > SLACK_NS {
            let slack_ns = if excuses.is_degraded { PARITY_SLACK_NS } else { SLACK_NS };
            if !excuses.is_lost && late_ns > slack_ns {
                return Err(format!("packet {packet} is {} ms late", late_ns / 1_000_000));
            }
            self.anchor = Some((now, packet));
        }
        Ok(())
    }

    fn due(&self, since: Instant, first: u32, packet: u32) -> Instant {
        let media_ns = StoredTitle::time(packet.saturating_sub(first)).to_ns();
        since.plus_ns(media_ns * 1_000 / u64::from(self.speed_permille))
    }

    /// RTCP BYE has come, or was lost.
    pub fn take_bye(&mut self) {
        self.has_bye = true;
    }

    /// A PLAY asks for this speed. A slower one may hold from now on, as media does not wait until the
    /// answer is read.
    pub fn ask_speed(&mut self, permille: u16) {
        self.speed_permille = self.speed_permille.min(permille);
    }

    /// A PLAY was answered.
    pub fn take_answer(&mut self, title: &StoredTitle, answer: PlayAnswer) {
        self.answers.push(answer);
        self.waits_since = Some(answer.at);
        // A PLAY without a range changes nothing of what plays.
        let kept = if answer.from.is_none() { self.speed_permille } else { 1_000 };
        self.speed_permille = answer.speed_permille.min(kept);
        let is_at_end = self.next_packet() == Some(title.packets());
        // Packets and answer come by different ways: all packets may be there first, with BYE.
        let is_first = |sequence, packet| answer.sequence == Some(sequence) && answer.from == Some(packet);
        let is_overtaken = self.last.is_some_and(|(sequence, packet)| is_first(sequence, packet))
            || self.jumps.iter().any(|jump| is_first(jump.sequence, jump.packet));
        self.anchor = None;
        // The answer to a PLAY that goes on may be read long after the end, by a viewer that stalled.
        let is_over = is_at_end && (answer.from.is_none() || is_overtaken);
        if !is_over {
            (self.ended_at, self.has_bye) = (None, false);
        } else {
            // There is nothing to go on with but BYE.
            (self.waits_since, self.ended_at) = (None, Some(answer.at));
        }
    }

    /// No media is expected until the next PLAY is answered, and none is late that comes.
    pub fn excuse_time(&mut self) {
        (self.anchor, self.waits_since, self.ended_at) = (None, None, None);
    }

    /// The viewer could not take media until now.
    pub fn restart_time(&mut self, now: Instant) {
        self.anchor = None;
        if self.ended_at.is_none() && self.waits_since.is_some() {
            self.waits_since = Some(now);
        }
        self.ended_at = self.ended_at.map(|_| now);
    }

    /// Looks whether media is overdue, now and then.
    ///
    /// # Errors
    /// If media or BYE is overdue.
    pub fn look(&mut self, now: Instant, excuses: Excuses) -> Result<(), String> {
        self.check_jumps(now)?;
        if excuses.is_lost {
            self.restart_time(now);
            return Ok(());
        }
        let more_ns = if excuses.is_degraded { PARITY_SLACK_NS } else { 0 };
        if self.may_lack_end(excuses) && self.has_bye {
            self.ended_at.get_or_insert(now);
        }
        if let Some(ended_at) = self.ended_at {
            let overdue = !self.has_bye && now.ns_since(ended_at) > BYE_NS + more_ns;
            return if overdue { Err("no BYE after the last packet".to_owned()) } else { Ok(()) };
        }
        let Some(since) = self.waits_since else { return Ok(()) };
        let due = match (self.anchor, self.last) {
            (Some((anchor, first)), Some((_, last))) => {
                self.due(anchor, first, last + 1).max(since).plus_ns(2 * SLACK_NS)
            }
            _ => since.plus_ns(START_SLACK_NS),
        };
        if now > due.plus_ns(more_ns) {
            let last = self.last.map(|(_, packet)| packet);
            return Err(format!(
                "no media since packet {last:?}: {} ms overdue",
                now.ns_since(due) / 1_000_000
            ));
        }
        Ok(())
    }

    /// Whether the last packets of the title may have been left out: those that could not be read, and those of a
    /// member that hung, which FEC repairs.
    fn may_lack_end(&self, excuses: Excuses) -> bool {
        excuses.was_lost || self.has_fec && excuses.was_degraded
    }

    /// Each jump of the media must have been announced by the answer to a PLAY.
    fn check_jumps(&mut self, now: Instant) -> Result<(), String> {
        while let Some(jump) = self.jumps.front().copied() {
            // The answer may be on its way.
            if now.ns_since(jump.at) < SLACK_NS {
                return Ok(());
            }
            self.jumps.pop_front();
            // A title that has been played to its end begins again.
            let again = jump.is_behind_end.then_some(0);
            let announces = |answer: &PlayAnswer| {
                let (Some(sequence), Some(from)) = (answer.sequence, answer.from.or(again)) else {
                    return false;
                };
                let missing = jump.sequence.wrapping_sub(sequence);
                from + u32::from(missing) == jump.packet && (missing == 0 || jump.is_excused)
            };
            if !self.answers.iter().any(announces) {
                return Err(format!(
                    "sequence {} is packet {}, which no answer to a PLAY has announced: {:?}",
                    jump.sequence, jump.packet, self.answers
                ));
            }
        }
        Ok(())
    }
}

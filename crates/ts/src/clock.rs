//! The clock references of one PID: how far apart, whether they jump, whether they keep to one rate (TR 101 290 checks 2.3 and 2.4).

use crate::check::FindingKind;
use crate::limits::{
    ACCURACY_PCRS, CONSTANT_RATE_PERCENT, MAX_FINDINGS_PER_CHECK, MAX_PCR_GAP_TICKS, MAX_RATE_CHANGES,
    MIN_ACCURACY_PCRS, PCR_ACCURACY_NS, PCR_INTERVAL_TICKS, PCR_NOTE_INTERVAL_TICKS,
};

/// Values of a clock reference: 33 bits of 90 kHz, each 300 ticks (ISO/IEC 13818-1 section 2.4.3.5).
const PCR_VALUES: i64 = 300 << 33;
/// Values of a time stamp.
const STAMPS: i64 = 1 << 33;

fn nearest(difference: i64, values: i64) -> i64 {
    let up = difference.rem_euclid(values);
    if up > values / 2 { up - values } else { up }
}

/// From `earlier` to `later` the short way round, in ticks of 27 MHz.
pub(crate) fn pcr_difference(later: u64, earlier: u64) -> i64 {
    nearest(later as i64 - earlier as i64, PCR_VALUES)
}

/// The same of time stamps, in ticks of 90 kHz.
pub(crate) fn stamp_difference(later: u64, earlier: u64) -> i64 {
    nearest(later as i64 - earlier as i64, STAMPS)
}

/// Ticks of 27 MHz in nanoseconds; none before 0.
pub(crate) fn system_ns(ticks: i64) -> u64 {
    (i128::from(ticks.max(0)) * 1000 / 27) as u64
}

/// `packets` at a rate of `ticks` for `per` packets, to the nearest tick.
pub(crate) fn at_rate((ticks, per): (i64, i64), packets: i64) -> i64 {
    let per = i128::from(per.max(1));
    (i128::from(ticks) * i128::from(packets) + per / 2).div_euclid(per) as i64
}

/// The effect of a clock reference on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockStep {
    /// Time since the previous reference: by the clock, or by the number of packets where the clock
    /// restarted.
    pub(crate) ticks: i64,
    /// Whether time stamps before and after cannot be compared.
    pub(crate) is_new_clock: bool,
    /// The first of all, or the first after a seek.
    pub(crate) is_first: bool,
}

/// One clock reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference {
    pub(crate) packet: u64,
    pub(crate) byte: u64,
    pub(crate) value: u64,
    /// With discontinuity_indicator.
    pub(crate) announced: bool,
    /// Changes where packets are known to be missing.
    pub(crate) epoch: u32,
    /// Continuity counter errors up to here: where packets are missing, their number does not
    /// indicate a rate.
    pub(crate) breaks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    packet: u64,
    value: u64,
    epoch: u32,
    breaks: u64,
}

/// The references of one PID.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    last: Option<Last>,
    /// Ticks, and the packets they cover, both over the last intervals; older intervals weigh less.
    rate: Option<(i64, i64)>,
    /// Packet of the first reference, and time since then.
    pub(crate) first_packet: u64,
    pub(crate) elapsed: i64,
    pub(crate) references: u64,
    pub(crate) longest_ticks: i64,
    pub(crate) accuracy: Accuracy,
}

impl Clock {
    pub(crate) fn rate(&self) -> Option<(i64, i64)> {
        self.rate
    }

    /// The next reference has nothing to do with those before.
    pub(crate) fn forget(&mut self) {
        self.accuracy.finish();
        self.last = None;
    }

    /// Takes a reference and reports errors to `found`.
    pub(crate) fn push(&mut self, new: Reference, found: &mut impl FnMut(FindingKind)) -> ClockStep {
        self.references += 1;
        let Reference { packet, byte, value, announced, epoch, breaks } = new;
        let Some(last) = self.last.replace(Last { packet, value, epoch, breaks }) else {
            if self.references == 1 {
                self.first_packet = packet;
            }
            self.accuracy.restart((packet, byte, self.elapsed));
            return ClockStep { ticks: 0, is_new_clock: true, is_first: true };
        };
        let ticks = pcr_difference(value, last.value);
        let packets = packet.saturating_sub(last.packet) as i64;
        let expected = self.rate.map(|rate| at_rate(rate, packets));
        let is_plain = ticks > 0 && ticks <= PCR_INTERVAL_TICKS;
        let is_same_epoch = last.epoch == epoch;
        let is_jump = if !is_same_epoch {
            ticks <= 0 || ticks > MAX_PCR_GAP_TICKS
        } else if is_plain {
            false
        } else {
            // Either no reference came during these packets, or the clock jumped: the number of
            // packets decides.
            let most = expected.map_or(MAX_PCR_GAP_TICKS, |e| 3 * e + 2 * PCR_INTERVAL_TICKS);
            ticks <= 0 || ticks > most.min(MAX_PCR_GAP_TICKS)
        };
        if is_same_epoch && !announced {
            if is_jump {
                found(FindingKind::PcrJump { ticks: ticks - expected.unwrap_or(0) });
            } else {
                self.longest_ticks = self.longest_ticks.max(ticks);
                if ticks > PCR_INTERVAL_TICKS {
                    found(FindingKind::PcrLate { ticks });
                } else if ticks > PCR_NOTE_INTERVAL_TICKS {
                    found(FindingKind::PcrSlow { ticks });
                }
            }
        } else if announced {
            found(FindingKind::ClockAnnounced { ticks: ticks - expected.unwrap_or(0) });
        }
        let is_new_clock = is_jump || announced;
        let took = if is_jump || announced && !is_plain { expected.unwrap_or(0) } else { ticks };
        self.elapsed += took;
        if is_new_clock || !is_same_epoch || last.breaks != breaks {
            self.accuracy.finish();
            self.accuracy.restart((packet, byte, self.elapsed));
        } else {
            let (old_ticks, old_packets) = self.rate.unwrap_or((0, 0));
            // Shifted, so that the eighth that is forgotten is not a rounded one. A value of 42 bits still fits.
            let new = |old: i64, new: i64| old - old / 8 + (new << 16);
            self.rate = Some((new(old_ticks, ticks), new(old_packets, packets)));
            self.accuracy.push((packet, byte, self.elapsed));
        }
        ClockStep { ticks: took, is_new_clock, is_first: false }
    }
}

/// Packet, byte and time of a reference.
type PcrSample = (u64, u64, i64);

/// Whether the references lie on a line, as at a constant rate they do, and how far from it (TR 101 290 check 2.4).
///
/// They are judged in batches. The rate is constant where nearly all intervals fit one rate to half
/// a packet and the others do not add up to another rate; a deviation is a fault only if nearly all
/// of the stream has such a rate.
#[derive(Debug, Default)]
pub(crate) struct Accuracy {
    samples: Vec<PcrSample>,
    pub(crate) constant: u64,
    pub(crate) variable: u64,
    /// The largest deviation in the constant parts, in ns.
    pub(crate) worst_ns: i64,
    /// The first that are off, and by how many ns, and how many are in all.
    pub(crate) off: Vec<(PcrSample, i64)>,
    pub(crate) off_count: u64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Slope and height of the line that fits best.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let over: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let under: f64 = points.iter().map(|p| (p.0 - x) * (p.0 - x)).sum();
    let slope = if under > 0.0 { over / under } else { 0.0 };
    (slope, y - slope * x)
}

fn ns(ticks: f64) -> i64 {
    (ticks * 1000.0 / 27.0).round() as i64
}

/// The effect of an interval on the line that the references lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// It ends where the line goes on, or is one of several that lead off it and back: a reference between them may be off.
    Line,
    /// The clock went on by more or less than it does else and stays there: one fault.
    Jump,
    /// The clock went on as it does else, by another number of packets: what changed is the rate. So it is in a stream that sends its
    /// references by the clock and as much between them as there is, but at least some.
    Rate,
}

/// Classifies intervals. `steps` holds the packets and ticks of each, `offs` its deviation from the
/// rate (in ticks per packet).
fn rests(steps: &[(f64, f64)], offs: &[f64], rate: f64) -> Vec<Rest> {
    let usual = median(steps.iter().map(|(_, ticks)| *ticks).collect());
    let mut rests = vec![Rest::Line; offs.len()];
    let (mut first, mut sum) = (0, 0.0);
    for (index, off) in offs.iter().enumerate() {
        if off.abs() <= rate / 2.0 {
            (first, sum) = (index + 1, 0.0);
            continue;
        }
        let is_usual = (steps[index].1 - usual).abs() <= rate / 2.0;
        rests[index] = if is_usual { Rest::Rate } else { Rest::Jump };
        sum += off;
        if sum.abs() <= rate / 2.0 {
            rests[first..=index].fill(Rest::Line);
            (first, sum) = (index + 1, 0.0);
        }
    }
    rests
}

impl Accuracy {
    /// Whether the rate of the stream is constant; `None` if too little was seen.
    pub(crate) fn is_constant(&self) -> Option<bool> {
        let all = self.constant + self.variable;
        (all > 0).then_some(self.constant * 100 >= all * CONSTANT_RATE_PERCENT as u64)
    }

    fn restart(&mut self, sample: PcrSample) {
        self.samples.clear();
        self.samples.push(sample);
    }

    fn push(&mut self, sample: PcrSample) {
        self.samples.push(sample);
        if self.samples.len() >= ACCURACY_PCRS {
            self.finish();
            self.restart(sample);
        }
    }

    fn tell(&mut self, sample: PcrSample, off: f64) {
        let off = ns(off);
        if off.abs() > self.worst_ns.abs() {
            self.worst_ns = off;
        }
        if off.abs() > PCR_ACCURACY_NS as i64 + ns(1.0) {
            self.off_count += 1;
            if self.off.len() < MAX_FINDINGS_PER_CHECK {
                self.off.push((sample, off));
            }
        }
    }

    /// Judges the samples collected.
    pub(crate) fn finish(&mut self) {
        let samples = std::mem::take(&mut self.samples);
        if samples.len() < MIN_ACCURACY_PCRS {
            return;
        }
        let first = samples[0];
        let mut points: Vec<(f64, f64)> =
            samples.iter().map(|s| ((s.0 - first.0) as f64, (s.2 - first.2) as f64)).collect();
        let steps: Vec<_> = points.windows(2).map(|w| (w[1].0 - w[0].0, w[1].1 - w[0].1)).collect();
        let rate = median(steps.iter().map(|(packets, ticks)| ticks / packets.max(1.0)).collect());
        let offs: Vec<_> = steps.iter().map(|(packets, ticks)| ticks - rate * packets).collect();
        let fitting = offs.iter().filter(|off| off.abs() <= rate / 2.0).count();
        if fitting * 100 < offs.len() * CONSTANT_RATE_PERCENT {
            self.variable += 1;
            return;
        }
        let rests = rests(&steps, &offs, rate);
        if rests.iter().filter(|rest| **rest == Rest::Rate).count() > MAX_RATE_CHANGES {
            self.variable += 1;
            return;
        }
        self.constant += 1;
        // What follows an interval that moved the line is judged by where it leads to.
        let mut shift = 0.0;
        for (index, (rest, off)) in rests.iter().zip(&offs).enumerate() {
            if *rest != Rest::Line {
                shift += off;
            }
            if *rest == Rest::Jump {
                self.tell(samples[index + 1], *off);
            }
            points[index + 1].1 -= shift;
        }
        let half = points.len() / 2;
        let slope = median(
            points.iter().zip(&points[half..]).map(|(a, b)| (b.1 - a.1) / (b.0 - a.0).max(1.0)).collect(),
        );
        let height = median(points.iter().map(|p| p.1 - slope * p.0).collect());
        let near: Vec<_> = points
            .iter()
            .copied()
            .filter(|p| ns((p.1 - slope * p.0 - height).abs()) <= PCR_ACCURACY_NS as i64)
            .collect();
        let (slope, height) = if near.len() > half { line(&near) } else { (slope, height) };
        for (index, point) in points.iter().enumerate() {
            self.tell(samples[index], point.1 - slope * point.0 - height);
        }
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;

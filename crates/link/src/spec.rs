//! The words in which a link is described: parsed from text, printed so that the text parses to the same again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use millrace_core::random::MILLION;
use millrace_core::units::{BitRate, ByteLen, HumanDuration};

use crate::limits::{
    DEFAULT_LINK_HOLD_NS, DEFAULT_LINK_QUEUE_PACKETS, MAX_LINK_BURST_PACKETS, MAX_LINK_DELAY_NS,
    MAX_LINK_PACKETS, MAX_LINK_REORDER_PACKETS,
};

/// A share of all packets, in parts of a million. Written in percent: `1%`, `0.5%`, `0.0001%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

impl Share {
    /// No packet.
    pub const NONE: Self = Self(0);

    /// From parts of a million; more than a million is all.
    pub const fn from_ppm(ppm: u32) -> Self {
        if ppm as u64 > MILLION { Self(MILLION as u32) } else { Self(ppm) }
    }

    /// In parts of a million.
    pub const fn ppm(self) -> u32 {
        self.0
    }
}

/// Loss in bursts (Gilbert's model): while it is bad every packet is lost, while it is good none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLoss {
    /// Share of all packets that is lost.
    pub share: Share,
    /// Mean length of a burst in packets.
    pub mean_packets: u32,
}

/// Packets held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Share of packets that is held back.
    pub share: Share,
    /// The number of other packets that overtake each of them.
    pub by_packets: u32,
    /// A packet is not held longer than this, though fewer may have come by.
    pub within: Duration,
}

/// How much may wait for the bottleneck, apart from the packet that is being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueBound {
    /// A number of packets.
    Packets(u32),
    /// A number of bytes, network headers included.
    Bytes(u64),
}

/// A bottleneck with a queue in front of it; what finds the queue full is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Its rate; IP headers and all that follows count, link layers do not.
    pub rate: BitRate,
    /// Its queue.
    pub queue: QueueBound,
}

/// The effects of a link on the packets of one direction, in this order: bottleneck, loss,
/// duplication, marks, damage, delay, reordering.
///
/// The default does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impairment {
    /// Each packet is lost with this probability, independently of all others.
    pub loss: Share,
    /// Loss in bursts, beside the independent one.
    pub burst_loss: Option<BurstLoss>,
    /// Each packet that is not lost goes out twice with this probability, the second right behind the first.
    pub duplicate: Share,
    /// Each packet that is ECN-capable (RFC 3168) is marked "congestion experienced" with this probability.
    pub mark: Share,
    /// In each packet that is not lost bits are flipped with this probability, so that a checksum fails; both copies of a doubled one are
    /// alike.
    pub corrupt: Share,
    /// Every packet is delayed by this.
    pub delay: Duration,
    /// And by a time between nothing and this, evenly drawn. Order is kept: no packet leaves before an earlier one.
    pub jitter: Duration,
    /// Packets held back after their delay.
    pub reorder: Option<Reorder>,
    /// The bottleneck.
    pub rate: Option<RateLimit>,
    /// Where the random numbers begin. The same seed and the same arrivals give the same departures.
    pub seed: u64,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            loss: Share::NONE,
            burst_loss: None,
            duplicate: Share::NONE,
            mark: Share::NONE,
            corrupt: Share::NONE,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            reorder: None,
            rate: None,
            seed: 1,
        }
    }
}

/// Both directions. Written `there` or `there; back`: without the second part the way back is perfect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkSpec {
    /// Towards the viewers.
    pub there: Impairment,
    /// From the viewers.
    pub back: Impairment,
}

impl From<Impairment> for LinkSpec {
    fn from(there: Impairment) -> Self {
        Self { there, back: Impairment::default() }
    }
}

/// A text that describes no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link: \"{part}\": {problem}")]
pub struct LinkSpecError {
    part: String,
    problem: String,
}

const WORDS: &str = "loss 1%, burst-loss 1% x5, delay 20ms, jitter 5ms, reorder 2% by 3, duplicate 0.5%, \
                     mark 1%, corrupt 0.1%, rate 10Mb/s queue 100, seed 7, none";

impl FromStr for Impairment {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let mut link = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let fail = |problem: String| LinkSpecError { part: part.chars().take(80).collect(), problem };
            let words: Vec<&str> = part.split_whitespace().collect();
            let Some((&word, arguments)) = words.split_first() else {
                return Err(fail(format!("nothing is said here; write one or more of: {WORDS}")));
            };
            if seen.contains(&word) {
                return Err(fail(format!("{word} is said twice; say it once")));
            }
            seen.push(word);
            link.take(word, arguments).map_err(fail)?;
        }
        if seen.contains(&"none") && seen.len() > 1 {
            let problem = "none stands alone; leave it out beside other words".to_owned();
            return Err(LinkSpecError { part: "none".to_owned(), problem });
        }
        Ok(link)
    }
}

impl Impairment {
    /// Takes one part of a description.
    fn take(&mut self, word: &str, arguments: &[&str]) -> Result<(), String> {
        match (word, arguments) {
            ("none", []) => {}
            ("loss", [share]) => self.loss = parse_share(share)?,
            ("burst-loss", [share, length]) => self.burst_loss = Some(parse_burst(share, length)?),
            ("duplicate", [share]) => self.duplicate = parse_share(share)?,
            ("mark", [share]) => self.mark = parse_share(share)?,
            ("corrupt", [share]) => self.corrupt = parse_share(share)?,
            ("delay", [time]) => self.delay = parse_time(time)?,
            ("jitter", [time]) => self.jitter = parse_time(time)?,
            ("reorder", [share, "by", count]) => self.reorder = Some(parse_reorder(share, count, None)?),
            ("reorder", [share, "by", count, "within", time]) => {
                self.reorder = Some(parse_reorder(share, count, Some(time))?);
            }
            ("rate", [rate]) => self.rate = Some(parse_rate(rate, None)?),
            ("rate", [rate, "queue", bound]) => self.rate = Some(parse_rate(rate, Some(bound))?),
            ("seed", [number]) => {
                self.seed = number.parse().map_err(|_| "write a whole number, e.g. seed 7".to_owned())?;
            }
            ("loss" | "duplicate" | "mark" | "corrupt", _) => return Err(format!("write it as {word} 1%")),
            ("burst-loss", _) => return Err("write it as burst-loss 1% x5: share and mean length".to_owned()),
            ("delay" | "jitter", _) => return Err(format!("write it as {word} 20ms")),
            ("reorder", _) => {
                return Err("write it as reorder 2% by 3, or reorder 2% by 3 within 100ms".to_owned());
            }
            ("rate", _) => {
                return Err(
                    "write it as rate 10Mb/s, rate 10Mb/s queue 100 (packets) or rate 10Mb/s queue 64KiB"
                        .to_owned(),
                );
            }
            ("seed", _) => return Err("write it as seed 7".to_owned()),
            ("none", _) => return Err("none takes nothing behind it".to_owned()),
            _ => return Err(format!("\"{word}\" is not known; write one or more of: {WORDS}")),
        }
        Ok(())
    }
}

/// Percent with up to four decimals: parts of a million, exactly.
fn parse_share(text: &str) -> Result<Share, String> {
    let error =
        || format!("\"{text}\" is no share of packets; write 0% to 100%, at most four decimals, e.g. 0.5%");
    let number = text.strip_suffix('%').ok_or_else(error)?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 3 || decimals.len() > 4 || !digits(whole) || !digits(decimals) {
        return Err(error());
    }
    let ppm: u32 = format!("{whole}{decimals:0<4}").parse().map_err(|_| error())?;
    if u64::from(ppm) <= MILLION { Ok(Share(ppm)) } else { Err(error()) }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<HumanDuration>().map_err(|error| error.to_string())?.0;
    if time > Duration::from_nanos(MAX_LINK_DELAY_NS) {
        return Err(format!(
            "{text} is too long; at most {}",
            exact_time(Duration::from_nanos(MAX_LINK_DELAY_NS))
        ));
    }
    Ok(time)
}

fn parse_count(text: &str, most: u32, what: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("\"{text}\" is no {what}; write a whole number from 1 to {most}")),
    }
}

fn parse_burst(share: &str, length: &str) -> Result<BurstLoss, String> {
    let share = parse_share(share)?;
    let count =
        length.strip_prefix('x').ok_or("write the mean length of a burst with an x: burst-loss 1% x5")?;
    let mean_packets = parse_count(count, MAX_LINK_BURST_PACKETS, "mean length of a burst")?;
    // Between two bursts there is at least one packet that is not lost.
    let most_ppm = MILLION * u64::from(mean_packets) / (u64::from(mean_packets) + 1);
    if u64::from(share.0) > most_ppm {
        let most = Share(most_ppm as u32);
        return Err(format!(
            "bursts of {mean_packets} lose at most {most} of the packets; write less, or longer bursts"
        ));
    }
    Ok(BurstLoss { share, mean_packets })
}

fn parse_reorder(share: &str, count: &str, within: Option<&str>) -> Result<Reorder, String> {
    let within = within.map_or(Ok(Duration::from_nanos(DEFAULT_LINK_HOLD_NS)), parse_time)?;
    let by_packets = parse_count(count, MAX_LINK_REORDER_PACKETS, "number of packets to be overtaken by")?;
    Ok(Reorder { share: parse_share(share)?, by_packets, within })
}

fn parse_rate(rate: &str, queue: Option<&str>) -> Result<RateLimit, String> {
    let rate: BitRate = rate.parse().map_err(|error: millrace_core::units::UnitError| error.to_string())?;
    if rate.0 == 0 {
        return Err("nothing passes at no rate; write loss 100% for a broken link".to_owned());
    }
    let queue = match queue {
        None => QueueBound::Packets(DEFAULT_LINK_QUEUE_PACKETS),
        Some(text) => match text.parse() {
            Ok(packets) if packets <= MAX_LINK_PACKETS as u32 => QueueBound::Packets(packets),
            Ok(_) => return Err(format!("a queue holds at most {MAX_LINK_PACKETS} packets")),
            Err(_) => QueueBound::Bytes(
                text.parse::<ByteLen>()
                    .map_err(|error| format!("{error}, or a number of packets without a unit"))?
                    .0,
            ),
        },
    };
    Ok(RateLimit { rate, queue })
}

/// `value` in the largest unit in which it is a whole number: parses to the same again.
fn exact(value: u64, units: &[(u64, &str)]) -> String {
    let unit = units.iter().find(|(scale, _)| value.is_multiple_of(*scale));
    unit.map_or_else(|| value.to_string(), |(scale, name)| format!("{}{name}", value / scale))
}

fn exact_time(time: Duration) -> String {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    exact(ns, &[(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")])
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:04}", self.0 / 10_000, self.0 % 10_000);
        write!(f, "{}%", text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gb/s"), (1_000_000, "Mb/s"), (1_000, "kb/s"), (1, "b/s")];
        write!(f, "rate {} queue ", exact(self.rate.0, &units))?;
        match self.queue {
            QueueBound::Packets(packets) => write!(f, "{packets}"),
            QueueBound::Bytes(bytes) => {
                write!(f, "{}", exact(bytes, &[(1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]))
            }
        }
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend((self.loss != Share::NONE).then(|| format!("loss {}", self.loss)));
        parts.extend(self.burst_loss.map(|b| format!("burst-loss {} x{}", b.share, b.mean_packets)));
        parts.extend((!self.delay.is_zero()).then(|| format!("delay {}", exact_time(self.delay))));
        parts.extend((!self.jitter.is_zero()).then(|| format!("jitter {}", exact_time(self.jitter))));
        parts.extend(
            self.reorder
                .map(|r| format!("reorder {} by {} within {}", r.share, r.by_packets, exact_time(r.within))),
        );
        parts.extend((self.duplicate != Share::NONE).then(|| format!("duplicate {}", self.duplicate)));
        parts.extend((self.mark != Share::NONE).then(|| format!("mark {}", self.mark)));
        parts.extend((self.corrupt != Share::NONE).then(|| format!("corrupt {}", self.corrupt)));
        parts.extend(self.rate.map(|rate| rate.to_string()));
        parts.extend((self.seed != Self::default().seed).then(|| format!("seed {}", self.seed)));
        if parts.is_empty() {
            parts.push("none".to_owned());
        }
        f.write_str(&parts.join(", "))
    }
}

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        let mut ways = text.split(';');
        let there = ways.next().unwrap_or_default().parse()?;
        let back = ways.next().map_or(Ok(Impairment::default()), str::parse)?;
        match ways.next() {
            None => Ok(Self { there, back }),
            Some(third) => Err(LinkSpecError {
                part: third.trim().chars().take(80).collect(),
                problem:
                    "a link has two directions; write the one to the viewers, and after a semicolon the return direction"
                        .to_owned(),
            }),
        }
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.there)?;
        if self.back == Impairment::default() { Ok(()) } else { write!(f, "; {}", self.back) }
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;

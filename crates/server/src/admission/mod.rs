//! Admission from measured capacity: whether an engine's core, the disks, the cache and the link
//! carry one more viewer, and which viewers must go when they no longer carry those present
//! (`docs/design/0017-admission.md`).
//!
//! ```text
//!   figures of the loops, every 100 ms          a viewer asks                     a viewer is ended
//!        │                                            │                                   ▲
//!        ▼                                            ▼                                   │
//!   EngineLoad: busy share, cost of a packet ─► room(): expected busy share ≤ bound      │
//!        └────────────────────────────────────► Shedder: served < promised, and late ────┘
//! ```
//!
//! No I/O and no clock: figures and the time are passed in.

mod engine_load;
mod in_use;
mod shed;

use std::fmt;

use millrace_core::time::Instant;
use millrace_core::units::BitRate;

pub use engine_load::{EngineFigures, EngineLoad};
pub use in_use::InUse;
pub use shed::Shedder;

use crate::limits::control::CACHE_LOOK_NS;
use crate::limits::{ADMISSION_NEWS_NS, DEFAULT_MAX_BUSY_PERMILLE, DISK_LATE_PERMILLE, MIN_LATE_GRANTS};

/// The demand of one viewer, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Media packets a second, FEC included.
    pub packets_per_s: u64,
    /// Bits a second.
    pub bits_per_s: u64,
}

impl std::ops::AddAssign for Demand {
    fn add_assign(&mut self, other: Self) {
        self.packets_per_s += other.packets_per_s;
        self.bits_per_s += other.bits_per_s;
    }
}

impl std::ops::SubAssign for Demand {
    fn sub_assign(&mut self, other: Self) {
        self.packets_per_s -= other.packets_per_s;
        self.bits_per_s -= other.bits_per_s;
    }
}

impl std::iter::Sum for Demand {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, demand| {
            sum += demand;
            sum
        })
    }
}

/// What happens when a machine no longer carries those it has let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OverloadPolicy {
    /// The newest streams are ended, until the rest are in time.
    #[default]
    EndNewest,
    /// No stream is ended; all become late.
    Share,
}

/// The operator's choices.
#[derive(Clone, Debug)]
pub struct AdmissionConfig {
    /// Off: only `--max-streams` and `--max-rate` count.
    pub is_on: bool,
    /// Share of its core, in thousandths, that an engine may be expected to be busy with one more viewer.
    pub max_busy_permille: u64,
    /// Bits a second that the machine's links carry together, if known.
    pub link_rate: Option<BitRate>,
    /// What happens when that was too many.
    pub overload: OverloadPolicy,
}

impl AdmissionConfig {
    /// Only the operator's own limits count.
    pub fn off() -> Self {
        Self {
            is_on: false,
            max_busy_permille: DEFAULT_MAX_BUSY_PERMILLE,
            link_rate: None,
            overload: OverloadPolicy::EndNewest,
        }
    }
}

/// What there is not enough of for one more viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The core of an engine would be busier than is allowed.
    Processor {
        /// The engine.
        engine: usize,
        /// How busy it would be, in thousandths.
        expected_permille: u64,
        /// How busy it may be.
        max_permille: u64,
    },
    /// An engine is behind with those that it has.
    Behind {
        /// The engine.
        engine: usize,
    },
    /// Extents come from the disks after their time.
    Disk {
        /// Share of grants that were late, in thousandths.
        late_permille: u64,
    },
    /// The cache cannot hold one more place in a title.
    Cache {
        /// Places that it can hold.
        positions: u64,
    },
    /// The links are full.
    Link {
        /// Bits a second promised already.
        used: BitRate,
        /// Bits a second that they carry.
        rate: BitRate,
    },
}

impl Full {
    /// The resource, in one word: a class of log lines.
    pub fn resource(&self) -> Resource {
        match self {
            Self::Processor { .. } | Self::Behind { .. } => Resource::Processor,
            Self::Disk { .. } => Resource::Disk,
            Self::Cache { .. } => Resource::Cache,
            Self::Link { .. } => Resource::Link,
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
        match *self {
            Self::Processor { engine, expected_permille, max_permille } => write!(
                f,
                "the core of engine {engine} would be busy {} of the time; the limit is {} (--max-busy)",
                percent(expected_permille),
                percent(max_permille)
            ),
            Self::Behind { engine } => {
                write!(f, "engine {engine} is behind with the streams it has (--admission)")
            }
            Self::Disk { late_permille } => {
                write!(
                    f,
                    "the disks are too slow: {} of the reads came late (--admission)",
                    percent(late_permille)
                )
            }
            Self::Cache { positions } => {
                write!(
                    f,
                    "the cache has no room for viewers at more than {positions} different places (--cache)"
                )
            }
            Self::Link { used, rate } => {
                write!(f, "{used} of the {rate} of the network links are in use (--link-rate)")
            }
        }
    }
}

/// A resource that can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// An engine's core.
    Processor,
    /// Reads from the disks.
    Disk,
    /// The cache's memory.
    Cache,
    /// The network links.
    Link,
}

impl Resource {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor time",
            Self::Disk => "reads from the disks",
            Self::Cache => "places in the cache",
            Self::Link => "network links",
        }
    }
}

const RESOURCES: usize = 4;

/// The cache's activity and capacity, for admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheFigures {
    /// Total of extents granted.
    pub grants: u64,
    /// Of these, after their time.
    pub late_grants: u64,
    /// Different places that the cache can hold; 0 if that is not known.
    pub positions_max: u64,
    /// Places that it holds now.
    pub positions: u64,
}

/// One thing for the operator's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionNotice {
    /// Viewers are turned away.
    Full {
        /// For want of what.
        full: Full,
        /// Refusals since the last report, this one included.
        refused: u64,
    },
    /// Streams are ended, because the engine serves less than it has promised.
    Shedding {
        /// The engine.
        engine: usize,
        /// Its send rate, in thousandths of the rate it should have.
        served_permille: u64,
    },
    /// It is in time again.
    Recovered {
        /// The engine.
        engine: usize,
        /// How many streams were ended.
        ended: u64,
        /// How long it took from the first that was ended.
        after_ns: u64,
    },
}

impl fmt::Display for AdmissionNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Full { full, refused: 1 } => write!(f, "a viewer was turned away: {full}"),
            Self::Full { full, refused } => write!(f, "{refused} viewers were turned away: {full}"),
            Self::Shedding { engine, served_permille } => write!(
                f,
                "engine {engine} sends {}.{} % of what its viewers need: its core no longer keeps up; the newest streams are moved to \
                 other engines, sent at lower bit rates or ended until the rest are in time (--overload share keeps them)",
                served_permille / 10,
                served_permille % 10
            ),
            Self::Recovered { engine, ended, after_ns } => write!(
                f,
                "engine {engine} is in time again after {}.{} s; streams ended: {ended}",
                after_ns / 1_000_000_000,
                after_ns / 100_000_000 % 10
            ),
        }
    }
}

/// Refusals for want of one resource.
#[derive(Clone, Copy, Debug, Default)]
struct Refusals {
    said: Option<Instant>,
    untold: u64,
    last: Option<Full>,
}

/// The decisions, and their inputs.
#[derive(Debug)]
pub struct Admission {
    config: AdmissionConfig,
    engines: Vec<(EngineLoad, Shedder)>,
    cache: CacheWatch,
    refusals: [Refusals; RESOURCES],
    news: Vec<AdmissionNotice>,
    /// Of the last look.
    now: Instant,
}

impl Admission {
    /// Nothing is known yet of `engines` engines.
    pub fn new(config: AdmissionConfig, engines: usize) -> Self {
        let engines = (0..engines).map(|_| (EngineLoad::default(), Shedder::default())).collect();
        Self {
            config,
            engines,
            cache: CacheWatch::default(),
            refusals: Default::default(),
            news: Vec::new(),
            now: Instant(0),
        }
    }

    /// Decides by these settings from now on; whether it is on at all stays.
    pub fn set_config(&mut self, config: AdmissionConfig) {
        self.config = AdmissionConfig { is_on: self.config.is_on, ..config };
    }

    /// Whether it has a say at all.
    pub fn is_on(&self) -> bool {
        self.config.is_on
    }

    /// Records an engine's work until now, and the demand `promised` to those of its viewers that
    /// play. Call it about every 100 ms.
    ///
    /// Returns the rate in packets per second that its streams must lose: end the newest until this
    /// is done.
    pub fn look(&mut self, now: Instant, engine: usize, figures: EngineFigures, promised: Demand) -> u64 {
        if !self.config.is_on {
            return 0;
        }
        self.now = now;
        let Some((load, shedder)) = self.engines.get_mut(engine) else { return 0 };
        load.look(now, figures);
        let excess = shedder.look(now, load, promised.packets_per_s);
        if let Some(since) = shedder.recovered() {
            let after_ns = now.ns_since(since);
            self.news.push(AdmissionNotice::Recovered { engine, ended: shedder.take_ended(), after_ns });
        }
        if excess == 0 || self.config.overload == OverloadPolicy::Share {
            return 0;
        }
        if shedder.is_first() {
            let served_permille = load.packets_per_s() * 1000 / promised.packets_per_s.max(1);
            self.news.push(AdmissionNotice::Shedding { engine, served_permille });
        }
        excess
    }

    /// Records that `streams` streams of this engine were ended because [`Admission::look`]
    /// required it.
    pub fn ended(&mut self, now: Instant, engine: usize, streams: u64) {
        if let Some((_, shedder)) = self.engines.get_mut(engine) {
            shedder.ended(now, streams);
        }
    }

    /// Records the cache's work until now.
    pub fn look_at_cache(&mut self, now: Instant, figures: CacheFigures) {
        self.cache.look(now, figures);
    }

    /// Whether `engine` carries one more `viewer` beside all those to whom it has `promised` something, even if they have paused just
    /// now; all engines together have promised `all_bits_per_s`.
    ///
    /// # Errors
    /// What there is not enough of.
    pub fn room(
        &self,
        engine: usize,
        promised: Demand,
        all_bits_per_s: u64,
        viewer: Demand,
    ) -> Result<(), Full> {
        let Some((load, shedder)) = self.engines.get(engine).filter(|_| self.config.is_on) else {
            return Ok(());
        };
        self.link_room(all_bits_per_s, viewer.bits_per_s)?;
        if shedder.is_behind() {
            return Err(Full::Behind { engine });
        }
        let expected_permille = load.expected_permille(promised.packets_per_s + viewer.packets_per_s);
        let max_permille = self.config.max_busy_permille;
        // A viewer of an idle engine is served, however much it asks for.
        if expected_permille > max_permille && promised.packets_per_s > 0 {
            return Err(Full::Processor { engine, expected_permille, max_permille });
        }
        self.cache.verdict()
    }

    /// Checks whether the links carry `more` bits per second beside all that was promised.
    ///
    /// # Errors
    /// They do not.
    pub fn link_room(&self, all_bits_per_s: u64, more: u64) -> Result<(), Full> {
        match self.config.link_rate.filter(|_| self.config.is_on) {
            Some(rate) if all_bits_per_s + more > rate.0 => {
                Err(Full::Link { used: BitRate(all_bits_per_s), rate })
            }
            _ => Ok(()),
        }
    }

    /// How busy an engine would be with all of this to send, in thousandths, and before that whether it is behind: a viewer goes where it
    /// is least. The same for all while nothing is measured.
    pub fn load(&self, engine: usize, demand: Demand) -> (bool, u64) {
        let Some((load, shedder)) = self.engines.get(engine).filter(|_| self.config.is_on) else {
            return (false, 0);
        };
        (shedder.is_behind(), load.expected_permille(demand.packets_per_s))
    }

    /// Returns the measured values, if anything is measured; `promised` is the demand that each
    /// engine has promised to viewers, `beside` the rate of viewers that no engine sends to, in
    /// bits per second.
    pub fn in_use(&self, promised: impl Iterator<Item = Demand>, beside: u64) -> Vec<InUse> {
        if !self.config.is_on {
            return Vec::new();
        }
        let mut bits_per_s = beside;
        let cores = promised.enumerate().map(|(engine, promised)| {
            bits_per_s += promised.bits_per_s;
            let what = format!("thousandths of the core of engine {engine}");
            InUse::new(what, self.load(engine, promised).1, self.config.max_busy_permille)
        });
        let mut all: Vec<_> = cores.collect();
        all.extend(
            self.config.link_rate.map(|rate| InUse::new("bits a second of the links", bits_per_s, rate.0)),
        );
        let cache = self.cache.last.map(|(_, figures)| figures).filter(|figures| figures.positions_max > 0);
        all.extend(
            cache.map(|cache| InUse::new("places in the cache", cache.positions, cache.positions_max)),
        );
        all
    }

    /// A viewer was turned away for this.
    pub fn refused(&mut self, full: Full) {
        let refusals = &mut self.refusals[full.resource() as usize];
        refusals.untold += 1;
        refusals.last = Some(full);
        self.tell_refusals();
    }

    /// One line for each resource in [`ADMISSION_NEWS_NS`].
    fn tell_refusals(&mut self) {
        let now = self.now;
        for refusals in &mut self.refusals {
            let is_time = refusals.said.is_none_or(|said| now.ns_since(said) >= ADMISSION_NEWS_NS);
            if let Some(full) = refusals.last.filter(|_| is_time && refusals.untold > 0) {
                self.news.push(AdmissionNotice::Full { full, refused: refusals.untold });
                *refusals = Refusals { said: Some(now), ..Refusals::default() };
            }
        }
    }

    /// Returns the news for the operator since the last call.
    pub fn poll_news(&mut self) -> Option<AdmissionNotice> {
        self.tell_refusals();
        (!self.news.is_empty()).then(|| self.news.remove(0))
    }
}

/// How often extents came late in the last second or so.
#[derive(Debug, Default)]
struct CacheWatch {
    last: Option<(Instant, CacheFigures)>,
    late_permille: u64,
    late: u64,
}

impl CacheWatch {
    fn look(&mut self, now: Instant, figures: CacheFigures) {
        let Some((since, before)) = self.last else {
            self.last = Some((now, figures));
            return;
        };
        if let Some((_, known)) = &mut self.last {
            (known.positions, known.positions_max) = (figures.positions, figures.positions_max);
        }
        if now.ns_since(since) < CACHE_LOOK_NS {
            return;
        }
        let grants = figures.grants.saturating_sub(before.grants);
        self.late = figures.late_grants.saturating_sub(before.late_grants);
        self.late_permille = (self.late * 1000).checked_div(grants).unwrap_or(0);
        self.last = Some((now, figures));
    }

    fn verdict(&self) -> Result<(), Full> {
        if self.late >= MIN_LATE_GRANTS && self.late_permille >= DISK_LATE_PERMILLE {
            return Err(Full::Disk { late_permille: self.late_permille });
        }
        match self.last {
            Some((_, figures)) if figures.positions_max > 0 && figures.positions >= figures.positions_max => {
                Err(Full::Cache { positions: figures.positions_max })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;

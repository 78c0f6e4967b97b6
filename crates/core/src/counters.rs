//! Counters: declared once, with name, kind, unit and help; written without locks by the thread that has them; read by anybody.
//!
//! [`counters!`](crate::counters!) declares a group: a struct of `u64`s that its owner adds to as to any other variable. Every now and
//! then the owner [publishes](Sheet::publish) the group on a [`Sheet`], and whoever prints, logs or exports it reads it from there
//! through a [`Registry`].
//!
//! ```
//! use std::sync::Arc;
//! use millrace_core::counters::{Registry, Sheet};
//!
//! millrace_core::counters! {
//!     /// What a mill has done.
//!     pub struct MillCounters {
//!         /// Grain ground.
//!         sum grain_bytes,
//!         /// Sacks on the floor now.
//!         gauge sacks,
//!     }
//! }
//!
//! let sheet = Arc::new(Sheet::<MillCounters>::default());
//! let mut registry = Registry::default();
//! registry.add("mill", Some(("wheel", "0".to_owned())), { let sheet = Arc::clone(&sheet); move || sheet.read() });
//! let own = MillCounters { grain_bytes: 5_000, sacks: 2 };
//! sheet.publish(&own);
//! let mut found = Vec::new();
//! registry.read(&mut |sample| found.push((sample.counter.name, sample.value)));
//! assert_eq!(found, [("grain_bytes", 5_000), ("sacks", 2)]);
//! ```

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// How a counter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// It only grows.
    Sum,
    /// It goes up and down.
    Gauge,
    /// The highest value there was.
    Highest,
}

/// The unit of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterUnit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
}

/// The description of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its field's name.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// How it moves.
    pub kind: CounterKind,
}

impl Counter {
    /// Its unit, which its name ends with.
    pub fn unit(&self) -> CounterUnit {
        let ends = |unit: &str| {
            self.name.strip_suffix(unit).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
        };
        match () {
            () if ends("bytes") => CounterUnit::Bytes,
            () if ends("ns") => CounterUnit::Nanoseconds,
            () => CounterUnit::Count,
        }
    }
}

/// Counters that are written together, made by [`counters!`](crate::counters!).
pub trait Group: Copy + Default + Send + Sync + 'static {
    /// The counters, in the order of the values.
    const COUNTERS: &'static [Counter];

    /// All of them 0.
    const ZERO: Self;

    /// Gives every value, in order.
    fn put(&self, put: impl FnMut(u64));

    /// Takes every value, in order.
    fn take(take: impl FnMut() -> u64) -> Self;
}

/// Declares a group of counters: `sum`, `gauge` or `highest` in front of each name, a line of help above it.
#[macro_export]
macro_rules! counters {
    ($(#[$outer:meta])* $vis:vis struct $group:ident { $($(#[doc = $doc:literal])+ $kind:ident $name:ident,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $group {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl $crate::counters::Group for $group {
            const COUNTERS: &'static [$crate::counters::Counter] = &[$($crate::counters::Counter {
                name: stringify!($name),
                help: concat!($($doc),+).trim_ascii(),
                kind: $crate::counters!(@kind $kind),
            },)+];

            const ZERO: Self = Self { $($name: 0,)+ };

            fn put(&self, mut put: impl FnMut(u64)) {
                $(put(self.$name);)+
            }

            fn take(mut take: impl FnMut() -> u64) -> Self {
                Self { $($name: take(),)+ }
            }
        }
    };
    (@kind sum) => { $crate::counters::CounterKind::Sum };
    (@kind gauge) => { $crate::counters::CounterKind::Gauge };
    (@kind highest) => { $crate::counters::CounterKind::Highest };
}

/// Where one thread publishes a group and others read it. Plain stores and loads: each value is right by itself, the values of one
/// reading may be one publication apart.
pub struct Sheet<G> {
    words: Box<[AtomicU64]>,
    group: PhantomData<fn() -> G>,
}

impl<G: Group> Default for Sheet<G> {
    fn default() -> Self {
        Self { words: G::COUNTERS.iter().map(|_| AtomicU64::new(0)).collect(), group: PhantomData }
    }
}

impl<G: Group> Sheet<G> {
    /// Publishes the current values of the group. Allocates nothing.
    pub fn publish(&self, group: &G) {
        let mut words = self.words.iter();
        group.put(|value| {
            if let Some(word) = words.next() {
                word.store(value, Ordering::Relaxed);
            }
        });
    }

    /// The group as it was published last.
    pub fn read(&self) -> G {
        let mut words = self.words.iter();
        G::take(|| words.next().map_or(0, |word| word.load(Ordering::Relaxed)))
    }
}

impl<G: Group + fmt::Debug> fmt::Debug for Sheet<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// The value of a counter at one moment.
#[derive(Clone, Copy, Debug)]
pub struct CounterSample<'a> {
    /// Part of the program: `engine`, `cache`...
    pub part: &'static str,
    /// Which of several: name and value of the label, such as `engine`, `0`.
    pub label: Option<(&'static str, &'a str)>,
    /// The counter's description.
    pub counter: &'static Counter,
    /// How far it is.
    pub value: u64,
}

type CounterSource = Box<dyn Fn(&mut dyn FnMut(CounterSample<'_>)) + Send + Sync>;

/// All counters of the program. Filled at the start; reading it never waits.
#[derive(Default)]
pub struct Registry {
    sources: Vec<CounterSource>,
}

impl Registry {
    /// Adds a group of `part`, with a label if there are several of them.
    pub fn add<G: Group>(
        &mut self,
        part: &'static str,
        label: Option<(&'static str, String)>,
        read: impl Fn() -> G + Send + Sync + 'static,
    ) {
        self.sources.push(Box::new(move |visit| {
            let label = label.as_ref().map(|(name, value)| (*name, value.as_str()));
            visit_group(part, label, &read(), visit);
        }));
    }

    /// Adds groups of `part` whose number is known only when they are read; each comes with the value of its label.
    pub fn add_all<G: Group>(
        &mut self,
        part: &'static str,
        label: &'static str,
        read: impl Fn() -> Vec<(String, G)> + Send + Sync + 'static,
    ) {
        self.sources.push(Box::new(move |visit| {
            for (value, group) in read() {
                visit_group(part, Some((label, &value)), &group, visit);
            }
        }));
    }

    /// Every counter with its value now: those of one group behind each other, in the order in which they were added.
    pub fn read(&self, visit: &mut dyn FnMut(CounterSample<'_>)) {
        for source in &self.sources {
            source(visit);
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        self.read(&mut |sample| {
            map.entry(&(sample.part, sample.label, sample.counter.name), &sample.value);
        });
        map.finish()
    }
}

fn visit_group<G: Group>(
    part: &'static str,
    label: Option<(&'static str, &str)>,
    group: &G,
    visit: &mut dyn FnMut(CounterSample<'_>),
) {
    let mut counters = G::COUNTERS.iter();
    group.put(|value| {
        if let Some(counter) = counters.next() {
            visit(CounterSample { part, label, counter, value });
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    counters! {
        /// For the tests.
        struct SampleCounters {
            /// Bytes sent,
            /// headers too.
            sum sent_bytes,
            /// Bytes.
            sum bytes,
            /// Now open.
            gauge open,
            /// Longest turn.
            highest longest_turn_ns,
            /// Lenses: no unit, although the name ends like one.
            sum lenns,
        }
    }

    #[test]
    fn counters_macro_derives_name_kind_unit_and_help() {
        let kinds: Vec<_> = SampleCounters::COUNTERS.iter().map(|c| (c.name, c.kind, c.unit())).collect();
        let expected = [
            ("sent_bytes", CounterKind::Sum, CounterUnit::Bytes),
            ("bytes", CounterKind::Sum, CounterUnit::Bytes),
            ("open", CounterKind::Gauge, CounterUnit::Count),
            ("longest_turn_ns", CounterKind::Highest, CounterUnit::Nanoseconds),
            ("lenns", CounterKind::Sum, CounterUnit::Count),
        ];
        assert_eq!(kinds, expected);
        assert_eq!(SampleCounters::COUNTERS[0].help, "Bytes sent, headers too.");
    }

    #[test]
    fn sheet_read_returns_last_published_counters() {
        let sheet = Sheet::<SampleCounters>::default();
        assert_eq!(sheet.read(), SampleCounters::default());
        let probe = SampleCounters { sent_bytes: 1, bytes: 2, open: 3, longest_turn_ns: 4, lenns: u64::MAX };
        sheet.publish(&probe);
        assert_eq!(sheet.read(), probe);
    }

    #[test]
    fn registry_read_yields_all_groups_with_their_labels() {
        let sheet = Arc::new(Sheet::<SampleCounters>::default());
        let mut registry = Registry::default();
        let shown = Arc::clone(&sheet);
        registry.add("engine", Some(("engine", "1".to_owned())), move || shown.read());
        registry.add_all("cache", "member", || {
            (0..2)
                .map(|member| {
                    (format!("m{member}"), SampleCounters { open: member, ..SampleCounters::default() })
                })
                .collect()
        });
        sheet.publish(&SampleCounters { bytes: 9, ..SampleCounters::default() });
        let mut found = Vec::new();
        registry.read(&mut |sample| {
            if sample.value > 0 {
                found.push((
                    sample.part,
                    sample.label.map(|(n, v)| format!("{n}={v}")),
                    sample.counter.name,
                    sample.value,
                ));
            }
        });
        assert_eq!(
            found,
            [
                ("engine", Some("engine=1".to_owned()), "bytes", 9),
                ("cache", Some("member=m1".to_owned()), "open", 1)
            ]
        );
    }
}

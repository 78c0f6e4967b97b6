//! `/metrics`: all counters, and figures about the process, in the text format of Prometheus (version 0.0.4).
//!
//! A counter's name is `millrace_`, its part, its name in `--stats`; times are in seconds there, as Prometheus has them, and sums end in `_total`.

use std::collections::HashMap;
use std::fmt::Write;

use millrace_core::counters::{Counter, CounterKind, CounterSample, CounterUnit};
use millrace_core::time::NS_PER_S;

use crate::answer::Answer;
use crate::process::write_process_metrics;
use crate::site::Site;

/// Media type of the format.
pub(crate) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All samples of one counter: the format wants them together, while each engine gives all its counters one after the other.
struct Family {
    name: String,
    counter: &'static Counter,
    samples: String,
}

pub(crate) fn answer(site: &dyn Site) -> Answer {
    let mut families: Vec<Family> = Vec::new();
    let mut places: HashMap<(&'static str, &'static str), usize> = HashMap::new();
    site.counters(&mut |sample| {
        let place = *places.entry((sample.part, sample.counter.name)).or_insert_with(|| {
            families.push(Family {
                name: name(sample.part, sample.counter),
                counter: sample.counter,
                samples: String::new(),
            });
            families.len() - 1
        });
        if let Some(family) = families.get_mut(place) {
            family.add(&sample);
        }
    });
    let mut text = String::new();
    for Family { name, counter, samples } in &families {
        let help = counter.help.replace('\\', "\\\\").replace('\n', " ");
        let kind = if counter.kind == CounterKind::Sum { "counter" } else { "gauge" };
        // Writing into a string does not fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
    }
    write_process_metrics(&mut text);
    Answer::new(200, TEXT, text).with("Cache-Control", "no-store")
}

impl Family {
    fn add(&mut self, sample: &CounterSample<'_>) {
        let _ = write!(self.samples, "{}", self.name);
        if let Some((label, value)) = sample.label {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.samples, "{{{label}=\"{value}\"}}");
        }
        let _ = match self.counter.unit() {
            CounterUnit::Nanoseconds => {
                writeln!(self.samples, " {}.{:09}", sample.value / NS_PER_S, sample.value % NS_PER_S)
            }
            CounterUnit::Count | CounterUnit::Bytes => writeln!(self.samples, " {}", sample.value),
        };
    }
}

/// Returns the name of a part's counter in that format.
pub fn name(part: &str, counter: &Counter) -> String {
    let name = match (counter.unit(), counter.name.strip_suffix("ns")) {
        (CounterUnit::Nanoseconds, Some(rest)) => format!("{rest}seconds"),
        _ => counter.name.to_owned(),
    };
    let total = if counter.kind == CounterKind::Sum { "_total" } else { "" };
    format!("millrace_{part}_{name}{total}")
}

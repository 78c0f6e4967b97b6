//! Transformations while the server runs: their counters, and the messages about them for the log.

use millrace_core::counters::Registry;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;
use millrace_store::transform::Transforms;

use crate::library::open_titles::OpenTitles;
use crate::limits::WASM_LOG_EVERY_NS;

/// Adds the counters of each.
pub(super) fn register(registry: &mut Registry, transforms: &Transforms) {
    let transforms = transforms.clone();
    registry.add_all("transforms", "transform", move || {
        transforms.iter().map(|named| (named.name().to_owned(), named.report().counters())).collect()
    });
}

/// Writes failures, and what modules say.
#[derive(Default)]
pub(super) struct TransformsWatch {
    /// When the next line of a module may be written.
    next_line: Instant,
}

impl TransformsWatch {
    /// Checks whether there is something to log.
    pub(super) fn look(&mut self, transforms: &Transforms, titles: &OpenTitles) {
        let now = MonotonicClock.now();
        for named in transforms.iter() {
            while let Some(failure) = named.report().take_failure(now) {
                let title = titles.name_of(failure.title).unwrap_or_else(|| failure.title.to_string());
                tracing::warn!(
                    "transformation {}: {title}: {}; the title was sent untransformed from TS packet {} on, and may be again",
                    named.name(),
                    failure.error,
                    failure.first_ts
                );
            }
        }
        if now < self.next_line {
            return;
        }
        if let Some((name, line)) =
            transforms.iter().find_map(|named| Some((named.name(), named.take_line()?)))
        {
            tracing::info!("transformation {name} says: {line}");
            self.next_line = now.plus_ns(WASM_LOG_EVERY_NS);
        }
    }
}

//! The allowed values of settings where the type alone does not determine them.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::ValueParser;
use millrace_core::limits;
use millrace_core::units::{BitRate, ByteLen, HumanDuration};

use crate::cmds::percent::Percent;

/// Settings that have a range, by the name of their field in `ServeArgs`.
#[cfg(test)]
pub(super) const IDS: [&str; 17] = [
    "cache",
    "web_memory",
    "engines",
    "max_streams",
    "max_streams_per_title",
    "streams_per_address",
    "max_rate",
    "max_busy",
    "session_timeout",
    "max_connections_per_address",
    "burst",
    "busy_burst",
    "fast_start",
    "upload_rate",
    "webhook_timeout",
    "library_interval",
    "settle",
];

/// A range: for the parser, and for people.
pub(super) struct Range {
    pub(super) parser: ValueParser,
    pub(super) text: String,
}

/// The range of a setting, if it has one.
pub(super) fn of(id: &str) -> Option<Range> {
    let time = |ns: u64| HumanDuration(Duration::from_nanos(ns));
    Some(match id {
        "cache" => from(ByteLen(limits::MIN_CACHE_BYTES), ""),
        "web_memory" => from(ByteLen(crate::limits::web::MIN_MEMORY_BYTES), ""),
        "engines" => between(1u8, limits::MAX_ENGINES),
        "max_streams" => between(1usize, limits::MAX_STREAMS_PER_ENGINE * usize::from(limits::MAX_ENGINES)),
        "max_rate" => from(BitRate(1), "; omit it for no limit"),
        "max_busy" => between(Percent(10.0), Percent(100.0)),
        "session_timeout" => {
            between(time(crate::limits::MIN_SESSION_TIMEOUT_NS), time(crate::limits::MAX_SESSION_TIMEOUT_NS))
        }
        "max_connections_per_address" | "max_streams_per_title" | "streams_per_address" => from(1usize, ""),
        "burst" | "busy_burst" => between(time(crate::limits::MIN_BURST_NS), time(limits::MAX_BURST_NS)),
        "fast_start" => between(time(0), time(u64::from(limits::MAX_AHEAD_MS) * 1_000_000)),
        "upload_rate" => from(BitRate(crate::limits::web::MIN_UPLOAD_RATE), ""),
        "webhook_timeout" => between(
            HumanDuration(crate::limits::MIN_ADVICE_TIME),
            HumanDuration(crate::limits::MAX_ADVICE_TIME),
        ),
        "library_interval" => between(
            HumanDuration(crate::limits::remote::MIN_LIBRARY_INTERVAL),
            HumanDuration(crate::limits::remote::MAX_LIBRARY_INTERVAL),
        ),
        "settle" => between(time(0), HumanDuration(crate::limits::control::MAX_SETTLE)),
        _ => return None,
    })
}

/// `advice` stands behind the allowed range when a value is refused.
fn from<T>(least: T, advice: &str) -> Range
where
    T: FromStr<Err: Display> + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    let text = format!("at least {least}");
    Range { parser: parser(format!("{text}{advice}"), move |value: &T| *value >= least), text }
}

fn between<T>(least: T, most: T) -> Range
where
    T: FromStr<Err: Display> + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    let text = format!("{least} to {most}");
    Range { parser: parser(text.clone(), move |value: &T| (least..=most).contains(value)), text }
}

fn parser<T>(text: String, is_allowed: impl Fn(&T) -> bool + Clone + Send + Sync + 'static) -> ValueParser
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    ValueParser::from(move |given: &str| -> Result<T, String> {
        let value: T = given.parse().map_err(|error: T::Err| error.to_string())?;
        if is_allowed(&value) { Ok(value) } else { Err(format!("got {given}, allowed: {text}")) }
    })
}

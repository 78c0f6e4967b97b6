//! `--stats FILE`: every counter of the server, once a second, for programs that watch it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use anyhow::Context;
use millrace_core::counters::{CounterSample, Registry};
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};
use serde_json::{Map, Value, json};

use crate::limits::control::{STATS_INTERVAL, STATS_LAST};

/// Writes until it is stopped. On a thread of its own: a disk that hangs holds up nothing else.
pub(crate) struct StatsFile {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl StatsFile {
    /// Starts.
    ///
    /// # Errors
    /// If the file cannot be written now.
    pub(crate) fn start(path: &Path, registry: &Arc<Registry>) -> anyhow::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let (end, ended) = channel();
        let mut file = StatsWriter {
            path: path.to_owned(),
            registry: Arc::clone(registry),
            started: MonotonicClock.now(),
            failed: false,
        };
        file.write().with_context(|| {
            format!("--stats {}: cannot be written; name a file in a directory that exists", path.display())
        })?;
        std::thread::Builder::new().name("stats".into()).spawn(move || {
            while stopped.recv_timeout(STATS_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                file.look();
            }
            file.look();
            drop(end);
        })?;
        Ok(Self { stop: Some(stop), ended })
    }

    /// Writes for the last time.
    pub(crate) fn stop(mut self) {
        drop(self.stop.take());
        // The thread signals its end by dropping the sender; the server does not wait for a disk
        // that hangs.
        let _ = self.ended.recv_timeout(STATS_LAST);
    }
}

struct StatsWriter {
    path: PathBuf,
    registry: Arc<Registry>,
    started: Instant,
    /// Whether the last writing failed.
    failed: bool,
}

impl StatsWriter {
    /// Writes the file; reports when this begins to fail and when it works again.
    fn look(&mut self) {
        let result = self.write();
        match (&result, self.failed) {
            (Err(error), false) => {
                tracing::warn!("--stats {}: cannot be written: {error}", self.path.display())
            }
            (Ok(()), true) => tracing::info!("--stats {}: is written again", self.path.display()),
            _ => {}
        }
        self.failed = result.is_err();
    }

    /// Writes a temporary file and renames it, so that a reader sees either the old file or the new
    /// one. The temporary name is new each time and an existing file is never opened: in a
    /// directory that is writable for others, they could place a link there.
    fn write(&self) -> std::io::Result<()> {
        let mut text = serde_json::to_vec(&document(&self.registry, self.started, MonotonicClock.now()))?;
        text.push(b'\n');
        let aside = self.aside();
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o644).open(&aside)?;
        let written = file.write_all(&text).and_then(|()| std::fs::rename(&aside, &self.path));
        // The disk is full, or a directory has the final name: report this error, not one of the
        // cleanup.
        written.inspect_err(|_| drop(std::fs::remove_file(&aside)))
    }

    /// A temporary name in the same directory, unique by process id and time.
    fn aside(&self) -> PathBuf {
        let mut aside = self.path.clone().into_os_string();
        aside.push(format!(".{}-{}.new", std::process::id(), MonotonicClock.now().0));
        aside.into()
    }
}

/// `{"at_unix_ms": …, "uptime_ms": …, "sessions": {…}, "engine": [{"engine": "0", …}, …], …}`
fn document(registry: &Registry, started: Instant, now: Instant) -> Value {
    let unix_ns = now.plus_ns(wall_offset_ns()).0;
    let mut parts = Map::new();
    parts.insert("at_unix_ms".to_owned(), json!(unix_ns / 1_000_000));
    parts.insert("uptime_ms".to_owned(), json!(now.ns_since(started) / 1_000_000));
    registry.read(&mut |sample| {
        if let Some(group) = group(&mut parts, &sample) {
            group.insert(sample.counter.name.to_owned(), json!(sample.value));
        }
    });
    Value::Object(parts)
}

/// Where a sample belongs.
fn group<'a>(
    parts: &'a mut Map<String, Value>,
    sample: &CounterSample<'_>,
) -> Option<&'a mut Map<String, Value>> {
    let Some((label, value)) = sample.label else {
        return parts.entry(sample.part).or_insert_with(|| Value::Object(Map::new())).as_object_mut();
    };
    let groups = parts.entry(sample.part).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
    // The counters of a group come behind each other: it is the last one, or a new one.
    let place = groups.iter().rposition(|group| group[label] == value);
    let place = place.unwrap_or_else(|| {
        groups.push(json!({ label: value }));
        groups.len() - 1
    });
    groups[place].as_object_mut()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use millrace_core::counters::{Counter, Group};
    use millrace_engine::EngineCounters;
    use millrace_offload::TxCounters;
    use millrace_offload::egress_select::{ChoiceCounters, PathCounters};
    use millrace_offload::load::LoadSnapshot;
    use millrace_offload::toe::{GateCounters, IpCounters, TcpCounters, ToeCounters};
    use millrace_rights::RightsCounters;
    use millrace_store::cache::{CacheStats, MemberFigures};
    use millrace_store::transform::TransformCounters;
    use millrace_tls::TlsCounters;
    use millrace_web::WebCounters;

    use super::*;

    millrace_core::counters! {
        /// For the tests.
        struct StatsProbe {
            /// Bytes.
            sum bytes,
            /// Open.
            gauge open,
        }
    }

    #[test]
    fn groups_are_objects_and_those_with_labels_stand_in_a_list() {
        let mut registry = Registry::default();
        registry.add("sessions", None, || StatsProbe { bytes: 1, open: 2 });
        registry.add("engine", Some(("engine", "0".to_owned())), || StatsProbe { bytes: 3, open: 4 });
        registry.add("engine", Some(("engine", "1".to_owned())), || StatsProbe { bytes: 5, open: 6 });
        let mut found = document(&registry, Instant(7), Instant(1_500_000_007));
        assert!(found["at_unix_ms"].take().is_u64());
        let expected = json!({
            "at_unix_ms": null, "uptime_ms": 1500, "sessions": { "bytes": 1, "open": 2 },
            "engine": [{ "engine": "0", "bytes": 3, "open": 4 }, { "engine": "1", "bytes": 5, "open": 6 }],
        });
        assert_eq!(found, expected);
    }

    /// The groups that `serve` and `engine` register, by their part; the reference is made of them.
    const PARTS: [(&str, &[Counter]); 21] = [
        ("sessions", crate::control::ServerCounters::COUNTERS),
        ("now", crate::control::ServerGauges::COUNTERS),
        ("web", WebCounters::COUNTERS),
        ("rights", RightsCounters::COUNTERS),
        ("tls", TlsCounters::COUNTERS),
        ("titles", crate::control::TitleCounters::COUNTERS),
        ("offload", ToeCounters::COUNTERS),
        ("offload_tcp", TcpCounters::COUNTERS),
        ("offload_ip", IpCounters::COUNTERS),
        ("offload_gate", GateCounters::COUNTERS),
        ("library", crate::cmds::serve::library::LibraryCounters::COUNTERS),
        ("made_on_use", crate::cmds::serve::maker::MadeOnUse::COUNTERS),
        ("loop", LoadSnapshot::COUNTERS),
        ("engine", EngineCounters::COUNTERS),
        ("sockets", TxCounters::COUNTERS),
        ("egress", ChoiceCounters::COUNTERS),
        ("paths", PathCounters::COUNTERS),
        ("cache", CacheStats::COUNTERS),
        ("members", MemberFigures::COUNTERS),
        ("transforms", TransformCounters::COUNTERS),
        ("live", crate::live::channel::LiveCounters::COUNTERS),
    ];

    #[test]
    fn counters_reference_matches_counter_tables() {
        let mut expected = String::new();
        for (part, counters) in PARTS {
            let mut names = HashSet::new();
            expected += &format!("\n## {part}\n\n| counter | kind | unit | |\n| --- | --- | --- | --- |\n");
            for counter in counters {
                assert!(names.insert(counter.name), "{part}: {} is there twice", counter.name);
                let (kind, unit) = (format!("{:?}", counter.kind), format!("{:?}", counter.unit()));
                let (name, help) = (counter.name, counter.help);
                expected +=
                    &format!("| `{name}` | {} | {} | {help} |\n", kind.to_lowercase(), unit.to_lowercase());
            }
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ref/counters.md");
        let document = std::fs::read_to_string(&path).unwrap();
        let tables = &document[document.find("\n## ").unwrap_or(document.len())..];
        assert!(tables == expected, "{}: the tables should be these:\n{expected}", path.display());
    }

    /// The words of a dashboard's queries that name something of ours.
    fn metrics_in(value: &Value, found: &mut HashSet<String>) {
        match value {
            Value::Object(fields) => fields.values().for_each(|value| metrics_in(value, found)),
            Value::Array(list) => list.iter().for_each(|value| metrics_in(value, found)),
            Value::String(text) => {
                let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                let is_ours = |word: &&str| word.starts_with("millrace_") || word.starts_with("process_");
                found.extend(words.filter(is_ours).map(str::to_owned));
            }
            _ => {}
        }
    }

    #[test]
    fn dashboard_and_alerts_query_only_existing_counters() {
        let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        let dashboard = serde_json::from_slice(&std::fs::read(guide.join("grafana.json")).unwrap()).unwrap();
        let rules = Value::String(std::fs::read_to_string(guide.join("alerts.yaml")).unwrap());
        let [mut asked, of_rules] = [dashboard, rules].map(|queries| {
            let mut asked = HashSet::new();
            metrics_in(&queries, &mut asked);
            asked
        });
        assert!(of_rules.len() > 20, "{of_rules:?}");
        asked.extend(of_rules);
        let there: HashSet<String> = PARTS
            .iter()
            .flat_map(|(part, counters)| {
                counters.iter().map(|counter| millrace_web::metric_name(part, counter))
            })
            .collect();
        // Of the process, not of a counter: crates/web/src/process.rs.
        let of_process =
            ["cpu_seconds_total", "start_time_seconds", "resident_memory_bytes", "open_fds", "max_fds"]
                .map(|name| format!("process_{name}"));
        let there: HashSet<String> = there.into_iter().chain(of_process).collect();
        let missing: Vec<_> = asked.difference(&there).collect();
        assert!(missing.is_empty() && asked.len() > 30, "{missing:?} of {}", asked.len());
    }

    #[test]
    fn file_that_cannot_be_replaced_leaves_nothing_aside_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("stats.json"), dir.path().join("victim"));
        std::fs::write(&victim, "as it was").unwrap();
        for link in ["stats.json", "stats.json.new"] {
            std::os::unix::fs::symlink(&victim, dir.path().join(link)).unwrap();
        }
        StatsFile::start(&path, &Arc::default()).unwrap().stop();
        assert_eq!(std::fs::read(&victim).unwrap(), b"as it was");
        assert!(path.symlink_metadata().unwrap().is_file());
        let taken = dir.path().join("taken");
        std::fs::create_dir(&taken).unwrap();
        StatsFile::start(&taken, &Arc::default()).err().unwrap();
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["stats.json", "stats.json.new", "taken", "victim"]);
    }

    #[test]
    fn stats_file_in_missing_directory_fails_at_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/stats.json");
        let error = StatsFile::start(&path, &Arc::default()).err().unwrap();
        assert!(
            format!("{error:#}").contains("--stats") && format!("{error:#}").contains("No such file"),
            "{error:#}"
        );
        let path = dir.path().join("stats.json");
        StatsFile::start(&path, &Arc::default()).unwrap().stop();
        let written: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(written["uptime_ms"].is_u64());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left aside");
    }
}

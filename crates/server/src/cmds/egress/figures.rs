//! The file that keeps the measurements, so that a restarted server knows them at once.
//!
//! Figures hold for an interface (name, address, driver, MTU), a kernel and a version of this program; when any of these changes,
//! they are not found. The file may be deleted at any time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_offload::egress_select::measure::{CostTable, TargetInterface};
use millrace_offload::egress_select::{Class, EgressPath};
use millrace_offload::features::DeviceFeatures;
use millrace_offload::xdp::Strategy;
use serde::{Deserialize, Serialize};

use super::measure::EgressFindings;
use crate::limits::control::{MAX_FIGURES, MAX_FIGURES_BYTES};

/// Layout of the file.
const VERSION: u32 = 1;

#[derive(Default, Deserialize, Serialize)]
struct File {
    version: u32,
    interfaces: Vec<SavedMeasurement>,
}

#[derive(Clone, Deserialize, PartialEq, Serialize)]
struct MeasurementKey {
    interface: String,
    mac: String,
    mtu: u32,
    driver: String,
    kernel: String,
    program: String,
}

#[derive(Deserialize, Serialize)]
struct SavedMeasurement {
    #[serde(flatten)]
    key: MeasurementKey,
    /// How the AF_XDP device sends.
    strategy: Option<String>,
    /// Nanoseconds a datagram, by length of burst and way.
    ns: BTreeMap<String, BTreeMap<String, f64>>,
}

/// The file, or none.
#[derive(Clone, Debug)]
pub(crate) struct FiguresFile {
    path: Option<PathBuf>,
}

impl FiguresFile {
    /// Without a path nothing is kept.
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the earlier measurement of an interface.
    pub(crate) fn find(&self, target: &TargetInterface) -> Option<EgressFindings> {
        let key = key(target);
        self.read().interfaces.into_iter().find(|entry| entry.key == key)?.outcome()
    }

    /// Stores a measurement. If it cannot be stored, the log reports this and the measurement is
    /// repeated next time.
    pub(crate) fn keep(&self, target: &TargetInterface, outcome: &EgressFindings) {
        let Some(path) = &self.path else { return };
        let key = key(target);
        let mut file = self.read();
        file.version = VERSION;
        file.interfaces.retain(|entry| entry.key.interface != key.interface);
        file.interfaces.push(SavedMeasurement::of(key, outcome));
        let surplus = file.interfaces.len().saturating_sub(MAX_FIGURES);
        file.interfaces.drain(..surplus);
        if let Err(error) = write(path, &file) {
            tracing::warn!(
                "{}: the measurements cannot be stored: {error}; they are repeated at the next start",
                path.display()
            );
        }
    }

    /// Empty if there is none, or none that can be read.
    fn read(&self) -> File {
        let Some(path) = &self.path else { return File::default() };
        let is_short =
            std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() <= MAX_FIGURES_BYTES);
        let bytes = if is_short { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
        parse(&bytes).unwrap_or_default()
    }
}

fn parse(bytes: &[u8]) -> Option<File> {
    serde_json::from_slice::<File>(bytes).ok().filter(|file| file.version == VERSION)
}

/// Aside first, then in its place: a reader sees the old file or the new one.
fn write(path: &Path, file: &File) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let aside = path.with_extension(format!("json.{}", std::process::id()));
    std::fs::write(&aside, serde_json::to_vec_pretty(file)?)?;
    std::fs::rename(&aside, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&aside);
    })
}

fn key(target: &TargetInterface) -> MeasurementKey {
    let uname = rustix::system::uname();
    MeasurementKey {
        interface: target.name.clone(),
        mac: target.mac.map(|byte| format!("{byte:02x}")).join(":"),
        mtu: target.mtu,
        driver: DeviceFeatures::of(&target.name).ok().and_then(|device| device.driver).unwrap_or_default(),
        kernel: uname.release().to_string_lossy().into_owned(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

impl SavedMeasurement {
    fn of(key: MeasurementKey, outcome: &EgressFindings) -> Self {
        let figures = |class| {
            let of_way = |way: EgressPath| Some((way.name().to_owned(), outcome.table.ns(class, way)?));
            EgressPath::ALL.into_iter().filter_map(of_way).collect::<BTreeMap<_, _>>()
        };
        let ns = Class::ALL.into_iter().map(|class| (class.name().to_owned(), figures(class))).collect();
        Self { key, strategy: outcome.strategy.map(|strategy| strategy.to_string()), ns }
    }

    /// `None` if there are no figures of the kernel's way, without which there is nothing to compare with.
    fn outcome(&self) -> Option<EgressFindings> {
        let mut table = CostTable::default();
        for class in Class::ALL {
            for (name, &ns) in self.ns.get(class.name()).into_iter().flatten() {
                if let Some(way) = EgressPath::from_name(name) {
                    table.set(class, way, ns);
                }
            }
        }
        let named = |name: &String| Strategy::ALL.into_iter().find(|strategy| strategy.to_string() == *name);
        let strategy = self.strategy.as_ref().and_then(named);
        table.has(EgressPath::Kernel).then_some(EgressFindings { table, strategy })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> TargetInterface {
        TargetInterface {
            name: name.into(),
            if_index: 3,
            mac: [2, 0, 0, 0, 0, 1],
            mtu: 1500,
            is_up: true,
            is_ethernet: true,
            addresses: vec![],
        }
    }

    fn outcome(ns: f64) -> EgressFindings {
        let mut table = CostTable::default();
        table.set(Class::One, EgressPath::Kernel, ns);
        table.set(Class::More, EgressPath::Xdp, 300.5);
        EgressFindings { table, strategy: Some(Strategy::ZeroCopyStaging) }
    }

    #[test]
    fn figures_file_find_returns_latest_entry_of_same_interface() {
        let dir = tempfile::tempdir().unwrap();
        let file = FiguresFile::new(Some(dir.path().join("deep/ways-out.json")));
        assert_eq!(file.find(&target("a")), None);
        file.keep(&target("a"), &outcome(1000.0));
        file.keep(&target("b"), &outcome(2000.0));
        file.keep(&target("a"), &outcome(1100.25));
        assert_eq!(file.find(&target("a")), Some(outcome(1100.25)));
        assert_eq!(file.find(&target("b")), Some(outcome(2000.0)));
        assert_eq!(file.find(&target("c")), None);
        assert_eq!(file.find(&TargetInterface { mtu: 9000, ..target("a") }), None, "another MTU");
        assert_eq!(file.find(&TargetInterface { mac: [4; 6], ..target("a") }), None, "another card");
        let names: Vec<_> = std::fs::read_dir(dir.path().join("deep")).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing is left aside");
        for n in 0..100 {
            file.keep(&target(&format!("veth{n}")), &outcome(1.0));
        }
        assert_eq!(file.read().interfaces.len(), MAX_FIGURES);
    }

    #[test]
    fn figures_file_with_invalid_content_is_ignored_and_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ways-out.json");
        let file = FiguresFile::new(Some(path.clone()));
        for text in ["", "{", "[]", r#"{"version":2,"interfaces":[]}"#, r#"{"version":1}"#] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.find(&target("a")), None, "{text}");
        }
        file.keep(&target("a"), &outcome(1.0));
        assert_eq!(file.find(&target("a")), Some(outcome(1.0)), "and is written again");
        FiguresFile::new(None).keep(&target("a"), &outcome(1.0));
    }

    #[test]
    fn parse_of_arbitrary_bytes_does_not_panic() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let outcomes =
                parse(bytes).map_or(0, |f| f.interfaces.iter().filter_map(SavedMeasurement::outcome).count());
            assert!(outcomes <= bytes.len());
        });
    }
}

//! `millrace doctor`: the features of this machine that a server can use, the features it lacks,
//! and the remedies.

mod checks;
mod engine;
mod serving;

use std::process::ExitCode;

use clap::Args;
use millrace_offload::egress_select::measure::TargetInterface;
use millrace_offload::egress_select::{Class, EgressPath};
use millrace_offload::features::DeviceFeatures;
use millrace_offload::probe::{Finding, Survey};
use serde_json::{Value, json};

use self::engine::OffloadEngine;
use super::egress::{EgressFindings, figures_file, measure_now, probe};

/// Report the features that this machine supports, those it lacks, and how to fix them
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace doctor\n  millrace doctor --measure eth0\n  millrace doctor --json\n\nIt only reports: the exit code \
                  is 0 also when things are missing, and 1 only if the report could not be made. Nothing is changed; \
                  --measure sends a few thousand packets that no other host takes."
)]
pub(super) struct DoctorArgs {
    /// Measure the cost per packet of each egress path of this interface now, and keep the figures for serve
    #[arg(long, value_name = "INTERFACE")]
    measure: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Everything that is reported.
struct DoctorReport {
    kernel: String,
    survey: Survey,
    interfaces: Vec<DeviceFeatures>,
    offload_engine: OffloadEngine,
    measured: Option<InterfaceMeasurement>,
}

/// The measurement of one interface.
struct InterfaceMeasurement {
    interface: String,
    outcome: EgressFindings,
    /// Why there is no AF_XDP, if there is none.
    no_xdp: Option<String>,
    /// The file that keeps it.
    kept_in: Option<String>,
}

/// Makes the report and prints it.
pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    // First: a slip of the pen should not have to wait.
    let measured = args.measure.as_deref().map(measured).transpose()?;
    let uname = rustix::system::uname();
    let targets = TargetInterface::all()?;
    let report = DoctorReport {
        kernel: format!("Linux {}", uname.release().to_string_lossy()),
        survey: checks::all(),
        interfaces: interfaces(&targets),
        offload_engine: OffloadEngine::look(&targets),
        measured,
    };
    if args.json {
        super::print_json(&report.json())?;
    } else {
        print!("{}", report.text());
    }
    Ok(ExitCode::SUCCESS)
}

fn measured(name: &str) -> anyhow::Result<InterfaceMeasurement> {
    let target = TargetInterface::of(name).map_err(|error| anyhow::anyhow!("--measure: {error}"))?;
    anyhow::ensure!(
        target.is_ethernet,
        "--measure: {name} is no Ethernet interface: packets sent to its own address would come back"
    );
    anyhow::ensure!(target.is_up, "--measure: {name} is down or has no carrier; see: ip link show {name}");
    let outcome = measure_now(&target).map_err(|why| anyhow::anyhow!("--measure: {why}"))?;
    let file = figures_file(None);
    file.keep(&target, &outcome);
    let kept_in = file.find(&target).and(file.path()).map(|path| path.display().to_string());
    let no_xdp = if outcome.strategy.is_none() { probe(name).err() } else { None };
    Ok(InterfaceMeasurement { interface: name.to_owned(), outcome, no_xdp, kept_in })
}

fn interfaces(all: &[TargetInterface]) -> Vec<DeviceFeatures> {
    let ethernet = all.iter().filter(|target| target.is_ethernet);
    // One may disappear between the list and the question.
    ethernet.filter_map(|target| DeviceFeatures::of(&target.name).ok()).collect()
}

/// Returns advice on an interface beyond its features: each point with its remedy.
fn advice(device: &DeviceFeatures) -> Vec<String> {
    let name = &device.name;
    let mut advice = Vec::new();
    if !device.is_up {
        advice.push(format!("it is down: ip link set {name} up"));
    }
    if device.offloads.is_some_and(|offloads| !offloads.gso) {
        advice.push(format!("bursts are cut early: ethtool -K {name} gso on"));
    }
    if device.offloads.is_some_and(|offloads| !offloads.udp_segmentation) {
        advice.push(format!(
            "bursts are cut by the processor; if the card can: ethtool -K {name} tx-udp-segmentation on"
        ));
    }
    if device.tx_queues.is_some_and(|queues| queues < 2) {
        advice.push("one queue to send: one engine can use AF_XDP on it".to_owned());
    }
    advice.push(format!("which egress path is best on it: millrace doctor --measure {name}"));
    advice
}

impl DoctorReport {
    fn text(&self) -> String {
        let mut text = format!("{}\n\n{}", self.kernel, self.survey);
        for device in &self.interfaces {
            text.push_str(&format!("\n{device}"));
            for line in advice(device) {
                text.push_str(&format!("  -> {line}\n"));
            }
        }
        text.push_str(&self.offload_engine.text());
        if let Some(measured) = &self.measured {
            text.push_str(&measured.text());
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "kernel": self.kernel,
            "checks": self.survey.findings.iter().map(finding_json).collect::<Vec<_>>(),
            "interfaces": self.interfaces.iter().map(device_json).collect::<Vec<_>>(),
            "offload_engine": self.offload_engine.json(),
            "measured": self.measured.as_ref().map(InterfaceMeasurement::json),
        })
    }
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "name": finding.name,
        "works": finding.works,
        "detail": finding.detail,
        "use_for": finding.use_for,
        "remedy": (!finding.works).then_some(finding.remedy),
    })
}

fn device_json(device: &DeviceFeatures) -> Value {
    json!({
        "name": device.name,
        "driver": device.driver,
        "mtu": device.mtu,
        "is_up": device.is_up,
        "has_carrier": device.has_carrier,
        "rx_queues": device.rx_queues,
        "tx_queues": device.tx_queues,
        "xdp": device.xdp_features.map(|features| features.to_string()),
        "xdp_zero_copy": device.xdp_features.map(|features| features.is_zero_copy()),
        "xdp_zero_copy_segments": device.zc_max_segs,
        "udp_segmentation": device.offloads.map(|offloads| offloads.udp_segmentation),
        "tcp_segmentation": device.offloads.map(|offloads| offloads.tso),
        "checksums": device.offloads.map(|offloads| offloads.checksum),
        "advice": advice(device),
    })
}

impl InterfaceMeasurement {
    fn text(&self) -> String {
        let EgressFindings { table, strategy } = &self.outcome;
        let no_xdp = || self.no_xdp.clone().unwrap_or_else(|| "not possible".to_owned());
        let strategy = strategy.map_or_else(no_xdp, |strategy| strategy.to_string());
        let kept = self.kept_in.as_ref().map_or_else(String::new, |path| format!("kept in {path}\n"));
        format!(
            "\n{}: nanoseconds of processor time a packet of 1328 bytes, by length of burst\nAF_XDP: {strategy}\n\n{table}\nplan: {}\n{kept}\
             to use it: millrace serve --xdp-interface {}\n",
            self.interface,
            table.plan(),
            self.interface
        )
    }

    fn json(&self) -> Value {
        let EgressFindings { table, strategy } = &self.outcome;
        let plan = table.plan();
        let row = |class: Class| {
            let ns: serde_json::Map<String, Value> = EgressPath::ALL
                .into_iter()
                .map(|way| (way.name().to_owned(), json!(table.ns(class, way))))
                .collect();
            json!({ "burst": class.name(), "ns": ns, "best": plan.way(class).name() })
        };
        json!({
            "interface": self.interface,
            "no_xdp": self.no_xdp,
            "xdp_strategy": strategy.map(|strategy| strategy.to_string()),
            "rows": Class::ALL.map(row),
            "plan": plan.to_string(),
            "kept_in": self.kept_in,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_offload::egress_select::measure::CostTable;

    fn report() -> DoctorReport {
        let mut table = CostTable::default();
        table.set(Class::One, EgressPath::Kernel, 1000.0);
        table.set(Class::One, EgressPath::Xdp, 500.0);
        let missing = Finding {
            name: "wings",
            works: false,
            detail: "none found".into(),
            use_for: "flying",
            remedy: "grow some",
        };
        let device = DeviceFeatures::of("lo").unwrap();
        DoctorReport {
            kernel: "Linux 9.9".into(),
            survey: Survey { findings: vec![missing] },
            interfaces: vec![DeviceFeatures { name: "eth9".into(), is_up: false, ..device }],
            offload_engine: OffloadEngine::look(&[]),
            measured: Some(InterfaceMeasurement {
                interface: "eth9".into(),
                outcome: EgressFindings { table, strategy: None },
                no_xdp: Some("no luck".into()),
                kept_in: Some("/x/y.json".into()),
            }),
        }
    }

    #[test]
    fn report_text_lists_missing_features_and_remedies() {
        let text = report().text();
        for part in [
            "Linux 9.9",
            "wings  no   none found (flying)",
            "-> grow some",
            "-> it is down: ip link set eth9 up",
            "(millrace engine, serve --tcp engine): at no interface now",
            "millrace doctor --measure eth9",
            "500 ns  xdp",
            "AF_XDP: no luck",
            "plan: 1 xdp, 2+ kernel",
            "kept in /x/y.json",
            "millrace serve --xdp-interface eth9",
        ] {
            assert!(text.contains(part), "no \"{part}\" in:\n{text}");
        }
    }

    #[test]
    fn report_json_carries_same_findings_as_text() {
        let json = report().json();
        assert_eq!(json["checks"][0]["works"], false);
        assert_eq!(json["checks"][0]["remedy"], "grow some");
        assert_eq!(json["interfaces"][0]["name"], "eth9");
        assert_eq!(json["offload_engine"]["works"], false);
        assert_eq!(json["measured"]["rows"][0]["ns"]["xdp"], 500.0);
        assert_eq!(json["measured"]["rows"][0]["best"], "xdp");
        assert!(json["measured"]["rows"][5]["ns"]["kernel"].is_null());
        assert_eq!(json["measured"]["plan"], "1 xdp, 2+ kernel");
    }

    #[test]
    fn checks_have_unique_names_and_remedies() {
        let survey = checks::all();
        assert!(survey.findings.len() >= 14, "{survey}");
        let mut names = std::collections::HashSet::new();
        for finding in &survey.findings {
            assert!(names.insert(finding.name), "{} twice", finding.name);
            assert!(!finding.remedy.is_empty() && !finding.detail.is_empty(), "{finding:?}");
        }
    }
}

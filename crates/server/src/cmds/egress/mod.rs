//! The egress paths that the server uses, and the bursts that it uses them for: kernel sockets, and
//! AF_XDP devices on the configured interfaces. Why these rules: `docs/design/0007-egress-path.md`.
//!
//! | file | holds |
//! | --- | --- |
//! | here | settings, and the decision for each interface |
//! | `measure` | the self-measurement of one interface |
//! | `figures` | the file that keeps the measurements |
//! | `devices` | opening devices, at the start and again later |

pub(crate) mod devices;
mod figures;
mod measure;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use clap::{Args, ValueEnum};
use millrace_offload::egress_select::measure::TargetInterface;
use millrace_offload::egress_select::{Class, DeviceClass, EgressPath, EgressPlan, MAX_DEVICES};
use millrace_offload::features::DeviceFeatures;
use millrace_offload::xdp::Strategy;

pub(crate) use self::figures::FiguresFile;
pub(crate) use self::measure::{EgressFindings, measure_now, probe};

/// Settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Network")]
pub(crate) struct EgressArgs {
    /// How UDP packets are sent: auto (kernel sockets; AF_XDP on the interfaces given with --xdp-interface,
    /// where it was measured to be cheaper), kernel (never AF_XDP), xdp (AF_XDP for everything it can send)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub(crate) backend: BackendChoice,
    /// Interface on which AF_XDP may be used to send to viewers; up to four. Needs CAP_NET_RAW and CAP_NET_ADMIN
    #[arg(long = "xdp-interface", value_name = "INTERFACE", value_delimiter = ',')]
    pub(crate) xdp_interfaces: Vec<String>,
    /// When to measure the cost per packet of each egress path: once per interface (remembered), or again
    #[arg(long, value_name = "WHEN", default_value = "once")]
    pub(crate) measure: MeasureChoice,
}

/// How packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendChoice {
    /// The best path.
    Auto,
    /// Kernel sockets.
    Kernel,
    /// AF_XDP where it can.
    Xdp,
}

/// When to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasureChoice {
    /// If there are no figures yet.
    Once,
    /// In any case.
    Again,
}

impl EgressArgs {
    /// Checks the conditions that the types cannot express.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let named = self.xdp_interfaces.len();
        ensure!(
            self.backend != BackendChoice::Xdp || named > 0,
            "--backend xdp: name the interface that the viewers are behind, for example --xdp-interface eth0"
        );
        ensure!(
            self.backend != BackendChoice::Kernel || named == 0,
            "--xdp-interface: has no effect with --backend kernel; omit one of them"
        );
        ensure!(named <= MAX_DEVICES, "--xdp-interface: got {named}, at most {MAX_DEVICES}");
        for (place, name) in self.xdp_interfaces.iter().enumerate() {
            ensure!(!self.xdp_interfaces[..place].contains(name), "--xdp-interface: {name} is named twice");
        }
        Ok(())
    }
}

/// An interface with an AF_XDP device for each engine.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    /// Its name.
    pub(crate) name: String,
    /// When to use it.
    pub(crate) plan: EgressPlan,
    /// How it sends, if that is known.
    pub(crate) strategy: Option<Strategy>,
}

impl Interface {
    /// Whether its frames refer to the cache's memory.
    pub(crate) fn is_chained(&self) -> bool {
        self.strategy.is_some_and(Strategy::is_chained)
    }
}

/// The decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Egress {
    /// For viewers whom no device reaches.
    pub(crate) base: EgressPlan,
    /// Devices.
    pub(crate) interfaces: Vec<Interface>,
}

impl Egress {
    /// Decides, and logs the decision. Whatever goes wrong with AF_XDP, the kernel's sockets
    /// remain.
    ///
    /// # Errors
    /// If an interface does not exist: a slip of the pen.
    pub(crate) fn decide(args: &EgressArgs, file: &FiguresFile, listen: IpAddr) -> anyhow::Result<Self> {
        args.check()?;
        let mut egress = Self::default();
        let mut bases = Vec::new();
        for name in &args.xdp_interfaces {
            let target =
                TargetInterface::of(name).map_err(|error| anyhow::anyhow!("--xdp-interface: {error}"))?;
            if let Some(why) = unfit(&target, listen) {
                tracing::warn!("{name}: using kernel sockets instead of AF_XDP: {why}");
                continue;
            }
            match args.backend {
                BackendChoice::Kernel => {}
                BackendChoice::Xdp => egress.interfaces.extend(forced(&target)),
                BackendChoice::Auto => {
                    let again = args.measure == MeasureChoice::Again;
                    let (base, interface) = best(&target, file, again);
                    bases.extend(base);
                    egress.interfaces.extend(interface);
                }
            }
        }
        if args.xdp_interfaces.is_empty() {
            tracing::info!("packets leave by kernel sockets");
        }
        egress.base = agreement(&bases);
        if egress.base != EgressPlan::default() {
            tracing::info!("viewers behind other interfaces: {}", egress.base);
        }
        Ok(egress)
    }

    /// Gives up AF_XDP.
    pub(crate) fn without_devices(self, why: &str) -> Self {
        if !self.interfaces.is_empty() {
            tracing::warn!("using kernel sockets instead of AF_XDP: {why}");
        }
        Self { base: self.base, interfaces: Vec::new() }
    }
}

/// Why an interface is not for AF_XDP, whatever its driver.
fn unfit(target: &TargetInterface, listen: IpAddr) -> Option<String> {
    if !target.is_ethernet {
        return Some("it is no Ethernet interface".to_owned());
    }
    if listen.is_unspecified() {
        return None;
    }
    // Viewers expect packets from the address that they spoke to; frames get the one that the kernel's routes say.
    let same_family = target.addresses.iter().filter(|a| a.is_ipv4() == listen.is_ipv4());
    let others = same_family.filter(|address| **address != listen).count();
    let is_on_it = target.addresses.contains(&listen);
    (!is_on_it || others > 0).then(|| {
        format!("--listen {listen} is not the only address of that interface, so packets might come from another one")
    })
}

/// `--backend xdp`: everything that can.
fn forced(target: &TargetInterface) -> Option<Interface> {
    let plan = EgressPlan::all(EgressPath::Xdp);
    let name = target.name.clone();
    if !target.is_up {
        tracing::warn!("{name}: is down or has no carrier; AF_XDP will be used when it is up");
        return Some(Interface { name, plan, strategy: None });
    }
    match probe(&target.name) {
        Ok(strategy) => {
            tracing::info!("{name}: AF_XDP ({strategy}), {plan}, as requested by --backend xdp");
            Some(Interface { name, plan, strategy: Some(strategy) })
        }
        Err(why) => {
            tracing::warn!("{name}: using kernel sockets instead of AF_XDP: {why}");
            None
        }
    }
}

/// `--backend auto` for a named interface: by measurement, or by the kind of device where that cannot be.
fn best(
    target: &TargetInterface,
    file: &FiguresFile,
    again: bool,
) -> (Option<EgressPlan>, Option<Interface>) {
    let name = target.name.clone();
    let (outcome, from) = match file.find(target).filter(|_| !again) {
        Some(outcome) => (Ok(outcome), "measured before"),
        None if target.is_up => (measure_now(target), "measured now"),
        None => (Err("it is down or has no carrier".to_owned()), ""),
    };
    let EgressFindings { table, strategy } = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return (None, unmeasured(target, &why)),
    };
    if from == "measured now" {
        file.keep(target, &EgressFindings { table, strategy });
    }
    let plan = table.plan();
    for line in table.to_string().lines() {
        tracing::debug!("{name}: {line}");
    }
    let base = Some(table.plan_of_kernel());
    match strategy {
        Some(strategy) if plan.uses(EgressPath::Xdp) => {
            tracing::info!("{name}: AF_XDP ({strategy}), {plan}, {from}");
            (base, Some(Interface { name, plan, strategy: Some(strategy) }))
        }
        _ => {
            tracing::info!("{name}: {plan}, {from}; AF_XDP is not used");
            (base, None)
        }
    }
}

/// Handles a named interface without measurements.
fn unmeasured(target: &TargetInterface, why: &str) -> Option<Interface> {
    let name = target.name.clone();
    if !target.is_up {
        let plan = EgressPlan::default_for(DeviceClass::Copy);
        tracing::warn!("{name}: {why}; AF_XDP will be used when it is up: {plan}");
        return Some(Interface { name, plan, strategy: None });
    }
    match probe(&target.name) {
        Ok(strategy) => {
            let plan = EgressPlan::default_for(class_of(&name, strategy));
            tracing::info!(
                "{name}: AF_XDP ({strategy}), {plan}, usual for such a device; not measured: {why}"
            );
            Some(Interface { name, plan, strategy: Some(strategy) })
        }
        Err(why) => {
            tracing::warn!("{name}: using kernel sockets instead of AF_XDP: {why}");
            None
        }
    }
}

/// What kind of device it is.
pub(crate) fn class_of(interface: &str, strategy: Strategy) -> DeviceClass {
    let offloads = DeviceFeatures::of(interface).ok().and_then(|device| device.offloads);
    match offloads {
        _ if strategy.is_zero_copy() => DeviceClass::ZeroCopy,
        Some(offloads) if offloads.udp_segmentation => DeviceClass::CopySegmenting,
        _ => DeviceClass::Copy,
    }
}

/// What all plans say; the kernel's plain way where they differ.
fn agreement(plans: &[EgressPlan]) -> EgressPlan {
    let Some((first, others)) = plans.split_first() else { return EgressPlan::default() };
    EgressPlan(Class::ALL.map(|class| {
        let way = first.way(class);
        if others.iter().all(|plan| plan.way(class) == way) { way } else { EgressPath::Kernel }
    }))
}

/// The file of figures: in the user's cache directory, else in the store.
pub(crate) fn figures_file(store: Option<&Path>) -> FiguresFile {
    let dir = figures_dir().or_else(|| store.map(Path::to_path_buf));
    FiguresFile::new(dir.map(|dir| dir.join("ways-out.json")))
}

/// The user's cache directory.
pub(crate) fn figures_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("XDG_CACHE_HOME")
        .or_else(|| var("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("millrace"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(backend: BackendChoice, names: &[&str]) -> EgressArgs {
        let xdp_interfaces = names.iter().map(|&name| name.to_owned()).collect();
        EgressArgs { backend, xdp_interfaces, measure: MeasureChoice::Once }
    }

    fn target(addresses: &[&str]) -> TargetInterface {
        TargetInterface {
            name: "eth9".into(),
            if_index: 9,
            mac: [2; 6],
            mtu: 1500,
            is_up: true,
            is_ethernet: true,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        use BackendChoice::{Auto, Kernel, Xdp};
        let error = |args: EgressArgs| args.check().unwrap_err().to_string();
        assert!(error(args(Xdp, &[])).contains("--xdp-interface eth0"));
        assert!(error(args(Kernel, &["a"])).contains("no effect"));
        assert!(error(args(Auto, &["a", "b", "c", "d", "e"])).contains("got 5, at most 4"));
        assert!(error(args(Auto, &["a", "b", "a"])).contains("a is named twice"));
        assert!(args(Auto, &[]).check().is_ok() && args(Xdp, &["a", "b"]).check().is_ok());
    }

    #[test]
    fn decide_without_interface_uses_kernel_path() {
        let egress =
            Egress::decide(&args(BackendChoice::Auto, &[]), &FiguresFile::new(None), [0; 16].into()).unwrap();
        assert!(egress.interfaces.is_empty() && egress.base == EgressPlan::all(EgressPath::Kernel));
    }

    #[test]
    fn decide_rejects_unknown_interface_and_ignores_loopback() {
        let file = FiguresFile::new(None);
        let any = IpAddr::from([0; 4]);
        let error =
            Egress::decide(&args(BackendChoice::Auto, &["eht0"]), &file, any).unwrap_err().to_string();
        assert!(
            error.starts_with("--xdp-interface: eht0: no such interface") && error.contains("lo"),
            "{error}"
        );
        let egress = Egress::decide(&args(BackendChoice::Xdp, &["lo"]), &file, any).unwrap();
        assert!(egress.interfaces.is_empty());
    }

    #[test]
    fn packets_must_come_from_the_address_that_was_spoken_to() {
        let any = IpAddr::from([0u16; 8]);
        let own = IpAddr::from([10, 0, 0, 5]);
        assert_eq!(unfit(&target(&["10.0.0.5", "10.0.0.6"]), any), None);
        assert_eq!(unfit(&target(&["10.0.0.5", "fd00::5"]), own), None);
        assert!(unfit(&target(&["10.0.0.5", "10.0.0.6"]), own).is_some_and(|why| why.contains("10.0.0.5")));
        assert!(unfit(&target(&["10.0.0.6"]), own).is_some());
    }

    #[test]
    fn interfaces_that_disagree_leave_it_to_the_plain_way() {
        use EgressPath::{Kernel, KernelZeroCopy};
        let a = EgressPlan([Kernel, Kernel, Kernel, Kernel, KernelZeroCopy, KernelZeroCopy]);
        let b = EgressPlan([Kernel, Kernel, Kernel, Kernel, Kernel, KernelZeroCopy]);
        assert_eq!(agreement(&[]), EgressPlan::default());
        assert_eq!(agreement(&[a]), a);
        assert_eq!(agreement(&[a, b]), b);
    }
}

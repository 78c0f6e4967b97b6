//! Work of a host's processor for TCP: this kernel's, and the offload engine's (TOAD 2004, tables I
//! and II; its perturbation test; its future work).
//!
//! Two hosts are joined by a veth pair. The measured one sends or receives by the kernel's sockets or by the engine's, which has the pair by AF_XDP; the
//! other one always has the kernel's. Nothing is left to a card that a veth pair does not have: packets are cut and summed by processors, for
//! both. Received packets are processed by a kernel thread for each end of the pair (threaded NAPI), so that the time that the kernel's TCP takes
//! for them is that of a thread which can be pinned and read. All loads are processor time over bytes, in percents of one processor for each Gb/s.
//!
//! | file | holds |
//! | --- | --- |
//! | `rig` | the hosts, which processor does what, clocks |
//! | `work` | one connection in chunks |
//! | `tables` | contenders, and the two tables |
//! | `split` | copy, protocol, driver: by samples |
//! | `copies` | the copy alone |
//! | `lent` | chunks without a copy |
//! | `mtu`, `perturb`, `calls` | larger packets; memory copies beside the engine; short connections, requests |

mod calls;
mod copies;
mod lent;
mod mtu;
pub(super) mod peer;
mod perturb;
pub(super) mod rig;
mod split;
mod tables;
mod work;

use anyhow::ensure;

use self::rig::ToeRig;
use self::tables::{CONTENDERS, COPY, POLLING, TableTurn, judged};
use self::work::TransferDirection;
use crate::frame::{Bench, Need, NoiseMeter, Options, Promise, Report, Row, Turns};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "toe",
    shows: "what sending and receiving by TCP takes of a host's processor, by this kernel's TCP and by the offload engine; memory copies beside the engine; short connections and requests",
    not_for: "the speed of a network card: the hosts are joined by a veth pair, which AF_XDP copies to and from, and share processors with their peers",
    options: &["runs", "only", "tun", "quick"],
    targets: &[
        "toe-send-driver",
        "toe-receive-driver",
        "toe-send-lent",
        "toe-receive-lent",
        "toe-send-ahead",
        "toe-receive-ahead",
        "toe-send-total",
        "toe-receive-total",
        "toe-mtu",
    ],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
    ],
    run,
};

/// Parts that `--only` names.
const PARTS: [&str; 5] = ["copies", "tables", "mtu", "perturbation", "calls"];
pub(super) const MTU: u32 = 1500;
/// The host's load, relative to a plain copy of the same bytes, sending and receiving: as in the paper's tables.
const DRIVER: [f64; 2] = [1.22, 1.2];
/// The same where nothing is copied: about 0 from leased extents.
const LENT: [f64; 2] = [0.33, 0.5];
/// How far the host is ahead of the kernel's TCP, sending and receiving.
const AHEAD: [f64; 2] = [7.0, 10.0];
/// All processors of the measured host, beside those of the kernel's TCP.
const TOTAL: f64 = 1.5;
/// The paper's tables: load, and the copy's part of it.
const PAPER: [(&str, f64, f64); 6] = [
    ("paper, send: Solaris", 81.0, 9.0),
    ("paper, receive: Solaris", 134.0, 22.0),
    ("paper, send, 128 KB: engine", 11.0, 9.0),
    ("paper, send, 8 KB: engine", 14.0, 10.0),
    ("paper, receive, 128 KB: engine", 12.0, 10.0),
    ("paper, receive, 8 KB: engine", 24.0, 10.0),
];

fn run(options: &Options) -> anyhow::Result<Report> {
    let unknown = options.only.iter().find(|part| !PARTS.contains(&part.as_str()));
    ensure!(
        unknown.is_none(),
        "--only {}: the parts of bench toe are {}",
        unknown.map_or("", |part| part),
        PARTS.join(", ")
    );
    let wants = |part: &str| options.only.is_empty() || options.only.iter().any(|only| only == part);
    let mut report = Report::new("toe");
    let mut noise = NoiseMeter::start();
    let mut rig = ToeRig::lay(MTU)?;
    let tun = options.tun || falls_back(&mut rig, &mut report);
    report.rows.push(Row::new(format!(
        "engine by {}; veth pair, MTU {MTU}: segmentation and checksums by the processors for all (GSO: cut behind the stack); threaded NAPI at both ends; buffers of 64 MB",
        if tun { "a TUN device: the host's kernel forwards what it sends on the engine's thread, and what it receives on the one of the interface" } else { "AF_XDP" }
    )));
    if wants("copies") {
        tables::copies(options, &mut report)?;
    }
    if wants("tables") {
        for (name, host, copy) in PAPER {
            report.rows.push(Row::new(name).with("host", host, "% a Gb/s").with(
                "of that the copy",
                copy,
                "% a Gb/s",
            ));
        }
        tables::run(options, tun, &mut rig, &mut report, &mut noise)?;
    }
    if wants("mtu") && !tun {
        mtu::run(options, &mut rig, &mut report, &mut noise)?;
    }
    if wants("perturbation") {
        perturb::run(options, tun, &mut rig, &mut report, &mut noise)?;
    }
    if wants("calls") {
        calls::run(options, tun, &mut rig, &mut report, &mut noise)?;
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

/// Returns whether AF_XDP is missing here; the reason goes into the report.
pub(super) fn falls_back(rig: &mut ToeRig, report: &mut Report) -> bool {
    match rig.engine(false, |_| ()) {
        Ok(_) => false,
        Err(error) => {
            report.rows.push(Row::new(format!("no AF_XDP here, so by a TUN device: {error:#}")));
            true
        }
    }
}

/// The targets of one way, from the turns with large chunks.
fn judge(way: TransferDirection, seen: &Turns<TableTurn>) -> Vec<Promise> {
    let at = TransferDirection::BOTH.iter().position(|one| *one == way).unwrap_or_default();
    let [copying, lent] = judged().map(tables::index);
    let name = |what: &str| format!("toe-{}-{what}", way.name());
    let best = |load: fn(&TableTurn) -> f64| {
        let kernels = (0..COPY).filter(|at| CONTENDERS[*at].is_kernel());
        kernels.min_by(|a, b| seen.median(*a, load).total_cmp(&seen.median(*b, load))).unwrap_or_default()
    };
    let ratio = |of: usize, over: usize, load: fn(&TableTurn) -> f64| seen.ratio(of, over, load);
    let (host, total) = (|turn: &TableTurn| turn.host, |turn: &TableTurn| turn.total);
    vec![
        Promise::at_most(&name("driver"), ratio(copying, COPY, host), DRIVER[at], "of a plain copy"),
        Promise::at_least(&name("ahead"), ratio(best(host), copying, host), AHEAD[at], "times"),
        Promise::at_most(&name("lent"), ratio(lent, COPY, host), LENT[at], "of a plain copy"),
        Promise::at_most(
            &name("total"),
            ratio(tables::index(POLLING), best(total), total),
            TOTAL,
            "of the kernel's",
        ),
    ]
}

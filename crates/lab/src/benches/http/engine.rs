//! HTTP by a TCP of our own (`serve --tcp engine`) beside HTTP by the kernel's: the same segments, from memory, as fast as they are taken.
//!
//! Each server has two hosts of its own, so that neither interface has more attached than the one
//! server needs. No segmentation is offloaded, as with AF_XDP; the kernel's TCP is measured once
//! more with GSO, where it hands trains down and they are cut behind it. A kernel thread for each
//! end of a pair (threaded NAPI) processes received packets: the thread of the server's end counts
//! as the server's time, like the server's own threads, with either TCP, and none of it counts as
//! the clients' time.
//!
//! ```text
//!   server's core                          clients' core
//!   serve ── kernel's TCP, or ours ─┐    ┌─ kernel's TCP ── clients
//!                       napi thread ╘════╛ napi thread
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::fetch::{FetchClient, Shop};
use super::{Contender, Fetched, ServerTurn, compare, cpu_ns, ratio, rounds, rows, segments, while_fetching};
use crate::benches::toe::rig::{
    ENGINE_IP, Offload, PEER, Places, ToeRig, become_, softirq_thread, thread_ns,
};
use crate::benches::toe::{MTU, falls_back};
use crate::capacity::media_files::MediaFiles;
use crate::capacity::meter::Usage;
use crate::capacity::site::Group;
use crate::frame::{NoiseMeter, Options, Promise, Report};
use crate::netns::SERVER_IP;
use crate::peers;
use crate::proc::ThreadTimes;
use crate::tcp_host::{KERNEL_IP, OUR_IP};

/// The part's name.
pub(super) const PART: &str = "engine";
/// Ours against the kernel's TCP, in bytes a processor second.
const RATIO_BOUND: f64 = 0.8;
/// Default HTTP port, which the offload engine has too.
const PORT: u16 = 8080;
const RTSP_PORT: u16 = 8554;
/// The TUN device of a server whose engine has one. The kernel forwards for it.
const TUN: &str = "mill0";
/// Within which a server answers, and then comes to rest.
const START: Duration = Duration::from_secs(20);
/// A server that has used less of this is at rest. When it has started it goes on with its cache's memory for a second.
const LOOK: Duration = Duration::from_millis(50);
const REST_NS: u64 = LOOK.as_nanos() as u64 / 10;
/// Threads of the server; the kernel's work for it beside them, at its interface and on its
/// processor; and the threads that take the data it sends.
const THREADS: [&str; 6] = ["engine", "web", "control", "interface", "soft interrupts", "clients"];

/// A running server, and the hosts that it and its clients are on.
struct Server {
    // It ends before its host.
    group: Group,
    rig: ToeRig,
    at: SocketAddr,
}

/// One measurement: a server, and the kind of segmentation at its interface.
struct Case {
    name: &'static str,
    server: usize,
    offload: Offload,
}

/// All of it.
pub(super) fn run(
    options: &Options,
    dir: &Path,
    files: &MediaFiles,
    noise: &mut NoiseMeter,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut rig = ToeRig::lay(MTU)?;
    let is_at_tun = options.tun || falls_back(&mut rig, report);
    options.say("starting two servers");
    let by_engine = Server::start(options, dir, files, rig, Some(is_at_tun))?;
    let by_kernel = Server::start(options, dir, files, ToeRig::lay(MTU)?, None)?;
    let servers = [by_engine, by_kernel];
    let shops = shops(&servers)?;
    let ours = if is_at_tun { "our TCP at a TUN device" } else { "our TCP by AF_XDP" };
    let cases = [
        Case { name: ours, server: 0, offload: Offload::Off },
        Case { name: "the kernel's TCP", server: 1, offload: Offload::Off },
        Case { name: "the kernel's TCP with GSO", server: 1, offload: Offload::Software },
    ];
    let contenders = cases.each_ref().map(|case| Contender {
        name: case.name,
        group: servers[case.server].group.id(),
        shop: shops[case.server].clone(),
        threads: &THREADS,
    });
    let turn =
        |at: usize, length| turn(&servers[cases[at].server], cases[at].offload, &contenders[at], length);
    let (turns, confidence) = rounds(options, PART, (contenders.len(), Some(RATIO_BOUND)), turn, noise)?;
    for (contender, turns) in contenders.iter().zip(&turns) {
        report.rows.extend(rows(PART, contender, turns));
    }
    for (case, turns_of_it) in cases.iter().zip(&turns).skip(1) {
        report.rows.push(compare(PART, ours, case.name, &turns[0], turns_of_it));
    }
    let ratio = ratio(&turns[0], &turns[1], confidence);
    report.promises.push(Promise::at_least("http-engine-ratio", ratio, RATIO_BOUND, ""));
    Ok(())
}

impl Server {
    /// Starts one; `engine`: with a TCP of our own, and whether that is at a TUN device.
    fn start(
        options: &Options,
        dir: &Path,
        files: &MediaFiles,
        rig: ToeRig,
        engine: Option<bool>,
    ) -> anyhow::Result<Self> {
        let name = if engine.is_some() { "engine" } else { "kernel" };
        // A store has one server.
        let store = dir.join(format!("store-{name}"));
        peers::run(
            Command::new(&options.program)
                .args(["add", "--quiet"])
                .arg(&files.paths[0])
                .arg("--store")
                .arg(&store),
        )
        .context("put the title into a store")?;
        let places = Places::together();
        let mut command = rig.command(places.app, &options.program);
        let ip: IpAddr = match engine {
            Some(true) => {
                rig.add_tun(TUN, &format!("{KERNEL_IP}/24"))?;
                OUR_IP.into()
            }
            Some(false) => ENGINE_IP.into(),
            None => SERVER_IP.parse()?,
        };
        arguments(&mut command, &store, places.app, options.pick("64MiB", "512MiB", "512MiB"));
        if let Some(is_at_tun) = engine {
            let interface = if is_at_tun { TUN } else { rig.interface() };
            command.args([
                "--tcp",
                "engine",
                "--tcp-interface",
                interface,
                "--tcp-address",
                &format!("{ip}/24"),
            ]);
        }
        let mut group = Group::start_in(dir, &format!("serve-{name}"), command)?;
        group.wait_for_word("ready ")?;
        let server = Self { group, rig, at: SocketAddr::new(ip, PORT) };
        server.answers()?;
        server.rests()?;
        server.rig.place(&places)?;
        Ok(server)
    }

    /// Waits until a client gets through. With our TCP the server only reports that it goes without
    /// it if it cannot have the interface: then no host has this address.
    fn answers(&self) -> anyhow::Result<()> {
        let end = Instant::now() + START;
        loop {
            match self.rig.peer(|| FetchClient::to(self.at, None))? {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > end => {
                    return Err(error)
                        .with_context(|| format!("no answer; the server says: {}", self.group.last_words()));
                }
                Err(_) => sleep(LOOK),
            }
        }
    }

    /// Waits until it does nothing.
    fn rests(&self) -> anyhow::Result<()> {
        let end = Instant::now() + START;
        let look = || ThreadTimes::look(self.group.id(), "");
        loop {
            let before = look()?;
            sleep(LOOK);
            if look()?.since(&before) < REST_NS {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the server does not come to rest within {START:?} of its start");
        }
    }
}

/// Arguments as in a search: no client is refused, and the server does nothing beside sending.
fn arguments(command: &mut Command, store: &Path, cpu: usize, cache: &str) {
    command.args(["serve", "--quiet", "--listen", &format!("{SERVER_IP}:{RTSP_PORT}")]);
    command.args(["--admission", "off", "--engines", "1", "--cpu", &cpu.to_string()]);
    command.args(["--max-connections-per-address", "20000", "--share-per-address", "100%"]);
    command.args(["--picture-space", "0B", "--cache", cache, "--store"]).arg(store);
}

/// The same segments of both, which have been compared and are in memory then.
fn shops(servers: &[Server; 2]) -> anyhow::Result<[Shop; 2]> {
    let [first, second] = servers.each_ref().map(|server| {
        server.rig.peer(|| -> anyhow::Result<_> {
            let mut client = FetchClient::to(server.at, None)?;
            let paths = segments(&mut client)?;
            let bytes = paths.iter().map(|path| client.get(path)).collect::<anyhow::Result<Vec<_>>>()?;
            Ok((Shop { server: server.at, tls: None, paths }, bytes))
        })
    });
    let ((ours, our_bytes), (kernels, its_bytes)) = (first??, second??);
    ensure!(ours.paths == kernels.paths && our_bytes == its_bytes, "the two servers give other bytes");
    Ok([ours, kernels])
}

/// One turn.
fn turn(
    server: &Server,
    offload: Offload,
    contender: &Contender<'_>,
    length: Duration,
) -> anyhow::Result<ServerTurn> {
    let places = Places::together();
    server.rig.offload(offload, Offload::Off)?;
    let softirqs = softirq_thread(places.app)?;
    let group = contender.group;
    let look = |fetched: &Fetched| -> anyhow::Result<_> {
        let (kernels, softirqs_ns) = (server.rig.look()?, thread_ns(softirqs)?);
        let times = [
            cpu_ns(group, THREADS[0])?,
            cpu_ns(group, THREADS[1])?,
            cpu_ns(group, THREADS[2])?,
            kernels.napi_ns,
            softirqs_ns,
            kernels.peer_ns + kernels.peer_napi_ns,
        ];
        let usage = Usage::look(&[group], &[places.app]);
        let server = (ThreadTimes::look(group, "")?, kernels.napi_ns + softirqs_ns);
        Ok(((fetched.counts(), THREADS.into_iter().zip(times).collect(), usage), server))
    };
    let begin = || become_(PEER, places.peer);
    let (before, after) = server.rig.peer(|| while_fetching(&contender.shop, length, begin, look))??;
    let mut turn = ServerTurn::between(contender.name, before.0, after.0)?;
    // By clocks, where the usual sum is of ticks.
    let ((threads, kernels), (threads_then, kernels_then)) = (after.1, before.1);
    let server_ns = threads.since(&threads_then) + kernels.saturating_sub(kernels_then);
    turn.spent.processes_s = server_ns as f64 / 1e9;
    Ok(turn)
}

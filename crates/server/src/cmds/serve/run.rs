//! Starts everything in order, waits for a signal, stops everything in the opposite order.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use millrace_core::counters::{Registry, Sheet};
use millrace_core::limits::{EXTENT_BYTES, MAX_CONNS_PER_ENGINE};
use millrace_core::pool::ExtentArena;
use millrace_core::seam::Doorbell;
use millrace_core::source::SourceTable;
use millrace_core::text::excerpt;
use millrace_core::units::ByteLen;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};
use millrace_offload::egress_select::{BestTx, EgressPath, LoopSide, PathCounters, Tally, exchange};
use millrace_offload::handle::{EngineConfig, EngineHandle, ThreadConfig};
use millrace_offload::heap::give_large_blocks_back;
use millrace_offload::hugepage::{PageRegion, Touching};
use millrace_offload::idle::IdlePolicy;
use millrace_offload::load::{LoadSnapshot, LoopSheets};
use millrace_offload::toe::{EngineTx, Seat};
use millrace_offload::xdp::XdpTx;
use millrace_offload::{KernelTx, KernelTxConfig, UdpPorts, bind_ports};
use millrace_rights::Gate;
use millrace_store::cache::{Cache, CacheConfig, CacheHandle, CacheStats};
use millrace_store::disk::ReadFaults;
use millrace_store::format::Uuid;
use millrace_store::transform::Transforms;
use millrace_store::volume::Volume;
use millrace_tls::Relay;
use millrace_web::{WebBeat, WebHandle};
use tracing_subscriber::EnvFilter;

use super::access::{self, Listening};
use super::inject::Injector;
use super::librarian::{Librarian, LibrarySettings, Refreshed, Said};
use super::library::{self, LibraryNode};
use super::live::Live;
use super::maker::{MadeOnUse, Maker, MakerParts};
use super::members::MembersWatch;
use super::pictures::PicturesMaker;
use super::plan::LoopSettings;
use super::ports::ServerPorts;
use super::reload::Reloader;
use super::rests::Rests;
use super::tcp::{media_of, url_host};
use super::tls::{self, Tls};
use super::transforms;
use super::watch::watch;
use super::watchdog::Watchdog;
use super::web::{Hosts, Web};
use super::worker::Worker;
use super::{ServeArgs, invite, multicast, notify, rights, sandbox, user};
use crate::cmds::egress::devices::{Devices, Ports};
use crate::cmds::egress::{Egress, figures_file};
use crate::cmds::memory::{self, MemoryLimit, MemoryPlan};
use crate::cmds::settings::Values;
use crate::cmds::stats_file::StatsFile;
use crate::cmds::terminal::LogFormat;
use crate::control::{ControlConfig, ControlHandle, ControlPlane, EnginePort, Offload, Sockets};
use crate::library::on_use::OnUse;
use crate::library::open_titles::{Changes, OpenTitles};
use crate::library::reader::TitleReader;
use crate::limits::cast::SAP_STOP;
use crate::limits::control::{MDNS_STOP, STOP_FAREWELL};
use crate::limits::remote::LIBRARY_STOP;
use crate::limits::trick::MAKER_STOP;
use crate::limits::{LIBRARY_STOP_NS, PICTURES_STOP};
use crate::session::ServerConfig;

/// Serves until SIGINT, SIGTERM or SIGQUIT.
pub(super) fn run(args: &ServeArgs, values: Values) -> anyhow::Result<ExitCode> {
    give_large_blocks_back();
    let (ServerPorts { rtsp: listener, address, http, tls }, cancel, mut reloader) = begin(args, values)?;
    let engine = args.loop_settings()?;
    let memory = take_memory(args.cache, &engine)?;
    let transforms = args.named_transforms()?;
    let volume = Arc::new(args.open_volume()?);
    let (open_titles, first) = known_titles(&volume)?;
    let members = MembersWatch::start(Arc::clone(&volume))?;
    let mut tls = Tls::read(&args.tls, tls)?;
    let web = args.web_settings(http, &cancel, reloader.requests());
    let mut web = Web::new(web, ByteLen(memory.cache_bytes), address, tls.as_mut())?;
    let gate = rights::start(&args.rights, volume.members())?;
    let bells = (0..engine.count).map(|_| EventBell::new().map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let mut udp = bind_udp(&engine, address)?;
    let egress = Egress::decide(&args.egress, &figures_file(Some(&volume.present_dir())), address.ip())?;
    let (egress, ports) = one_pair_of_ports(egress, &udp)?;
    let mut injector = Injector::new(args.inject.as_deref());
    let aside = [Devices::aside_extents(&egress, bells.len() as u32), args.tcp.aside_extents()];
    let (cache, handles, arena) = start_cache(args.cache_config(), memory, &bells, aside, injector.faults())?;
    let live = Live::start(args, (&cache, &arena), (&volume, &open_titles), &mut web)?;
    let touching = Touching::start(Arc::clone(&arena)).context("thread for the cache's memory")?;
    let (loop_sides, device_sides) = (0..engine.count).map(|_| exchange()).unzip::<_, _, Vec<_>, Vec<_>>();
    let media = (aside[1] > 0).then(|| media_of(&arena));
    let supervisor = Devices::start(&egress, device_sides, arena, engine.streams, ports)?;
    let sources = Arc::<SourceTable>::default();
    let (engines, meters, seat) =
        start_engines(&engine, &mut udp, &sources, &egress, handles.into_iter().zip(loop_sides), &bells)?;
    let (reader, library) = title_reader(args, (&volume, &open_titles, &cache), &transforms)?;
    let (reader, maker) = with_maker(args.trick_space, reader, (&volume, &open_titles, &cache), &meters);
    let udp = udp.into_iter().flatten().map(|ports| ports.receiver).collect();
    let offload = args.tcp.start(address.port(), web.offload_port(args.http, &args.tcp), seat, media);
    let (offload, carrier) = offload.unzip();
    web.carry(carrier.flatten());
    let hosts = hosts(args.host.as_deref(), offload.as_ref(), address);
    let (relay, secure) = Tls::rtsps(tls.as_mut())?;
    let sockets = Sockets { listeners: vec![listener], secure, udp, offload, orders: web.ordered() };
    let config = control_config(args.server_config(), &gate, &web, sources);
    let control = ControlPlane::start(config, Box::new(live.beside(reader)), engines, sockets)?;
    let rests = Rests::new(Arc::clone(&cache), loads(&meters));
    let (album, pictures) = PicturesMaker::of(args.picture_settings(), &volume, &open_titles, rests);
    let made = maker.as_ref().map(Maker::sheet).unwrap_or_default();
    let registry = live.register(registry(&control, &cache, &meters, made, library.clone()));
    let registry = with_others(registry, &transforms, (&mut web, loads(&meters)), tls.as_ref(), &gate);
    let stats = args.stats.as_deref().map(|path| StatsFile::start(path, &registry)).transpose()?;
    let listening = listening(address, relay.as_ref(), &web);
    let of_titles = (&open_titles, &volume, library.as_ref());
    let web = web.start(of_titles, (control.asker(), &cache, album), &registry, Arc::clone(&gate), &hosts)?;
    tls::print_rtsps(relay.as_ref(), &hosts.kernel);
    access::print(&listening, hosts.offload.as_deref(), &gate.policy());
    let base_url = invite::base_url(&hosts.first, address.port());
    let (titles, volume_id) = (Arc::clone(&open_titles), volume.superblock().volume);
    let librarian = librarian(args.library_settings(), volume, open_titles, base_url);
    let ready_url = format!("rtsp://{address}/").replace("[::]", "localhost").replace("0.0.0.0", "127.0.0.1");
    let librarian = librarian.start(first, move || println!("ready {ready_url}"))?;
    let aside = start_aside(args, library, &control, &listening, volume_id)?;
    let makers = start_makers(maker, web.is_some().then_some(pictures), aside)?;
    let watchdog = Watchdog::of_environment(&loads(&meters), control.rounds(), beats(web.as_ref()));
    notify::ready();
    let is_over = || is_over(&cancel, &control, &mut reloader);
    watch(is_over, &cache, &titles, &members, &transforms, &mut injector, watchdog);
    let ended_itself = control.is_finished();
    notify::stopping();
    stop_aside(web, makers, librarian, members);
    sum_up(control, &cache.stats(), &meters);
    stats.into_iter().for_each(StatsFile::stop);
    drop((relay, supervisor, touching, live));
    anyhow::ensure!(!ended_itself, "the control thread ended unexpectedly; see the log above");
    Ok(ExitCode::SUCCESS)
}

/// Sets up the process itself: log, limit of open files, ports, user, signal handling.
///
/// Returns the ports, a flag that a signal sets when the server should end, and the part that reads the settings again.
fn begin(args: &ServeArgs, values: Values) -> anyhow::Result<(ServerPorts, Arc<AtomicBool>, Reloader)> {
    start_log(args.log_format);
    raise_open_files();
    let ports = ServerPorts::take(args)?;
    let reloader = Reloader::new(std::env::args_os().collect(), values, args);
    let requests = reloader.requests();
    // The last thing that is done by root, and before there is another thread.
    user::become_user(args)?;
    sandbox::confine(args)?;
    let cancel = crate::cmds::signals::cancel_server_on_signals(move || requests.signal())?;
    Ok((ports, cancel, reloader))
}

/// The threads of the web side, for the watchdog.
fn beats(web: Option<&WebHandle>) -> Vec<WebBeat> {
    web.map(WebHandle::beats).unwrap_or_default()
}

/// Whether the server should end; until then it follows its settings.
fn is_over(cancel: &AtomicBool, control: &ControlHandle, reloader: &mut Reloader) -> bool {
    reloader.look(|service| control.set_limits(service));
    cancel.load(Ordering::Relaxed) || control.is_finished()
}

/// What URLs name: the offload engine if it runs, where it listens, and this machine.
fn hosts(host: Option<&str>, offload: Option<&Offload>, address: SocketAddr) -> Hosts {
    let (host, offload) = (host.map(str::to_owned), url_host(offload));
    let kernel = host.clone().unwrap_or_else(|| invite::own_host(address));
    let first = host.or_else(|| offload.clone()).unwrap_or_else(|| kernel.clone());
    Hosts { offload, first, kernel }
}

/// Where each protocol is listened for by the kernel.
fn listening(rtsp: SocketAddr, relay: Option<&Relay>, web: &Web) -> Vec<Listening> {
    let secure =
        relay.into_iter().flat_map(|relay| relay.addresses().iter().map(|&address| ("RTSPS", address)));
    [("RTSP", rtsp)].into_iter().chain(secure).chain(web.addresses()).collect()
}

/// Ends the parts beside the control side. Transfers by HTTP go on until the engines end.
fn stop_aside(web: Option<WebHandle>, makers: Makers, librarian: Worker, members: MembersWatch) {
    if let Some(web) = web {
        web.stop(Duration::ZERO);
    }
    for (maker, limit) in makers {
        if let Some(maker) = maker {
            maker.stop(limit);
        }
    }
    librarian.stop(Duration::from_nanos(LIBRARY_STOP_NS));
    members.stop();
}

/// Has titles made for speeds that viewers ask for, if they may take any space.
fn with_maker(
    space: ByteLen,
    reader: TitleReader,
    (volume, open_titles, cache): (&Arc<Volume>, &Arc<OpenTitles>, &Arc<Cache>),
    meters: &[Meters],
) -> (TitleReader, Option<Maker>) {
    if space.0 == 0 {
        return (reader, None);
    }
    let on_use = Arc::new(OnUse::default());
    let maker = Maker::new(MakerParts {
        volume: Arc::clone(volume),
        open_titles: Arc::clone(open_titles),
        cache: Arc::clone(cache),
        closer: reader.closer(),
        on_use: Arc::clone(&on_use),
        loops: loads(meters),
        space,
    });
    (reader.with_wishes(on_use), Some(maker))
}

/// All titles are known before the first player can ask for one.
fn known_titles(volume: &Volume) -> anyhow::Result<(Arc<OpenTitles>, Changes)> {
    let open_titles = Arc::new(OpenTitles::default());
    let first = open_titles.refresh(volume)?;
    for what in &first.unreadable {
        tracing::warn!("left out: {what}; run: millrace fsck");
    }
    Ok((open_titles, first))
}

/// Opens the titles of the store, and knows those of the library.
fn title_reader(
    args: &ServeArgs,
    (volume, open_titles, cache): (&Arc<Volume>, &Arc<OpenTitles>, &Arc<Cache>),
    transforms: &Transforms,
) -> anyhow::Result<(TitleReader, Option<Arc<LibraryNode>>)> {
    let reader = TitleReader::new(Arc::clone(open_titles), Arc::clone(volume), Arc::clone(cache))
        .context("threads that open titles")?
        .with_transforms(transforms.clone());
    args.library.node(reader, volume, open_titles)
}

/// The threads of announcements and of the library, and how long each is waited for.
fn start_aside(
    args: &ServeArgs,
    library: Option<Arc<LibraryNode>>,
    control: &ControlHandle,
    listening: &[Listening],
    id: Uuid,
) -> anyhow::Result<[(Option<Worker>, Duration); 3]> {
    let announcing = args.announce(control.asker())?;
    let services = args.announce_services(listening, id)?;
    let library = library.map(|library| library.start(control.asker())).transpose();
    let library = library.context("thread of the library")?;
    Ok([(announcing, SAP_STOP), (services, MDNS_STOP * 2), (library, LIBRARY_STOP)])
}

/// The threads that make what viewers would like, with those beside them, and how long each is waited for.
type Makers = [(Option<Worker>, Duration); 5];

/// Only the web shows pictures.
fn start_makers(
    maker: Option<Maker>,
    pictures: Option<PicturesMaker>,
    aside: [(Option<Worker>, Duration); 3],
) -> anyhow::Result<Makers> {
    let maker = maker.map(Maker::start).transpose().context("thread that makes titles")?;
    let pictures = pictures.map(PicturesMaker::start).transpose().context("thread that makes pictures")?;
    let [announcing, services, library] = aside;
    Ok([(maker, MAKER_STOP), (pictures, PICTURES_STOP), announcing, services, library])
}

fn librarian(
    settings: LibrarySettings,
    volume: Arc<Volume>,
    open_titles: Arc<OpenTitles>,
    base_url: String,
) -> Librarian {
    let said = Said::default();
    said.in_memory.set(volume.catalogue_in_memory().is_some());
    Librarian {
        volume,
        open_titles,
        settings,
        sources: RefCell::default(),
        missing: RefCell::default(),
        base_url,
        lost: Cell::new(0),
        said,
        refreshed: Refreshed::default(),
    }
}

/// Sends log lines to standard error, so that output meant for pasting stays clean.
fn start_log(format: LogFormat) {
    let wanted = std::env::var("MILLRACE_LOG").unwrap_or_default();
    let level = if wanted.is_empty() { "info" } else { &wanted };
    let (filter, error) = match EnvFilter::try_new(level) {
        Ok(filter) => (filter, None),
        Err(error) => ("info".into(), Some(error)),
    };
    crate::cmds::terminal::start_log(filter, format);
    if let Some(error) = error {
        tracing::warn!(
            "MILLRACE_LOG: got \"{}\": {error}; write error, warn, info or debug",
            excerpt(&wanted, 80)
        );
    }
}

/// Each viewer by TCP is two descriptors, each open title a few for each member; the soft limit of a login shell is 1024.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays at {:?}: {error}", limit.current);
    }
}

/// Plans memory before any is allocated: an excess is an error at startup, not an OOM kill later.
fn take_memory(cache: Option<ByteLen>, engine: &LoopSettings) -> anyhow::Result<MemoryPlan> {
    let limits = memory::limits();
    let plan = memory::plan(&limits, cache.map(|cache| cache.0))?;
    millrace_core::memory::set_share(plan.share_permille);
    if let (Some(lowest), true) = (memory::lowest(&limits), plan.share_permille < 1000) {
        tracing::info!(
            "memory: limited to {lowest}; default budgets are {:.0} % of the usual ones",
            f64::from(plan.share_permille) / 10.0
        );
    }
    if memory::address_limit(&limits).is_some() {
        let bytes = plan.cache_bytes + memory::address_bytes(engine.streams, engine.count);
        reserve(bytes, &limits)?;
    }
    Ok(plan)
}

fn reserve(bytes: u64, limits: &[MemoryLimit]) -> anyhow::Result<PageRegion> {
    PageRegion::new(bytes).map_err(|error| anyhow::anyhow!(memory::cannot_reserve(bytes, limits, &error)))
}

fn start_cache(
    config: CacheConfig,
    plan: MemoryPlan,
    bells: &[Arc<EventBell>],
    aside: [u32; 2],
    faults: ReadFaults,
) -> anyhow::Result<(Arc<Cache>, Vec<CacheHandle>, Arc<ExtentArena>)> {
    let aside = aside.iter().sum::<u32>();
    let region = reserve(plan.cache_bytes + u64::from(aside) * EXTENT_BYTES as u64, &memory::limits())?;
    let arena = ExtentArena::with_aside(Box::new(region), aside);
    let memory = arena.describe();
    let rings = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Doorbell>).collect();
    let clock = Arc::new(MonotonicClock);
    let (cache, handles) = Cache::start_with_faults(config, Arc::clone(&arena), clock, rings, faults)?;
    let bytes = ByteLen(plan.cache_bytes);
    tracing::info!("cache of {bytes} on {memory}, read by {}", cache.backend());
    Ok((Arc::new(cache), handles, arena))
}

/// Binds UDP ports for each address family that is listened on, IPv4 first: one pair for each,
/// which all engines send from.
fn bind_udp(engine: &LoopSettings, address: SocketAddr) -> anyhow::Result<[Option<UdpPorts>; 2]> {
    let (first, last) = engine.udp_ports;
    let bind = |ip, first, last| bind_ports(ip, first, last, usize::from(engine.count));
    // [::] takes IPv4 connections too, so their viewers need a socket of their own family.
    let v4_address = match address.ip() {
        IpAddr::V4(ip) => Some(IpAddr::V4(ip)),
        IpAddr::V6(ip) => ip.is_unspecified().then_some(IpAddr::from([0, 0, 0, 0])),
    };
    let v6_address = address.is_ipv6().then_some(address.ip());
    let v4 = v4_address.map(|ip| bind(ip, first, last)).transpose()?;
    // The same ports for both families if they are free.
    let same = v4.as_ref().map(|ports| ports.receiver.ports()).transpose()?;
    let v6 = v6_address.map(|ip| {
        let same = same.and_then(|(rtp, rtcp)| bind(ip, rtp, rtcp).ok());
        same.map_or_else(|| bind(ip, first, last), Ok)
    });
    Ok([v4, v6.transpose()?])
}

/// The source ports of frames: devices have one pair of them for both families.
fn one_pair_of_ports(egress: Egress, udp: &[Option<UdpPorts>; 2]) -> anyhow::Result<(Egress, Ports)> {
    let ports = udp.iter().flatten().map(|ports| ports.receiver.ports()).collect::<Result<Vec<_>, _>>()?;
    let &(rtp, rtcp) = ports.first().context("no UDP sockets")?;
    let egress = if ports.iter().all(|pair| *pair == (rtp, rtcp)) {
        egress
    } else {
        egress.without_devices("IPv4 and IPv6 have different UDP ports; free some or change --udp-ports")
    };
    Ok((egress, Ports { rtp, rtcp }))
}

/// Every counter of the server.
fn registry(
    control: &ControlHandle,
    cache: &Arc<Cache>,
    meters: &[Meters],
    made: Arc<Sheet<MadeOnUse>>,
    library: Option<Arc<LibraryNode>>,
) -> Registry {
    let mut registry = Registry::default();
    registry.add("library", None, library::sheet(library));
    let sheets = control.sheets();
    registry.add("sessions", None, move || sheets.counters.read());
    let sheets = control.sheets();
    registry.add("now", None, move || sheets.held.read());
    let sheets = control.sheets();
    registry.add_all("titles", "title", move || sheets.titles.read());
    let sheets = control.sheets();
    let [offload, tcp, ip] = [(); 3].map(|()| Arc::clone(&sheets.offload));
    registry.add("offload", None, move || offload.engine.read());
    registry.add("offload_tcp", None, move || tcp.tcp.read());
    registry.add("offload_ip", None, move || ip.ip.read());
    registry.add("made_on_use", None, move || made.read());
    for (number, meters) in meters.iter().enumerate() {
        let engine = Some(("engine", number.to_string()));
        let LoopSheets { load, engine: counters, tx } = meters.sheets.clone();
        registry.add("loop", engine.clone(), move || load.read());
        registry.add("engine", engine.clone(), move || counters.read());
        registry.add("sockets", engine.clone(), move || tx.read());
        let tally = Arc::clone(&meters.egress);
        registry.add("egress", engine, move || tally.read().choice());
    }
    let tallies: Vec<_> = meters.iter().map(|meters| Arc::clone(&meters.egress)).collect();
    registry.add_all("paths", "path", move || {
        EgressPath::ALL
            .map(|path| (path.to_string(), PathCounters { datagrams: datagrams_by(&tallies, path) }))
            .into()
    });
    let shown = Arc::clone(cache);
    registry.add("cache", None, move || shown.stats());
    let shown = Arc::clone(cache);
    registry.add_all("members", "member", move || {
        shown.members().iter().map(|report| (report.index.to_string(), report.figures())).collect()
    });
    registry
}

/// And those of what works beside control side and engines.
fn with_others(
    mut registry: Registry,
    transforms: &Transforms,
    (web, loads): (&mut Web, Vec<Arc<Sheet<LoadSnapshot>>>),
    tls: Option<&Tls>,
    gate: &Arc<Gate>,
) -> Arc<Registry> {
    transforms::register(&mut registry, transforms);
    web.register(&mut registry, loads);
    if let Some(tls) = tls {
        tls.register(&mut registry);
    }
    rights::register(&mut registry, gate);
    Arc::new(registry)
}

/// Packets that all engines sent by a path.
fn datagrams_by(tallies: &[Arc<Tally>], path: EgressPath) -> u64 {
    tallies.iter().map(|tally| tally.read().datagrams[path as usize]).sum()
}

/// An engine's published figures while it runs.
struct Meters {
    sheets: LoopSheets,
    egress: Arc<Tally>,
}

/// How busy each engine is.
fn loads(meters: &[Meters]) -> Vec<Arc<Sheet<LoadSnapshot>>> {
    meters.iter().map(|meters| Arc::clone(&meters.sheets.load)).collect()
}

/// Engines, and where an offload engine is put.
type Engines = (Vec<Box<dyn EnginePort>>, Vec<Meters>, Option<Seat>);

fn start_engines(
    settings: &LoopSettings,
    udp: &mut [Option<UdpPorts>; 2],
    sources: &Arc<SourceTable>,
    egress: &Egress,
    handles: impl Iterator<Item = (CacheHandle, LoopSide<XdpTx>)>,
    bells: &[Arc<EventBell>],
) -> anyhow::Result<Engines> {
    let streams = settings.streams;
    let (mut engines, mut meters, mut seat) = (Vec::<Box<dyn EnginePort>>::new(), Vec::new(), None);
    for (number, ((handle, devices), bell)) in handles.zip(bells).enumerate() {
        let [v4, v6] = udp.each_mut().map(|ports| ports.as_mut().and_then(|ports| ports.senders.pop()));
        let mut kernel =
            KernelTx::new(KernelTxConfig { v4, v6, gso: settings.gso, conns: MAX_CONNS_PER_ENGINE })?
                .with_sources(Arc::clone(sources));
        settings.multicast.iter().try_for_each(|groups| multicast::add_sockets(&mut kernel, groups))?;
        let tx = BestTx::new(kernel, egress.base, streams, devices);
        let tally = tx.tally();
        let engine = EngineConfig {
            streams,
            burst_ns: settings.burst_ns,
            smooth: settings.smooth,
            shares_wakes: settings.idle != IdlePolicy::Busy,
            wall_offset_ns: wall_offset_ns(),
            cname: "millrace".into(),
        };
        let thread = ThreadConfig {
            number,
            cpu: settings.cpus.get(number).copied(),
            idle: settings.idle,
            busy_burst_ns: settings.busy_burst_ns,
        };
        let (clock, bell_of) = (MonotonicClock, Arc::clone(bell));
        let handle = if number == 0 && settings.has_offload_seat {
            // One offload engine: the first loop turns it.
            let (tx, its_seat) = EngineTx::with_seat(tx, MAX_CONNS_PER_ENGINE, Arc::clone(bell));
            seat = Some(its_seat);
            EngineHandle::start(thread, engine, clock, handle, tx, bell_of)
        } else {
            EngineHandle::start(thread, engine, clock, handle, tx, bell_of)
        };
        let handle = handle.context("start an engine")?;
        meters.push(Meters { sheets: handle.sheets(), egress: tally });
        engines.push(Box::new(handle));
    }
    Ok((engines, meters, seat))
}

fn control_config(
    mut session: ServerConfig,
    gate: &Arc<Gate>,
    web: &Web,
    sources: Arc<SourceTable>,
) -> ControlConfig {
    (session.gate, session.sources) = (Some(Arc::clone(gate)), sources);
    ControlConfig { session, feed: web.feed(), ..ControlConfig::default() }
}

/// Ends the control plane and logs a summary of all the work.
fn sum_up(control: ControlHandle, cache: &CacheStats, meters: &[Meters]) {
    match control.shut_down(STOP_FAREWELL) {
        Some(farewell) if farewell.streams_left == 0 => {}
        Some(farewell) => tracing::warn!("{} streams were cut off", farewell.streams_left),
        None => tracing::error!("the control thread panicked"),
    }
    for (number, meters) in meters.iter().enumerate() {
        let load = meters.sheets.load.read();
        let total_ns = (load.busy_ns + load.idle_ns).max(1);
        tracing::info!(
            "engine {number}: {} packets, {}, busy {:.1} % of the time, longest turn {:.1} ms",
            load.packets,
            ByteLen(load.bytes),
            load.busy_ns as f64 * 100.0 / total_ns as f64,
            load.longest_turn_ns as f64 / 1e6
        );
        tracing::info!("engine {number}: {}", meters.egress.read());
    }
    tracing::info!(
        "cache: read {} bytes in {} reads, {} wants found in memory, {} shared a read, {} waited, {} late",
        cache.bytes_read,
        cache.reads,
        cache.hits,
        cache.joins,
        cache.misses,
        cache.late_grants
    );
    if cache.damaged_packets > 0 {
        tracing::warn!(
            "cache: {} damaged packets of {} extents were not sent to viewers",
            cache.damaged_packets,
            cache.damaged
        );
    }
    let code = millrace_core::fec::counters();
    tracing::info!("parity: {} bytes encoded, {} bytes decoded", code.encoded_bytes, code.decoded_bytes);
}

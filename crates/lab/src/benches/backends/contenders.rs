//! The contenders: plain loops, our devices, and the choice between these.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use millrace_core::ids::StreamId;
use millrace_core::limits::XDP_ASIDE_EXTENTS;
use millrace_core::seam::{Dest, PacketTx, Payload, PayloadSource, SendOutcome, Transmit, TransmitBatch};
use millrace_netio::egress_select::measure::{Effort, TargetInterface, measure};
use millrace_netio::egress_select::{BestTx, Class, NewDevice, exchange};
use millrace_netio::route::{HopTable, RouteWatch};
use millrace_netio::xdp::{Strategy, XdpConfig, XdpTx};
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

use super::outcome::{BackendKind, Name};
use super::stage::{INTERFACE, MediaCursor, Pick, SEGMENT, SinkTestbed, Turns, VIEWERS};
use crate::frame::{ContenderSlot, Contest};
use crate::raw_loops::{Headers, KernelLoop, KernelPath, ViewerDatagrams, XdpLoop, XdpPath};

/// Source port of frames that are built here.
const PORT: u16 = 5004;
/// Datagrams after which the kernel is made to send.
const TX_BUDGET: u32 = 256;
/// How long a way to all viewers may take to be found.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(10);

/// A device of ours.
trait Ours {
    /// Whether it would send this itself.
    fn can_send(&mut self, _transmit: &Transmit<'_>) -> bool {
        true
    }
    /// Sends, and does what belongs to a turn.
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]);
}

impl<F: FnMut(&dyn TransmitBatch, &mut [SendOutcome])> Ours for F {
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        self(batch, outcomes);
    }
}

impl Ours for XdpTx {
    fn can_send(&mut self, transmit: &Transmit<'_>) -> bool {
        XdpTx::can_send(self, transmit)
    }
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        PacketTx::send(self, batch, outcomes);
        self.poll();
    }
}

/// All of them, open.
pub(super) struct Egress<'s> {
    stage: &'s SinkTestbed,
    kernel_loops: Vec<(&'static str, RefCell<KernelLoop>)>,
    xdp_loop: Option<RefCell<XdpLoop>>,
    /// Headers for frames to the viewers, and to the socket where results are compared.
    headers: [Vec<Headers>; 2],
    ours: Vec<(Name, RefCell<Box<dyn Ours>>)>,
    notes: Vec<String>,
    _routes: RouteWatch,
}

const XDP_LOOPS: [(&str, XdpPath); 3] = [
    ("loop: AF_XDP, frame already built", XdpPath::Built),
    ("loop: AF_XDP, staging copy", XdpPath::Staging),
    ("loop: AF_XDP, two descriptors", XdpPath::Chained),
];

impl<'s> Egress<'s> {
    /// Extents that they take of those aside, beside built frames.
    pub(super) const EXTENTS_ASIDE: u32 =
        XdpLoop::EXTENTS as u32 + (Strategy::ALL.len() as u32 + 1) * XDP_ASIDE_EXTENTS;

    /// Opens everything in the sender's namespace, where this thread has to be. What this machine cannot do is noted.
    pub(super) fn open(stage: &'s SinkTestbed) -> anyhow::Result<Self> {
        let kernel_loop = |name, way| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            anyhow::Ok((name, RefCell::new(KernelLoop::new(socket, way)?)))
        };
        let kernel_loops = vec![
            kernel_loop("loop: sendmmsg, 64 messages", KernelPath::Single)?,
            kernel_loop("loop: UDP GSO", KernelPath::Gso)?,
            kernel_loop("loop: UDP GSO + MSG_ZEROCOPY", KernelPath::GsoZeroCopy)?,
        ];
        let routes = RouteWatch::start()?;
        let headers = [headers(stage, false)?, headers(stage, true)?];
        let (ours, notes) = (Vec::new(), Vec::new());
        let mut ways = Self { stage, kernel_loops, xdp_loop: None, headers, ours, notes, _routes: routes };
        ways.open_xdp_loop();
        ways.open_kernel()?;
        ways.open_xdp()?;
        ways.open_best()?;
        Ok(ways)
    }

    fn open_xdp_loop(&mut self) {
        let extents = &self.stage.extents;
        match XdpLoop::open(INTERFACE, 0, &extents.arena, extents.count()) {
            Ok(mut xdp) => {
                xdp.build(&self.headers[0], extents.packets());
                self.xdp_loop = Some(RefCell::new(xdp));
            }
            Err(error) => self.notes.push(format!("not measured: loops over AF_XDP: {error:#}")),
        }
    }

    fn add(&mut self, text: impl Into<String>, kind: BackendKind, device: impl Ours + 'static) {
        self.ours.push((Name { text: text.into(), kind }, RefCell::new(Box::new(device))));
    }

    fn open_kernel(&mut self) -> anyhow::Result<()> {
        let mut tx = kernel_tx()?;
        self.add(
            "KernelTx",
            BackendKind::Ours,
            move |batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]| {
                tx.send(batch, outcomes);
            },
        );
        let mut tx = kernel_tx()?;
        let send = move |batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]| {
            tx.send_zero_copy(batch, outcomes);
        };
        self.add("KernelTx without copying", BackendKind::Ours, send);
        Ok(())
    }

    fn open_xdp(&mut self) -> anyhow::Result<()> {
        let mut queue = 1;
        for strategy in Strategy::ALL {
            let hops = self._routes.table();
            match XdpTx::open(xdp_config(self.stage, queue, Some(strategy)), hops) {
                Ok(mut tx) => {
                    self.wait_for_routes(&mut tx)?;
                    let is_staging = strategy == Strategy::Staging;
                    let kind = if is_staging { BackendKind::Staging } else { BackendKind::Ours };
                    self.add(format!("XdpTx, {strategy}"), kind, tx);
                    queue += 1;
                }
                Err(error) => self.notes.push(format!("not measured: XdpTx, {strategy}: {error}")),
            }
        }
        Ok(())
    }

    /// The choice, by a plan that is measured as a server does at its start.
    fn open_best(&mut self) -> anyhow::Result<()> {
        let queue = super::stage::QUEUES - 1;
        let config = xdp_config(self.stage, queue, None);
        let target = TargetInterface::of(INTERFACE)?;
        let mut open = |arena: Arc<_>, hops: HopTable| {
            let config = XdpConfig { arena, ..config.clone() };
            XdpTx::open(config, hops).map_err(|error| error.to_string())
        };
        let measured = measure(&target, Effort::default(), Some(&mut open))?;
        let (loop_side, mut device_side) = exchange();
        let (plan, base) = (measured.table.plan(), measured.table.plan_of_kernel());
        let mut best = BestTx::new(kernel_tx()?, base, VIEWERS, loop_side);
        match XdpTx::open(config, self._routes.table()) {
            Ok(mut device) => {
                self.wait_for_routes(&mut device)?;
                let arrival = NewDevice { slot: 0, plan, device };
                ensure!(device_side.hand_over(arrival).is_ok(), "a ring that is empty has no room");
            }
            Err(error) => self.notes.push(format!("BestTx has no AF_XDP device: {error}")),
        }
        let by_class = Class::ALL.map(|class| format!("{class} {}", plan.way(class))).join(", ");
        self.notes.push(format!("BestTx measured the interface and plans: {by_class}"));
        let send = move |batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]| {
            best.send(batch, outcomes);
            best.tend();
            // The other end lives as long: without it the choice would think that the server is being stopped.
            let _ = &device_side;
        };
        self.add("BestTx", BackendKind::Choice, send);
        Ok(())
    }

    /// Waits until a device knows the way to everybody.
    fn wait_for_routes(&self, device: &mut dyn Ours) -> anyhow::Result<()> {
        [true, false].into_iter().try_for_each(|is_check| wait_for_viewers(self.stage, is_check, device))
    }

    /// Returns the contenders' names.
    pub(super) fn names(&self) -> Vec<Name> {
        let kernel = self.kernel_loops.iter().map(|(name, _)| match *name {
            name if name.contains("sendmmsg") => (name, BackendKind::Sendmmsg),
            name => (name, BackendKind::Loop),
        });
        let xdp = XDP_LOOPS.iter().filter(|_| self.xdp_loop.is_some()).map(|(name, way)| match way {
            XdpPath::Built => (*name, BackendKind::Floor),
            _ => (*name, BackendKind::Loop),
        });
        let loops = kernel.chain(xdp).map(|(text, kind)| Name { text: text.into(), kind });
        loops.chain(self.ours.iter().map(|(name, _)| name.clone())).collect()
    }

    /// Returns the notes that accompany the figures.
    pub(super) fn notes(self) -> Vec<String> {
        self.notes
    }

    /// Enters everybody, in the order of [`Self::names`].
    pub(super) fn enter<'a>(&'a self, contest: &mut Contest<'a>, turns: Turns<'a>) {
        let mut seed = 10;
        let mut next_place = || {
            seed += 1;
            MediaCursor::new(seed)
        };
        for (name, kernel) in &self.kernel_loops {
            let mut place = next_place();
            contest.contender(*name, move |slot| {
                turns.play(slot, &mut place, |slot, _, picks| {
                    let mut kernel = kernel.borrow_mut();
                    let messages = kernel.messages(&pieces(picks), SEGMENT);
                    Ok(slot.batch(turns.datagrams() as u64, || kernel.send(&messages))?)
                })
            });
        }
        for (name, way) in XDP_LOOPS {
            let Some(xdp) = &self.xdp_loop else { continue };
            let mut place = next_place();
            contest.contender(name, move |slot| {
                turns.play(slot, &mut place, |slot, place, picks| {
                    self.play_xdp_loop(way, &mut xdp.borrow_mut(), turns, slot, place, picks)
                })
            });
        }
        for (name, device) in &self.ours {
            let mut place = next_place();
            contest.contender(name.text.as_str(), move |slot| {
                wait_for_viewers(self.stage, slot.is_check(), device.borrow_mut().as_mut())?;
                turns.play(slot, &mut place, |slot, _, picks| {
                    let batch = PickBatch::of(picks);
                    let mut outcomes = vec![SendOutcome::Closed { errno: 0 }; picks.len()];
                    let mut device = device.borrow_mut();
                    slot.batch(turns.datagrams() as u64, || device.send(&batch, &mut outcomes));
                    let all = outcomes.iter().all(|o| *o == SendOutcome::Sent);
                    ensure!(all, "not all was sent: {outcomes:?}");
                    Ok(())
                })
            });
        }
    }

    fn play_xdp_loop(
        &self,
        way: XdpPath,
        xdp: &mut XdpLoop,
        turns: Turns<'_>,
        slot: &mut ContenderSlot,
        place: &mut MediaCursor,
        picks: &[Pick<'_>],
    ) -> anyhow::Result<()> {
        let datagrams = turns.datagrams() as u64;
        if way == XdpPath::Built && !slot.is_check() {
            let (frames, hot) = (xdp.built_frames(), xdp.hot_frames());
            let list: Vec<u32> = (0..datagrams).map(|_| turns.any_of(place, hot, frames) as u32).collect();
            return slot.batch(datagrams, || xdp.send_built(&list));
        }
        // Prebuilt frames are addressed to viewers: frames to the socket are built at once.
        let way = if way == XdpPath::Built { XdpPath::Staging } else { way };
        let headers = &self.headers[usize::from(slot.is_check())];
        let pieces = pieces(picks);
        slot.batch(datagrams, || xdp.send(way, headers, &pieces, SEGMENT))
    }
}

/// Waits until a device knows the way to all viewers. It forgets where nothing was sent for a while, as in the turns of
/// others.
fn wait_for_viewers(stage: &SinkTestbed, is_check: bool, device: &mut dyn Ours) -> anyhow::Result<()> {
    let until = Instant::now() + ROUTE_TIMEOUT;
    let packet = [0x80; SEGMENT];
    for (n, to) in stage.viewers(is_check)?.into_iter().enumerate() {
        let transmit = transmit(n, to, &packet);
        while !device.can_send(&transmit) {
            ensure!(Instant::now() < until, "no way to {to} was found in {ROUTE_TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn pieces<'a>(picks: &[Pick<'a>]) -> Vec<ViewerDatagrams<'a>> {
    picks.iter().map(|pick| pick.piece).collect()
}

fn headers(stage: &SinkTestbed, is_check: bool) -> anyhow::Result<Vec<Headers>> {
    let source = (stage.source()?, PORT);
    let header = |to: std::net::SocketAddr| match to.ip() {
        IpAddr::V4(ip) => Ok(Headers::new(stage.macs, source, (ip, to.port()), SEGMENT)),
        IpAddr::V6(ip) => anyhow::bail!("{ip}: viewers have IPv4 addresses here"),
    };
    stage.viewers(is_check)?.into_iter().map(header).collect()
}

fn kernel_tx() -> anyhow::Result<KernelTx> {
    let first = 20_000 + (std::process::id() % 20_000) as u16;
    let v4 = bind_pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED), first, u16::MAX - 1)?;
    Ok(KernelTx::new(KernelTxConfig { v4: Some(v4), v6: None, gso: GsoMode::Auto, conns: 0 })?)
}

fn xdp_config(stage: &SinkTestbed, queue: u32, strategy: Option<Strategy>) -> XdpConfig {
    XdpConfig {
        interface: INTERFACE.to_owned(),
        queue,
        arena: Arc::clone(&stage.extents.arena),
        strategy,
        streams: VIEWERS,
        port: PORT,
        rtcp_port: PORT + 1,
        tx_budget: TX_BUDGET,
    }
}

fn transmit(viewer: usize, to: std::net::SocketAddr, bytes: &[u8]) -> Transmit<'_> {
    Transmit {
        stream: StreamId { index: viewer as u32, generation: 0 },
        dest: Dest::udp(to, None),
        payload: Payload::Wire { bytes, segment: SEGMENT },
    }
}

/// Bursts as the engine would offer them, with where they lie.
struct PickBatch<'a>(Vec<(Transmit<'a>, PayloadSource<'a>)>);

impl<'a> PickBatch<'a> {
    fn of(picks: &[Pick<'a>]) -> Self {
        let entry = |pick: &Pick<'a>| {
            let piece = &pick.piece;
            (
                transmit(piece.viewer, piece.to, piece.bytes),
                PayloadSource { lease: pick.lease, place: pick.place },
            )
        };
        Self(picks.iter().map(entry).collect())
    }
}

impl TransmitBatch for PickBatch<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        self.0[index].0
    }
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        Some(self.0[index].1)
    }
}

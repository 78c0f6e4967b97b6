//! An offload engine at a real interface whose payload this process cannot read: the pages are taken away while the engine runs, so that one read
//! of them would end it. The kernel's TCP at the other end of a veth pair receives every byte and verifies every checksum. Needs root; skipped
//! otherwise.
//!
//! A veth pair has no zero-copy mode, so the kernel reads the pages here where a card's driver would. 194 packets fill an extent but for its
//! last page, which holds only the sums that the checksums are made of.

use std::io::Read;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_offload::toe::{Engine, EngineSettings, ExtentRange, SlotPart, TcpListener, XdpDevice};
use millrace_offload::xdp::testing::{GuardedRegion, PAGE_BYTES};
use millrace_offload::xdp::{Strategy, XdpRawConfig};
use millrace_testkit::hosts::{TIMEOUT, Wire};

const PACKETS: u32 = 194;
const ENGINE: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 9)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 9)),
];
const PORT: u16 = 8554;
/// Each extent this often to each peer.
const ROUNDS: usize = 20;
/// The peer's buffer: room for all data of a connection, and for the kernel's overhead of each packet.
const WINDOW_BYTES: usize = 64 << 20;

/// The first extent of an arena, filled; its bytes without the headers.
fn filled(arena: &Arc<ExtentArena>) -> (Lease, Vec<u8>) {
    let layout = WireLayout::new(1316).unwrap();
    let (mut fill, mut payload) = (arena.fill(0).unwrap(), Vec::new());
    let all = fill.bytes_mut();
    all.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 31 + at / 251) as u8);
    for packet in 0..PACKETS {
        let at = packet as usize * layout.slot_bytes() + layout.header_bytes();
        payload.extend_from_slice(&all[at..at + 1316]);
        let meta = PacketMeta::new(sum16(&all[at..at + 1316]), 0, MediaTicks(0)).to_bytes();
        let record = layout.meta_offset(packet, PACKETS);
        all[record..record + meta.len()].copy_from_slice(&meta);
    }
    fill.publish();
    assert!(layout.meta_offset(0, PACKETS) >= EXTENT_BYTES - PAGE_BYTES, "the last page holds the sums only");
    let content = ExtentContent {
        title: TitleRef(1),
        number: 0,
        first_packet: 0,
        packets: PACKETS,
        last_packet_bytes: 1316,
        layout,
        spare: 0,
    };
    (arena.lend(0, content).unwrap(), payload)
}

/// An engine at the server's end of the pair, and how its device hands packets over.
fn engine(net: &Wire, config: &XdpRawConfig) -> Option<(Engine, String)> {
    let started = net.server.inside(|| -> std::io::Result<_> {
        let settings = EngineSettings::new(&ENGINE.map(|ip| (ip, if ip.is_ipv4() { 24 } else { 64 })));
        let settings = settings.on_ethernet("va")?;
        let device = XdpDevice::open(config, &settings.interface)?;
        let mode = device.mode();
        Ok((Engine::start(&settings, Box::new(device))?, mode))
    });
    match started {
        Ok(started) => Some(started),
        Err(error) if error.to_string().contains("without AF_XDP") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sends the extent to the kernel at the other end, [`ROUNDS`] times by each family.
fn send_all(net: &Wire, engine: &Engine, lease: &Lease, payload: &[u8]) {
    let host = engine.attach().unwrap();
    for ip in ENGINE {
        let at = SocketAddr::new(ip, PORT);
        let listener = TcpListener::bind(&host, at).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                net.viewers.inside(|| {
                    let mut stream = TcpStream::connect_timeout(&at, TIMEOUT).unwrap();
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).unwrap();
                    got
                })
            });
            let (stream, _) = listener.accept_timeout(TIMEOUT).unwrap();
            let all = ExtentRange { place: 0, skip: 0, bytes: PACKETS * 1316, part: SlotPart::Payloads };
            (0..ROUNDS).for_each(|_| stream.send_extent(lease, all).unwrap());
            stream.shutdown(Shutdown::Write).unwrap();
            let got = reader.join().unwrap();
            assert!(got == payload.repeat(ROUNDS), "{ip}: {} bytes came", got.len());
        });
    }
    assert_eq!(net.viewers.counter("snmp", "Tcp", "InCsumErrors"), 0);
}

#[test]
fn engine_sends_extents_that_it_cannot_read() {
    let Some(net) = Wire::new() else { return };
    // A wire's other end fills in checksums; a veth pair's leaves them out.
    net.viewers.must("ethtool -K vb tx off tso off gso off");
    // A window without room for a whole packet is probed with a part of one, whose checksum requires reading it.
    let rmem = format!("net.ipv4.tcp_rmem=4096 {WINDOW_BYTES} {WINDOW_BYTES}");
    assert!(net.viewers.command_of(&["sysctl", "-qw", &rmem]).status.success(), "{rmem}");
    let config = XdpRawConfig::new("va");
    let aside = config.aside_extents();
    let (region, guard) = GuardedRegion::new((1 + aside as usize) * EXTENT_BYTES).unwrap();
    let arena = ExtentArena::with_aside(Box::new(region), aside);
    let (lease, payload) = filled(&arena);
    let config = XdpRawConfig { media: Some(Arc::clone(&arena)), ..config };

    let chained = XdpRawConfig { strategy: Some(Strategy::Chained), ..config.clone() };
    let Some((engine_chained, mode)) = engine(&net, &chained) else { return };
    assert_eq!(mode, "AF_XDP in copy mode, payload sent from the cache's memory");
    let locked = 0..EXTENT_BYTES - PAGE_BYTES;
    guard.set_locked(locked.clone(), true).unwrap();
    send_all(&net, &engine_chained, &lease, &payload);
    let counters = engine_chained.stop().unwrap();
    guard.set_locked(locked, false).unwrap();
    let least = ENGINE.len() as u64 * ROUNDS as u64 * u64::from(PACKETS);
    assert!(counters.engine.packets_chained >= least, "{counters:?}");
    assert_eq!((counters.engine.zero_copy, arena.leases(0)), (0, 1), "all extents are back");

    // By itself a device at a veth pair copies, as without an arena.
    let Some((engine_copying, mode)) = engine(&net, &config) else { return };
    assert_eq!(mode, "AF_XDP in copy mode, payload copied once into a frame");
    send_all(&net, &engine_copying, &lease, &payload);
    let counters = engine_copying.stop().unwrap();
    assert_eq!((counters.engine.packets_chained, counters.engine.zero_copy), (0, 0), "{counters:?}");
}

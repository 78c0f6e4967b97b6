//! A transport stream in plain datagrams, through real sockets: from disk to the receiver byte for byte, beside a viewer by RTP.

use std::net::UdpSocket;
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, StepClock, film_bytes};
use millrace_core::ids::StreamId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, RTP_HEADER_BYTES};
use millrace_core::time::MediaTicks;
use millrace_offload::command::{Command, Dest, Event, StreamEvent};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

/// More than two extents.
const PACKETS: usize = 500;
const MS: u64 = 1_000_000;

/// A viewer's sockets: packets on the first are kept; nothing may arrive on the second.
struct Viewer {
    media: UdpSocket,
    rtcp: UdpSocket,
    got: Vec<Vec<u8>>,
}

impl Viewer {
    fn new() -> Self {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Self { media: socket(), rtcp: socket(), got: Vec::new() }
    }

    fn open(&self, index: u32, quiet: bool) -> Command {
        let rtcp_port = self.rtcp.local_addr().unwrap().port();
        let dest = Dest::udp(self.media.local_addr().unwrap(), Some(rtcp_port));
        Command::Open { stream: StreamId { index, generation: 0 }, dest, quiet, once: false }
    }

    fn read(&mut self) {
        let mut datagram = [0; 2048];
        while let Ok(count) = self.media.recv(&mut datagram) {
            self.got.push(datagram[..count].to_vec());
        }
    }

    /// How many packets have come to the second port.
    fn reports(&self) -> u64 {
        let mut packet = [0; 2048];
        std::iter::from_fn(|| self.rtcp.recv(&mut packet).ok()).count() as u64
    }
}

#[test]
fn raw_ts_receiver_gets_stored_bytes_without_rtcp() {
    for gso in [GsoMode::Auto, GsoMode::Off] {
        let clock = StepClock::start();
        let v4 = bind_pair([127, 0, 0, 1].into(), 20_000, 30_000).unwrap();
        let tx = KernelTx::new(KernelTxConfig { v4: Some(v4), v6: None, gso, conns: 0 }).unwrap();
        let mut stage = Stage::with_clock(PACKETS, MediaTicks(90_000), tx, clock.clone());
        let (mut rtp, mut raw) = (Viewer::new(), Viewer::new());
        for command in [rtp.open(0, false), stage.play(0, 0, 1, 1000), raw.open(1, true)] {
            stage.commands.push(command).unwrap();
        }
        stage.go_raw();
        // A sequence number other than the title's means nothing to a stream without sequence
        // numbers.
        let play = stage.play(1, 0, 77, 1000);
        stage.commands.push(play).unwrap();
        let ends = StdInstant::now() + Duration::from_secs(60);
        while raw.got.len() < PACKETS || rtp.got.len() < PACKETS {
            stage.core.turn();
            raw.read();
            rtp.read();
            let counters = stage.core.engine.counters();
            if counters.leases == counters.wants {
                clock.advance(MS);
            }
            assert!(StdInstant::now() < ends, "{} and {} datagrams", raw.got.len(), rtp.got.len());
        }
        let film = film_bytes(PACKETS);
        assert!(raw.got.iter().all(|datagram| datagram.len() == DEFAULT_PACKET_BYTES));
        assert!(raw.got.concat() == film, "{gso:?}");
        assert!(rtp.got.iter().flat_map(|datagram| &datagram[RTP_HEADER_BYTES..]).eq(&film));
        // Both runs to their end, which comes with BYE where there is one.
        let mut runs = 2;
        while runs > 0 {
            stage.core.turn();
            while let Ok(event) = stage.events.pop() {
                runs -= i32::from(matches!(event, Event::Stream(StreamEvent::RunEnded { .. })));
            }
            clock.advance(MS);
            assert!(StdInstant::now() < ends, "{runs} runs have not ended");
        }
        let counters = stage.core.engine.counters();
        assert!(counters.reports >= 2, "a report and BYE: {counters:?}");
        assert_eq!((rtp.reports(), raw.reports()), (counters.reports, 0), "nobody listens for reports");
        assert_eq!(counters.patched, 0);
    }
}

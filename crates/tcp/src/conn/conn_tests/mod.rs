//! Every state, segment by segment.

mod acks;
mod closing;
mod handshake;
mod holding;
mod icmp;
mod resets;
mod sequence;
mod timeouts;
mod urgency;

use millrace_core::time::Instant;

use super::arrive::SegmentArrival;
use super::*;
use crate::recv::ClusterSize;
use crate::wire::{Flags, FlowKey, Head, Segment, Stamps, TcpOptions};

/// Initial sequence numbers of both sides; ours wraps soon.
const ISS: Seq = Seq(u32::MAX - 2);
const IRS: Seq = Seq(5_000);
const MS: u64 = 1_000_000;

/// A connection, and the pools that it needs.
struct ConnectionRig {
    records: Records,
    store: Store,
    pages: Pages,
    config: Config,
    counters: TcpCounters,
    now: Instant,
    connection: Connection,
}

/// A segment that a connection sent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    head: Head,
    payload: Vec<u8>,
}

impl Sent {
    fn is(&self, flags: Flags) -> bool {
        self.head.flags == flags
    }
}

fn plain_config() -> Config {
    Config {
        stamps: false,
        sack: true,
        scaling: false,
        ecn: false,
        paced: false,
        nagle: false,
        ..Config::default()
    }
}

fn flow() -> FlowKey {
    FlowKey::new("192.0.2.1:80".parse().unwrap(), "198.51.100.7:40000".parse().unwrap()).unwrap()
}

impl ConnectionRig {
    /// SYN-SENT, the SYN sent.
    fn syn_sent(config: Config) -> Self {
        let mut records = Records::new(64);
        let mut store = Store::new(64, 64);
        let size = ClusterSize { bytes: 1 << 18, page_bytes: 2048 };
        let mut pages = Pages::new(&[size, size]);
        let mut counters = TcpCounters::default();
        let now = Instant(1_000_000 * MS);
        let mut env = Env {
            now,
            records: &mut records,
            store: &mut store,
            pages: &mut pages,
            config: &config,
            counters: &mut counters,
        };
        let connection = Connection::open(&flow(), &mut env, ISS, 0);
        let mut rig = Self { records, store, pages, config, counters, now, connection };
        let sent = rig.sent();
        assert!(sent.len() == 1 && sent[0].head.flags.has(Flags::SYN), "{sent:?}");
        rig
    }

    /// SYN-RECEIVED of a simultaneous open.
    fn syn_received() -> Self {
        let mut rig = Self::syn_sent(plain_config());
        assert_eq!(rig.arrives(&rig.segment(Flags::SYN).at(IRS)), None);
        rig.sent();
        assert_eq!(rig.state(), ConnectionState::SynReceived);
        rig
    }

    fn established() -> Self {
        Self::established_with(plain_config())
    }

    fn established_with(config: Config) -> Self {
        let mut rig = Self::syn_sent(config);
        rig.now = rig.now.plus_ns(20 * MS);
        let options = TcpOptions {
            mss: Some(1460),
            is_sack_permitted: rig.config.sack,
            scale: rig.config.scaling.then_some(2),
            stamps: rig.config.stamps.then_some(Stamps { value: 7_000, echo: 0 }),
            ..TcpOptions::default()
        };
        let mut segment = rig.segment(Flags::SYN.with(Flags::ACK)).at(IRS).acks(ISS + 1);
        segment.options = options;
        assert_eq!(rig.arrives(&segment), None);
        assert_eq!(rig.state(), ConnectionState::Established);
        let sent = rig.sent();
        assert_eq!((sent.len(), sent[0].head.ack), (1, IRS + 1));
        rig
    }

    /// A connection in `state`. Where our FIN was sent it is not acknowledged but in FIN-WAIT-2.
    fn new(state: ConnectionState) -> Self {
        let mut rig = match state {
            ConnectionState::SynSent => return Self::syn_sent(plain_config()),
            ConnectionState::SynReceived => return Self::syn_received(),
            _ => Self::established(),
        };
        let peer_closes = |rig: &mut Self| {
            let fin = rig.segment(Flags::FIN.with(Flags::ACK));
            assert_eq!(rig.arrives(&fin), None);
            rig.sent();
        };
        match state {
            ConnectionState::CloseWait => peer_closes(&mut rig),
            ConnectionState::LastAck => {
                peer_closes(&mut rig);
                rig.close();
            }
            ConnectionState::FinWait1 => rig.close(),
            ConnectionState::FinWait2 => {
                rig.close();
                let ack = rig.segment(Flags::ACK).acks(rig.connection.snd_nxt());
                assert_eq!(rig.arrives(&ack), None);
            }
            ConnectionState::Closing => {
                rig.close();
                let fin = rig.segment(Flags::FIN.with(Flags::ACK)).acks(ISS + 1);
                assert_eq!(rig.arrives(&fin), None);
                rig.sent();
            }
            _ => {}
        }
        assert_eq!(rig.state(), state);
        rig
    }

    fn close(&mut self) {
        assert!(self.call(Connection::close));
        let sent = self.sent();
        assert!(sent.iter().any(|sent| sent.head.flags.has(Flags::FIN)), "{sent:?}");
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut Connection, &mut Env<'_>) -> R) -> R {
        let Self { records, store, pages, config, counters, now, connection } = self;
        call(connection, &mut Env { now: *now, records, store, pages, config, counters })
    }

    fn state(&self) -> ConnectionState {
        self.connection.state()
    }

    /// A segment as the peer would send it next.
    fn segment(&self, flags: Flags) -> Segment<'static> {
        let stamps = self.config.stamps.then_some(Stamps { value: 7_000, echo: 0 });
        Segment {
            source: 40_000,
            destination: 80,
            seq: if self.state() == ConnectionState::SynSent { IRS } else { self.connection.rcv_nxt() },
            ack: if flags.has(Flags::ACK) { self.connection.snd_nxt() } else { Seq(0) },
            flags,
            window: 65_535,
            urgent: 0,
            options: TcpOptions { stamps, ..TcpOptions::default() },
            payload: &[],
        }
    }

    /// The reset that a segment is answered with at once.
    fn arrives(&mut self, segment: &Segment<'_>) -> Option<Head> {
        let arrival = SegmentArrival { at: self.now, is_marked: false, expected_sum: None };
        self.call(|connection, env| connection.arrive(env, segment, arrival))
    }

    /// Everything that goes out now.
    fn sent(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Planned::Segment(plan) = self.call(Connection::plan) {
            let payload = plan.cut.map(|cut| self.store.payload(&cut).slices().concat()).unwrap_or_default();
            self.call(|connection, env| connection.commit(env, &plan));
            all.push(Sent { head: plan.head, payload });
            assert!(all.len() < 1_000, "it sends without an end");
        }
        all
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut fill = |at: usize, room: &mut [u8]| room.copy_from_slice(&bytes[at..at + room.len()]);
        let taken = self.call(|connection, env| connection.write(env, bytes.len(), &mut fill));
        assert_eq!(taken, bytes.len());
    }

    fn read(&mut self) -> Vec<u8> {
        let mut to = Vec::new();
        let mut take = |bytes: &[u8]| to.extend_from_slice(bytes);
        self.call(|connection, env| connection.read(env, 1 << 17, &mut take));
        to
    }

    /// Advances by `ms`, firing everything due; returns the segments sent on the way.
    fn pass_ms(&mut self, ms: u64) -> Vec<Sent> {
        let end = self.now.plus_ns(ms * MS);
        let mut all = Vec::new();
        for _ in 0..10_000 {
            let due = self.call(|connection, env| connection.due(env));
            let Some(due) = due.filter(|&due| due <= end) else { break };
            self.now = self.now.max(due);
            self.call(Connection::fired);
            all.extend(self.sent());
        }
        self.now = end;
        all
    }

    /// It answers with an ACK and nothing else, and stays as it is.
    fn only_acks(&mut self, segment: &Segment<'_>) {
        let (state, next) = (self.state(), self.connection.rcv_nxt());
        assert_eq!(self.arrives(segment), None, "{state:?}");
        assert_eq!((self.state(), self.connection.rcv_nxt()), (state, next), "{segment:?}");
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{state:?}: {sent:?}");
        assert!(sent[0].is(Flags::ACK), "{state:?}: {sent:?}");
        assert_eq!((sent[0].head.seq, sent[0].head.ack), (self.connection.snd_nxt(), next), "{state:?}");
    }

    /// Nothing at all follows.
    fn ignores(&mut self, segment: &Segment<'_>) {
        let (state, next) = (self.state(), self.connection.rcv_nxt());
        assert_eq!(self.arrives(segment), None, "{state:?}");
        assert_eq!((self.state(), self.connection.rcv_nxt()), (state, next), "{segment:?}");
        assert_eq!(self.sent(), [], "{state:?}");
    }
}

/// Segments in words.
trait Words {
    fn at(self, seq: Seq) -> Self;
    fn acks(self, ack: Seq) -> Self;
}

impl Words for Segment<'_> {
    fn at(mut self, seq: Seq) -> Self {
        self.seq = seq;
        self
    }
    fn acks(mut self, ack: Seq) -> Self {
        self.ack = ack;
        self
    }
}

fn with<'a>(segment: Segment<'static>, payload: &'a [u8]) -> Segment<'a> {
    Segment { payload, ..segment }
}

const SYNCHRONIZED: [ConnectionState; 7] = [
    ConnectionState::Established,
    ConnectionState::FinWait1,
    ConnectionState::FinWait2,
    ConnectionState::CloseWait,
    ConnectionState::Closing,
    ConnectionState::LastAck,
    ConnectionState::Established,
];

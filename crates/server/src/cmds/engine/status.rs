//! `millrace engine status`: the work done by a running engine, its users, and its connections as
//! `ss -ti` shows those of the kernel.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use millrace_core::counters::Group;
use millrace_core::units::Count;
use millrace_offload::toe::{
    ConnectionFigures, ConnectionState, ConnectionStatus, EngineStatus, Owner, connections, default_socket,
    status,
};
use serde_json::{Map, Value, json};

/// Show the activity of a running engine: connections with round-trip times, windows, queues and
/// retransmissions, and totals
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace engine status\n  millrace engine status --json --socket /run/millrace/engine.sock\n\n\
                        Whoever may use the engine may ask for it. It costs the engine a few microseconds for each connection, and takes no queue pair."
)]
pub(super) struct StatusArgs {
    /// Unix socket of the engine [default: where millrace engine of this user listens]
    #[arg(long, value_name = "PATH", env = "MILLRACE_ENGINE")]
    socket: Option<PathBuf>,
    /// Print all of it as one JSON document
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub(super) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    let (engine, lines) = (status(&socket)?, connections(&socket)?);
    if args.json {
        super::super::print_json(&document(&socket, &engine, &lines))?;
    } else {
        print!("{}", text(&socket, &engine, &lines));
    }
    Ok(ExitCode::SUCCESS)
}

fn subnets(engine: &EngineStatus) -> Vec<String> {
    engine.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect()
}

/// What `ss` calls it.
fn state(of: &ConnectionStatus) -> &'static str {
    match of.state {
        None => "LISTEN",
        Some(ConnectionState::Closed) => "CLOSED",
        Some(ConnectionState::SynSent) => "SYN-SENT",
        Some(ConnectionState::SynReceived) => "SYN-RECV",
        Some(ConnectionState::Established) => "ESTAB",
        Some(ConnectionState::FinWait1) => "FIN-WAIT-1",
        Some(ConnectionState::FinWait2) => "FIN-WAIT-2",
        Some(ConnectionState::CloseWait) => "CLOSE-WAIT",
        Some(ConnectionState::Closing) => "CLOSING",
        Some(ConnectionState::LastAck) => "LAST-ACK",
        Some(ConnectionState::TimeWait) => "TIME-WAIT",
    }
}

fn text(socket: &Path, engine: &EngineStatus, lines: &[ConnectionStatus]) -> String {
    let (toe, tcp, gate) = (&engine.engine, &engine.stack, &engine.gate);
    let seconds = engine.uptime_ns / 1_000_000_000;
    let up = format!("{} h {:02} min {:02} s", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let ports = engine.ports.as_ref().map(|ports| format!("TCP ports {ports} of ")).unwrap_or_default();
    let mut text =
        format!("offload engine at {}: {ports}{}, up {up}\n", socket.display(), subnets(engine).join(", "));
    let mut row = |name: &str, what: String| {
        // Writing to memory.
        let _ = writeln!(text, "  {name:<12} {what}");
    };
    let hosts = format!("{} of {} have a queue pair", engine.hosts.len(), Count(engine.pairs.into(), "host"));
    row(
        "hosts",
        format!(
            "{hosts}, {} came, {} not allowed, {} found none free",
            gate.hosts_joined, gate.not_allowed, gate.no_pair
        ),
    );
    row(
        "connections",
        format!(
            "{} now, {} in handshake, {} in TIME-WAIT; {} opened, {} accepted, {} reset by peers, {} timed out",
            toe.connections,
            toe.handshakes,
            toe.time_waits,
            tcp.opened,
            tcp.accepted,
            tcp.resets_in,
            tcp.timed_out
        ),
    );
    row(
        "segments",
        format!(
            "{} in, {} out, {} sent again, {}, {} with wrong checksums",
            tcp.segments_in,
            tcp.segments_out,
            tcp.retransmitted,
            Count(tcp.timeouts, "time-out"),
            tcp.bad_checksums
        ),
    );
    row(
        "queues",
        format!(
            "{} to be sent, {} with bytes of hosts, {} with received bytes",
            Count(toe.descriptors, "piece"),
            Count(toe.host_pages, "page"),
            Count(toe.receive_pages, "page")
        ),
    );
    row("requests", format!("{}, {} rejected, {} events lost", toe.requests, toe.rejected, toe.events_lost));
    if !lines.is_empty() {
        text.push_str(&table(engine, lines));
    }
    text
}

/// Each connection as `ss -ti` has it, two lines.
fn table(engine: &EngineStatus, lines: &[ConnectionStatus]) -> String {
    let mut text = String::new();
    let names: Vec<[String; 2]> = lines.iter().map(|of| [of.local.to_string(), peer(of)]).collect();
    let width = |column: usize, title: &str| {
        names.iter().map(|name| name[column].len()).chain([title.len()]).max().unwrap_or(0)
    };
    let (local, remote) = (width(0, "Local Address:Port"), width(1, "Peer Address:Port"));
    let _ = writeln!(
        text,
        "\n{:<10} {:>8} {:>8} {:<local$} {:<remote$} Host",
        "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"
    );
    for (of, [here, there]) in lines.iter().zip(&names) {
        let [received, sent] = queues(of);
        let host = host(engine, of);
        let _ = writeln!(
            text,
            "{:<10} {received:>8} {sent:>8} {here:<local$} {there:<remote$} {host}",
            state(of)
        );
        if of.state.is_some() {
            let _ = writeln!(text, "    {}", details(&of.figures));
        }
    }
    text
}

fn peer(of: &ConnectionStatus) -> String {
    if of.state.is_none() { "*:*".to_owned() } else { of.remote.to_string() }
}

/// As `ss` has them: of a listener how many wait, and how many may.
fn queues(of: &ConnectionStatus) -> [u64; 2] {
    let figures = &of.figures;
    match of.state {
        None => [figures.queued, figures.backlog],
        Some(_) => [figures.unread_bytes, figures.waiting_bytes + figures.unacked_bytes],
    }
}

fn host(engine: &EngineStatus, of: &ConnectionStatus) -> String {
    match of.owner {
        Owner::Queue => "waits to be accepted".to_owned(),
        Owner::Nobody => "closed by its host".to_owned(),
        Owner::Pair(pair) => match engine.hosts.iter().find(|host| host.pair == pair) {
            Some(host) => format!("pair {pair} pid {} uid {}", host.pid, host.uid),
            None => format!("pair {pair}"),
        },
    }
}

/// The words of `ss -ti`; windows in bytes.
fn details(figures: &ConnectionFigures) -> String {
    let ms = |ns: u64| (ns as f64 / 1000.0).round() / 1000.0;
    let mut words = Vec::new();
    for (name, is_agreed) in [("ts", figures.stamps), ("sack", figures.sack), ("ecn", figures.ecn)] {
        if is_agreed != 0 {
            words.push(name.to_owned());
        }
    }
    if figures.rtt_ns > 0 {
        words.push(format!("rtt:{}/{}ms", ms(figures.rtt_ns), ms(figures.rtt_deviation_ns)));
    }
    if figures.min_rtt_ns > 0 {
        words.push(format!("minrtt:{}ms", ms(figures.min_rtt_ns)));
    }
    words.push(format!("rto:{}ms", ms(figures.rto_ns)));
    let bytes = [
        ("mss", figures.mss_bytes),
        ("cwnd", figures.cwnd_bytes),
        ("ssthresh", figures.ssthresh_bytes),
        ("inflight", figures.in_flight_bytes),
        ("notsent", figures.unsent_bytes),
        ("snd_wnd", figures.send_window_bytes),
        ("rcv_wnd", figures.receive_window_bytes),
        ("retrans", figures.retransmitted),
    ];
    let shown = bytes.iter().filter(|(name, value)| *value > 0 || !["ssthresh", "notsent"].contains(name));
    words.extend(shown.map(|(name, value)| format!("{name}:{value}")));
    words.push(format!("lastrcv:{}ms", figures.silent_ns / 1_000_000));
    if figures.recovering != 0 {
        words.push("recovering".to_owned());
    }
    words.join(" ")
}

fn object(group: &impl Group) -> Map<String, Value> {
    fn names<G: Group>(_: &G) -> impl Iterator<Item = &'static str> + use<G> {
        G::COUNTERS.iter().map(|counter| counter.name)
    }
    let (mut names, mut object) = (names(group), Map::new());
    group.put(|value| object.extend(names.next().map(|name| (name.to_owned(), json!(value)))));
    object
}

fn document(socket: &Path, engine: &EngineStatus, lines: &[ConnectionStatus]) -> Value {
    let hosts =
        engine.hosts.iter().map(|host| json!({ "pair": host.pair, "pid": host.pid, "uid": host.uid }));
    let connection = |of: &ConnectionStatus| {
        let pair = if let Owner::Pair(pair) = of.owner { Some(pair) } else { None };
        let remote = of.state.map(|_| of.remote.to_string());
        let mut all = Map::new();
        all.insert("state".to_owned(), json!(state(of)));
        all.insert("local".to_owned(), json!(of.local.to_string()));
        all.insert("remote".to_owned(), json!(remote));
        all.insert("pair".to_owned(), json!(pair));
        all.insert("waits_to_be_accepted".to_owned(), json!(of.owner == Owner::Queue));
        all.extend(object(&of.figures));
        Value::Object(all)
    };
    json!({
        "socket": socket.display().to_string(),
        "uptime_ms": engine.uptime_ns / 1_000_000,
        "addresses": subnets(engine),
        "ports": engine.ports.as_ref().map(ToString::to_string),
        "pairs": engine.pairs,
        "hosts": hosts.collect::<Vec<_>>(),
        "offload": object(&engine.engine),
        "offload_tcp": object(&engine.stack),
        "offload_ip": object(&engine.ip),
        "offload_gate": object(&engine.gate),
        "connections": lines.iter().map(connection).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use millrace_offload::toe::{GateCounters, HostStatus, IpCounters, TcpCounters, ToeCounters};

    use super::*;

    fn engine() -> EngineStatus {
        EngineStatus {
            uptime_ns: 3_723_000_000_000,
            pairs: 8,
            addresses: vec![("10.0.0.5".parse().unwrap(), 24)],
            ports: None,
            engine: ToeCounters { connections: 3, time_waits: 2, rejected: 9, ..ToeCounters::default() },
            stack: TcpCounters { opened: 4, retransmitted: 17, timeouts: 1, ..TcpCounters::default() },
            ip: IpCounters { fragments: 6, ..IpCounters::default() },
            gate: GateCounters { hosts_joined: 5, not_allowed: 1, ..GateCounters::default() },
            hosts: vec![HostStatus { pair: 2, pid: 4711, uid: 1000 }],
        }
    }

    fn connection(owner: Owner, state: Option<ConnectionState>) -> ConnectionStatus {
        let figures = ConnectionFigures {
            unread_bytes: 11,
            waiting_bytes: 100,
            unacked_bytes: 23,
            rtt_ns: 1_234_567,
            rtt_deviation_ns: 400_000,
            rto_ns: 200_000_000,
            sack: 1,
            retransmitted: 3,
            silent_ns: 7_999_999,
            queued: 1,
            backlog: 128,
            ..ConnectionFigures::default()
        };
        let [local, remote]: [SocketAddr; 2] = ["10.0.0.5:80", "10.0.0.9:5000"].map(|at| at.parse().unwrap());
        ConnectionStatus { state, owner, local, remote, figures }
    }

    #[test]
    fn connections_are_shown_with_their_queues_and_whose_they_are() {
        let established = Some(ConnectionState::Established);
        let lines = [
            connection(Owner::Pair(2), None),
            connection(Owner::Pair(2), established),
            connection(Owner::Pair(3), established),
            connection(Owner::Queue, Some(ConnectionState::SynReceived)),
            connection(Owner::Nobody, Some(ConnectionState::FinWait1)),
        ];
        let text = text(Path::new("/run/e.sock"), &engine(), &lines);
        let shown: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("State")).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        // Of a listener how many wait and how many may, and nothing behind it.
        assert_eq!(words(shown[1]), "LISTEN 1 128 10.0.0.5:80 *:* pair 2 pid 4711 uid 1000");
        assert_eq!(words(shown[2]), "ESTAB 11 123 10.0.0.5:80 10.0.0.9:5000 pair 2 pid 4711 uid 1000");
        let details = words(shown[3]);
        for part in ["sack", "rtt:1.235/0.4ms", "rto:200ms", "cwnd:0", "retrans:3", "lastrcv:7ms"] {
            assert!(details.split(' ').any(|word| word == part), "{part}: {details}");
        }
        for part in ["minrtt", "ssthresh", "notsent", "recovering", "ecn"] {
            assert!(!details.contains(part), "{part}: {details}");
        }
        let owners = [4, 6, 8].map(|line| words(shown[line]));
        assert!(owners[0].ends_with("10.0.0.9:5000 pair 3"), "{}", owners[0]);
        assert!(owners[1].starts_with("SYN-RECV ") && owners[1].ends_with("waits to be accepted"));
        assert!(owners[2].starts_with("FIN-WAIT-1 ") && owners[2].ends_with("closed by its host"));
    }

    #[test]
    fn totals_stand_in_both_forms() {
        let all = text(Path::new("/run/e.sock"), &engine(), &[]);
        for part in [
            "offload engine at /run/e.sock: 10.0.0.5/24, up 1 h 02 min 03 s\n",
            "1 of 8 hosts have a queue pair, 5 came, 1 not allowed",
            "3 now, 0 in handshake, 2 in TIME-WAIT; 4 opened",
            "17 sent again, 1 time-out,",
            "9 rejected",
        ] {
            assert!(all.contains(part), "{part:?}: {all}");
        }
        assert!(!all.contains("State"), "no table without lines: {all}");
        let ports = Some("80,8080".parse().unwrap());
        let of_ports = EngineStatus { ports, ..engine() };
        assert!(text(Path::new("/x"), &of_ports, &[]).contains(": TCP ports 80,8080 of 10.0.0.5/24, up "));
        let lines =
            [connection(Owner::Pair(2), None), connection(Owner::Queue, Some(ConnectionState::Closed))];
        let json = document(Path::new("/run/e.sock"), &of_ports, &lines);
        assert_eq!((&json["ports"], &json["uptime_ms"]), (&"80,8080".into(), &3_723_000.into()));
        assert_eq!(json["hosts"], json!([{ "pair": 2, "pid": 4711, "uid": 1000 }]));
        assert_eq!(
            (&json["offload_ip"]["fragments"], &json["offload_gate"]["hosts_joined"]),
            (&6.into(), &5.into())
        );
        let [listener, waiting] = [&json["connections"][0], &json["connections"][1]];
        assert_eq!((&listener["remote"], &listener["pair"]), (&Value::Null, &2.into()));
        assert_eq!((&waiting["pair"], &waiting["waits_to_be_accepted"]), (&Value::Null, &true.into()));
        assert_eq!((&waiting["remote"], &waiting["unacked_bytes"]), (&"10.0.0.9:5000".into(), &23.into()));
    }
}

//! The kernel's side of the engine's ports: each is held by a socket of the kernel that is bound to
//! it and does nothing, so the kernel gives it to no other program, and a port that is in use
//! already is noticed. Or a listener of the kernel has it beside the engine; then only its
//! connections are checked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use millrace_tcp::ports::PortSet;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// Ports that the kernel gives to connections which did not choose one, and those of them that it keeps (documentation of Linux, ip-sysctl.rst).
const GIVEN: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Sockets of the kernel's, one for each port of each address.
pub(super) struct PortReservation {
    _sockets: Vec<OwnedFd>,
}

impl PortReservation {
    /// Takes the ports of these addresses.
    ///
    /// # Errors
    /// One of them is in use; the kernel does not have an address; rights or descriptors are
    /// missing.
    pub(super) fn take(addresses: &[IpAddr], ports: &PortSet) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for &address in addresses {
            for port in ports.iter() {
                let local = SocketAddr::new(address, port);
                sockets.push(hold(local).map_err(|errno| fault(local, errno))?);
            }
        }
        Ok(Self { _sockets: sockets })
    }
}

fn hold(local: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &local)?;
    Ok(socket)
}

fn fault(local: SocketAddr, errno: Errno) -> io::Error {
    let source = io::Error::from(errno);
    let what_to_do = match errno {
        Errno::ADDRINUSE => format!(
            "a program has it by the kernel's TCP. Stop that one (ss -tanp 'sport = :{}' shows it), or leave the port out; connections that \
             have just ended keep a port for a minute",
            local.port()
        ),
        Errno::ADDRNOTAVAIL => format!("the kernel must have {} at this moment (ip address)", local.ip()),
        Errno::ACCESS | Errno::PERM => "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned(),
        Errno::MFILE | Errno::NFILE => {
            "each port of each address needs a descriptor: raise the limit (ulimit -n), or name fewer ports"
                .to_owned()
        }
        _ => "the kernel's sockets say why".to_owned(),
    };
    io::Error::new(source.kind(), format!("TCP port {local} cannot be the engine's ({source}): {what_to_do}"))
}

/// TCP sockets of the calling thread's network namespace, of both families.
const SOCKETS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
/// States without a connection in use: TIME-WAIT, CLOSE, LISTEN (`enum` in linux/net/tcp_states.h).
const UNUSED: [&str; 3] = ["06", "07", "0A"];

/// Whether the kernel has no connections at these ports of these addresses, which an engine would cut. Listeners may be there.
///
/// # Errors
/// It has one; or it does not say.
pub(super) fn no_connections(addresses: &[IpAddr], ports: &PortSet) -> io::Result<()> {
    for path in SOCKETS {
        let table = match std::fs::read_to_string(path) {
            // A kernel without IPv6 has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            table => table.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?,
        };
        let is_meant = |local: &SocketAddr| addresses.contains(&local.ip()) && ports.contains(local.port());
        if let Some(local) = connections(&table).find(is_meant) {
            let text = format!(
                "the kernel's TCP has connections at {local}, which would be cut: the engine can have this port when they have ended"
            );
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
        }
    }
    Ok(())
}

/// This end of each connection in a table of the kernel's; lines that are none are passed over.
fn connections(table: &str) -> impl Iterator<Item = SocketAddr> {
    table.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        if UNUSED.contains(&state) {
            return None;
        }
        let (address, port) = local.split_once(':')?;
        Some(SocketAddr::new(address_of(address)?, u16::from_str_radix(port, 16).ok()?))
    })
}

/// An address as the kernel prints it: words as they lie in memory.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical())
        }
        _ => None,
    }
}

/// Of these ports those that the kernel of the calling thread's network namespace gives to its own connections, and what of its settings keeps them:
/// as long as one of them is in use, no engine can have it.
pub fn ports_given_out(ports: &PortSet) -> Option<(PortSet, String)> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    overlap(ports, &read(GIVEN), &read(RESERVED))
}

fn overlap(ports: &PortSet, given: &str, reserved: &str) -> Option<(PortSet, String)> {
    let mut ends = given.split_whitespace().map(str::parse);
    let (Some(Ok(first)), Some(Ok(last))) = (ends.next(), ends.next()) else { return None };
    let kept: Option<PortSet> = reserved.trim().parse().ok();
    let is_given =
        |port: &u16| (first..=last).contains(port) && kept.as_ref().is_none_or(|kept| !kept.contains(*port));
    let overlap = PortSet::of(ports.iter().filter(is_given).map(|port| port..=port))?;
    let before = kept.map(|kept| format!("{kept},")).unwrap_or_default();
    let remedy = format!("sysctl -w net.ipv4.ip_local_reserved_ports={before}{overlap}");
    Some((overlap, remedy))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Where no other test listens.
    const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 77, 1);

    fn refusal(address: IpAddr, port: u16) -> String {
        PortReservation::take(&[address], &(port..=port).into()).err().expect("it cannot be had").to_string()
    }

    #[test]
    fn held_port_is_in_use_until_dropped() {
        let free = || TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap();
        let local = free();
        let held = PortReservation::take(&[HERE.into()], &(local.port()..=local.port()).into()).unwrap();
        for other in [local, (Ipv4Addr::UNSPECIFIED, local.port()).into()] {
            assert_eq!(TcpListener::bind(other).unwrap_err().kind(), io::ErrorKind::AddrInUse, "{other}");
        }
        assert!(std::net::TcpStream::connect(local).is_err(), "nobody listens there");
        drop(held);
        TcpListener::bind(local).unwrap();
    }

    #[test]
    fn held_take_of_used_port_returns_error_with_remedy() {
        for listener in [TcpListener::bind((HERE, 0)), TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))] {
            let port = listener.as_ref().unwrap().local_addr().unwrap().port();
            let text = refusal(HERE.into(), port);
            assert!(text.contains(&format!("{HERE}:{port}")) && text.contains("ss -tanp"), "{text}");
        }
        let text = refusal("192.0.2.77".parse().unwrap(), 8080);
        assert!(text.contains("192.0.2.77:8080") && text.contains("ip address"), "{text}");
    }

    #[test]
    fn listeners_may_stay_and_connections_may_not() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let local = listener.local_addr().unwrap();
        let look = |address: IpAddr, port: u16| no_connections(&[address], &(port..=port).into());
        look(HERE.into(), local.port()).unwrap();
        let _there = std::net::TcpStream::connect(local).unwrap();
        let (_here, _) = listener.accept().unwrap();
        let error = look(HERE.into(), local.port()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains(&local.to_string()), "{error}");
        look(Ipv4Addr::new(127, 0, 77, 2).into(), local.port()).unwrap();
        // The same by a socket of IPv6 that takes IPv4 too.
        if let Ok(both) = TcpListener::bind("[::]:0") {
            let port = both.local_addr().unwrap().port();
            let _there = std::net::TcpStream::connect((HERE, port)).unwrap();
            let (_here, _) = both.accept().unwrap();
            assert!(look(HERE.into(), port).is_err());
        }
    }

    #[test]
    fn connections_parses_kernel_tcp_table() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |local: &str, state: &str| {
            format!("   0: {local} 0202A8C0:CF2A {state} 00000000:00000000 02:000A7D3A 00000000     0\n")
        };
        let v6 =
            [0xfd77_0000_u32, 0, 0x0001_0000, 0x100].map(|word| format!("{:08X}", word.to_be())).concat();
        let v4 = format!("{:08X}", u32::from_ne_bytes([10, 77, 0, 1]));
        let mapped = format!("{:016X}{:08X}{v4}", 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]));
        let table = [
            head.to_owned(),
            line(&format!("{v4}:1F90"), "01"),
            line(&format!("{v4}:1F91"), "0A"),
            line(&format!("{v4}:1F92"), "06"),
            line(&format!("{v6}:0016"), "03"),
            line(&format!("{mapped}:0017"), "08"),
            line("zz:1", "01"),
            "rubbish\n".to_owned(),
        ];
        let found: Vec<String> = connections(&table.concat()).map(|local| local.to_string()).collect();
        assert_eq!(found, ["10.77.0.1:8080", "[fd77::1:0:0:100]:22", "10.77.0.1:23"]);
    }

    #[test]
    fn errors_name_the_limit_or_the_right_that_is_missing() {
        let local = "10.0.0.1:80".parse().unwrap();
        assert!(fault(local, Errno::MFILE).to_string().contains("ulimit -n"));
        let text = fault(local, Errno::ACCESS);
        assert_eq!(text.kind(), io::ErrorKind::PermissionDenied);
        assert!(text.to_string().contains("CAP_NET_BIND_SERVICE"), "{text}");
    }

    #[test]
    fn ports_that_the_kernel_gives_out_are_found() {
        let of = |ports: &str, given, reserved| {
            overlap(&ports.parse().unwrap(), given, reserved)
                .map(|(ports, remedy)| (ports.to_string(), remedy.rsplit('=').next().unwrap().to_owned()))
        };
        let some = |ports: &str, reserved: &str| Some((ports.to_owned(), reserved.to_owned()));
        let given = "32768\t60999\n";
        assert_eq!(of("8080,61000-61999", given, "\n"), None);
        assert_eq!(of("8080,60990-61010", given, "\n"), some("60990-60999", "60990-60999"));
        assert_eq!(of("50000-50010", given, "50000-50020\n"), None);
        assert_eq!(
            of("50000-50010", given, "40000,50005\n"),
            some("50000-50004,50006-50010", "40000,50005,50000-50004,50006-50010")
        );
        assert_eq!(of("50000", "", ""), None);
    }
}

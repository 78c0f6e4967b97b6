//! What this kernel can do, found out by doing it: an option that is accepted may still not work.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketType};

use crate::limits::PROBE_TIMEOUT;
use crate::recv::{UdpRx, UdpRxConfig};
use crate::sys::mmsg::SendArena;
use crate::sys::socket::{get_int, set_int};

/// Lengths of the train that the probes send: two full segments and a shorter one.
const TRAIN: [usize; 3] = [200, 200, 40];

/// One thing that a kernel may have or not.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The name of the feature.
    pub name: &'static str,
    /// Whether it works here.
    pub works: bool,
    /// The findings.
    pub detail: String,
    /// The use of the feature.
    pub use_for: &'static str,
    /// What to do if it does not work.
    pub remedy: &'static str,
}

/// The findings about this kernel.
#[derive(Clone, Debug)]
pub struct Survey {
    /// One entry for each thing that was tried.
    pub findings: Vec<Finding>,
}

impl Survey {
    /// Whether the named thing works; `false` for an unknown name.
    pub fn works(&self, name: &str) -> bool {
        self.findings.iter().any(|f| f.name == name && f.works)
    }
}

impl fmt::Display for Survey {
    /// A table, one line each, with the remedy under what does not work.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|x| x.name.len()).max().unwrap_or(0);
        for x in &self.findings {
            let mark = if x.works { "yes" } else { "no " };
            writeln!(f, "{:width$}  {mark}  {} ({})", x.name, x.detail, x.use_for)?;
            if !x.works {
                writeln!(f, "{:width$}       -> {}", "", x.remedy)?;
            }
        }
        Ok(())
    }
}

/// Tries everything that this crate uses. Takes a few milliseconds; sends only on the loopback device.
pub fn survey() -> Survey {
    let finding = |name, result: Result<String, io::Error>, use_for, remedy| Finding {
        name,
        works: result.is_ok(),
        detail: result.unwrap_or_else(|error| error.to_string()),
        use_for,
        remedy,
    };
    let done = |result: io::Result<()>| result.map(|()| "tried on the loopback device".to_owned());
    Survey {
        findings: vec![
            finding(
                "udp-gso",
                done(udp_gso()),
                "bursts leave in one piece, two to three times cheaper",
                "use Linux 4.18 or later; without it every datagram is a message of its own",
            ),
            finding("udp-gro", done(udp_gro()), "cheap receiving in play and load", "use Linux 5.0 or later"),
            finding(
                "receive-timestamps",
                done(receive_timestamps()),
                "arrival times without the scheduler's noise",
                "use Linux 2.6.33 or later; arrival times are taken by the program otherwise",
            ),
            finding(
                "send-buffer",
                send_buffer(),
                "room for bursts of all viewers",
                "sysctl -w net.core.wmem_max=4194304, or grant CAP_NET_ADMIN",
            ),
            finding(
                "ipv6",
                done(ipv6()),
                "viewers with IPv6 addresses",
                "enable IPv6 (net.ipv6.conf.all.disable_ipv6=0)",
            ),
            finding(
                "tcp-notsent-lowat",
                not_sent_low_water(),
                "slow RTSP/TCP viewers are noticed early",
                "use Linux 3.12 or later; RTP interleaved in TCP cannot be served otherwise",
            ),
        ],
    }
}

/// Whether the kernel cuts a train into datagrams (`UDP_SEGMENT`, Linux 4.18): sends one on the loopback device and
/// looks at what arrives. In a network namespace whose loopback device is down only the option itself is tried.
///
/// # Errors
/// What failed.
pub fn udp_gso() -> io::Result<()> {
    let Ok((sender, mut receiver)) = loopback_pair(false) else {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        return set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, TRAIN[0] as i32);
    };
    send_train(&sender, receiver.socket().local_addr()?)?;
    let mut lengths = Vec::new();
    while lengths.len() < TRAIN.len() {
        let before = lengths.len();
        lengths.extend(receiver.recv(Some(PROBE_TIMEOUT))?.map(|d| d.bytes.len()));
        if lengths.len() == before {
            break;
        }
    }
    if lengths == TRAIN {
        Ok(())
    } else {
        Err(io::Error::other(format!("sent a train of {TRAIN:?} bytes, received {lengths:?}")))
    }
}

/// Whether the kernel hands over a train in one piece (`UDP_GRO`, Linux 5.0).
///
/// # Errors
/// What failed.
pub fn udp_gro() -> io::Result<()> {
    let (sender, mut receiver) = loopback_pair(true)?;
    send_train(&sender, receiver.socket().local_addr()?)?;
    let pieces: Vec<_> = receiver.recv(Some(PROBE_TIMEOUT))?.map(|d| (d.bytes.len(), d.segment)).collect();
    if pieces == [(TRAIN[0], 0), (TRAIN[1], 1), (TRAIN[2], 2)] {
        Ok(())
    } else {
        Err(io::Error::other(format!("a train of {TRAIN:?} bytes came as (length, place) {pieces:?}")))
    }
}

/// Checks whether the kernel reports when a datagram arrived (`SO_TIMESTAMPNS`).
///
/// # Errors
/// What failed.
pub fn receive_timestamps() -> io::Result<()> {
    let (sender, mut receiver) = loopback_pair(false)?;
    sender.send_to(b"when", receiver.socket().local_addr()?)?;
    let arrival = receiver.recv(Some(PROBE_TIMEOUT))?.next().map(|d| d.arrival);
    match arrival {
        Some(Some(_)) => Ok(()),
        Some(None) => Err(io::Error::other("a datagram came without its time")),
        None => Err(io::Error::other("a datagram on the loopback device was lost")),
    }
}

fn send_buffer() -> io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let wanted = crate::kernel::SEND_BUFFER_BYTES;
    let got = crate::sys::socket::raise_buffer(socket.as_fd(), crate::sys::socket::Buffer::Send, wanted)?;
    // The kernel includes its overhead and reports twice the size that was set.
    let detail = format!("{} KiB of {} KiB", got / 2048, wanted / 1024);
    if got / 2 >= wanted { Ok(detail) } else { Err(io::Error::other(detail)) }
}

fn ipv6() -> io::Result<()> {
    UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).map(drop)
}

fn not_sent_low_water() -> io::Result<String> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    set_int(socket.as_fd(), libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT, 4096)?;
    let got = get_int(socket.as_fd(), libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT)?;
    if got == 4096 {
        Ok("set and read back".to_owned())
    } else {
        Err(io::Error::other(format!("set 4096, read {got}")))
    }
}

fn loopback_pair(gro: bool) -> io::Result<(UdpSocket, UdpRx)> {
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let config = UdpRxConfig { batch: 4, gro, ..UdpRxConfig::default() };
    Ok((sender, UdpRx::new(receiver, config).map_err(io::Error::other)?))
}

fn send_train(sender: &UdpSocket, dest: SocketAddr) -> io::Result<()> {
    let train = [7; TRAIN[0] + TRAIN[1] + TRAIN[2]];
    let mut arena = SendArena::new(1, 1);
    let mut plan = arena.plan();
    plan.to(dest, None);
    plan.push(Some(TRAIN[0] as u16), [&train[..]]);
    plan.send(sender.as_fd(), 0..1).map(drop).map_err(io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey_display_lists_remedy_for_missing_feature() {
        let mut survey = survey();
        assert_eq!(survey.findings.len(), 6);
        survey.findings[0].works = false;
        let text = survey.to_string();
        assert!(text.contains("udp-gso") && text.contains("-> use Linux 4.18 or later"), "{text}");
        assert!(!survey.works("udp-gso") && !survey.works("no such thing"));
    }
}

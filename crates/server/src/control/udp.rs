//! Input on the UDP ports: receiver reports, hole punches, and ICMP errors about packets that the
//! engines have sent.
//!
//! All of it comes to a socket of our own beside those of the engines ([`millrace_offload::UdpPorts`]). Nothing is sent from it: a thread that
//! waits with epoll on a socket that sends would be called each time a packet leaves the machine.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use millrace_offload::IcmpReader;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::hub::SharedHub;
use crate::limits::control::{DATAGRAM_BYTES, DATAGRAMS_PER_TURN};
use crate::session::UdpPort;

/// Listens on one of the two ports for ever.
pub(super) async fn listen(hub: SharedHub, port: UdpPort, socket: AsyncFd<UdpSocket>) {
    let mut bytes = [0; DATAGRAM_BYTES];
    let mut icmp = IcmpReader::default();
    loop {
        let Ok(mut ready) = socket.ready(Interest::READABLE | Interest::ERROR).await else { return };
        let is_more = take_errors(&hub, socket.get_ref(), &mut icmp);
        let tries = take_datagrams(&hub, socket.get_ref(), port, &mut bytes);
        if !is_more && tries < DATAGRAMS_PER_TURN {
            ready.clear_ready();
        }
        tokio::task::yield_now().await;
    }
}

/// Takes the received datagrams, as many as a turn allows; returns how often it tried before there
/// was none.
fn take_datagrams(hub: &SharedHub, socket: &UdpSocket, port: UdpPort, bytes: &mut [u8]) -> usize {
    let mut hub = hub.borrow_mut();
    let mut tries = 0;
    while tries < DATAGRAMS_PER_TURN {
        match socket.recv_from(bytes) {
            Ok((len, from)) => {
                let now = hub.now();
                hub.rtsp().handle_datagram(now, port, from, &bytes[..len]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // An ICMP error comes up once more as an error of the whole socket; reading it has cleared it.
            Err(_) => {}
        }
        tries += 1;
    }
    hub.flush();
    tries
}

/// Passes ICMP errors on to the engines that they concern, as many as a turn allows; whether there may be more.
fn take_errors(hub: &SharedHub, socket: &UdpSocket, icmp: &mut IcmpReader) -> bool {
    let before = icmp.hearsay();
    let mut unreachable: Vec<(SocketAddr, i32)> = Vec::new();
    let is_more = icmp.read(socket, |dest, errno| unreachable.push((dest, errno)));
    // A burst that a viewer refuses is answered several times.
    unreachable.sort_unstable();
    unreachable.dedup_by_key(|(dest, _)| *dest);
    hub.borrow_mut().icmp_errors(&unreachable, icmp.hearsay() - before);
    is_more
}

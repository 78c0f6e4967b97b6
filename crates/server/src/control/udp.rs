//! What comes in on the UDP ports: receiver reports and hole punches.

use std::io::ErrorKind;

use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::hub::Shared;
use crate::session::UdpPort;

/// Datagrams before other tasks get their turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Longest datagram that is looked at; RTCP fits a packet.
const DATAGRAM_BYTES: usize = 2048;

/// Listens on one socket for ever.
pub(super) async fn listen(hub: Shared, socket: UdpSocket, port: UdpPort) {
    let mut bytes = [0; DATAGRAM_BYTES];
    loop {
        // An ICMP message about a viewer comes up as an error of the whole socket: the engine sees to it.
        if socket.ready(Interest::READABLE | Interest::ERROR).await.is_err() {
            return;
        }
        take(&hub, &socket, port, &mut bytes);
        tokio::task::yield_now().await;
    }
}

/// Takes what has come, as much as a turn allows.
fn take(hub: &Shared, socket: &UdpSocket, port: UdpPort, bytes: &mut [u8]) {
    let mut hub = hub.borrow_mut();
    for _ in 0..DATAGRAMS_PER_TURN {
        match socket.try_recv_from(bytes) {
            Ok((len, from)) => {
                let now = hub.now();
                hub.server.handle_datagram(now, port, from, &bytes[..len]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(_) => {} // one error is taken off the socket with each call
        }
    }
    hub.flush();
}

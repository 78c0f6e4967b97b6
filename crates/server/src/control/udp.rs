//! What comes in on the UDP ports: receiver reports and hole punches.
//!
//! Both sockets are clones of those that an engine sends from. A thread that waits on such a socket with epoll is called by
//! the kernel each time a packet leaves the machine, because room in its send buffer is an event, too. For the RTP socket
//! this costs more than sending does, so nobody waits there: it is looked at now and then. At the RTCP socket few packets
//! leave and reports are the way in which viewers say that they are alive: it is watched, for reading only.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::{MissedTickBehavior, interval};

use super::hub::Shared;
use crate::session::UdpPort;

/// Datagrams before other tasks get their turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Longest datagram that is looked at; RTCP fits a packet.
const DATAGRAM_BYTES: usize = 2048;
/// How often the RTP socket is looked at. A hole punch opens the way through a firewall on its way here, whether it is
/// read or not, and there are seconds before a session without a sign of life ends.
const GLANCE: Duration = Duration::from_millis(50);

/// Listens on the RTCP socket for ever.
pub(super) async fn listen(hub: Shared, socket: AsyncFd<UdpSocket>) {
    let mut bytes = [0; DATAGRAM_BYTES];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        if take(&hub, socket.get_ref(), UdpPort::Rtcp, &mut bytes) < DATAGRAMS_PER_TURN {
            ready.clear_ready();
        }
        tokio::task::yield_now().await;
    }
}

/// Looks at the RTP socket for ever.
pub(super) async fn glance(hub: Shared, socket: UdpSocket) {
    let mut bytes = [0; DATAGRAM_BYTES];
    let mut ticks = interval(GLANCE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        while take(&hub, &socket, UdpPort::Rtp, &mut bytes) == DATAGRAMS_PER_TURN {
            tokio::task::yield_now().await;
        }
    }
}

/// Takes what has come, as much as a turn allows; returns how often it tried before there was nothing.
fn take(hub: &Shared, socket: &UdpSocket, port: UdpPort, bytes: &mut [u8]) -> usize {
    let mut hub = hub.borrow_mut();
    let mut tries = 0;
    while tries < DATAGRAMS_PER_TURN {
        match socket.recv_from(bytes) {
            Ok((len, from)) => {
                let now = hub.now();
                hub.server.handle_datagram(now, port, from, &bytes[..len]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // An ICMP message about a viewer comes up as an error of the whole socket: the engine sees to it, and one
            // error is taken off the socket with each call.
            Err(_) => {}
        }
        tries += 1;
    }
    hub.flush();
    tries
}

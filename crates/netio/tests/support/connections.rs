//! Connections over the loopback device, with small buffers, and the helpers a test needs to drive
//! them.
#![allow(unreachable_pub)]

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use millrace_core::ids::ConnId;
use millrace_netio::KernelTx;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::support::TIMEOUT;

/// Writer and reader of a connection with the buffers given (before the handshake, so that they bound the window).
pub fn connection(send_buffer: Option<usize>, receive_buffer: Option<usize>) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if let Some(bytes) = send_buffer {
        sockopt::set_socket_send_buffer_size(&listener, bytes).unwrap();
    }
    let reader =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    if let Some(bytes) = receive_buffer {
        sockopt::set_socket_recv_buffer_size(&reader, bytes).unwrap();
    }
    rustix::net::connect(&reader, &listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, TcpStream::from(reader))
}

/// Waits until the connection takes bytes again.
pub fn wait_writable(fd: &impl AsFd) {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "the reader does not read");
}

pub fn add(tx: &mut KernelTx, conn: u32, writer: &TcpStream) -> OwnedFd {
    tx.add_conn(ConnId(conn), writer.as_fd().try_clone_to_owned().unwrap()).unwrap();
    writer.as_fd().try_clone_to_owned().unwrap()
}

/// A small deterministic sequence of numbers below `limit`.
pub struct Dice(pub u32);

impl Dice {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % limit
    }
}

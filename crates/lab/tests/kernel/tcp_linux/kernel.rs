//! The kernel's ends of conversations.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, sockopt};

use super::{PORT, TIMEOUT};
use crate::support::pattern;

/// A connection to our side; its receive buffer has a size that the kernel chooses, or this one.
pub(crate) fn connect(to: SocketAddr, receive_bytes: Option<usize>) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    if let Some(bytes) = receive_bytes {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    // Connecting too takes no longer than sending may.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(TIMEOUT))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

pub(crate) fn listen(port: u16, receive_bytes: Option<usize>) -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    if let Some(bytes) = receive_bytes {
        sockopt::set_socket_recv_buffer_size(&listener, bytes)?;
    }
    Ok(listener)
}

/// Sends bytes of a pattern and closes its half; meanwhile reads until the end and compares. Before
/// each read, `before` gets the number of bytes that have come.
pub(crate) fn talk(
    mut stream: TcpStream,
    (seed, bytes): (u64, usize),
    (their_seed, expected): (u64, usize),
    mut before: impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut writer = stream.try_clone()?;
    let sender = std::thread::spawn(move || {
        for at in (0..bytes).step_by(16_384) {
            writer.write_all(&pattern(seed, at, (bytes - at).min(16_384)))?;
        }
        writer.shutdown(Shutdown::Write)
    });
    let mut got = 0;
    let mut buffer = vec![0; 65_536];
    loop {
        before(got)?;
        match stream.read(&mut buffer)? {
            0 => break,
            count if buffer[..count] != pattern(their_seed, got, count)[..] => {
                return Err(Error::other(format!("wrong bytes from {got} on")));
            }
            count => got += count,
        }
    }
    sender.join().unwrap()?;
    if got == expected { Ok(()) } else { Err(Error::other(format!("{got} of {expected} bytes came"))) }
}

/// Sends the received data back.
pub(crate) fn echo(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Write),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

/// Ends a connection by a reset, with data on its way.
pub(crate) fn reset(mut stream: TcpStream) -> Result<()> {
    stream.write_all(&[1; 5000])?;
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(())
}

/// Waits for the reset of the other side.
pub(crate) fn is_reset(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(Error::other("closed where it was to be reset")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// `each` connections of each kind, one after the other.
pub(crate) fn connect_and_abort(to: Ipv4Addr, each: u32) -> Result<()> {
    for _ in 0..each {
        reset(connect((to, PORT).into(), None)?)?;
        match connect((to, PORT + 1).into(), None) {
            Ok(stream) => is_reset(stream)?,
            // So quickly that connect() has not returned before.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same from the other side: takes `each` connections on both ports.
pub(crate) fn accept_and_abort(ports: [TcpListener; 2], each: u32) -> Result<()> {
    let [resets, waits_for_resets] = ports;
    let waits =
        std::thread::spawn(move || (0..each).try_for_each(|_| is_reset(waits_for_resets.accept()?.0)));
    (0..each).try_for_each(|_| reset(resets.accept()?.0))?;
    waits.join().unwrap()
}

//! State changes for the service manager: one datagram to the socket that `$NOTIFY_SOCKET` names (sd_notify(3)).

use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;

/// All listeners accept connections.
pub(super) fn ready() {
    report("READY=1");
}

/// The settings are being read again; [`ready`] ends it. Service managers tell by the clock which reload it is
/// (sd_notify(3), `MONOTONIC_USEC`).
pub(super) fn reloading() {
    report(&format!("RELOADING=1\nMONOTONIC_USEC={}", MonotonicClock.now().0 / 1000));
}

/// All parts of the server make progress ([`super::watchdog`]).
pub(super) fn watchdog() {
    report("WATCHDOG=1");
}

/// The server has begun to shut down.
pub(super) fn stopping() {
    tracing::info!("stopping");
    report("STOPPING=1");
}

/// The server runs on if no service manager takes the datagram: the manager reports the missing state itself.
fn report(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(
            "NOTIFY_SOCKET: cannot send {state} to {}: {error}; start millrace from its service unit, or unset the variable",
            name.display()
        );
    }
}

fn send(name: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        // vsock is for virtual machines that report to their host.
        _ => return Err(Error::new(ErrorKind::Unsupported, "not the name of a Unix socket")),
    };
    let socket = UnixDatagram::unbound()?;
    // A full queue must not hold up the server.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_delivers_state_to_path_and_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let unique = format!("millrace-notify-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&unique).unwrap();
        for (socket, name) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&by_name).unwrap(), format!("@{unique}").into()),
        ] {
            send(&name, "READY=1").unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
    }

    #[test]
    fn send_to_unusable_name_is_an_error() {
        for name in ["vsock:2:1", "relative", "/nonexistent/socket"] {
            assert!(send(OsStr::new(name), "READY=1").is_err(), "{name}");
        }
    }
}

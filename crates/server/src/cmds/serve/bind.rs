//! The ports for RTSP and HTTP, plain and by TLS. They are taken at the start, so that a port in
//! use elsewhere is reported at once, and listened on only when everything can be answered
//! ([`crate::control`] does that). Until then a player is refused, and tries again, instead of
//! waiting in a queue or getting an answer that a title does not exist.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// The purpose of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Rtsp,
    Http,
    Https,
    Rtsps,
}

impl For {
    const ALL: [Self; 4] = [Self::Rtsp, Self::Http, Self::Https, Self::Rtsps];

    /// The name of its listener in the unit of a service manager.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rtsp => "rtsp",
            Self::Http => "http",
            Self::Https => "https",
            Self::Rtsps => "rtsps",
        }
    }

    /// The one with this name.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|what| what.name() == name)
    }

    /// Returns its name, and the setting that chooses another address.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Rtsp => ("RTSP", "--listen"),
            Self::Http => ("HTTP", "--http"),
            Self::Https => ("HTTPS", "--https"),
            Self::Rtsps => ("RTSPS", "--rtsps"),
        }
    }
}

/// Takes the first available address of `choices`. No client can connect yet.
pub(super) fn first_free(choices: &[SocketAddr], what: For) -> anyhow::Result<TcpListener> {
    let mut last = None;
    for &address in choices {
        match take(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some((address, error)),
        }
    }
    let (address, error) = last.context("no address to listen on")?;
    let (protocol, setting) = what.words();
    Err(anyhow::anyhow!("listen on {address} for {protocol}: {error}; {} {setting}", remedy(error.kind())))
}

fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AddrInUse => "another program has the port, choose another with",
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address (see: ip address), choose another with"
        }
        ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE, choose another with",
        _ => "choose another address with",
    }
}

fn take(address: SocketAddr) -> std::io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As the standard library's listeners: connections of an earlier run that are still dying do not hold the port.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn first_free_listener_refuses_connections_before_listen() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = first_free(&[any], For::Rtsp).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        rustix::net::listen(&listener, 8).unwrap();
        assert!(TcpStream::connect(address).is_ok());
        // The next choice is taken, and the last failure reported.
        let second = first_free(&[address, any], For::Rtsp).unwrap();
        assert_ne!(second.local_addr().unwrap(), address);
        assert!(
            first_free(&[address], For::Rtsp)
                .unwrap_err()
                .to_string()
                .contains("another program has the port")
        );
        let documentation = SocketAddr::from(([192, 0, 2, 1], 0));
        assert!(
            first_free(&[documentation], For::Http)
                .unwrap_err()
                .to_string()
                .contains("no such address (see: ip address), choose another with --http")
        );
    }

    #[test]
    fn remedy_of_bind_error_matches_its_kind() {
        // Root may bind every port, so no port refuses here.
        for (kind, words) in [
            (ErrorKind::AddrInUse, "another program has the port"),
            (ErrorKind::AddrNotAvailable, "ip address"),
            (ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE"),
            (ErrorKind::Other, "another address"),
        ] {
            assert!(remedy(kind).contains(words), "{kind:?}: {}", remedy(kind));
        }
    }
}

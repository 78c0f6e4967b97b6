//! Addresses to listen on, as they are chosen and as they are taken.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::str::FromStr;

use super::bind;
use super::inherited::InheritedListeners;
use crate::limits::web::HTTP_PORTS;

/// Where a protocol is listened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenChoice {
    /// At this address.
    At(SocketAddr),
    /// Nowhere.
    Off,
}

impl FromStr for ListenChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            _ => parse_listen(text).map(Self::At).map_err(|error| format!("{error}, or off")),
        }
    }
}

impl ListenChoice {
    /// Takes the address, if there is one.
    pub(super) fn take(
        self,
        what: bind::For,
        inherited: &mut InheritedListeners,
    ) -> anyhow::Result<Option<TcpListener>> {
        let Self::At(address) = self else { return Ok(None) };
        match inherited.take(what, Some(address), &[]) {
            Some(listener) => Ok(Some(listener)),
            None => bind::first_free(&[address], what).map(Some),
        }
    }
}

/// Reads an address with its port.
pub(super) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("got \"{text}\"; write an address and a port, for example 0.0.0.0:8554, or [::]:8554 for IPv6 as well")
    })
}

/// Takes the default address if none was given. RTSP is served even if none is free.
pub(super) fn usual(
    listen: Option<SocketAddr>,
    ip: IpAddr,
    first: u16,
    what: bind::For,
    inherited: &mut InheritedListeners,
) -> Option<TcpListener> {
    let ports: Vec<_> = (first..first + HTTP_PORTS).collect();
    if let Some(listener) = inherited.take(what, None, &ports) {
        return Some(listener);
    }
    // If RTSP takes any free port, no particular one is wanted here.
    let ports = if listen.is_some_and(|listen| listen.port() == 0) { vec![0] } else { ports };
    let choices: Vec<_> = ports.into_iter().map(|port| SocketAddr::new(ip, port)).collect();
    bind::first_free(&choices, what)
        .inspect_err(|error| tracing::warn!("{error:#}; until then the web page is unavailable there"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::web::DEFAULT_HTTP_PORT;

    #[test]
    fn listen_choice_parse_accepts_address_or_off() {
        assert_eq!("off".parse(), Ok(ListenChoice::Off));
        assert_eq!("127.0.0.1:80".parse(), Ok(ListenChoice::At(([127, 0, 0, 1], 80).into())));
        assert!("8080".parse::<ListenChoice>().unwrap_err().ends_with(", or off"));
    }

    #[test]
    fn usual_skips_port_in_use_and_honours_explicit_address() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let usual = |listen| {
            usual(listen, here, DEFAULT_HTTP_PORT, bind::For::Http, &mut InheritedListeners::default())
        };
        let first = usual(None).expect("one of ten");
        // Whoever only has a port without listening there does not keep others from it.
        rustix::net::listen(&first, 1).unwrap();
        let second = usual(None).expect("one of nine");
        assert_ne!(first.local_addr().unwrap(), second.local_addr().unwrap());
        let any = usual(Some(SocketAddr::new(here, 0))).unwrap().local_addr().unwrap();
        assert!(!(DEFAULT_HTTP_PORT..DEFAULT_HTTP_PORT + HTTP_PORTS).contains(&any.port()));
    }
}

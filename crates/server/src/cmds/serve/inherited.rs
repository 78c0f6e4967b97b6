//! Socket activation: listeners that the service manager has opened are used instead of new ones. Players that connect while the
//! server starts, or starts again, wait in their queues and are answered later.

use std::fmt;
use std::net::{SocketAddr, TcpListener};

use anyhow::Context;
use millrace_offload::inherited_sockets;
use rustix::net::{SocketType, sockopt};

use super::bind::For;

/// The listeners that no protocol has taken yet.
#[derive(Debug, Default)]
pub(super) struct InheritedListeners(Vec<InheritedListener>);

/// A listener, and the name that the unit gives it.
#[derive(Debug)]
struct InheritedListener {
    name: String,
    address: SocketAddr,
    listener: TcpListener,
}

impl fmt::Display for InheritedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, address, .. } = self;
        if name.is_empty() { write!(f, "{address}") } else { write!(f, "\"{name}\" at {address}") }
    }
}

impl InheritedListeners {
    /// Takes those of this process. Call it before any other socket is opened.
    ///
    /// # Errors
    /// If the variables of the service manager make no sense.
    pub(super) fn of_environment() -> anyhow::Result<Self> {
        let sockets = inherited_sockets()
            .context("sockets of the service manager; start the server from its unit, or unset LISTEN_FDS")?;
        let mut listeners = Vec::new();
        for socket in sockets {
            let name = socket.name;
            let is_listening = sockopt::socket_acceptconn(&socket.fd).unwrap_or(false);
            let is_stream = sockopt::socket_type(&socket.fd).is_ok_and(|kind| kind == SocketType::STREAM);
            let listener = TcpListener::from(socket.fd);
            match listener.local_addr() {
                Ok(address) if is_listening && is_stream => {
                    listeners.push(InheritedListener { name, address, listener });
                }
                _ => tracing::warn!(
                    "socket of the service manager \"{name}\": not a TCP listener, and not used; give the unit ListenStream=ADDR:PORT"
                ),
            }
        }
        Ok(Self(listeners))
    }

    /// Takes the listener of a protocol: one with its name, or else one with an address that it would have. Neither fits where
    /// `setting` has another address. `ports` are those of the protocol without a setting.
    pub(super) fn take(
        &mut self,
        what: For,
        setting: Option<SocketAddr>,
        ports: &[u16],
    ) -> Option<TcpListener> {
        let fits = |address: SocketAddr| {
            setting.is_none_or(|set| set.ip() == address.ip() && [0, address.port()].contains(&set.port()))
        };
        let is_named = |listener: &InheritedListener| listener.name == what.name();
        // A name of a protocol is for no other.
        let is_usual = |listener: &InheritedListener| {
            For::of_name(&listener.name).is_none()
                && (setting.is_some() || ports.contains(&listener.address.port()))
        };
        let of = |wanted: &dyn Fn(&InheritedListener) -> bool| {
            self.0.iter().position(|listener| wanted(listener) && fits(listener.address))
        };
        let place = of(&is_named).or_else(|| of(&is_usual))?;
        let taken = self.0.remove(place);
        tracing::info!("{}: listens by the socket of the service manager {taken}", what.words().0);
        Some(taken.listener)
    }

    /// Reports listeners that no protocol has taken; they are closed.
    pub(super) fn report_rest(self) {
        for listener in self.0 {
            let remedy = match For::of_name(&listener.name) {
                Some(what) => {
                    let setting = what.words().1;
                    format!(
                        "it does not fit {setting}, or that has a listener already; use the same address there and in the unit, and one ListenStream= for each name"
                    )
                }
                None => "no setting has this address; give it FileDescriptorName=rtsp, rtsps, http or https"
                    .to_owned(),
            };
            tracing::warn!("socket of the service manager {listener}: not used: {remedy}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(name: &str, address: &str) -> InheritedListener {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        InheritedListener { name: name.to_owned(), address, listener }
    }

    fn port(listener: Option<TcpListener>) -> Option<u16> {
        listener.map(|listener| listener.local_addr().unwrap().port())
    }

    #[test]
    fn listener_is_taken_by_its_name_wherever_it_listens() {
        let all = vec![inherited("http", "127.0.0.1:0"), inherited("rtsp", "127.0.0.1:0")];
        let ports: Vec<_> = all.iter().map(|listener| listener.address.port()).collect();
        let mut all = InheritedListeners(all);
        assert_eq!(port(all.take(For::Rtsp, None, &[554])), Some(ports[1]));
        assert_eq!(port(all.take(For::Rtsp, None, &[554])), None);
        assert_eq!(port(all.take(For::Https, None, &[ports[0]])), None, "the name is of another protocol");
        assert_eq!(port(all.take(For::Http, None, &[8080])), Some(ports[0]));
        assert!(all.0.is_empty());
    }

    #[test]
    fn listener_without_a_name_of_a_protocol_is_taken_by_its_address() {
        let all = vec![inherited("millrace.socket", "127.0.0.1:0"), inherited("", "127.0.0.1:0")];
        let addresses: Vec<_> = all.iter().map(|listener| listener.address).collect();
        let mut all = InheritedListeners(all);
        assert_eq!(port(all.take(For::Rtsp, None, &[554])), None);
        assert_eq!(port(all.take(For::Rtsp, Some(addresses[1]), &[554])), Some(addresses[1].port()));
        assert_eq!(port(all.take(For::Http, None, &[addresses[0].port()])), Some(addresses[0].port()));
    }

    #[test]
    fn listener_at_another_address_than_the_setting_is_not_taken() {
        let all = vec![inherited("rtsp", "127.0.0.1:0"), inherited("", "127.0.0.1:0")];
        let address = all[0].address;
        let mut all = InheritedListeners(all);
        for setting in ["127.0.0.1:1", "[::1]:0", "0.0.0.0:0"] {
            assert_eq!(port(all.take(For::Rtsp, Some(setting.parse().unwrap()), &[554])), None, "{setting}");
        }
        // Any port of this address.
        let any = Some("127.0.0.1:0".parse().unwrap());
        assert_eq!(port(all.take(For::Rtsp, any, &[554])), Some(address.port()));
    }
}

//! RTSP in HTTP: two connections of a viewer that act as one. The GET is served like any other
//! connection, but the viewer's requests arrive on the POST.
//!
//! ```text
//!   POST ──► base64 decoded ──► Tunnel ──► the GET's Framer ──► session::Server ──► replies and media ──► GET
//! ```
//!
//! A tunnel lives as long as its GET. One POST feeds it at a time; a viewer may close the POST and
//! open another. At most one read of the POST waits between the two, so a viewer that sends faster
//! than the server replies delays only itself.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use tokio::sync::Notify;

use super::conn::{Read, read_into};
use super::connection::ControlConnection;
use super::hub::SharedHub;
use crate::limits::control::CONN_READ_BYTES;
use crate::rtsp::tunnel::{Base64Stream, TunnelHalf};

/// The key of a tunnel, common to both halves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TunnelKey {
    ip: IpAddr,
    is_encrypted: bool,
    cookie: Box<str>,
}

/// Buffer and notifications between the POST and the GET.
#[derive(Debug, Default)]
pub(super) struct Tunnel {
    decoded: RefCell<Vec<u8>>,
    /// The POST has sent bytes that are not base64.
    is_broken: Cell<bool>,
    /// A POST feeds it.
    is_fed: Cell<bool>,
    /// The GET has ended.
    is_over: Cell<bool>,
    /// Notifies the GET that bytes were decoded or that decoding failed.
    pub(super) arrived: Notify,
    /// Notifies the POST that there is room again or that the tunnel is over.
    taken: Notify,
}

/// Data or error that a GET takes from its tunnel.
pub(super) enum Arrived {
    Bytes(Vec<u8>),
    NotBase64,
}

impl Tunnel {
    /// Takes the decoded bytes.
    pub(super) fn take(&self) -> Arrived {
        let bytes = self.decoded.take();
        self.taken.notify_one();
        match (bytes.is_empty(), self.is_broken.get()) {
            (true, true) => return Arrived::NotBase64,
            // The bytes before the error are handled first.
            (false, true) => self.arrived.notify_one(),
            (_, false) => {}
        }
        Arrived::Bytes(bytes)
    }

    /// The GET has ended.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        self.taken.notify_one();
    }

    fn has_room(&self) -> bool {
        self.decoded.borrow().is_empty()
    }

    fn decode(&self, decoder: &mut Base64Stream, text: &[u8]) {
        let is_base64 = decoder.decode(text, &mut self.decoded.borrow_mut()).is_ok();
        self.is_broken.set(!is_base64);
        self.arrived.notify_one();
    }
}

/// Opens the tunnel of a GET; returns `None` if it was refused.
pub(super) fn open(hub: &SharedHub, line: &ControlConnection, half: TunnelHalf) -> Option<Rc<Tunnel>> {
    let mut hub = hub.borrow_mut();
    let (ip, is_encrypted) = hub.server.tunnel_end(line.key)?;
    let key = TunnelKey { ip, is_encrypted, cookie: half.cookie };
    if hub.tunnels.contains_key(&key) {
        hub.rtsp().refuse_tunnel(line.key, 409, "another tunnel has this x-sessioncookie");
        hub.flush();
        return None;
    }
    let tunnel = Rc::<Tunnel>::default();
    hub.tunnels.insert(key.clone(), Rc::clone(&tunnel));
    line.tunnel.replace(Some(key));
    hub.rtsp().tunnel_opened(line.key);
    hub.flush();
    Some(tunnel)
}

/// Serves a POST until it or its tunnel ends. `first` followed its head.
pub(super) async fn feed(hub: &SharedHub, line: &ControlConnection, half: TunnelHalf, first: Vec<u8>) {
    let Some(tunnel) = join(hub, line, half) else { return };
    let mut decoder = Base64Stream::default();
    if !first.is_empty() {
        tunnel.decode(&mut decoder, &first);
    }
    while !(tunnel.is_over.get() || tunnel.is_broken.get() || line.closing.get() || line.broken.get()) {
        tokio::select! {
            ready = line.stream.readable(), if tunnel.has_room() => {
                let mut bytes = [0; CONN_READ_BYTES];
                match ready.map(|()| read_into(line, &mut bytes)) {
                    Ok(Read::Some(0)) => {}
                    Ok(Read::Some(len)) => tunnel.decode(&mut decoder, &bytes[..len]),
                    Ok(Read::End | Read::Broken) | Err(_) => break,
                }
            }
            () = tunnel.taken.notified() => {}
            () = line.wake.notified() => {}
        }
    }
    tunnel.is_fed.set(false);
    line.closing.set(true);
}

/// Finds the tunnel for a POST to feed; returns `None` if the POST was refused.
fn join(hub: &SharedHub, line: &ControlConnection, half: TunnelHalf) -> Option<Rc<Tunnel>> {
    let mut hub = hub.borrow_mut();
    let (ip, is_encrypted) = hub.server.tunnel_end(line.key)?;
    let found = hub.tunnels.get(&TunnelKey { ip, is_encrypted, cookie: half.cookie }).map(Rc::clone);
    let refusal = match &found {
        None => Some((404, "no GET from this address has this x-sessioncookie")),
        Some(tunnel) if tunnel.is_fed.get() => Some((409, "another POST feeds this tunnel")),
        Some(_) => None,
    };
    if let Some((status, what)) = refusal {
        hub.rtsp().refuse_tunnel(line.key, status, what);
        hub.flush();
        return None;
    }
    hub.server.tunnel_joined(line.key);
    found.inspect(|tunnel| tunnel.is_fed.set(true))
}

//! The ports of the server: taken first of all, because those below 1024 may need root, and everything else is done as the user of `--user`.

use std::net::{SocketAddr, TcpListener};

use super::inherited::InheritedListeners;
use super::listen::usual;
use super::tls::TlsPorts;
use super::{DEFAULT_PORTS, ServeArgs, bind};
use crate::limits::web::DEFAULT_HTTP_PORT;

/// Nothing listens there yet.
pub(super) struct ServerPorts {
    pub(super) rtsp: TcpListener,
    /// Where RTSP is.
    pub(super) address: SocketAddr,
    /// `None`: the web page is not wanted, or its usual ports are in use.
    pub(super) http: Option<TcpListener>,
    /// `None`: there is no certificate.
    pub(super) tls: Option<TlsPorts>,
}

impl ServerPorts {
    /// Takes the addresses, by listeners of the service manager where they fit. Without a choice that of HTTP is the address of RTSP with the usual port, or one of the next.
    pub(super) fn take(args: &ServeArgs) -> anyhow::Result<Self> {
        let mut inherited = InheritedListeners::of_environment()?;
        let rtsp = match inherited.take(bind::For::Rtsp, args.listen, &DEFAULT_PORTS) {
            Some(listener) => listener,
            None => bind::first_free(&args.listen_choices(), bind::For::Rtsp)?,
        };
        let address = rtsp.local_addr()?;
        let tls = TlsPorts::take(&args.tls, args.listen, address, &mut inherited)?;
        let http = match args.http {
            Some(choice) => choice.take(bind::For::Http, &mut inherited)?,
            None => usual(args.listen, address.ip(), DEFAULT_HTTP_PORT, bind::For::Http, &mut inherited),
        };
        inherited.report_rest();
        Ok(Self { rtsp, address, http, tls })
    }
}

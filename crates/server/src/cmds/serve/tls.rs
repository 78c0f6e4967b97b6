//! TLS: the settings, the certificate, and the ports of HTTPS and RTSPS.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use millrace_core::counters::Registry;
use millrace_tls::{Acceptor, Certificates, Relay, Relayed, Totals};
use millrace_web::Secure;
use tokio::sync::mpsc;

use super::inherited::InheritedListeners;
use super::listen::{ListenChoice, usual};
use super::{bind, invite};
use crate::limits::control::LISTEN_BACKLOG;
use crate::limits::{DEFAULT_HTTPS_PORT, RTSP_WRITE_TIMEOUT_NS};

/// Settings.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsArgs {
    /// PEM file with the server's certificate, and behind it those between it and the root: HTTPS and RTSPS are served as well. It is read again when it
    /// changes and on SIGHUP [default: none, no TLS]
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of --tls-certificate
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Address and port of HTTPS, or off; needs --tls-certificate [default: the address of --listen, port 8443 or the next free one]
    #[arg(long, value_name = "ADDR:PORT")]
    https: Option<ListenChoice>,
    /// Address and port of RTSPS (RTSP by TLS, media in the same connection), or off; needs --tls-certificate [default: the address of --listen, port 322 if
    /// allowed, else 8322]
    #[arg(long, value_name = "ADDR:PORT")]
    rtsps: Option<ListenChoice>,
}

/// RTSPS ports that are tried without a setting: the registered one needs privileges.
const DEFAULT_RTSPS_PORTS: [u16; 2] = [322, 8322];

impl TlsArgs {
    /// The certificate and its key.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        [&self.tls_certificate, &self.tls_key].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Checks what no setting shows by itself.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Self { tls_certificate, tls_key, https, rtsps } = self;
        ensure!(
            tls_certificate.is_none() || tls_key.is_some(),
            "--tls-certificate: its private key is missing; give it with --tls-key"
        );
        ensure!(
            tls_key.is_none() || tls_certificate.is_some(),
            "--tls-key: the certificate is missing; give it with --tls-certificate"
        );
        for (name, choice) in [("--https", https), ("--rtsps", rtsps)] {
            ensure!(
                tls_certificate.is_some() || !matches!(choice, Some(ListenChoice::At(_))),
                "{name}: needs a certificate; give one with --tls-certificate and --tls-key"
            );
        }
        Ok(())
    }
}

/// Its ports, taken before anything else is done.
pub(super) struct TlsPorts {
    https: Option<TcpListener>,
    rtsps: Option<TcpListener>,
}

/// TLS before it is started: the certificate is read, and the ports are taken.
pub(super) struct Tls {
    certificates: Arc<Certificates>,
    totals: Arc<Totals>,
    ports: TlsPorts,
}

/// RTSP by TLS: its thread, and the connections from there; neither if it is not wanted.
pub(super) type Rtsps = (Option<Relay>, Option<mpsc::Receiver<Relayed>>);

impl TlsPorts {
    /// Takes the addresses, if there is a certificate.
    pub(super) fn take(
        args: &TlsArgs,
        listen: Option<SocketAddr>,
        rtsp: SocketAddr,
        inherited: &mut InheritedListeners,
    ) -> anyhow::Result<Option<Self>> {
        let TlsArgs { tls_certificate, https, rtsps, .. } = args;
        if tls_certificate.is_none() {
            return Ok(None);
        }
        let https = match https {
            Some(choice) => choice.take(bind::For::Https, inherited)?,
            None => usual(listen, rtsp.ip(), DEFAULT_HTTPS_PORT, bind::For::Https, inherited),
        };
        let rtsps = match rtsps {
            Some(choice) => choice.take(bind::For::Rtsps, inherited)?,
            None => inherited.take(bind::For::Rtsps, None, &DEFAULT_RTSPS_PORTS).or_else(|| {
                let is_any = listen.is_some_and(|listen| listen.port() == 0);
                let ports = if is_any { &[0][..] } else { &DEFAULT_RTSPS_PORTS };
                let choices: Vec<_> = ports.iter().map(|&port| SocketAddr::new(rtsp.ip(), port)).collect();
                bind::first_free(&choices, bind::For::Rtsps)
                    .inspect_err(|error| tracing::warn!("RTSPS is unavailable: {error:#}"))
                    .ok()
            }),
        };
        Ok(Some(Self { https, rtsps }))
    }
}

impl Tls {
    /// Reads the certificate, if there is one.
    pub(super) fn read(args: &TlsArgs, ports: Option<TlsPorts>) -> anyhow::Result<Option<Self>> {
        let TlsArgs { tls_certificate, tls_key, .. } = args;
        let (Some(certificate), Some(key), Some(ports)) = (tls_certificate, tls_key, ports) else {
            return Ok(None);
        };
        let totals = Arc::new(Totals::default());
        let certificates = Certificates::read(certificate, key, &totals)?;
        certificates.follow()?;
        Ok(Some(Self { certificates, totals, ports }))
    }

    /// Adds its counters to the rest.
    pub(super) fn register(&self, registry: &mut Registry) {
        let totals = Arc::clone(&self.totals);
        registry.add("tls", None, move || totals.read());
    }

    /// HTTPS, for the web side to start; `None`: it is not wanted.
    pub(super) fn https(&mut self) -> anyhow::Result<Option<Secure>> {
        let Some(listener) = self.ports.https.take() else { return Ok(None) };
        let acceptor = Acceptor::new(&self.certificates, &millrace_web::PROTOCOLS, &self.totals)?;
        Ok(Some(Secure { listeners: vec![listener], acceptor }))
    }

    /// Starts the thread of RTSPS.
    pub(super) fn rtsps(tls: Option<&mut Self>) -> anyhow::Result<Rtsps> {
        let Some((tls, listener)) =
            tls.and_then(|tls| tls.ports.rtsps.take().map(|listener| (tls, listener)))
        else {
            return Ok((None, None));
        };
        rustix::net::listen(&listener, LISTEN_BACKLOG).context("listen for RTSPS")?;
        let acceptor = Acceptor::new(&tls.certificates, &[], &tls.totals)?;
        let stall = Duration::from_nanos(RTSP_WRITE_TIMEOUT_NS);
        let (relay, arrivals) = Relay::start(vec![listener], acceptor, stall).context("thread of RTSPS")?;
        Ok((Some(relay), Some(arrivals)))
    }
}

/// Prints where RTSPS is.
pub(super) fn print_rtsps(relay: Option<&Relay>, host: &str) {
    if let Some(address) = relay.and_then(|relay| relay.addresses().first()) {
        println!("rtsps rtsps://{}:{}/", invite::in_url(host), address.port());
    }
}

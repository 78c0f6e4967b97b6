//! The other side: a client that speaks TLS to a server, and trusts it only with a certificate that
//! is trusted, issued for the requested name and currently valid. For blocking and non-blocking
//! streams.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::text::excerpt;
use millrace_core::units::Count;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError as Flaw, ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::{CertificateError, content};

/// Where systems keep the authorities that they trust: Debian, Arch; Fedora, RHEL; openSUSE; Alpine and BSDs.
pub const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Named by this, another file stands for the system's, as for OpenSSL.
const SYSTEM_FILE_VARIABLE: &str = "SSL_CERT_FILE";

/// Longest list of names of a certificate in an error.
const SHOWN_NAMES: usize = 200;

/// A connection to a server, as something that blocks.
pub type ClientStream<S> = StreamOwned<ClientConnection, S>;

/// The authorities whose certificates are trusted.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// Where they were read.
    authorities: PathBuf,
    /// What names another file.
    option: &'static str,
}

/// Why a server is not trusted, or cannot be reached over TLS.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// This is no name that a certificate could be for.
    #[error("TLS: \"{0}\" is not a valid server name; write a name or an IP address")]
    Host(String),
    /// No trusted authority has signed the certificate.
    #[error(
        "the server's certificate is not trusted: no authority in {authorities} has signed it; give the authority's certificate, or the server's own, with {option} FILE"
    )]
    Untrusted {
        /// Where they were looked for.
        authorities: PathBuf,
        /// What names another file.
        option: &'static str,
    },
    /// It is another server's.
    #[error(
        "the server's certificate is for {names}, not for {host}; ask for the server by a name in its certificate"
    )]
    Name {
        /// Whom it is for.
        names: String,
        /// The name requested.
        host: String,
    },
    /// It was valid.
    #[error(
        "the server's certificate has expired {ago}; renew it, or set this machine's clock if that is wrong"
    )]
    Expired {
        /// When.
        ago: String,
    },
    /// It will be valid.
    #[error("the server's certificate is not valid yet; compare the clocks of both machines")]
    NotYet,
    /// Authorities sign, servers do not.
    #[error(
        "the server's certificate is that of an authority (CA:TRUE); the server needs one of its own, with CA:FALSE"
    )]
    Authority,
    /// Something else is wrong with it.
    #[error("the server's certificate cannot be used: {0}; give the server another one")]
    Unusable(Flaw),
    /// It sends something else.
    #[error("the server at this address does not speak TLS; for plain HTTP write http://")]
    NoTls,
    /// They do not agree.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The connection is at fault.
    #[error("TLS: {0}")]
    Io(#[source] io::Error),
}

impl Trust {
    /// The authorities in a PEM file; a server's own certificate may stand there as well. `None`: those of the system. `option` is what people name a file by.
    ///
    /// # Errors
    /// There is no such file, or nothing in it.
    pub fn read(authorities: Option<&Path>, option: &'static str) -> Result<Self, CertificateError> {
        let system = || system_file(std::env::var_os(SYSTEM_FILE_VARIABLE), &SYSTEM_FILES, option);
        let path = authorities.map_or_else(system, |path| Ok(path.to_owned()))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&content(&path)?) {
            let certificate =
                certificate.map_err(|source| CertificateError::NotPem { path: path.clone(), source })?;
            let added = roots.add(certificate);
            // Systems have some that are too old to be understood. Who names a file means all of it.
            if let (Err(source), true) = (added, authorities.is_some()) {
                return Err(CertificateError::Authority { path, source });
            }
        }
        if roots.is_empty() {
            return Err(CertificateError::NoAuthority(path));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config), authorities: path, option })
    }

    /// Does the handshake with the server that is called `host`, over a stream that blocks.
    ///
    /// # Errors
    /// The server is not trusted, or does not speak TLS.
    pub fn connect<S: Read + Write>(
        &self,
        host: &str,
        mut stream: S,
    ) -> Result<ClientStream<S>, ConnectError> {
        let mut connection =
            ClientConnection::new(Arc::clone(&self.config), name(host)?).map_err(ConnectError::Tls)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| self.explained(host, error))?;
        }
        Ok(StreamOwned::new(connection, stream))
    }

    /// The same over a stream that does not block.
    ///
    /// # Errors
    /// The server is not trusted, or does not speak TLS.
    pub async fn connect_async<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> Result<TlsStream<S>, ConnectError> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        connector.connect(name(host)?, stream).await.map_err(|error| self.explained(host, error))
    }

    /// Returns the cause of a failed handshake.
    fn explained(&self, host: &str, error: io::Error) -> ConnectError {
        let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
            return ConnectError::Io(error);
        };
        match error {
            rustls::Error::InvalidCertificate(flaw) => self.flawed(host, flaw),
            rustls::Error::InvalidMessage(_) => ConnectError::NoTls,
            other => ConnectError::Tls(other.clone()),
        }
    }

    fn flawed(&self, host: &str, flaw: &Flaw) -> ConnectError {
        match flaw {
            // A signature that does not fit is that of another authority of the same name: of a certificate that was renewed, for example.
            Flaw::UnknownIssuer | Flaw::BadSignature => {
                ConnectError::Untrusted { authorities: self.authorities.clone(), option: self.option }
            }
            Flaw::NotValidForNameContext { presented, .. } => {
                let names = match presented.is_empty() {
                    true => "no name at all".to_owned(),
                    false => presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
                };
                ConnectError::Name { names: excerpt(&names, SHOWN_NAMES), host: host.to_owned() }
            }
            Flaw::ExpiredContext { time, not_after } => {
                let ago = time.as_secs().saturating_sub(not_after.as_secs());
                ConnectError::Expired { ago: days(ago) }
            }
            Flaw::NotValidYet | Flaw::NotValidYetContext { .. } => ConnectError::NotYet,
            // It has no variant of its own there.
            Flaw::Other(other) if other.to_string() == "CaUsedAsEndEntity" => ConnectError::Authority,
            other => ConnectError::Unusable(other.clone()),
        }
    }
}

fn name(host: &str) -> Result<ServerName<'static>, ConnectError> {
    ServerName::try_from(host.to_owned()).map_err(|_| ConnectError::Host(host.to_owned()))
}

/// A name of a certificate without its kind: `DnsName("tv.example")`.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(name);
    inside.trim_matches('"')
}

fn days(seconds: u64) -> String {
    match seconds / (24 * 3600) {
        0 => "less than a day ago".to_owned(),
        days => format!("{} ago", Count(days, "day")),
    }
}

/// Returns the file with the system's authorities: the one that the variable names, or the first
/// that exists.
fn system_file(
    named: Option<OsString>,
    known: &[&str],
    option: &'static str,
) -> Result<PathBuf, CertificateError> {
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    let found = || known.iter().map(PathBuf::from).find(|path| path.exists());
    named.or_else(found).ok_or(CertificateError::NoSystemFile(option))
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;

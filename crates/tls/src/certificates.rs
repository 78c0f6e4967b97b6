//! The certificate and its key: read from PEM files, used by every handshake from then on, and read
//! again when the files change or on SIGHUP. Open connections keep the certificate they have. A new
//! certificate that cannot be used changes nothing.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::signal::unix::{SignalKind, signal};

use crate::limits::{CERTIFICATE_LOOK_EVERY, MAX_PEM_BYTES};
use crate::totals::Totals;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("TLS: {path}: {source}; name a PEM file that this user may read")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is too long for one.
    #[error("TLS: {0}: longer than any certificate or key; name a PEM file")]
    TooLong(PathBuf),
    /// It is no PEM.
    #[error("TLS: {path}: not PEM: {source}; a certificate begins with -----BEGIN CERTIFICATE-----")]
    NotPem {
        /// Which.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// There is none in it.
    #[error(
        "TLS: {0}: contains no certificate; put the server's certificate first and the intermediate certificates after it"
    )]
    NoCertificate(PathBuf),
    /// There is no key in it.
    #[error("TLS: {path}: {source}; name the file with the certificate's private key, not encrypted")]
    NoKey {
        /// Which.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The key is not the certificate's, or of a kind that is not known.
    #[error("TLS: {certificate} and {key} do not match: {source}; give a certificate with its own key")]
    Unfit {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// It is none of an authority.
    #[error(
        "TLS: {path}: {source}; name a PEM file with certificates of authorities, or with the server's own"
    )]
    Authority {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// The file contains no authority to trust.
    #[error(
        "TLS: {0}: contains no certificate; name a PEM file with certificates of authorities, or with the server's own"
    )]
    NoAuthority(PathBuf),
    /// The system trusts no authority.
    #[error("TLS: no file with the authorities that this system trusts was found; name one with {0} FILE")]
    NoSystemFile(&'static str),
    /// The library cannot be set up.
    #[error("TLS: {0}")]
    Library(#[from] rustls::Error),
    /// The files cannot be followed.
    #[error("TLS: cannot start the thread that watches the certificate: {0}; raise the limit of threads")]
    Watch(io::Error),
}

/// The certificate and key in use, and the files they come from.
pub struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<CertifiedKey>>,
    totals: Arc<Totals>,
}

impl Certificates {
    /// Reads a chain of certificates, the server's first, and its key.
    ///
    /// # Errors
    /// They cannot be read or do not match.
    pub fn read(certificate: &Path, key: &Path, totals: &Arc<Totals>) -> Result<Arc<Self>, CertificateError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let current = read(certificate, key, &provider)?;
        totals.add(|c| c.certificates_read += 1);
        Ok(Arc::new(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            provider,
            current: RwLock::new(Arc::new(current)),
            totals: Arc::clone(totals),
        }))
    }

    /// Reads them again. If they cannot be used, those that were read before stay.
    ///
    /// # Errors
    /// As for [`Certificates::read`].
    pub fn reload(&self) -> Result<(), CertificateError> {
        match read(&self.certificate, &self.key, &self.provider) {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                self.totals.add(|c| c.certificates_read += 1);
                Ok(())
            }
            Err(error) => {
                self.totals.add(|c| c.certificates_refused += 1);
                Err(error)
            }
        }
    }

    /// Starts the thread that reads the files again when they have changed, and on SIGHUP. The
    /// thread ends when the certificates are no longer used.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow(self: &Arc<Self>) -> Result<(), CertificateError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(CertificateError::Watch)?;
        let hangup = {
            let _entered = runtime.enter();
            signal(SignalKind::hangup())
        };
        let mut hangup = hangup.map_err(CertificateError::Watch)?;
        let mut files = Followed::from(self.stamps());
        let weak = Arc::downgrade(self);
        let follow = async move {
            loop {
                let is_asked = tokio::select! {
                    Some(()) = hangup.recv() => true,
                    () = tokio::time::sleep(CERTIFICATE_LOOK_EVERY) => false,
                };
                let Some(certificates) = weak.upgrade() else { return };
                if files.is_due(certificates.stamps(), is_asked) {
                    certificates.reload_and_say();
                }
            }
        };
        std::thread::Builder::new()
            .name("certificate".to_owned())
            .spawn(move || runtime.block_on(follow))
            .map_err(CertificateError::Watch)?;
        Ok(())
    }

    fn reload_and_say(&self) {
        match self.reload() {
            Ok(()) => {
                tracing::info!("TLS: the certificate in {} is used from now on", self.certificate.display())
            }
            Err(error) => tracing::error!("{error}; the previous certificate stays in use"),
        }
    }

    /// Returns the stamps of both files, from their metadata.
    fn stamps(&self) -> Option<[Stamp; 2]> {
        Some([stamp(&self.certificate)?, stamp(&self.key)?])
    }

    /// Returns a configuration for TLS 1.2 and 1.3 with these certificates, and with these
    /// protocols offered above them (ALPN); none: any client protocol is accepted.
    pub(crate) fn server_config(
        self: &Arc<Self>,
        protocols: &[&str],
    ) -> Result<Arc<ServerConfig>, CertificateError> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver(Arc::clone(self))));
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Supplies the current certificate to each handshake.
struct Resolver(Arc<Certificates>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Device, file, length and time of change.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
}

/// Decides when polled files must be read.
struct Followed {
    /// At the last look.
    seen: Option<[Stamp; 2]>,
    /// When they were read, whatever came of it.
    read: Option<[Stamp; 2]>,
}

impl From<Option<[Stamp; 2]>> for Followed {
    fn from(read: Option<[Stamp; 2]>) -> Self {
        Self { seen: read, read }
    }
}

impl Followed {
    /// Returns whether the files must be read now: because a read was requested, or because they
    /// have changed, but not since the last look.
    fn is_due(&mut self, now: Option<[Stamp; 2]>, is_asked: bool) -> bool {
        let is_settled = self.seen == now;
        self.seen = now;
        let is_due = is_asked || (is_settled && self.read != now);
        if is_due {
            self.read = now;
        }
        is_due
    }
}

fn read(certificate: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(&content(certificate)?).collect::<Result<Vec<_>, _>>();
    let not_pem = |source| CertificateError::NotPem { path: certificate.to_owned(), source };
    let chain = chain.map_err(not_pem)?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate(certificate.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_slice(&content(key)?)
        .map_err(|source| CertificateError::NoKey { path: key.to_owned(), source })?;
    CertifiedKey::from_der(chain, private, provider).map_err(|source| CertificateError::Unfit {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        source,
    })
}

pub(crate) fn content(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut content))
        .map_err(|source| CertificateError::Read { path: path.to_owned(), source })?;
    match content.len() as u64 > MAX_PEM_BYTES {
        true => Err(CertificateError::TooLong(path.to_owned())),
        false => Ok(content),
    }
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;

//! For tests: certificates made on the spot, and clients that trust them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio_rustls::TlsConnector;

use crate::{Certificates, Totals};

/// Files of a certificate for `localhost`, and what reads them.
pub(crate) struct TestCertificate {
    dir: tempfile::TempDir,
    pub(crate) totals: Arc<Totals>,
}

pub(crate) fn certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

impl TestCertificate {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), totals: Arc::default() }
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn files(&self) -> [PathBuf; 2] {
        ["cert.pem", "key.pem"].map(|name| self.at(name))
    }

    /// Puts another certificate there.
    pub(crate) fn write(&self, made: &CertifiedKey<KeyPair>) {
        let put = |path: &Path, text: String| std::fs::write(path, text).unwrap();
        let [certificate, key] = self.files();
        put(&certificate, made.cert.pem());
        put(&key, made.signing_key.serialize_pem());
    }

    /// Makes a certificate and reads it.
    pub(crate) fn ready() -> (Self, Arc<Certificates>, CertificateDer<'static>) {
        let (files, made) = (Self::new(), certificate());
        files.write(&made);
        let [certificate, key] = files.files();
        let certificates = Certificates::read(&certificate, &key, &files.totals).unwrap();
        (files, certificates, made.cert.der().clone())
    }
}

/// A client that trusts this certificate.
pub(crate) fn client(
    trusted: &CertificateDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

pub(crate) fn localhost() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

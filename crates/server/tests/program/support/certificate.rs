//! A certificate of a test's own, and where a server that has it listens.
#![allow(unreachable_pub)]

use std::path::{Path, PathBuf};

use millrace_lab::netns::SERVER_IP;

use crate::support::Server;

/// A certificate for `localhost` and 127.0.0.1 in a directory.
pub struct Certificate {
    pub certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    pub fn at(dir: &Path) -> Self {
        let new = Self { certificate: dir.join("cert.pem"), key: dir.join("key.pem") };
        new.renew();
        new
    }

    /// Puts another one into the same files.
    pub fn renew(&self) {
        self.renew_for(&["localhost", "127.0.0.1", SERVER_IP]);
    }

    /// The same for other names.
    pub fn renew_for(&self, names: &[&str]) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
        std::fs::write(&self.certificate, made.cert.pem()).unwrap();
    }

    /// What `serve` is given.
    pub fn args(&self) -> [&str; 4] {
        let [certificate, key] = [&self.certificate, &self.key].map(|path| path.to_str().unwrap());
        ["--tls-certificate", certificate, "--tls-key", key]
    }
}

/// Returns the rest of a server's line that begins with these words.
pub fn line<'a>(server: &'a Server, begin: &str) -> &'a str {
    let found = server.log.iter().find_map(|line| line.strip_prefix(begin));
    found.unwrap_or_else(|| panic!("{begin} is printed: {:?}", server.log))
}

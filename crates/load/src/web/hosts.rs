//! What all viewers of a target share: playlists, and addresses of the servers that these and redirects lead to.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use millrace_client::error::ClientError;
use millrace_client::net::resolve;

use super::address::HttpUrl;
use super::playlist::Playlists;
use crate::limits::MAX_HOSTS;

/// What all viewers of a target share. A name is looked up once; the thread waits meanwhile, so a load that is
/// to be exact names its servers by address, or asks one server only.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    known: Mutex<BTreeMap<(String, u16), Option<SocketAddr>>>,
    /// The playlists they have loaded.
    pub(crate) playlists: Playlists,
}

impl Hosts {
    /// Finds the address of a server before the load begins.
    pub(crate) fn first(&self, url: &HttpUrl, local: Option<IpAddr>) -> Result<(), ClientError> {
        let found = resolve(url.host(), url.port(), local)?.first().copied();
        self.remember(url, found);
        Ok(())
    }

    fn remember(&self, url: &HttpUrl, found: Option<SocketAddr>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_HOSTS {
            known.insert((url.host().to_owned(), url.port()), found);
        }
    }

    /// The address of a server, of the family of `local`; `None` if it has none.
    pub(crate) fn find(&self, url: &HttpUrl, local: Option<IpAddr>) -> Option<SocketAddr> {
        if let Ok(address) = url.host().parse::<IpAddr>() {
            return Some(SocketAddr::new(address, url.port()));
        }
        let key = (url.host().to_owned(), url.port());
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        known.unwrap_or_else(|| {
            let found = resolve(url.host(), url.port(), local).ok().and_then(|all| all.first().copied());
            self.remember(url, found);
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_lookup_and_names_only_one() {
        let hosts = Hosts::default();
        let find = |text: &str| hosts.find(&HttpUrl::parse(text).unwrap(), None);
        assert_eq!(find("http://[::1]:81/x"), Some("[::1]:81".parse().unwrap()));
        assert_eq!(find("http://192.0.2.1/x"), Some("192.0.2.1:80".parse().unwrap()));
        let named = HttpUrl::parse("http://localhost:82/x").unwrap();
        hosts.first(&named, Some("127.0.0.1".parse().unwrap())).unwrap();
        assert_eq!(find("http://localhost:82/other"), Some("127.0.0.1:82".parse().unwrap()));
        assert_eq!(hosts.known.lock().unwrap().len(), 1);
    }
}

//! Digest (RFC 7616): answers to challenges, and the nonces of these.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64ct::{Base64UrlUnpadded, Encoding};
use md5::{Digest, Md5};
use millrace_core::limits::rights::NONCE_NS;
use millrace_core::time::Instant;
use sha2::Sha256;

use crate::credentials::params;
use crate::known::Ha1;
use crate::limits::{MAX_NONCES, NONCE_WINDOW};
use crate::secret::{REALM, is_same};

/// Which hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Md5,
    Sha256,
}

impl Algorithm {
    fn hash(self, text: &str) -> String {
        match self {
            Self::Md5 => hex(&Md5::digest(text)),
            Self::Sha256 => hex(&Sha256::digest(text)),
        }
    }
}

/// An answer to a challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) user: String,
    pub(crate) uri: String,
    pub(crate) nonce: String,
    algorithm: Algorithm,
    response: String,
    /// With `qop=auth`.
    counted: Option<NonceCount>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NonceCount {
    nc: String,
    cnonce: String,
}

impl Response {
    /// Reads the parameters; `None` if they are no answer to a challenge of ours.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let params = params(text)?;
        let get = |name: &str| params.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
        let algorithm = match get("algorithm") {
            None => Algorithm::Md5,
            Some(name) if name.eq_ignore_ascii_case("md5") => Algorithm::Md5,
            Some(name) if name.eq_ignore_ascii_case("sha-256") => Algorithm::Sha256,
            Some(_) => return None,
        };
        let counted = match get("qop") {
            None => None,
            Some(qop) if qop.eq_ignore_ascii_case("auth") => {
                Some(NonceCount { nc: get("nc")?, cnonce: get("cnonce")? })
            }
            Some(_) => return None,
        };
        // The realm is in the hash that we have: an answer for another one is wrong anyway.
        Some(Self {
            user: get("username")?,
            uri: get("uri")?,
            nonce: get("nonce")?,
            response: get("response")?.to_ascii_lowercase(),
            algorithm,
            counted,
        })
    }

    /// Returns whether the response was made with knowledge of the password.
    pub(crate) fn is_right(&self, ha1: &Ha1, method: &str) -> bool {
        let hash = |text: &str| self.algorithm.hash(text);
        let ha1 = match self.algorithm {
            Algorithm::Md5 => hex(&ha1.md5),
            Algorithm::Sha256 => hex(&ha1.sha256),
        };
        let ha2 = hash(&format!("{method}:{}", self.uri));
        let expected = match &self.counted {
            None => hash(&format!("{ha1}:{}:{ha2}", self.nonce)),
            Some(NonceCount { nc, cnonce }) => {
                hash(&format!("{ha1}:{}:{nc}:{cnonce}:auth:{ha2}", self.nonce))
            }
        };
        is_same(expected.as_bytes(), self.response.as_bytes())
    }

    /// The number of this use of the nonce; `Err` if it is none.
    pub(crate) fn count(&self) -> Result<Option<u32>, ()> {
        let Some(NonceCount { nc, .. }) = &self.counted else { return Ok(None) };
        let is_number = nc.len() == 8 && nc.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u32::from_str_radix(nc, 16).ok().filter(|&number| is_number && number > 0);
        number.map(Some).ok_or(())
    }
}

/// Nonces that were given out and can be used.
#[derive(Debug)]
pub(crate) struct Nonces {
    key: [u8; 32],
    next: u64,
    /// Those that were used, by their number.
    used: BTreeMap<u64, Used>,
    /// No nonce with a lower number can be used unless it is in the table.
    floor: u64,
    most: usize,
}

/// Which numbers have come with a nonce.
#[derive(Debug)]
struct Used {
    highest: u32,
    /// Bit i: `highest` - i has come.
    seen: u64,
}

impl Nonces {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self { key, next: 0, used: BTreeMap::new(), floor: 0, most: MAX_NONCES }
    }

    /// Returns a new nonce for a client: its time and number, and a hash over these and the
    /// client's address that only this server can compute. A response without `qop` has no count,
    /// so anyone who overhears it can repeat it. The nonce is therefore valid only from the
    /// client's address.
    pub(crate) fn issue(&mut self, client: IpAddr, now: Instant) -> String {
        let number = self.next;
        self.next += 1;
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&now.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&number.to_be_bytes());
        let tag = self.tag(client, &bytes[..16]);
        bytes[16..].copy_from_slice(&tag);
        Base64UrlUnpadded::encode_string(&bytes)
    }

    /// Uses a nonce, with the count of this use if the response has one. Returns false if the nonce
    /// is too old, was used with this count before, or was not issued to this client.
    pub(crate) fn take(&mut self, nonce: &str, client: IpAddr, count: Option<u32>, now: Instant) -> bool {
        let Some((made, number)) = self.open(nonce, client) else { return false };
        if now.ns_since(made) >= NONCE_NS || number < self.floor && !self.used.contains_key(&number) {
            return false;
        }
        let Some(count) = count else { return true };
        if let Some(used) = self.used.get_mut(&number) {
            return used.take(count);
        }
        if self.used.len() >= self.most
            && let Some((oldest, _)) = self.used.pop_first()
        {
            self.floor = self.floor.max(oldest + 1);
            if number < self.floor {
                return false;
            }
        }
        self.used.insert(number, Used { highest: count, seen: 1 });
        true
    }

    fn tag(&self, client: IpAddr, what: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        // The first part has a fixed length, so no two clients have the same bytes.
        hasher.update(what);
        match client.to_canonical() {
            IpAddr::V4(ip) => hasher.update(&ip.octets()),
            IpAddr::V6(ip) => hasher.update(&ip.octets()),
        };
        let mut tag = [0; 16];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        tag
    }

    fn open(&self, nonce: &str, client: IpAddr) -> Option<(Instant, u64)> {
        let mut bytes = [0; 32];
        let bytes = Base64UrlUnpadded::decode(nonce, &mut bytes).ok()?;
        let (what, tag) = bytes.split_at_checked(16)?;
        if !is_same(&self.tag(client, what), tag) {
            return None;
        }
        let (made, number) = what.split_at(8);
        let number_of = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        Some((Instant(number_of(made)?), number_of(number)?))
    }
}

impl Used {
    fn take(&mut self, count: u32) -> bool {
        if count > self.highest {
            let ahead = count - self.highest;
            self.seen = if ahead >= NONCE_WINDOW { 1 } else { self.seen << ahead | 1 };
            self.highest = count;
            return true;
        }
        let back = self.highest - count;
        let bit = if back < NONCE_WINDOW { 1u64 << back } else { return false };
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new
    }
}

/// Returns the challenges for a player, in the order in which they should be sent.
pub(crate) fn challenges(nonce: &str, is_stale: bool) -> [String; 2] {
    ["SHA-256", "MD5"].map(|algorithm| {
        // Old live555 reads the first three in this order and nothing else.
        format!(
            "Digest realm=\"{REALM}\", nonce=\"{nonce}\", stale={is_stale}, algorithm={algorithm}, qop=\"auth\""
        )
    })
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
#[path = "digest_tests.rs"]
mod tests;

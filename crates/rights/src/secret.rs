//! Passwords and tokens: how they are made, kept and compared.

use std::fs::File;
use std::io::Read;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use base64ct::{Base64UrlUnpadded, Encoding};
use md5::{Digest, Md5};
use sha2::Sha256;

use crate::known::Ha1;
use crate::limits::{ARGON2_KIB, ARGON2_PASSES, MAX_PASSWORD_BYTES, MIN_PASSWORD_BYTES};

/// What users sign in to, as far as their password is hashed with it. It can never be changed: hashes for Digest would be void.
pub(crate) const REALM: &str = "millrace";

/// What tokens begin with, so that people and programs that look for secrets recognise one.
const TOKEN_MARK: &str = "mr_";

/// Why a password or a secret cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It is too short or too long, or has characters that no terminal sends.
    #[error("a password has {MIN_PASSWORD_BYTES} to {MAX_PASSWORD_BYTES} bytes and no control characters")]
    Password,
    /// The system gives none.
    #[error("/dev/urandom cannot be read, so there are no random numbers; mount /dev")]
    Random,
    /// The hash cannot be computed.
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
}

/// Unpredictable bytes.
///
/// # Errors
/// [`SecretError::Random`].
pub(crate) fn random<const N: usize>() -> Result<[u8; N], SecretError> {
    let mut bytes = [0; N];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|_| SecretError::Random)
}

/// How much a hash of a password costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// KiB of memory.
    pub kib: u32,
    /// Passes over it.
    pub passes: u32,
}

impl Default for Cost {
    fn default() -> Self {
        Self { kib: ARGON2_KIB, passes: ARGON2_PASSES }
    }
}

/// Checks whether something can be a password.
///
/// # Errors
/// [`SecretError::Password`].
pub fn check_password(password: &str) -> Result<(), SecretError> {
    let fits = (MIN_PASSWORD_BYTES..=MAX_PASSWORD_BYTES).contains(&password.len());
    if fits && !password.chars().any(char::is_control) { Ok(()) } else { Err(SecretError::Password) }
}

/// Hashes a password with argon2id.
///
/// # Errors
/// It is none, or there are no random numbers.
pub(crate) fn hash_password(password: &str, cost: Cost) -> Result<String, SecretError> {
    check_password(password)?;
    let failed = |error: &dyn std::fmt::Display| SecretError::Hash(error.to_string());
    let salt = SaltString::encode_b64(&random::<16>()?).map_err(|error| failed(&error))?;
    let params = Params::new(cost.kib, cost.passes, 1, None).map_err(|error| failed(&error))?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash = argon2.hash_password(password.as_bytes(), &salt).map_err(|error| failed(&error))?;
    Ok(hash.to_string())
}

/// Whether a password belongs to a hash. Takes as long as the hash costs.
pub(crate) fn is_password(password: &str, hash: &str) -> bool {
    let Ok(hash) = PasswordHash::new(hash) else { return false };
    Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()
}

/// Takes as long as the check of a user's password, so that the time does not reveal which users
/// exist. Never right.
pub(crate) fn waste_time(password: &str) -> bool {
    let _ = Argon2::default().hash_password_into(password.as_bytes(), &[0; 16], &mut [0; 32]);
    false
}

/// What Digest needs to know of a password.
pub(crate) fn ha1(user: &str, password: &str) -> Ha1 {
    let text = format!("{user}:{REALM}:{password}");
    Ha1 { md5: Md5::digest(&text).into(), sha256: Sha256::digest(&text).into() }
}

/// A new token.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn new_token() -> Result<String, SecretError> {
    Ok(format!("{TOKEN_MARK}{}", Base64UrlUnpadded::encode_string(&random::<32>()?)))
}

/// Returns the stored form of a token; `None` if it cannot be one.
pub(crate) fn hash_token(token: &str, key: &[u8; 32]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    let decoded = Base64UrlUnpadded::decode(token.strip_prefix(TOKEN_MARK)?, &mut bytes).ok()?;
    (decoded.len() == 32).then(|| *blake3::keyed_hash(key, decoded).as_bytes())
}

/// Whether two secrets are equal, in a time that does not tell where they differ.
pub(crate) fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |seen, (a, b)| std::hint::black_box(seen | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Cost = Cost { kib: 8, passes: 1 };

    #[test]
    fn is_password_accepts_only_the_hashed_password() {
        let hash = hash_password("correct horse", CHEAP).unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=8,t=1,p=1$"), "{hash}");
        assert!(is_password("correct horse", &hash));
        assert!(!is_password("correct hors", &hash) && !is_password("", &hash));
        assert!(!is_password("correct horse", "") && !is_password("correct horse", "$argon2id$broken"));
        assert_ne!(hash, hash_password("correct horse", CHEAP).unwrap(), "no salt");
    }

    #[test]
    fn hash_password_of_invalid_password_returns_error() {
        for bad in ["", "seven77", &"x".repeat(257), "tabs\tare not"] {
            assert_eq!(hash_password(bad, CHEAP), Err(SecretError::Password), "{bad}");
        }
        assert_eq!(check_password("pass phrase \u{e4}"), Ok(()));
    }

    /// RFC 7616 section 3.9.1 has other realms; the hash is that of the text.
    #[test]
    fn digest_hashes_are_of_user_realm_and_password() {
        let hash = ha1("anna", "secret-word");
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        // printf 'anna:millrace:secret-word' | md5sum, sha256sum
        assert_eq!(hex(&hash.md5), "cf5100b3ac1929551b39f5752df5ad55");
        assert_eq!(hex(&hash.sha256), "ad3f70b5d0d71d9d30074e902704398183cdc9a90fcc2efacc8e436d35a6863e");
    }

    #[test]
    fn hash_token_of_altered_token_does_not_match() {
        let key = [7; 32];
        let token = new_token().unwrap();
        assert_eq!(token.len(), 3 + 43);
        assert_ne!(token, new_token().unwrap());
        let hash = hash_token(&token, &key).unwrap();
        assert_ne!(Some(hash), hash_token(&token, &[8; 32]));
        for at in 0..token.len() {
            for byte in [b'A', b'B', b'_', b'='] {
                let mut other = token.clone().into_bytes();
                if other[at] != byte {
                    other[at] = byte;
                    let other = String::from_utf8(other).unwrap();
                    assert_ne!(hash_token(&other, &key), Some(hash), "{other}");
                }
            }
        }
        assert_eq!(hash_token(&token[3..], &key), None);
        assert_eq!(hash_token(&format!("{token}A"), &key), None);
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_same(b"abc", b"abc") && is_same(b"", b""));
        assert!(!is_same(b"abc", b"abd") && !is_same(b"abc", b"xbc") && !is_same(b"abc", b"ab"));
    }
}

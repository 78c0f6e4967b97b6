//! Signed links: an address that is valid for a limited time, for any client that has it.

use base64ct::{Base64UrlUnpadded, Encoding};

use crate::decide::Reason;
use crate::name::base;

/// Context of the signature, so that no other use of the key can stand for it.
const CONTEXT: &[u8] = b"millrace link 1\0";

/// A link whose signature and expiry time have been verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedLink {
    title: String,
    until_unix_s: u64,
    query: String,
}

impl SignedLink {
    /// Signs one. It covers a title and those that were made of it.
    pub fn sign(key: &[u8; 32], title: &str, until_unix_s: u64) -> Self {
        let sign = Base64UrlUnpadded::encode_string(signature(key, title, until_unix_s).as_bytes());
        let query = format!("until={until_unix_s}&sign={sign}");
        Self { title: title.to_owned(), until_unix_s, query }
    }

    /// Whether it is good for a title.
    pub fn covers(&self, title: &str) -> bool {
        self.title == title || self.title == base(title)
    }

    /// Whether its time has come to an end.
    pub fn is_over(&self, unix_s: u64) -> bool {
        unix_s >= self.until_unix_s
    }

    /// What stands behind the `?` of an address.
    pub fn query(&self) -> &str {
        &self.query
    }

    /// Reads the query of an address that names a title. `None`: no link is in it.
    ///
    /// # Errors
    /// The link is not valid for the title, or no longer valid.
    pub fn read(
        key: Option<&[u8; 32]>,
        query: &str,
        title: &str,
        unix_s: u64,
    ) -> Option<Result<Self, Reason>> {
        let (until, sign) = match (one(query, "until"), one(query, "sign")) {
            (ParamOccurrence::No, ParamOccurrence::No) => return None,
            (ParamOccurrence::Once(until), ParamOccurrence::Once(sign)) => (until, sign),
            _ => return Some(Err(Reason::BadLink)),
        };
        Some(
            Self::verify(key, until, sign, title)
                .ok_or(Reason::BadLink)
                .and_then(|link| if link.is_over(unix_s) { Err(Reason::OldLink) } else { Ok(link) }),
        )
    }

    fn verify(key: Option<&[u8; 32]>, until: &str, sign: &str, title: &str) -> Option<Self> {
        let key = key?;
        // One spelling of each: else a changed link could be as good as the one that was given out.
        let until_unix_s: u64 = until.parse().ok().filter(|number: &u64| number.to_string() == until)?;
        let mut bytes = [0; 32];
        let sign = Base64UrlUnpadded::decode(sign, &mut bytes).ok()?;
        let sign: [u8; 32] = sign.try_into().ok()?;
        let of = |title: &str| {
            // Hashes of this kind are compared in constant time.
            (signature(key, title, until_unix_s) == sign).then(|| Self::sign(key, title, until_unix_s))
        };
        of(title).or_else(|| of(base(title)))
    }

    #[cfg(test)]
    pub(crate) fn for_test(title: &str, until_unix_s: u64) -> Self {
        Self::sign(&[1; 32], title, until_unix_s)
    }
}

fn signature(key: &[u8; 32], title: &str, until_unix_s: u64) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    // The number has a fixed length and the title ends the text, so no two pairs make the same.
    hasher.update(CONTEXT).update(&until_unix_s.to_be_bytes()).update(title.as_bytes());
    hasher.finalize()
}

enum ParamOccurrence<'q> {
    No,
    Once(&'q str),
    Twice,
}

/// The value of a name in a query.
fn one<'q>(query: &'q str, name: &str) -> ParamOccurrence<'q> {
    let mut values = query
        .split('&')
        .filter_map(|pair| pair.split_once('=').filter(|(found, _)| *found == name).map(|(_, value)| value));
    match (values.next(), values.next()) {
        (None, _) => ParamOccurrence::No,
        (Some(value), None) => ParamOccurrence::Once(value),
        (Some(_), Some(_)) => ParamOccurrence::Twice,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [3; 32];

    fn read(query: &str, title: &str, now: u64) -> Option<Result<(), Reason>> {
        SignedLink::read(Some(&KEY), query, title, now).map(|read| read.map(drop))
    }

    #[test]
    fn link_for_other_title_or_past_expiry_is_refused() {
        let link = SignedLink::sign(&KEY, "film", 1000);
        let query = link.query();
        for title in ["film", "film@540p", "film@trick-8x"] {
            assert_eq!(read(query, title, 999), Some(Ok(())), "{title}");
        }
        for title in ["film2", "fil", "", "other", "other@film"] {
            assert_eq!(read(query, title, 0), Some(Err(Reason::BadLink)), "{title}");
        }
        assert_eq!(read(query, "film", 1000), Some(Err(Reason::OldLink)));
        assert_eq!(read(&format!("x=1&{query}&y"), "film", 0), Some(Ok(())));
        assert_eq!(read("x=1&untils=3", "film", 0), None);
        assert_eq!(read("", "film", 0), None);
        let of_rendition = SignedLink::sign(&KEY, "film@540p", 1000);
        assert_eq!(read(of_rendition.query(), "film@540p", 0), Some(Ok(())));
        assert_eq!(read(of_rendition.query(), "film", 0), Some(Err(Reason::BadLink)));
        assert_eq!(SignedLink::read(None, query, "film", 0), Some(Err(Reason::BadLink)), "there is no key");
        assert_eq!(SignedLink::read(Some(&[4; 32]), query, "film", 0), Some(Err(Reason::BadLink)));
    }

    #[test]
    fn link_with_repeated_or_missing_parameter_is_refused() {
        let query = SignedLink::sign(&KEY, "film", 1000).query().to_owned();
        let (until, sign) = query.split_once('&').unwrap();
        for bad in [
            until.to_owned(),
            sign.to_owned(),
            format!("{query}&until=1000"),
            format!("until=9999&{query}"),
            format!("{query}&{sign}"),
            query.replace("until=1000", "until=01000"),
            query.replace("until=1000", "until=+1000"),
            format!("{query}="),
        ] {
            assert_eq!(read(&bad, "film", 0), Some(Err(Reason::BadLink)), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn link_with_changed_byte_is_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), until in 0u64..u64::MAX) {
            let query = SignedLink::sign(&KEY, "film", until).query().to_owned();
            let mut bytes = query.clone().into_bytes();
            let at = at.index(bytes.len());
            prop_assume!(bytes[at] != byte);
            bytes[at] = byte;
            if let Ok(changed) = String::from_utf8(bytes) {
                prop_assert!(!matches!(read(&changed, "film", 0), Some(Ok(()))), "{} for {}", changed, query);
            }
        }

        #[test]
        fn link_signature_with_flipped_bit_is_refused(at in 0usize..256) {
            let link = SignedLink::sign(&KEY, "film", 1000);
            let (until, sign) = link.query().split_once("&sign=").unwrap();
            let mut bytes = Base64UrlUnpadded::decode_vec(sign).unwrap();
            bytes[at / 8] ^= 1 << (at % 8);
            let changed = format!("{until}&sign={}", Base64UrlUnpadded::encode_string(&bytes));
            prop_assert_eq!(read(&changed, "film", 0), Some(Err(Reason::BadLink)));
        }

        #[test]
        fn another_title_or_time_is_refused(title in "[a-z@.]{1,12}", other in "[a-z@.]{1,12}", until in 1u64..u64::MAX, later in 1u64..1000) {
            let link = SignedLink::sign(&KEY, &title, until);
            if other != title && base(&other) != title {
                prop_assert_eq!(read(link.query(), &other, 0), Some(Err(Reason::BadLink)));
            }
            prop_assert_eq!(read(link.query(), &title, until - 1), Some(Ok(())));
            prop_assert_eq!(read(link.query(), &title, until), Some(Err(Reason::OldLink)));
            let moved = link.query().replace(&until.to_string(), &until.saturating_add(later).to_string());
            if moved != link.query() {
                prop_assert_eq!(read(&moved, &title, 0), Some(Err(Reason::BadLink)));
            }
        }
    }
}

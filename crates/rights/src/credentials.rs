//! The value of `Authorization`, in HTTP and RTSP (RFC 9110 section 11.4, RFC 7617, RFC 6750, RFC 7616).

use base64ct::{Base64, Base64Unpadded, Encoding};

use crate::digest::Response;
use crate::limits::MAX_CREDENTIALS_BYTES;

/// The credentials that a client presents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credentials<'a> {
    /// A token.
    Bearer(&'a str),
    /// Name and password.
    Basic { user: String, password: String },
    /// An answer to a challenge.
    Digest(Box<Response>),
    /// Nothing that is understood here.
    Other,
}

impl<'a> Credentials<'a> {
    pub(crate) fn read(value: &'a str) -> Self {
        if value.len() > MAX_CREDENTIALS_BYTES {
            return Self::Other;
        }
        let Some((scheme, rest)) = value.trim().split_once(' ') else { return Self::Other };
        let rest = rest.trim();
        let read = match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Some(Self::Bearer(rest)),
            "basic" => basic(rest),
            "digest" => Response::read(rest).map(|response| Self::Digest(Box::new(response))),
            _ => None,
        };
        read.unwrap_or(Self::Other)
    }
}

fn basic(text: &str) -> Option<Credentials<'static>> {
    // Some players leave the padding out.
    let bytes = match text.ends_with('=') || text.len().is_multiple_of(4) {
        true => Base64::decode_vec(text).ok()?,
        false => Base64Unpadded::decode_vec(text).ok()?,
    };
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Credentials::Basic { user: user.to_owned(), password: password.to_owned() })
}

/// The parameters of a challenge or of an answer: `name=token` and `name="quoted"`, separated by commas. `None` if it is no such list, or a name
/// comes twice.
pub(crate) fn params(text: &str) -> Option<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, behind) = rest.split_once('=')?;
        let name = name.trim().to_ascii_lowercase();
        if name.is_empty() || found.iter().any(|(other, _)| *other == name) {
            return None;
        }
        let behind = behind.trim_start();
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = behind.find(',').unwrap_or(behind.len());
                (behind[..end].trim_end().to_owned(), &behind[end..])
            }
        };
        found.push((name, value));
        let behind = behind.trim_start();
        rest = match behind.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if behind.is_empty() => "",
            None => return None,
        };
    }
    Some(found)
}

/// Reads a quoted string after its opening quotation mark; also returns the text after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(chars.next()?.1),
            (_, c) => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn basic_and_bearer() {
        let basic = |user: &str, password: &str| Credentials::Basic {
            user: user.to_owned(),
            password: password.to_owned(),
        };
        for (value, expected) in [
            ("Basic YW5uYTpwYXNzd29yZA==", basic("anna", "password")),
            ("basic  YW5uYTpwYXNzd29yZA", basic("anna", "password")),
            ("BASIC YTpiOmM=", basic("a", "b:c")),
            ("Basic Og==", basic("", "")),
            ("Bearer mr_x", Credentials::Bearer("mr_x")),
        ] {
            assert_eq!(Credentials::read(value), expected, "{value}");
        }
        for value in
            ["", "Basic", "Basic YW5uYQ==", "Basic ?", "Basic /w==", "Negotiate x", "Basic YTpi, Basic YTpi"]
        {
            assert_eq!(Credentials::read(value), Credentials::Other, "{value}");
        }
        assert_eq!(Credentials::read(&format!("Bearer {}", "x".repeat(5000))), Credentials::Other);
    }

    #[test]
    fn lists_of_parameters() {
        let list = |text: &str| {
            params(text).map(|list| list.iter().map(|(n, v)| format!("{n}|{v}")).collect::<Vec<_>>())
        };
        let is = |text: &str, expected: &[&str]| assert_eq!(list(text).unwrap(), expected, "{text}");
        is(r#"a=1, B="x, \"y\" =", c = z"#, &["a|1", "b|x, \"y\" =", "c|z"]);
        is("", &[]);
        is("a=", &["a|"]);
        for bad in ["a", "a=1 b=2,", "a=\"x", "a=\"x\\", "=1", "a=1,a=2", "a=\"x\"y"] {
            assert!(list(bad).is_none() || bad == "a=1 b=2,", "{bad}");
        }
    }

    #[test]
    fn bytes_of_any_kind_are_read_or_refused() {
        bolero::check!().with_type::<String>().for_each(|text| {
            drop(Credentials::read(text));
            drop(params(text));
            drop(Credentials::read(&format!("Digest {text}")));
        });
    }
}

//! Errors of an object store: what failed, why, and what to do.

use std::path::PathBuf;

use millrace_core::ids::TitleId;
use millrace_core::text::excerpt;
use millrace_store::StoreError;

use crate::limits::SHOWN_ERROR_BYTES;

/// An operation with an object store failed. Nothing incomplete has become visible, there or here.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The user has interrupted it.
    #[error("interrupted; nothing incomplete is visible, and the same command continues")]
    Cancelled,
    /// There is no such directory.
    #[error("{}: no such directory; create it, or mount the file system that it belongs to", dir.display())]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
    },
    /// This is no address of a server.
    #[error("--endpoint {endpoint}: not an address; write https://HOST:PORT or http://HOST:PORT")]
    Endpoint {
        /// The address.
        endpoint: String,
    },
    /// The authorities to trust cannot be read.
    #[error(transparent)]
    Authorities(millrace_tls::CertificateError),
    /// There is no such bucket.
    #[error("{library}: no such bucket at {endpoint}; create it, or correct the URL")]
    NoBucket {
        /// The library.
        library: String,
        /// The server.
        endpoint: String,
    },
    /// No credentials were found.
    #[error(
        "{library}: no credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with \
         ~/.aws/credentials, or give this machine a role"
    )]
    NoCredentials {
        /// The library.
        library: String,
    },
    /// The object store does not know the key, or the signature is wrong.
    #[error(
        "{library}: credentials refused ({code}); check the access key, its secret and the session token in the environment \
         or ~/.aws/credentials"
    )]
    Credentials {
        /// The library.
        library: String,
        /// Code of the object store.
        code: String,
    },
    /// The key may not do this.
    #[error(
        "{library}: access denied ({code}); allow this key s3:ListBucket and s3:GetObject, to publish also s3:PutObject and \
         s3:AbortMultipartUpload"
    )]
    Denied {
        /// The library.
        library: String,
        /// Code of the object store.
        code: String,
    },
    /// The signature is of another time.
    #[error(
        "{library}: the clocks of this machine and of the object store differ by too much; set this machine's clock"
    )]
    Clock {
        /// The library.
        library: String,
    },
    /// The bucket is elsewhere.
    #[error("{library}: the bucket is in another region; give its region with --region or AWS_REGION")]
    Region {
        /// The library.
        library: String,
    },
    /// The object store does not answer.
    #[error("{library}: cannot reach {endpoint}: {cause}; check the network, the address and the server")]
    Unreachable {
        /// The library.
        library: String,
        /// The server.
        endpoint: String,
        /// Why.
        cause: String,
    },
    /// The object store has too much to do.
    #[error("{library}: the object store is overloaded or has an internal error ({cause}); try again later")]
    Busy {
        /// The library.
        library: String,
        /// Why.
        cause: String,
    },
    /// An object is not there.
    #[error("{library}: {object} is missing; publish the title again")]
    Missing {
        /// The library.
        library: String,
        /// The object.
        object: String,
    },
    /// An object does not hold what its manifest promises.
    #[error("{library}: {object} {what}; publish the title again with --overwrite from a store that has it")]
    Wrong {
        /// The library.
        library: String,
        /// The object.
        object: String,
        /// The fault.
        what: String,
    },
    /// There are too many titles.
    #[error("{library}: more than {max} titles; use a library of its own for some of them")]
    TooMany {
        /// The library.
        library: String,
        /// The limit.
        max: usize,
    },
    /// The media of a title have changed on their disk.
    #[error(
        "title {id}: its media do not have the BLAKE3 of its manifest, so it was not published; run millrace scrub"
    )]
    Damaged {
        /// The title.
        id: TitleId,
    },
    /// A title is too long for the object store.
    #[error("title {id}: {bytes} bytes do not fit into one object of at most {max}; keep it in a store")]
    TooLong {
        /// The title.
        id: TitleId,
        /// Its length.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Something else failed there.
    #[error("{library}: {cause}; check the address and the server's log")]
    Other {
        /// The library.
        library: String,
        /// The error.
        cause: String,
    },
    /// There are no threads for it.
    #[error("cannot start a thread: {0}; raise the limit of processes (ulimit -u)")]
    Threads(std::io::Error),
    /// The store on this machine failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ObjectError {
    /// Whether the object store could not be reached, or had too much to do: later it may work.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Busy { .. })
    }
}

/// Codes of an object store that mean the credentials.
const CREDENTIALS: &[&str] =
    &["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "NotSignedUp"];
/// Codes that mean the region.
const REGION: &[&str] =
    &["PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"];

/// An object store in errors.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) library: String,
    pub(crate) endpoint: String,
}

impl Remote {
    /// The cause of an error of the object store, in our words. The text of a response is not repeated: it may hold parts of the request's
    /// signature.
    pub(crate) fn error(&self, error: &object_store::Error) -> ObjectError {
        let text = chain(error);
        let library = self.library.clone();
        let (code, status) = (s3_code(&text), status(&text));
        let named =
            || code.map_or_else(|| format!("HTTP status {}", status.unwrap_or_default()), str::to_owned);
        match (code, error) {
            (Some("NoSuchBucket"), _) => ObjectError::NoBucket { library, endpoint: self.endpoint.clone() },
            (Some(code), _) if CREDENTIALS.contains(&code) => {
                ObjectError::Credentials { library, code: named() }
            }
            (Some("RequestTimeTooSkewed" | "RequestExpired"), _) => ObjectError::Clock { library },
            (Some(code), _) if REGION.contains(&code) => ObjectError::Region { library },
            _ if status == Some(401) => ObjectError::Credentials { library, code: named() },
            _ if status == Some(403) => ObjectError::Denied { library, code: named() },
            (_, object_store::Error::NotFound { path, .. }) => {
                ObjectError::Missing { library, object: path.clone() }
            }
            _ if text.contains("Received redirect without LOCATION") || status == Some(301) => {
                ObjectError::Region { library }
            }
            _ if text.contains("169.254.169.254") || text.contains("/latest/api/token") => {
                ObjectError::NoCredentials { library }
            }
            _ if status.is_some_and(|status| status >= 500) => ObjectError::Busy { library, cause: named() },
            _ => match transport(error) {
                Some(cause) => ObjectError::Unreachable { library, endpoint: self.endpoint.clone(), cause },
                None if status.is_some() => ObjectError::Other { library, cause: named() },
                None => ObjectError::Other { library, cause: excerpt(&text, SHOWN_ERROR_BYTES) },
            },
        }
    }

    pub(crate) fn wrong(&self, object: impl ToString, what: impl Into<String>) -> ObjectError {
        ObjectError::Wrong { library: self.library.clone(), object: object.to_string(), what: what.into() }
    }
}

/// An error and its causes as text.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text.push_str(": ");
        text.push_str(&error.to_string());
        next = error.source();
    }
    text
}

/// The innermost cause of an error below HTTP: of the network, of TLS, or a limit in time.
fn transport(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let (mut next, mut is_transport, mut last) = (Some(error), false, String::new());
    while let Some(error) = next {
        is_transport |= error.is::<object_store::client::HttpError>() || error.is::<std::io::Error>();
        last = error.to_string();
        next = error.source();
    }
    is_transport.then(|| excerpt(&last, SHOWN_ERROR_BYTES))
}

/// The status of an error response, in the text of an error.
fn status(text: &str) -> Option<u16> {
    text.split_once("status code: ")?.1.get(..3)?.parse().ok()
}

/// The code in an error response of S3: a word.
fn s3_code(text: &str) -> Option<&str> {
    let (code, _) = text.split_once("<Code>")?.1.split_once("</Code>")?;
    (!code.is_empty() && code.len() <= 60 && code.bytes().all(|b| b.is_ascii_alphanumeric())).then_some(code)
}

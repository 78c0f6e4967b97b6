//! Addresses of libraries: `s3://BUCKET/PREFIX`, `file:///DIR`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use millrace_core::text::excerpt;
use object_store::path::Path as ObjectPath;
use url::Url;

use crate::limits::SHOWN_ERROR_BYTES;

/// Where a library is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryUrl {
    /// Objects with a prefix in a bucket.
    S3 {
        /// The bucket.
        bucket: String,
        /// What all names begin with; may be empty.
        prefix: ObjectPath,
    },
    /// A directory, such as one on a file server.
    Directory(PathBuf),
}

impl LibraryUrl {
    /// What object names begin with.
    pub(crate) fn prefix(&self) -> ObjectPath {
        match self {
            Self::S3 { prefix, .. } => prefix.clone(),
            Self::Directory(_) => ObjectPath::default(),
        }
    }
}

impl FromStr for LibraryUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            // An address may hold a password where none belongs, so nothing of it is repeated but its scheme.
            format!("{why}; write s3://BUCKET/PREFIX or file:///DIR")
        };
        let url = Url::parse(text).map_err(|error| wrong(&format!("not a URL ({error})")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("credentials in the URL; use the environment or a credentials file instead"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("the URL has a ? or #"));
        }
        match (url.scheme(), url.host_str()) {
            ("s3", Some(bucket)) if !bucket.is_empty() && url.port().is_none() => {
                if !is_bucket_name(bucket) {
                    return Err(wrong("a bucket's name has 3 to 63 characters of a-z, 0-9, . and -"));
                }
                let prefix =
                    ObjectPath::from_url_path(url.path().trim_end_matches('/')).map_err(|error| {
                        wrong(&format!("the prefix cannot be used ({error:.SHOWN_ERROR_BYTES$})"))
                    })?;
                Ok(Self::S3 { bucket: bucket.to_owned(), prefix })
            }
            ("file", None | Some("")) => match url.to_file_path() {
                Ok(path) => Ok(Self::Directory(path)),
                Err(()) => Err(wrong("the path cannot be used")),
            },
            ("file", Some(_)) => Err(wrong("a file URL has three slashes and an absolute path")),
            ("s3", _) => Err(wrong("the bucket is missing")),
            (scheme, _) => Err(wrong(&format!("the scheme {} is not supported", excerpt(scheme, 20)))),
        }
    }
}

/// Whether S3 allows the name; servers of others allow no more.
fn is_bucket_name(name: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'_');
    (3..=63).contains(&name.len())
        && name.bytes().all(is_inner)
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

impl fmt::Display for LibraryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } if prefix.as_ref().is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Directory(dir) => write!(f, "file://{}", dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LibraryUrl;

    fn parse(text: &str) -> Result<LibraryUrl, String> {
        text.parse()
    }

    #[test]
    fn library_url_of_bucket_and_directory_parses() {
        for (text, shown) in [
            ("s3://films", "s3://films"),
            ("s3://films/", "s3://films"),
            ("s3://films/hotel/one/", "s3://films/hotel/one"),
            ("file:///srv/films", "file:///srv/films"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn library_url_that_is_wrong_is_refused_with_the_form() {
        for text in [
            "films",
            "s3://",
            "s3:///x",
            "http://host/x",
            "file://host/x",
            "s3://B_/x",
            "s3://films/?a",
            "s3://ab/x",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.ends_with("write s3://BUCKET/PREFIX or file:///DIR"), "{text}: {error}");
        }
    }

    #[test]
    fn library_url_with_credentials_is_refused_without_repeating_them() {
        let error = parse("s3://key:hunter2@films/x").unwrap_err();
        assert!(error.starts_with("credentials in the URL") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn library_url_of_arbitrary_text_round_trips_or_fails() {
        bolero::check!().with_type::<String>().for_each(|text| {
            for text in [text.clone(), format!("s3://{text}"), format!("file://{text}")] {
                if let Ok(url @ LibraryUrl::S3 { .. }) = parse(&text) {
                    assert_eq!(parse(&url.to_string()), Ok(url));
                }
            }
        });
    }
}

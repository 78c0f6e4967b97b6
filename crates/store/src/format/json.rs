//! How the vocabulary of core is written in JSON: ids as hexadecimal text, ticks and rates as numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

macro_rules! as_number {
    ($module:ident, $type:ty) => {
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(value: &$type, s: S) -> Result<S::Ok, S::Error> {
                s.serialize_u64(value.0)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                u64::deserialize(d).map(<$type>::from_number)
            }
        }
    };
}

trait FromNumber {
    fn from_number(value: u64) -> Self;
}

impl FromNumber for millrace_core::time::MediaTicks {
    fn from_number(value: u64) -> Self {
        Self(value)
    }
}

impl FromNumber for millrace_core::units::BitRate {
    fn from_number(value: u64) -> Self {
        Self(value)
    }
}

as_number!(media_ticks, millrace_core::time::MediaTicks);
as_number!(bit_rate, millrace_core::units::BitRate);

pub(crate) mod title_id {
    use super::*;
    use millrace_core::ids::TitleId;

    pub(crate) fn serialize<S: Serializer>(id: &TitleId, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<TitleId, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

pub(crate) mod timeline {
    use super::*;
    use millrace_core::wire::rtp::Timeline;

    #[derive(Serialize, Deserialize)]
    struct Stored {
        ssrc: u32,
        timestamp_base: u32,
    }

    pub(crate) fn serialize<S: Serializer>(t: &Timeline, s: S) -> Result<S::Ok, S::Error> {
        Stored { ssrc: t.ssrc, timestamp_base: t.timestamp_base }.serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timeline, D::Error> {
        Stored::deserialize(d).map(|s| Timeline { ssrc: s.ssrc, timestamp_base: s.timestamp_base })
    }
}

/// A path as text where it is text, else as its bytes: Linux allows any bytes but 0 and `/` in a file's name.
pub(crate) mod path {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Stored {
        Text(String),
        Bytes { bytes: Vec<u8> },
    }

    pub(crate) fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => s.serialize_str(text),
            None => Stored::Bytes { bytes: path.as_os_str().as_bytes().to_vec() }.serialize(s),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        Ok(match Stored::deserialize(d)? {
            Stored::Text(text) => PathBuf::from(text),
            Stored::Bytes { bytes } => PathBuf::from(OsString::from_vec(bytes)),
        })
    }
}

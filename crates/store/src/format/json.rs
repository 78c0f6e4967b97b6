//! How the vocabulary of core is written in JSON: ids as hexadecimal text, names of renditions as text, ticks and rates as numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub(crate) mod media_ticks {
    use super::*;
    use millrace_core::time::MediaTicks;

    pub(crate) fn serialize<S: Serializer>(ticks: &MediaTicks, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(ticks.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<MediaTicks, D::Error> {
        u64::deserialize(d).map(MediaTicks)
    }
}

pub(crate) mod bit_rate {
    use super::*;
    use millrace_core::units::BitRate;

    pub(crate) fn serialize<S: Serializer>(rate: &BitRate, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(rate.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<BitRate, D::Error> {
        u64::deserialize(d).map(BitRate)
    }
}

pub(crate) mod uuid {
    use super::*;
    use crate::format::Uuid;

    pub(crate) fn serialize<S: Serializer>(uuid: &Uuid, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(uuid)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Uuid, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

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

/// An optional value.
pub(crate) mod optional_title_id {
    use super::*;
    use millrace_core::ids::TitleId;

    pub(crate) fn serialize<S: Serializer>(id: &Option<TitleId>, s: S) -> Result<S::Ok, S::Error> {
        id.as_ref().map(ToString::to_string).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<TitleId>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

/// An optional value.
pub(crate) mod rendition {
    use super::*;
    use millrace_core::rendition::RenditionName;

    pub(crate) fn serialize<S: Serializer>(name: &Option<RenditionName>, s: S) -> Result<S::Ok, S::Error> {
        match name {
            Some(name) => s.collect_str(name),
            None => s.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<RenditionName>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

pub(crate) mod timeline {
    use super::*;
    use millrace_core::wire::rtp::Timeline;

    #[derive(Serialize, Deserialize)]
    struct StoredTimeline {
        ssrc: u32,
        timestamp_base: u32,
    }

    pub(crate) fn serialize<S: Serializer>(t: &Timeline, s: S) -> Result<S::Ok, S::Error> {
        StoredTimeline { ssrc: t.ssrc, timestamp_base: t.timestamp_base }.serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timeline, D::Error> {
        StoredTimeline::deserialize(d).map(|s| Timeline { ssrc: s.ssrc, timestamp_base: s.timestamp_base })
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
    enum StoredPath {
        Text(String),
        Bytes { bytes: Vec<u8> },
    }

    pub(crate) fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => s.serialize_str(text),
            None => StoredPath::Bytes { bytes: path.as_os_str().as_bytes().to_vec() }.serialize(s),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<PathBuf, D::Error> {
        Ok(match StoredPath::deserialize(d)? {
            StoredPath::Text(text) => PathBuf::from(text),
            StoredPath::Bytes { bytes } => PathBuf::from(OsString::from_vec(bytes)),
        })
    }
}

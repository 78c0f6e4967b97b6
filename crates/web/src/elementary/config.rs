//! The codecs that are known, and the configuration of their streams for decoders.

use super::audio::{self, AudioConfig, Coding};
use super::demux::Elementary;
use super::video::{self, Syntax, VideoConfig};

/// Configuration of a track, as given to decoders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Config {
    Video(VideoConfig),
    Audio(AudioConfig),
}

impl Config {
    /// Ticks a second of its samples' times.
    pub(crate) fn timescale(&self) -> u32 {
        match self {
            Self::Video(_) => millrace_core::time::MEDIA_HZ as u32,
            Self::Audio(audio) => audio.rate,
        }
    }

    /// As RFC 6381 spells it.
    pub(crate) fn codec(&self) -> String {
        match self {
            Self::Video(video) => video.pictures.codec.clone(),
            Self::Audio(audio) => audio.codec(),
        }
    }
}

/// The format of a stream that can be repackaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFormat {
    Video(Syntax),
    Audio(Coding),
}

impl StreamFormat {
    /// Returns the format of a codec, by the name that titles use; `None`: it cannot be repackaged.
    pub(crate) fn of(codec: &str) -> Option<Self> {
        match codec {
            "H.264" => Some(Self::Video(Syntax::H264)),
            "H.265" => Some(Self::Video(Syntax::H265)),
            "AAC" => Some(Self::Audio(Coding::Aac)),
            "AC-3" => Some(Self::Audio(Coding::Ac3)),
            "E-AC-3" => Some(Self::Audio(Coding::Eac3)),
            _ => None,
        }
    }
}

/// Returns whether a codec is video that can be repackaged.
pub(crate) fn is_video(codec: &str) -> bool {
    matches!(StreamFormat::of(codec), Some(StreamFormat::Video(_)))
}

/// Returns whether a codec is audio that can be repackaged.
pub(crate) fn is_audio(codec: &str) -> bool {
    matches!(StreamFormat::of(codec), Some(StreamFormat::Audio(_)))
}

/// Returns the decoder configuration of a stream, if these bytes of it contain it.
pub(crate) fn config_of(stream: &Elementary, codec: &str) -> Option<Config> {
    match StreamFormat::of(codec)? {
        StreamFormat::Video(syntax) => video::config(stream, syntax).map(Config::Video),
        StreamFormat::Audio(coding) => audio::config(stream, coding).map(Config::Audio),
    }
}

//! Elementary streams of a title, out of its TS packets: pictures and audio frames, and the
//! configuration that decoders need.
//!
//! | file | does |
//! | --- | --- |
//! | `demux` | elementary streams out of TS packets |
//! | `video`, `audio` | pictures and audio frames, and their configuration |
//! | `config` | which codecs are known, and the configuration of either kind |
//! | `read` | reads bytes of a title a piece at a time |
//! | `timeline` | the title's time of time stamps |

pub(crate) mod audio;
mod config;
mod demux;
mod read;
mod timeline;
pub(crate) mod video;

pub(crate) use config::{Config, StreamFormat, config_of, is_audio, is_video};
#[cfg(test)]
pub(crate) use demux::packet;
pub(crate) use demux::{Demux, Elementary};
pub(crate) use millrace_media::sei::{REGISTERED_DATA, payloads as sei_payloads};
pub(crate) use millrace_media::sps::{Colour, Pictures};
pub(crate) use read::read;
pub(crate) use timeline::Timeline;

//! Bytes on the wire: one file a format, no sockets.

pub mod checksum;
pub mod fec;
pub mod frame;
pub mod rtcp;
pub mod rtp;

//! Requests of viewers.

/// A request with its body.
pub type RtspRequest = rtsp_types::Request<Vec<u8>>;

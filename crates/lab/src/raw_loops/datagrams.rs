//! The input of every loop.

use std::net::SocketAddr;

/// Some datagrams for one viewer, one after the other in memory.
#[derive(Clone, Copy, Debug)]
pub struct ViewerDatagrams<'a> {
    /// Whose: an index below the number of viewers.
    pub viewer: usize,
    /// Where they go.
    pub to: SocketAddr,
    /// The datagrams: RTP header and payload each.
    pub bytes: &'a [u8],
    /// Where they lie in the memory that is registered with the device.
    pub address: u64,
}

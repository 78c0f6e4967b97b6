//! What every protocol serves titles with: titles, packet sizes, places in the engines. No sockets, no protocol.
#![forbid(unsafe_code)]

mod fec;
pub mod packet_size;
pub mod ports;
pub(crate) mod slots;

pub use fec::{FecMatrix, FecMode, TRACK_RS, TRACK_XOR, port_offset};
pub use packet_size::{PacketSizes, PathMtu, kernel_path_mtu};
pub use ports::{AccessPoint, AccessPoints, Entry, Library, OpenError, Track};

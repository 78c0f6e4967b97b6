//! Repair by forward error correction, without I/O: media packets and FEC packets in, the media in order out.
//!
//! It knows the XOR columns and rows of SMPTE ST 2022-1, from any sender and of any shape that
//! their headers name, and the further parities of our own server's Reed-Solomon code, whose shape
//! the server reports when it grants them.
//!
//! ```text
//!  media ──► Window: numbers in a ring ──► in order, gaps named ──► InOrder
//!               ▲ repaired    │ what a word's packets are
//!               │             ▼
//!  FEC ────► words: columns and rows in which something is missing
//! ```
//!
//! [`Window`] holds a few matrices of packets, given out or not, because any of them may be needed to repair another. A missing
//! packet is waited for until the sender is two matrices further: the FEC of a matrix is sent while the next one is. Every
//! repaired packet may make another word whole enough, so it goes on until nothing more can be repaired.

mod ask;
mod window;
mod word;

pub use ask::{FecChoice, FecGrant};
pub use window::{FecCounts, Window};

use millrace_core::fec::Code;

use crate::limits::MAX_FEC_WINDOW_PACKETS;

/// Shape of the Reed-Solomon code whose parities a server sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeShape {
    /// Packets of a codeword ("k").
    pub data_units: usize,
    /// Parities of a codeword, the XOR among them ("m").
    pub parity_units: usize,
    /// Packets from one of a codeword to the next ("U").
    pub unit_packets: usize,
}

impl CodeShape {
    /// Packets of a matrix.
    pub fn matrix_packets(&self) -> usize {
        self.data_units * self.unit_packets
    }

    /// Whether there is a code of this shape whose matrices a window holds.
    pub fn is_sensible(&self) -> bool {
        self.unit_packets > 0
            && self.code().is_some()
            && window::ring_packets(self.matrix_packets()) <= MAX_FEC_WINDOW_PACKETS
    }

    /// The code, if there is one of this shape.
    pub fn code(&self) -> Option<Code> {
        Code::new(self.data_units, self.parity_units)
    }
}

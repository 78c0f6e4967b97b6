//! The packet sizes that have names: the classes of 1, 2, 4 and 8 KB that network level framing was measured with, in
//! whole TS packets, and the default, which fits an Ethernet.

use std::fmt;
use std::str::FromStr;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_PACKET_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::WireLayout;

/// Names and sizes, ascending.
pub const PACKET_CLASSES: [(&str, u16); 5] = [
    ("1k", class(5)),
    ("default", class(DEFAULT_PACKET_BYTES / TS_PACKET_BYTES)),
    ("2k", class(10)),
    ("4k", class(21)),
    ("8k", class(43)),
];

const fn class(ts_packets: usize) -> u16 {
    (ts_packets * TS_PACKET_BYTES) as u16
}

/// A packet size on a command line: bytes, or the name of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PacketSize(pub u16);

/// Text that is not a packet size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "got \"{0:.40}\"; write bytes, a multiple of 188 up to {MAX_PACKET_BYTES}, or one of 1k, default, 2k, 4k, 8k"
)]
pub struct PacketSizeError(String);

impl FromStr for PacketSize {
    type Err = PacketSizeError;

    fn from_str(text: &str) -> Result<Self, PacketSizeError> {
        let named =
            PACKET_CLASSES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|class| class.1);
        let size =
            named.or_else(|| text.parse().ok()).filter(|&size| WireLayout::new(usize::from(size)).is_some());
        size.map(Self).ok_or_else(|| PacketSizeError(text.to_owned()))
    }
}

impl fmt::Display for PacketSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_numbers() {
        let sizes: Vec<u16> =
            PACKET_CLASSES.iter().map(|(name, _)| name.parse::<PacketSize>().unwrap().0).collect();
        assert_eq!(sizes, [940, 1316, 1880, 3948, 8084]);
        assert_eq!("8K".parse(), Ok(PacketSize(8084)));
        assert_eq!("9024".parse(), Ok(PacketSize(9024)));
        for bad in ["", "0", "1000", "9212", "65536", "16k", "-188"] {
            let error = bad.parse::<PacketSize>().unwrap_err().to_string();
            assert!(error.contains("multiple of 188"), "{error}");
        }
    }
}

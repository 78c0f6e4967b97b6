//! Raw layouts of the socket calls that no dependency offers, behind types that cannot be misused.
//!
//! | file | holds |
//! | --- | --- |
//! | `socket` | socket addresses as bytes, socket options |
//! | `cmsg` | control messages: building `UDP_SEGMENT`, reading time stamps, drop counts, segment sizes, ICMP errors |
//! | `mmsg` | `sendmmsg` and `recvmmsg` over arrays allocated once |
//! | `pipe` | references to pages, in a pipe |
//! | `tun` | making a TUN device |
//! | `ethtool` | the name of a driver |
//! | `inherited` | sockets that the service manager passes |
//! | `lease` | whether a file has a writer |

pub(crate) mod cmsg;
pub(crate) mod ethtool;
pub(crate) mod inherited;
pub(crate) mod lease;
pub(crate) mod mmsg;
pub(crate) mod pipe;
pub(crate) mod socket;
pub(crate) mod tun;

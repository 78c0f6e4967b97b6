//! A viewer of near video on demand, without sockets and without a clock: which channels to hear when, packets held until they are
//! played, and those given up.
//!
//! | module | holds |
//! | --- | --- |
//! | [`viewing`] | the viewer |
//! | [`hold`] | packets that came before their time, in memory or in a file |

pub mod hold;
pub mod viewing;

pub use hold::PacketHold;
pub use viewing::{PlayedPacket, Viewing};

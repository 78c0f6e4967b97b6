//! TUN devices: network devices whose packets are read and written as a file.
//!
//! | file | holds |
//! | --- | --- |
//! | `device` | [`Tun`]: packets or frames one by one |
//! | `gso_tun`, `train` | [`GsoTun`]: the same for a TCP stack, whose segments go through it in trains |

mod device;
mod gso_tun;
mod train;

pub use device::Tun;
pub use gso_tun::GsoTun;

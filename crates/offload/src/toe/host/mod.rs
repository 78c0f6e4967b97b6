//! A host thread's side: its queue pair, and the sockets on it.
//!
//! | file | holds |
//! | --- | --- |
//! | `handle` | [`Host`]: calls that wait for the engine |
//! | `home` | state shared by hosts and the engine's handle |
//! | `state` | the host's view of its sockets and buffers; no waiting |
//! | `bytes` | from receive buffers, and to chunks of the area |
//! | `waiters` | tasks that wait for a socket |
//! | `stream`, `listener` | sockets as the standard library has them |
//! | `tokio/` | sockets as tokio has them |
//! | `received` | receive buffers lent to the application |
//! | `ready` | the readiness of sockets, and which have something new |
//! | `sockets` | sockets as numbers, for a layer with locks and waits of its own |

mod bytes;
mod handle;
mod home;
mod listener;
mod ready;
mod received;
mod sockets;
mod state;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
mod waiters;

pub use self::handle::Host;
pub(super) use self::home::Home;
pub use self::listener::{Incoming, TcpListener};
pub use self::ready::Readiness;
pub use self::received::Received;
pub use self::sockets::Sockets;
pub(super) use self::state::HostState;
pub use self::stream::TcpStream;
#[cfg(test)]
pub(super) use self::waiters::Interest;

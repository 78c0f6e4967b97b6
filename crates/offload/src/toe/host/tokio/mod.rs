//! Sockets of the engine for tokio's tasks, as `tokio::net` has them (feature `tokio`).
//!
//! They stay on their thread as all sockets of a host do: they belong on a current-thread runtime, in tasks of a `LocalSet`. One task, the
//! [`Reactor`]'s, waits for the host's descriptor; an event wakes the tasks that wait for its socket, and no other. So idle sockets cost nothing,
//! however many there are.
//!
//! ```no_run
//! use millrace_offload::toe::tokio::{Reactor, TcpListener};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # fn main() -> std::io::Result<()> {
//! # let engine: millrace_offload::toe::Engine = unimplemented!();
//! let host = engine.attach()?;
//! let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! tokio::task::LocalSet::new().block_on(&runtime, async {
//!     let reactor = Reactor::new(&host)?;
//!     let listener = TcpListener::bind(&reactor, ([10, 0, 0, 1], 7).into())?;
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         tokio::task::spawn_local(async move {
//!             let mut buffer = [0; 8192];
//!             while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
//!                 if stream.write_all(&buffer[..bytes]).await.is_err() {
//!                     break;
//!                 }
//!             }
//!         });
//!     }
//! })
//! # }
//! ```
//!
//! Hyper serves over them with `hyper_util::rt::TokioIo`, axum's routers as services of hyper's connections; `axum::serve` itself asks for sockets
//! that go from thread to thread.

mod listener;
mod reactor;
mod stream;

pub use self::listener::TcpListener;
pub use self::reactor::Reactor;
pub use self::stream::TcpStream;

//! The stream engine as a library: what *Stream Engine* (2003) proposes as a system call, section 4.1.
//!
//! A server that streams does the same thing again and again: it takes a block of its source, hands
//! it to the network at its time, and waits for the next. Here all of this is one call. A
//! [`StreamContext`] defines the source, the destination and the method; [`StreamEngine::run`]
//! returns when it is done, or when there is something to decide, with the reason and the number of
//! blocks sent. The next call goes on from there.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use millrace_core::units::BitRate;
//! use millrace_stream::{BlockPacing, Reason, SourcePosition, StreamContext, StreamEngine};
//! use millrace_stream::{StreamEngineConfig, Transport};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut file = tempfile::NamedTempFile::new()?;
//! file.write_all(&[7; 100_000])?;
//!
//! let engine = StreamEngine::start(&StreamEngineConfig::default())?;
//! // Any bytes, 1000 of them at a time, 80 Mb/s.
//! let pace = BlockPacing::at_rate(BitRate(80_000_000), 1000).ok_or("no such pace")?;
//! let source = engine.plain_file(file.path(), pace)?;
//!
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut player = TcpStream::connect(listener.local_addr()?)?;
//! let (peer, _) = listener.accept()?;
//!
//! let mut stream = StreamContext::new(Transport::tcp(peer), &source)?;
//! stream.stop_at(Some(SourcePosition::Byte(60_000))).send_first("hello, ")?;
//! let outcome = engine.run(&mut stream)?;
//! assert_eq!((outcome.reason, outcome.bytes, outcome.next.byte), (Reason::Finished, 60_000, 60_000));
//!
//! // The next call goes on from there.
//! let outcome = engine.run(stream.stop_at(None))?;
//! assert_eq!((outcome.reason, outcome.bytes), (Reason::Finished, 40_000));
//! stream.finish()?; // gives the connection back; it is closed here
//!
//! let mut got = Vec::new();
//! player.read_to_end(&mut got)?;
//! assert_eq!((got.len(), &got[..8]), (7 + 100_000, b"hello, \x07".as_slice()));
//! # Ok(())
//! # }
//! ```
//!
//! # The paper's parameters
//!
//! | Stream Engine 2003, section 4.1 | here |
//! | --- | --- |
//! | `stream_eng_ctx` | [`StreamContext`] |
//! | data connection: transport mode and descriptor | [`Transport`] |
//! | a TCP offload engine that works with the stream engine, section 5 | [`StreamEngine::use_offload`], [`Transport::offload_socket`] |
//! | one that implements it | [`StreamEngine::start_offload`], [`Transport::offload`] |
//! | source of type FILE, starting and stopping offset | [`StreamEngine::transport_stream`], [`StreamEngine::plain_file`], [`StreamEngine::title`]; [`StreamContext::start_at`], [`StreamContext::stop_at`] |
//! | source of type BUFFER, length, circular or not, end position | [`Buffer`], [`BufferWriter`] |
//! | transmission interval | the media times of a transport stream; [`BlockPacing::every`] for other files; the rate of a buffer |
//! | simple stepping: block and stride | [`Assembly::Step`] |
//! | data transformation routine | [`Assembly::Transformed`], by the name of one of [`StreamEngineConfig::transforms`] |
//! | control connection: any message ends the call, and is left there | [`StreamContext::control`] |
//! | the blocking system call | [`StreamEngine::run`]; [`StreamEngine::run_async`] beside it |
//! | returned: reason, number of blocks | [`RunOutcome`] |
//! | (missing) a check of resources | [`RunRefusal`], before anything is sent |
//!
//! # Threads
//!
//! A program may have a thread for each stream: it sleeps in [`StreamEngine::run`] and is woken
//! once, at the end. Otherwise it awaits [`StreamEngine::run_async`] in any executor. Inside there
//! is one thread for each engine, one for the cache and one for events, regardless of the number of
//! streams.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the stream engine as a call | `crates/stream/src/lib.rs`, then `calls.rs`; `docs/design/0027-library-call.md` |
#![forbid(unsafe_code)]

mod buffer;
mod calls;
mod context;
mod engine;
mod events;
mod file;
pub mod limits;
mod outcome;
mod run;
mod source;

pub use buffer::{Buffer, BufferWriter, WhenFull};
pub use context::{Assembly, StreamContext, Transport};
pub use engine::{StreamEngine, StreamEngineConfig};
pub use file::BlockPacing;
pub use outcome::{OpenError, Position, Reason, RunError, RunOutcome, RunRefusal};
pub use run::RunFuture;
pub use source::{MediaSource, SourcePosition};

/// Bit rates.
pub use millrace_core::units::BitRate;
/// The form in which a connection comes back.
pub use millrace_offload::command::ConnSocket as Connection;
/// How loops wait.
pub use millrace_offload::idle::IdlePolicy;
/// The offload engine of [`StreamEngine::start_offload`], its devices and its sockets.
pub use millrace_offload::toe;
/// What titles can be transformed by.
pub use millrace_store::transform::Transforms;
/// A volume, and the terms of its interface.
pub use millrace_store::volume::Volume;

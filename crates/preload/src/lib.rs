//! Sockets of the TCP offload engine for programs that were built without it: `LD_PRELOAD=libmillrace_preload.so`.
//!
//! ```text
//!   program ─► read, send, epoll_wait ... of this library
//!                 │ is the descriptor ours? (table, without a lock)
//!                 ├── no  ─► the C library's function, untouched
//!                 └── yes ─► process: sockets, epoll sets ─► queue pair ─► engine
//! ```
//!
//! `docs/design/0037-preload.md` describes which sockets are ours and which features are not
//! emulated; `docs/guide/preload.md` describes the use.
//!
//! | file | holds |
//! | --- | --- |
//! | `exports/` | the functions in the place of the C library's: pointers become slices, results become errno |
//! | `real` | the C library's own |
//! | `table` | whose a descriptor is |
//! | `process/` | the sockets of this process, behind one lock |
//! | `ready` | epoll sets: which of their sockets have something to say |
//! | `wait` | waiting for engine and kernel at once |
//! | `config` | settings, from the environment |
//! | `address` | addresses as the C library has them |
//! | `message` | messages to the user, each printed once |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | sockets of an offload engine for existing programs | `docs/design/0037-preload.md`, `crates/preload/src/lib.rs`, then `process/`, `wait.rs` |

#![deny(unsafe_code)]
// Unit tests keep the C library's own functions: nothing calls these there.
#![cfg_attr(test, allow(dead_code, unused_imports, reason = "all of it begins with what a program calls"))]

mod address;
mod config;
mod errno;
#[cfg(not(test))]
mod exports;
pub mod limits;
mod message;
mod process;
mod ready;
mod real;
mod table;
mod wait;

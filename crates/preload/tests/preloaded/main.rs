//! Programs that are preloaded with the library, with sockets of an engine.

mod calls;
mod programs;
mod support;
mod workers;

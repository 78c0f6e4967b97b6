//! The library call with real sockets, threads and time, and the examples that show it.

mod examples;
mod real;
mod support;

//! Rows of streams.

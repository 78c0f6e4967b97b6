//! Counters of the web side's work.

use std::sync::{Mutex, PoisonError};

millrace_core::counters! {
    /// Connections and requests by HTTP.
    pub struct WebCounters {
        /// HTTP connections accepted.
        sum connections_accepted,
        /// HTTP connections closed at once because there were too many.
        sum connections_refused,
        /// HTTP connections closed at once because one address had too many.
        sum connections_refused_address,
        /// HTTP connections that are open.
        gauge connections,
        /// HTTP connections closed because a request did not come whole in time, or a reply was not taken.
        sum connections_too_slow,
        /// Streams of HTTP/2 that were reset because their viewer took nothing of them, or too little.
        sum streams_too_slow,
        /// Bytes in memory for responses: those of caches, and those on their way.
        gauge memory_held_bytes,
        /// Times that something was refused because the memory for responses, or a client's share of it, was used up.
        sum memory_exhausted,
        /// HTTP connections closed for bytes that are not HTTP, or that could be read in two ways.
        sum bad_messages,
        /// HTTP requests answered.
        sum requests,
        /// Responses 200 to 399.
        sum replies_ok,
        /// Responses 400 to 499.
        sum replies_client_error,
        /// Responses 500 to 599.
        sum replies_server_error,
        /// Responses with bytes of a title that were given to an engine.
        sum media_orders,
        /// Of these, refused because something was used up (503).
        sum media_refused,
        /// Of these, broken off.
        sum media_broken,
        /// Bytes of titles in responses that were sent whole by an engine.
        sum media_bytes,
        /// Titles that were uploaded.
        sum uploads,
        /// Uploads that became no title: given up, refused by ingest, or without room.
        sum uploads_failed,
        /// Uploads that are under way, with those that wait for their client to go on.
        gauge uploads_now,
        /// Bytes of uploads that have come.
        sum upload_bytes,
    }
}

/// The counters; whoever registers them reads them from here.
#[derive(Debug, Default)]
pub struct Totals(Mutex<WebCounters>);

impl Totals {
    /// How far they are.
    pub fn read(&self) -> WebCounters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts.
    pub(crate) fn add(&self, count: impl FnOnce(&mut WebCounters)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A response goes out.
    pub(crate) fn replied(&self, status: u16) {
        self.add(|c| {
            c.requests += 1;
            match status {
                ..400 => c.replies_ok += 1,
                400..500 => c.replies_client_error += 1,
                _ => c.replies_server_error += 1,
            }
        });
    }
}

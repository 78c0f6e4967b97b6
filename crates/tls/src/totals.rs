//! What TLS has done.

use std::sync::{Mutex, PoisonError};

millrace_core::counters! {
    /// Handshakes and certificates.
    pub struct TlsCounters {
        /// Handshakes that came to their end.
        sum handshakes,
        /// Handshakes that failed: the client does not trust the certificate, speaks no TLS 1.2 or 1.3, or went away.
        sum handshakes_failed,
        /// Handshakes that did not come to their end in time.
        sum handshakes_too_slow,
        /// Handshakes given up because too many newer ones were under way.
        sum handshakes_dropped,
        /// RTSP connections by TLS that are open.
        gauge relayed,
        /// RTSP connections by TLS closed because their viewer took nothing for too long.
        sum relayed_too_slow,
        /// Times that the certificate was read, the first one among them.
        sum certificates_read,
        /// Times that a new certificate could not be used and the old one stayed.
        sum certificates_refused,
    }
}

/// The counters; whoever registers them reads them from here.
#[derive(Debug, Default)]
pub struct Totals(Mutex<TlsCounters>);

impl Totals {
    /// How far they are.
    pub fn read(&self) -> TlsCounters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts.
    pub(crate) fn add(&self, count: impl FnOnce(&mut TlsCounters)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

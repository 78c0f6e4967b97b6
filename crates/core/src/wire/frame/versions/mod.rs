//! The older ways to frame a datagram, and the newest by the same inputs: all make the same bytes.

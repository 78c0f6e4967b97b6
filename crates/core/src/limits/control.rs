//! Bounds of the control side: connections, admission, the library, commands.

use std::time::Duration;

// RTSP connections.

/// Characters of a viewer's data that are written into a log line: enough to recognise it.
pub const MAX_QUOTED: usize = 120;
/// How long a connection about to be closed may take its last reply and close its own side. Closing
/// with unread input would reset the connection, and the reply would be lost with it (RFC 9112
/// section 9.6 states the same for HTTP).
pub const CONN_LINGER: Duration = Duration::from_millis(500);
/// Pause after a failed accept: no descriptor is left, and one more try at once will not find one.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A connection that has been silent for this long is probed to see if it still exists.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// And again after this, [`KEEPALIVE_COUNT`] times: a viewer that vanished without a word is noticed within two minutes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// See [`KEEPALIVE_INTERVAL`].
pub const KEEPALIVE_COUNT: u32 = 6;

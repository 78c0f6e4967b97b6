//! What the control plane has done since it was started, and what it holds now.

millrace_core::counters! {
    /// Sums since the start.
    pub struct Counters {
        /// Connections accepted.
        sum connections_accepted,
        /// Connections closed at once because there were too many.
        sum connections_refused,
        /// Connections closed at once because one address had too many.
        sum connections_refused_address,
        /// Connections closed because nothing, or nothing whole, came in time.
        sum connections_too_slow,
        /// Connections closed because they did not take their replies.
        sum connections_not_reading,
        /// Requests answered.
        sum requests,
        /// Replies 200.
        sum replies_ok,
        /// Replies 400 to 499.
        sum replies_client_error,
        /// Replies 500 to 599.
        sum replies_server_error,
        /// Connections closed for bytes that are not RTSP.
        sum bad_messages,
        /// Sessions set up.
        sum sessions_started,
        /// Sessions ended by TEARDOWN.
        sum sessions_torn_down,
        /// Sessions dropped because nothing was heard from the viewer.
        sum sessions_expired,
        /// Sessions ended with their connection.
        sum sessions_disconnected,
        /// Sessions ended by a new one on the same UDP port.
        sum sessions_replaced,
        /// Sessions that were not playing, ended early because the session tables were nearly full.
        sum sessions_ended_early,
        /// Sessions ended by a failure: disk, slow reader, unreachable viewer.
        sum sessions_failed,
        /// Titles played to their end.
        sum titles_finished,
        /// SETUP and PLAY requests refused for lack of streams or bit rate (453).
        sum refused_full,
        /// Sessions that got FEC at their SETUP.
        sum sessions_with_fec,
        /// Times FEC of a session ended because its parity could not be read or sent.
        sum fec_failed,
        /// Seeks and plays from a given time.
        sum seeks,
        /// RTCP datagrams and frames of a known session.
        sum rtcp_received,
        /// RTCP datagrams of nobody known.
        sum rtcp_unknown,
        /// Datagrams on the RTP port of a known session (hole punches).
        sum punches,
        /// Replies given up because the engine did not answer.
        sum engine_silent,
    }
}

millrace_core::counters! {
    /// What there is at one moment.
    pub struct Held {
        /// Open connections.
        gauge connections,
        /// Sessions, playing or not.
        gauge sessions,
        /// Streams that the engines know, closing ones included.
        gauge streams,
        /// Bits a second that admission has given away.
        gauge reserved_bits_per_s,
    }
}

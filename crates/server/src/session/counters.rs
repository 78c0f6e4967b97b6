//! What the control plane has done since it was started: plain sums, for metrics.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Sums since the start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Name, value and one line of help of each counter, for printing.
            pub fn table(&self) -> Vec<(&'static str, u64, &'static str)> {
                vec![$((stringify!($name), self.$name, concat!($($doc),+).trim_ascii()),)+]
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections_accepted,
    /// Connections closed at once because there were too many.
    connections_refused,
    /// Connections closed at once because one address had too many.
    connections_refused_address,
    /// Connections closed because nothing, or nothing whole, came in time.
    connections_too_slow,
    /// Connections closed because they did not take their replies.
    connections_not_reading,
    /// Requests answered.
    requests,
    /// Replies 200.
    replies_ok,
    /// Replies 400 to 499.
    replies_client_error,
    /// Replies 500 to 599.
    replies_server_error,
    /// Connections closed for bytes that are not RTSP.
    bad_messages,
    /// Sessions set up.
    sessions_started,
    /// Sessions ended by TEARDOWN.
    sessions_torn_down,
    /// Sessions dropped because nothing was heard from the viewer.
    sessions_expired,
    /// Sessions ended with their connection.
    sessions_disconnected,
    /// Sessions ended by a new one on the same UDP port.
    sessions_replaced,
    /// Sessions that were not playing, ended early because the session tables were nearly full.
    sessions_ended_early,
    /// Sessions ended by a failure: disk, slow reader, unreachable viewer.
    sessions_failed,
    /// Titles played to their end.
    films_finished,
    /// SETUP and PLAY requests refused for lack of streams or bit rate (453).
    refused_full,
    /// Sessions that got FEC at their SETUP.
    sessions_with_fec,
    /// Times FEC of a session ended because its parity could not be read or sent.
    fec_failed,
    /// Seeks and plays from a given time.
    seeks,
    /// RTCP datagrams and frames of a known session.
    rtcp_received,
    /// RTCP datagrams of nobody known.
    rtcp_unknown,
    /// Datagrams on the RTP port of a known session (hole punches).
    punches,
    /// Replies given up because the engine did not answer.
    engine_silent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_counter_once() {
        let table = Counters { requests: 7, ..Counters::default() }.table();
        let mut names: Vec<_> = table.iter().map(|row| row.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), table.len());
        assert_eq!(table.len() * 8, size_of::<Counters>());
        assert!(table.contains(&("requests", 7, "Requests answered.")));
    }
}

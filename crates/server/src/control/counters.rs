//! The work of the control plane since it was started, and its present state. All sums are made
//! from the stream of events.

use crate::service::{
    Cause, ConnRefusal, EndReason, Exhausted, FecChange, FecMode, Playing, Refusal, ServiceEvent, ShareScope,
};

millrace_core::counters! {
    /// Sums since the start.
    pub struct ServerCounters {
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
        /// Sessions, and viewers who fetch segments, ended because their engine no longer carried all whom it had let in.
        sum sessions_overload,
        /// Sessions ended by a failure: disk, slow reader, unreachable viewer.
        sum sessions_failed,
        /// Viewers who began to fetch segments, of transport streams or of fragmented MP4.
        sum segment_viewers_started,
        /// Titles played to their end.
        sum titles_finished,
        /// Times that bytes of a title were sent as asked, by HTTP.
        sum deliveries,
        /// Times that such bytes ended early: with the connection, by a failure, or with the server.
        sum deliveries_broken,
        /// Requests to play refused for lack of streams or bit rate: SETUP and PLAY (453), titles and segments by HTTP (503).
        sum refused_full,
        /// Of these, because cores, disks, cache or links were seen to be full.
        sum refused_measured,
        /// Of these, because the client's address had all that one address may have.
        sum refused_address,
        /// Of these, because as many watched the title as one may have.
        sum refused_title,
        /// Of these, because the user had all that it may have.
        sum refused_user,
        /// Sessions that got FEC at their SETUP.
        sum sessions_with_fec,
        /// Times FEC of a session ended because its parity could not be read or sent.
        sum fec_failed,
        /// Seeks and plays from a given time.
        sum seeks,
        /// Of these, because a viewer of a live title paused for longer than the title is kept.
        sum pauses_outlasted,
        /// Plays at another speed than the normal one: fast forward, rewind, slow motion.
        sum trick_plays,
        /// Times a session went over to another rendition.
        sum rendition_changes,
        /// Of these, because a viewer read too slowly or reported loss, or an engine was overloaded.
        sum renditions_lowered,
        /// Of these, because all had been well for a while.
        sum renditions_raised,
        /// Times a session stayed as it was because another rendition could not be read.
        sum rendition_failed,
        /// RTCP datagrams and frames of a known session.
        sum rtcp_received,
        /// RTCP datagrams of unknown senders.
        sum rtcp_unknown,
        /// Datagrams on the RTP port of a known session (hole punches).
        sum punches,
        /// Replies given up because the engine did not answer.
        sum engine_silent,
        /// Times that the offload engine ended because its device was gone.
        sum offload_lost,
        /// Connections that ended with it.
        sum offload_connections_lost,
        /// ICMP errors about viewers that came from neither the viewer nor this host, and so changed nothing.
        sum icmp_hearsay,
    }
}

impl ServerCounters {
    /// Counts an event.
    pub fn count(&mut self, event: &ServiceEvent) {
        let is_trick = matches!(event, ServiceEvent::Playing(Playing { scale, .. }) if !scale.is_normal());
        self.trick_plays += u64::from(is_trick);
        let is_outlasted = matches!(event, ServiceEvent::Playing(Playing { has_lost_place: true, .. }));
        self.pauses_outlasted += u64::from(is_outlasted);
        let counter = match event {
            ServiceEvent::Started { .. } => &mut self.sessions_started,
            ServiceEvent::Playing(Playing { seek: true, .. }) => &mut self.seeks,
            ServiceEvent::FetchBegan { .. } => &mut self.segment_viewers_started,
            ServiceEvent::FetchEnded { reason: EndReason::Overloaded, .. } => &mut self.sessions_overload,
            ServiceEvent::Finished { .. } => &mut self.titles_finished,
            ServiceEvent::Rendition { cause, .. } => return self.count_rendition(*cause),
            ServiceEvent::RenditionFailed { .. } => &mut self.rendition_failed,
            ServiceEvent::Delivered { reason: EndReason::Sent, .. } => &mut self.deliveries,
            ServiceEvent::Delivered { .. } => &mut self.deliveries_broken,
            ServiceEvent::Ended { is_bytes: false, reason, .. } => match reason {
                EndReason::TornDown | EndReason::Sent => &mut self.sessions_torn_down,
                EndReason::Expired => &mut self.sessions_expired,
                EndReason::Replaced => &mut self.sessions_replaced,
                EndReason::TablesFull => &mut self.sessions_ended_early,
                EndReason::Overloaded => &mut self.sessions_overload,
                // A session fetches nothing.
                EndReason::NoMoreFetched => return,
                EndReason::Failed(_) | EndReason::Refused(_) => &mut self.sessions_failed,
                EndReason::Disconnected | EndReason::Shutdown => &mut self.sessions_disconnected,
            },
            ServiceEvent::Fec { change: FecChange::Granted, mode: FecMode::Xor | FecMode::All, .. } => {
                &mut self.sessions_with_fec
            }
            ServiceEvent::Fec { change: FecChange::Failed, .. } => &mut self.fec_failed,
            ServiceEvent::NoRoom { refusal, .. } => match self.refused(refusal) {
                Some(counter) => counter,
                None => return,
            },
            ServiceEvent::Answered { status, .. } => {
                self.requests += 1;
                match status {
                    200..=399 => &mut self.replies_ok,
                    400..=499 => &mut self.replies_client_error,
                    _ => &mut self.replies_server_error,
                }
            }
            ServiceEvent::EngineSilent { .. } => &mut self.engine_silent,
            ServiceEvent::Heard { is_report: true, is_known: true } => &mut self.rtcp_received,
            ServiceEvent::Heard { is_report: true, is_known: false } => &mut self.rtcp_unknown,
            ServiceEvent::Heard { is_report: false, is_known: true } => &mut self.punches,
            ServiceEvent::OffloadLost { connections, .. } => {
                self.offload_connections_lost += *connections as u64;
                &mut self.offload_lost
            }
            ServiceEvent::IcmpHearsay => &mut self.icmp_hearsay,
            ServiceEvent::ConnectionOpened { .. } => &mut self.connections_accepted,
            ServiceEvent::ConnectionRefused { refusal: ConnRefusal::Full, .. } => {
                &mut self.connections_refused
            }
            ServiceEvent::ConnectionRefused { refusal: ConnRefusal::Address, .. } => {
                &mut self.connections_refused_address
            }
            ServiceEvent::BadMessage { .. } => &mut self.bad_messages,
            ServiceEvent::TooSlow { .. } => &mut self.connections_too_slow,
            ServiceEvent::NotReading => &mut self.connections_not_reading,
            _ => return,
        };
        *counter += 1;
    }

    /// Returns the counter of a refusal's reason, beside the general one; `None`: it is not for
    /// lack of streams or bit rate.
    fn refused(&mut self, refusal: &Refusal) -> Option<&mut u64> {
        let Refusal::Exhausted(what) = refusal else { return None };
        if !what.is_room_to_play() || *what == Exhausted::EngineConnections {
            return None;
        }
        let reason = match what.scope() {
            ShareScope::Machine => &mut self.refused_measured,
            ShareScope::Address => &mut self.refused_address,
            ShareScope::Title => &mut self.refused_title,
            ShareScope::User => &mut self.refused_user,
            ShareScope::Server | ShareScope::Connection => return Some(&mut self.refused_full),
        };
        self.refused_full += 1;
        Some(reason)
    }

    fn count_rendition(&mut self, cause: Cause) {
        self.rendition_changes += 1;
        match cause {
            Cause::Viewer => {}
            Cause::Trouble(_) => self.renditions_lowered += 1,
            Cause::Recovered => self.renditions_raised += 1,
        }
    }
}

millrace_core::counters! {
    /// What there is at one moment.
    pub struct ServerGauges {
        /// Open connections.
        gauge connections,
        /// HTTP connections on which bytes of a title are sent.
        gauge deliveries,
        /// Sessions, playing or not.
        gauge sessions,
        /// Viewers who fetch segments, of transport streams or of fragmented MP4.
        gauge segment_viewers,
        /// Streams that the engines know, closing ones included.
        gauge streams,
        /// Bits a second that admission has given away.
        gauge reserved_bits_per_s,
    }
}

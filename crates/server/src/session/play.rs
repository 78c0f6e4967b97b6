//! PLAY and PAUSE (RFC 2326 sections 10.5 and 10.6).

use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{Command, Numbering, RunSpec};
use rtsp_types::headers::{RANGE, RTP_INFO, SCALE, SESSION, SPEED};

use super::fec::fec_header;
use super::notice::Notice;
use super::seek;
use super::server::{ConnKey, Server, SessionKey, header};
use super::state::{Media, Path, Pending, Plan, Run, Session, Start, Stop};
use crate::rtsp::range::{self, From, NptRange, RangeError, npt};
use crate::rtsp::reply::ReplyHead;
use crate::rtsp::{Reply, Request};
use crate::service::AccessPoint;

/// What a PLAY amounts to.
enum Decision {
    /// It plays already, and goes on.
    GoesOn,
    /// Do this.
    Do(Plan),
}

impl Server {
    /// The reply; `None` if the engine must first say where the stream stopped.
    pub(super) fn play(
        &mut self,
        now: Instant,
        conn: ConnKey,
        head: &ReplyHead,
        key: Option<SessionKey>,
        request: &Request,
    ) -> Option<Reply> {
        let Some(session) = key.and_then(|key| self.sessions.get_mut(&key)) else {
            return Some(self.wrong_state(key));
        };
        if session.pending.is_some() {
            // Another connection is seeking in the same session at this very moment.
            return Some(Reply::error(455, "a PLAY of this session is still being answered"));
        }
        let plan = match decide(session, now, request) {
            Err(reply) => return Some(self.with_session(reply, key)),
            Ok(Decision::GoesOn) => return Some(self.with_session(Reply::ok(), key)),
            Ok(Decision::Do(plan)) => plan,
        };
        let (key, entry) = (session.key, session.entry.clone());
        if let Some(refusal) = self.refusal_if_lost(conn, &entry) {
            return Some(self.with_session(refusal, Some(key)));
        }
        if let Err(refusal) = self.reserve(now, conn, key) {
            return Some(self.with_session(refusal, Some(key)));
        }
        let session = self.sessions.get_mut(&key)?;
        let (engine, stream) = (session.engine, session.stream);
        match session.media {
            Media::Fresh | Media::Paused { .. } | Media::Ended { .. } => {
                return self.start(now, key, plan, Some((conn, head)));
            }
            Media::Running(run) => {
                session.media = Media::Pausing(run);
                self.command(engine, Command::Pause { stream });
                self.pause_companions(key);
            }
            Media::Pausing(_) => {}
        }
        let pending = Pending { conn, head: head.clone(), plan, since: now };
        self.sessions.get_mut(&key)?.pending = Some(pending);
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.waits_for = Some(key);
        }
        None
    }

    /// Plays a stream that stands still: writes the reply, then lets the packets out. Returns the reply if there is
    /// nothing to start; `None` when it has been written.
    pub(super) fn start(
        &mut self,
        now: Instant,
        key: SessionKey,
        plan: Plan,
        to: Option<(ConnKey, &ReplyHead)>,
    ) -> Option<Reply> {
        let timeout_s = self.config.session_timeout_s();
        let session = self.sessions.get_mut(&key)?;
        let Some((from, sequence)) = place(session, plan.start) else {
            return Some(self.nothing_left(key));
        };
        let stop = plan.stop.unwrap_or_else(|| resumed_stop(session, plan.start));
        if from.packet >= stop.packet {
            return Some(self.nothing_left(key));
        }
        let at = now.plus_ns(self.reply_gap_ns(key, to.map(|(conn, _)| conn)));
        let session = self.sessions.get_mut(&key)?;
        let mut reply = Reply::ok().header(SESSION, format!("{};timeout={timeout_s}", session.id));
        if let Some(time) = from.time {
            // Exact or absent: a wrong rtptime makes GStreamer show nothing.
            let rtptime = session.entry.timeline.timestamp(time);
            reply = reply
                .header(RANGE, format!("npt={}-{}", npt(time), npt(stop.time.max(time))))
                .header(RTP_INFO, format!("url={};seq={sequence};rtptime={rtptime}", session.url));
        }
        if let Some(left_out) = session.fec_left_out() {
            reply = reply.header(fec_header(), left_out);
        }
        if plan.scale {
            reply = reply.header(SCALE, "1.0");
        }
        if plan.speed {
            reply = reply.header(SPEED, "1.0");
        }
        let seek = matches!(plan.start, Start::Access(_)) && session.media != Media::Fresh;
        let anew = !matches!((plan.start, session.media), (Start::Resume, Media::Paused { .. }));
        let run = RunSpec {
            run: session.next_run(),
            media: session.run_media(),
            from: from.packet,
            until: stop.packet,
            numbering: Numbering::Sequence(sequence),
            scale_permille: 1000,
        };
        session.media = Media::Running(Run { serial: run.run, from_time: from.time, at, stop });
        let (engine, stream) = (session.engine, session.stream);
        let (short, title) = (session.short_id(), session.entry.name.clone());
        self.counters.seeks += u64::from(seek);
        if let Some((conn, head)) = to {
            self.reply(now, conn, head, &reply);
        }
        self.command(engine, Command::Play { stream, at, run });
        self.prepare_companions(key, run.from..run.until, anew, false);
        let from = from.time.unwrap_or_default();
        self.notice(Notice::Playing { session: short, title, from, seek });
        None
    }

    /// Least time from the reply to the first packet. A player that reads frames from the connection loses what comes right behind
    /// the reply; what an engine writes may go out after the packets of another one; and FEC is told to play when its media has been
    /// read, which should not be after it is due.
    fn reply_gap_ns(&self, key: SessionKey, to: Option<ConnKey>) -> u64 {
        let waits = |session: &Session| matches!(session.path, Path::Tcp { .. }) || session.spare() > 0;
        let waits = self.sessions.get(&key).is_some_and(waits);
        let attached = to.and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| conn.attached.is_some());
        if waits || attached { PLAY_DELAY_NS } else { 0 }
    }

    pub(super) fn pause(&mut self, key: Option<SessionKey>) -> Reply {
        let Some(session) = key.and_then(|key| self.sessions.get_mut(&key)) else {
            return self.wrong_state(key);
        };
        // A Range would name the moment to pause at (RFC 2326 section 10.6); players mean now.
        let (short, title) = (session.short_id(), session.entry.name.clone());
        if let Media::Running(run) = session.media {
            session.media = Media::Pausing(run);
            let (key, engine, stream) = (session.key, session.engine, session.stream);
            self.command(engine, Command::Pause { stream });
            self.pause_companions(key);
            self.notice(Notice::Paused { session: short, title });
        } else if session.stay() {
            self.notice(Notice::Paused { session: short, title });
        }
        self.with_session(Reply::ok(), key)
    }
}

/// Where to start, and with which sequence number: the shared timeline at first, without a jump ever after.
fn place(session: &Session, start: Start) -> Option<(Place, u16)> {
    let next_sequence = match session.media {
        Media::Paused { next_sequence, .. } | Media::Ended { next_sequence, .. } => Some(next_sequence),
        Media::Fresh => None,
        Media::Running(_) | Media::Pausing(_) => return None, // start() is for streams that stand still
    };
    let place = match (start, session.media) {
        (Start::Access(AccessPoint { packet, time }), _) => Place { packet, time: Some(time) },
        (Start::Resume, Media::Paused { next_packet, .. }) if next_packet < session.entry.packets => {
            Place { packet: next_packet, time: session.entry.access.time_of(next_packet) }
        }
        (Start::Resume, Media::Fresh) => {
            let AccessPoint { packet, time } = session.entry.access.access_at_or_before(MediaTicks(0));
            Place { packet, time: Some(time) }
        }
        (Start::Resume, _) => return None,
    };
    // FEC names packets by their numbers on the title's own timeline.
    let own = next_sequence.filter(|_| session.fec.is_none());
    Some((place, own.unwrap_or(sequence_of(place.packet))))
}

#[derive(Clone, Copy)]
struct Place {
    packet: u32,
    time: Option<MediaTicks>,
}

/// A resumed PLAY goes on to where it was going; a jump goes to the end of the title.
fn resumed_stop(session: &Session, start: Start) -> Stop {
    match (start, session.media) {
        (Start::Resume, Media::Paused { stop, .. }) => stop,
        _ => session.title_end(),
    }
}

/// Reads the headers of PLAY in the light of where the session stands.
fn decide(session: &Session, now: Instant, request: &Request) -> Result<Decision, Reply> {
    let range = match header(request, &RANGE).map(range::parse) {
        None => None,
        Some(Ok(range)) => Some(range),
        // RFC 2326 section 12.29: a time format that is not understood is answered with 501.
        Some(Err(error @ RangeError::Unit)) => return Err(Reply::error(501, error)),
        Some(Err(error @ RangeError::Malformed)) => return Err(Reply::error(457, error)),
    };
    let empty = || Reply::error(457, "the end of the range is not behind its start");
    if let Some(NptRange { from, to: Some(to) }) = range
        && (to == MediaTicks(0) || matches!(from, From::At(from) if to.0.cast_signed() <= from))
    {
        return Err(empty());
    }
    let sought = match range.map(|range| range.from) {
        Some(From::At(asked)) => Some(seek::locate(session, now, asked, seek::counts_in_stamps(request))),
        _ => None,
    };
    let access = |time| Start::Access(session.entry.access.access_at_or_before(time));
    let start = match (range.map(|range| range.from), session.media) {
        (None | Some(From::Here), Media::Running(_)) if range.is_none_or(|range| range.to.is_none()) => {
            return Ok(Decision::GoesOn);
        }
        (Some(From::At(_)), _) => access(sought.map_or(MediaTicks(0), |sought| sought.time)),
        // Played to the end: PLAY without a Range begins again, a range from here has nothing left.
        (None, Media::Ended { .. }) => access(MediaTicks(0)),
        (Some(From::Here), Media::Ended { .. }) => return Err(Reply::error(457, "the end has been reached")),
        (None | Some(From::Here), Media::Fresh) => access(MediaTicks(0)),
        (None | Some(From::Here), _) => Start::Resume,
    };
    let stop = match range {
        Some(NptRange { to: Some(to), .. }) => {
            let to = sought.map_or(Some(to), |sought| sought.end(to)).ok_or_else(empty)?;
            Some(stop_at(session, to))
        }
        Some(NptRange { to: None, .. }) => Some(session.title_end()),
        None => None,
    };
    let has = |name| request.header(name).is_some();
    Ok(Decision::Do(Plan { start, stop, scale: has(&SCALE), speed: has(&SPEED) }))
}

/// The packet before which a range that ends at `time` stops.
fn stop_at(session: &Session, time: MediaTicks) -> Stop {
    let end = session.title_end();
    if time >= end.time {
        return end;
    }
    Stop { packet: session.entry.access.packet_at(time).min(end.packet), time }
}

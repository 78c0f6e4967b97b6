//! Play and pause.

use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{Command, Numbering, RunSpec};

use super::Service;
use super::conns::ConnKey;
use super::event::{Event, Playing};
use super::ports::{AccessPoint, Need};
use super::refusal::Refusal;
use super::seek::{self, From, Span};
use super::stream::{Media, Pending, Plan, Run, Start, Stop, Stream, StreamKey};

/// What a viewer asks a stream to play.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Which part; `None`: nothing was said about that.
    pub span: Option<Span>,
    /// The player counts in presentation time stamps, as FFmpeg's library does.
    pub in_stamps: bool,
    /// The connection by which the viewer is told what will come: packets wait until that is out.
    pub told_by: Option<ConnKey>,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    /// It plays that already, and goes on.
    GoesOn,
    /// [`Event::Playing`] says what will come.
    Begun,
    /// The engine must first say where the stream stopped: [`Event::Playing`], [`Event::PlayRefused`], [`Event::EngineSilent`] or
    /// [`Event::Ended`] will come.
    Waits,
}

/// What a wish amounts to.
enum Decision {
    GoesOn,
    Do(Plan),
}

impl Service {
    /// Plays a stream, or another part of it.
    ///
    /// # Errors
    /// Why it stays as it is; [`Refusal::Opening`] if its times are being opened again.
    pub fn play(&mut self, now: Instant, key: StreamKey, wanted: &Wanted) -> Result<Played, Refusal> {
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        if stream.ending.is_some() {
            return Err(Refusal::Ending);
        }
        if stream.is_busy() {
            return Err(Refusal::Busy);
        }
        if stream.entry.access.is_stale() {
            let times = Need::times(&stream.entry, stream.entry.layout.packet_bytes());
            self.need(now, wanted.told_by, [times])?;
        }
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        let plan = match decide(stream, now, wanted)? {
            Decision::GoesOn => return Ok(Played::GoesOn),
            Decision::Do(plan) => plan,
        };
        let entry = stream.entry.clone();
        self.check_members(&entry)?;
        self.reserve(now, key)?;
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        let path = stream.path;
        let has_engine = !self.is_being_moved(path);
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        match stream.media {
            Media::Fresh | Media::Paused { .. } | Media::Ended { .. } if has_engine => {
                return self.start(now, key, plan).map(|()| Played::Begun);
            }
            Media::Running(run) => {
                stream.pending = Some(Pending { plan, since: now });
                self.pause_run(key, run);
            }
            _ => stream.pending = Some(Pending { plan, since: now }),
        }
        Ok(Played::Waits)
    }

    /// Plays a stream that stands still: tells what will come, then lets the packets out.
    pub(super) fn start(&mut self, now: Instant, key: StreamKey, plan: Plan) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let (from, sequence) = place(stream, plan.start).ok_or(Refusal::NothingLeft)?;
        let stop = plan.stop.unwrap_or_else(|| resumed_stop(stream, plan.start));
        if from.packet >= stop.packet {
            return Err(Refusal::NothingLeft);
        }
        let at = now.plus_ns(self.gap_ns(stream, plan.told_by));
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        let playing = Playing {
            stream: key,
            session: stream.label.to_string(),
            title: stream.entry.name.clone(),
            from: from.time,
            until: stop.time,
            sequence,
            seek: matches!(plan.start, Start::Access(_)) && stream.media != Media::Fresh,
            without_fec: stream.take_fec_left_out(),
        };
        let anew = !matches!((plan.start, stream.media), (Start::Resume, Media::Paused { .. }));
        let run = RunSpec {
            run: stream.next_run(),
            media: stream.run_media(),
            from: from.packet,
            until: stop.packet,
            numbering: Numbering::Sequence(sequence),
            scale_permille: 1000,
            step: None,
        };
        stream.media = Media::Running(Run { serial: run.run, from_time: from.time, at, stop });
        let (engine, place) = (stream.engine, stream.place);
        self.tell(Event::Playing(playing));
        self.command(engine, Command::Play { stream: place, at, ahead_ms: 0, run });
        self.prepare_companions(key, run.from..run.until, anew, false);
        Ok(())
    }

    /// Least time from what the viewer is told to the first packet. A player that reads frames from the connection loses what comes right
    /// behind an answer; what an engine writes may go out after the packets of another one; and FEC is told to play when its media has
    /// been read, which should not be after it is due.
    fn gap_ns(&self, stream: &Stream, told_by: Option<ConnKey>) -> u64 {
        let waits = stream.path.conn().is_some() || stream.spare() > 0;
        let attached = told_by.is_some_and(|conn| self.attachment(conn).is_some());
        if waits || attached { PLAY_DELAY_NS } else { 0 }
    }

    /// Nothing more is sent of a stream from now on. Nothing changes if nothing is sent.
    ///
    /// # Errors
    /// [`Refusal::Gone`].
    pub fn pause(&mut self, key: StreamKey) -> Result<(), Refusal> {
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
        if let Media::Running(run) = stream.media {
            self.pause_run(key, run);
        } else if !stream.stay() {
            return Ok(());
        }
        self.tell(Event::Paused { session, title });
        Ok(())
    }

    /// Has the engine end the run, and that of the FEC.
    pub(super) fn pause_run(&mut self, key: StreamKey, run: Run) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.media = Media::Pausing(run);
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Pause { stream: place });
        self.pause_companions(key);
    }
}

/// Where to start, and with which sequence number: the shared timeline at first, without a jump ever after.
fn place(stream: &Stream, start: Start) -> Option<(Origin, u16)> {
    let next_sequence = match stream.media {
        Media::Paused { next_sequence, .. } | Media::Ended { next_sequence, .. } => Some(next_sequence),
        Media::Fresh => None,
        Media::Running(_) | Media::Pausing(_) => return None, // start() is for streams that stand still
    };
    let origin = match (start, stream.media) {
        (Start::Access(AccessPoint { packet, time }), _) => Origin { packet, time: Some(time) },
        (Start::Resume, Media::Paused { next_packet, .. }) if next_packet < stream.entry.packets => {
            Origin { packet: next_packet, time: stream.entry.access.time_of(next_packet) }
        }
        (Start::Resume, Media::Fresh) => {
            let AccessPoint { packet, time } = stream.entry.access.access_at_or_before(MediaTicks(0));
            Origin { packet, time: Some(time) }
        }
        (Start::Resume, _) => return None,
    };
    // FEC names packets by their numbers on the title's own timeline.
    let own = next_sequence.filter(|_| stream.fec.is_none());
    Some((origin, own.unwrap_or(sequence_of(origin.packet))))
}

#[derive(Clone, Copy)]
struct Origin {
    packet: u32,
    time: Option<MediaTicks>,
}

/// A resumed run goes on to where it was going; a jump goes to the end of the title.
fn resumed_stop(stream: &Stream, start: Start) -> Stop {
    match (start, stream.media) {
        (Start::Resume, Media::Paused { stop, .. }) => stop,
        _ => stream.title_end(),
    }
}

/// Reads a wish in the light of where the stream stands.
fn decide(stream: &Stream, now: Instant, wanted: &Wanted) -> Result<Decision, Refusal> {
    let span = wanted.span;
    if let Some(Span { from, to: Some(to) }) = span
        && (to == MediaTicks(0) || matches!(from, From::At(from) if to.0.cast_signed() <= from))
    {
        return Err(Refusal::EmptyRange);
    }
    let sought = match span.map(|span| span.from) {
        Some(From::At(asked)) => Some(seek::locate(stream, now, asked, wanted.in_stamps)),
        _ => None,
    };
    let access = |time| Start::Access(stream.entry.access.access_at_or_before(time));
    let start = match (span.map(|span| span.from), stream.media) {
        (None | Some(From::Here), Media::Running(_)) if span.is_none_or(|span| span.to.is_none()) => {
            return Ok(Decision::GoesOn);
        }
        (Some(From::At(_)), _) => access(sought.map_or(MediaTicks(0), |sought| sought.time)),
        // Played to the end: without a span it begins again, one from here has nothing left.
        (None, Media::Ended { .. }) => access(MediaTicks(0)),
        (Some(From::Here), Media::Ended { .. }) => return Err(Refusal::EndReached),
        (None | Some(From::Here), Media::Fresh) => access(MediaTicks(0)),
        (None | Some(From::Here), _) => Start::Resume,
    };
    let stop = match span {
        Some(Span { to: Some(to), .. }) => {
            let to = sought.map_or(Some(to), |sought| sought.end(to)).ok_or(Refusal::EmptyRange)?;
            Some(stop_at(stream, to))
        }
        Some(Span { to: None, .. }) => Some(stream.title_end()),
        None => None,
    };
    Ok(Decision::Do(Plan { start, stop, told_by: wanted.told_by }))
}

/// The packet before which a span that ends at `time` stops.
fn stop_at(stream: &Stream, time: MediaTicks) -> Stop {
    let end = stream.title_end();
    if time >= end.time {
        return end;
    }
    Stop { packet: stream.entry.access.packet_at(time).min(end.packet), time }
}

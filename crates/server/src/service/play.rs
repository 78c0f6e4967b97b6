//! Play and pause.

use std::sync::Arc;

use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::limits::ladder::FIT_CLOCK_TICKS;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{Timeline, sequence_of};
use millrace_offload::command::{Command, Numbering, RunSpec};

use super::event::{Playing, ServiceEvent};
use super::keys::{ConnKey, StreamKey};
use super::ports::{AccessPoint, NeededPart};
use super::refusal::Refusal;
use super::run::{ActiveRun, Decision, DeliveryState, PendingPlan, PlannedRun, Start, Stop};
use super::seek::{self, From, Sought, Span};
use super::shown::ShownEntry;
use super::speed::Speed;
use super::state::Service;
use super::stream::PlaybackStream;
use super::time_shift::{decide_live, in_media_time};

/// A viewer's request to play a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlayRequest {
    /// The part to play; `None` if the request does not mention it.
    pub span: Option<Span>,
    /// Speed and direction of showing; `None` if the request does not mention them, which means
    /// normal speed if it mentions anything else or if the stream does not play.
    pub scale: Option<Scale>,
    /// How fast its packets are to come; `None` as for `scale`.
    pub speed: Option<Speed>,
    /// The player counts in presentation time stamps, as FFmpeg's library does.
    pub in_stamps: bool,
    /// The connection that carries the announcement to the viewer: packets wait until it is out.
    pub told_by: Option<ConnKey>,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Played {
    /// It plays that already, and goes on.
    GoesOn,
    /// [`ServiceEvent::Playing`] announces the run.
    Begun,
    /// The engine must first say where the stream stopped: [`ServiceEvent::Playing`], [`ServiceEvent::PlayRefused`], [`ServiceEvent::EngineSilent`] or
    /// [`ServiceEvent::Ended`] will come.
    Waits,
}

impl Service {
    /// Plays a stream, or another part of it, or at another speed: the nearest available one.
    ///
    /// # Errors
    /// Why it stays as it is; [`Refusal::Opening`] if its times, or what shows it at that speed, are being opened.
    pub fn play(&mut self, now: Instant, key: StreamKey, wanted: &PlayRequest) -> Result<Played, Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        if stream.ending.is_some() {
            return Err(Refusal::Ending);
        }
        if stream.is_busy() {
            return Err(Refusal::Busy);
        }
        let says_nothing = wanted.span.is_none() && wanted.scale.is_none() && wanted.speed.is_none();
        if says_nothing && matches!(stream.media, DeliveryState::Running(_)) {
            return Ok(Played::GoesOn);
        }
        if stream.entry.access.is_stale() {
            let times = NeededPart::times(&stream.entry, stream.entry.layout.packet_bytes());
            self.need(now, wanted.told_by, [times])?;
        }
        let wished = wanted.scale.unwrap_or(Scale::NORMAL);
        let scale = self.nearest_scale(now, key, wanted.told_by, wished)?;
        if scale.is_normal() {
            self.open_wanted(now, key, wanted.told_by)?;
        }
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let mut plan = match decide(stream, now, wanted, scale)? {
            Decision::GoesOn => return Ok(Played::GoesOn),
            Decision::Do(plan) => plan,
        };
        let entry = stream.entry.clone();
        if !stream.is_reserved {
            // The extra rate that the stream had for a finished run is not requested again.
            self.set_speed_rate(key, 0);
        }
        self.check_members(&entry)?;
        self.charge_for(key, scale)?;
        self.reserve(now, key)?;
        plan.speed = self.reserve_speed(key, plan.speed);
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        let path = stream.path;
        let has_engine = !self.is_being_moved(path);
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        match stream.media {
            DeliveryState::Fresh | DeliveryState::Paused { .. } | DeliveryState::Ended { .. }
                if has_engine =>
            {
                return self.start(now, key, plan).map(|()| Played::Begun);
            }
            DeliveryState::Running(run) => {
                stream.pending = Some(PendingPlan { plan, since: now });
                self.pause_run(key, run);
            }
            _ => stream.pending = Some(PendingPlan { plan, since: now }),
        }
        Ok(Played::Waits)
    }

    /// Plays a stopped stream: announces the run, then lets the packets out.
    pub(super) fn start(&mut self, now: Instant, key: StreamKey, plan: PlannedRun) -> Result<(), Refusal> {
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        let (rendition, start) = stream.rendition_for(&plan);
        let shown = stream.at(plan.scale, rendition).ok_or(Refusal::Broken)?;
        let from = place(stream, shown, start, plan.scale)?;
        let resumed = || resumed_stop(stream, shown, start, plan.scale);
        let stop = plan.stop.map_or_else(resumed, |time| shown.stop_at(time));
        if from.packet >= stop.packet {
            return Err(Refusal::NothingLeft);
        }
        let numbers = numbers(stream, shown, &plan, from);
        let at = now.plus_ns(self.gap_ns(stream, plan.told_by));
        let ahead_ms = self.ahead_ms(stream, &plan);
        let has_lost_place = plan.start == Start::Resume && !can_resume(stream, shown);
        let is_jump = has_lost_place || plan.start.is_jump() && stream.media != DeliveryState::Fresh;
        let from_time = from.time.map(|time| shown.shown_time(time));
        let transform = shown.sent.transform.as_ref().map(|of| Arc::clone(&of.name));
        let anew = !matches!((plan.start, stream.media), (Start::Resume, DeliveryState::Paused { .. }));
        if plan.scale.is_normal() && !stream.is_fresh() {
            self.tell_rendition(now, key, rendition, from_time);
        }
        let stream = self.streams.get_mut(&key).ok_or(Refusal::Gone)?;
        (stream.scale, stream.speed, stream.timeline) = (plan.scale, plan.speed, numbers.timeline);
        stream.has_own_timeline |= !plan.scale.is_normal();
        stream.renditions.sent = rendition;
        let playing = Playing {
            stream: key,
            session: stream.label.to_string(),
            title: stream.entry.name.clone(),
            scale: plan.scale,
            speed: plan.speed,
            from: from_time,
            until: stop.time,
            rendition: stream.renditions.name(rendition),
            sequence: numbers.sequence,
            timestamp: from.time.map(|time| numbers.timeline.timestamp(time)),
            seek: is_jump,
            has_lost_place,
            without_fec: stream.take_fec_left_out().or_else(|| stream.fec_rests()),
            transform,
        };
        let run = RunSpec {
            run: stream.next_run(),
            media: stream.run_media(),
            from: from.packet,
            until: stop.packet,
            numbering: numbers.numbering,
            scale_permille: plan.speed.permille(),
            step: None,
        };
        stream.media = DeliveryState::Running(ActiveRun {
            serial: run.run,
            from: run.from,
            sequence: numbers.sequence,
            from_time,
            at,
            due: Instant(0),
            stop,
            speed: plan.speed,
            ahead_ms,
        });
        let (engine, stream) = (stream.engine, stream.place);
        self.tell(ServiceEvent::Playing(playing));
        self.command(engine, Command::Play { stream, at, ahead_ms, run });
        self.prepare_companions(key, run.from..run.until, anew, false);
        self.release_made(key);
        self.settle_charge(key);
        self.queue_rendition(now, key, None);
        Ok(())
    }

    /// The media that a run may send ahead. A player that pauses still has the contents of its buffer when it resumes.
    fn ahead_ms(&self, stream: &PlaybackStream, plan: &PlannedRun) -> u16 {
        let is_plain = plan.scale.is_normal() && plan.speed.is_normal();
        if plan.start == Start::Resume || !is_plain { 0 } else { self.lead_ms(stream) }
    }

    /// Returns the least time from the announcement to the first packet. A player that reads frames
    /// from the connection loses packets that directly follow a reply; data written by one engine
    /// may go out after the packets of another one; and FEC receives its play command when its
    /// media has been read, which should not be after it is due.
    fn gap_ns(&self, stream: &PlaybackStream, told_by: Option<ConnKey>) -> u64 {
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
        if let DeliveryState::Running(run) = stream.media {
            self.pause_run(key, run);
        } else if !stream.stay() {
            return Ok(());
        }
        self.tell(ServiceEvent::Paused { session, title });
        Ok(())
    }

    /// Has the engine end the run, and that of the FEC.
    pub(super) fn pause_run(&mut self, key: StreamKey, run: ActiveRun) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.media = DeliveryState::Pausing(run);
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Pause { stream: place });
        self.pause_companions(key);
    }
}

/// Finds the start in the entry that is sent.
fn place(
    stream: &PlaybackStream,
    shown: ShownEntry<'_>,
    start: Start,
    scale: Scale,
) -> Result<Origin, Refusal> {
    // Nothing of the place depends on the clock while it stands still.
    let here = || stream.position(Instant(0)).unwrap_or_default();
    if scale.is_reverse() && !start.is_jump() && here() == MediaTicks(0) {
        return Err(Refusal::BeginningReached);
    }
    let AccessPoint { packet, time } = match (start, stream.media) {
        // start() is for streams that stand still.
        (_, DeliveryState::Running(_) | DeliveryState::Pausing(_)) => return Err(Refusal::Busy),
        (Start::At(time), _) => shown.access(time),
        (Start::Now, _) => shown.sent.access.join(),
        (Start::Resume, DeliveryState::Paused { .. }) if !can_resume(stream, shown) => {
            shown.access(MediaTicks(0))
        }
        (Start::Resume, DeliveryState::Paused { next_packet, .. }) if next_packet < shown.sent.packets => {
            return Ok(Origin { packet: next_packet, time: shown.sent.access.time_of(next_packet) });
        }
        (Start::Resume, DeliveryState::Fresh) => shown.access(MediaTicks(0)),
        (Start::Resume, _) => return Err(Refusal::NothingLeft),
        // The access point where it stands may be a little later in another rendition.
        (Start::Here, _) if scale.is_normal() => shown.access(MediaTicks(here().0 + FIT_CLOCK_TICKS)),
        (Start::Here, _) => shown.access(here()),
    };
    // Where a live title has no access point, viewers begin with the next packet, which has no time yet.
    let time = if shown.sent.is_live() { shown.sent.access.time_of(packet) } else { Some(time) };
    Ok(Origin { packet, time })
}

/// Whether the packet before which a stream has paused can still be sent: a live title drops its oldest packets.
fn can_resume(stream: &PlaybackStream, shown: ShownEntry<'_>) -> bool {
    match stream.media {
        DeliveryState::Paused { next_packet, .. } => shown.sent.access.is_held(next_packet),
        _ => true,
    }
}

#[derive(Clone, Copy)]
struct Origin {
    packet: u32,
    /// In the entry that is sent.
    time: Option<MediaTicks>,
}

/// How the packets of a run are numbered.
struct Numbers {
    numbering: Numbering,
    /// Of its first packet.
    sequence: u16,
    timeline: Timeline,
}

/// The shared timeline at first. The sequence has no jump ever after; timestamps have one with a jump in the title, until the title has been
/// shown at another speed: then they go on as well, because no two of these timelines have anything in common (RFC 2326 appendix B: "both
/// RTP sequence numbers and RTP timestamps MUST be continuous and monotonic across jumps of NPT").
fn numbers(stream: &PlaybackStream, shown: ShownEntry<'_>, plan: &PlannedRun, from: Origin) -> Numbers {
    let next_sequence = match stream.media {
        DeliveryState::Paused { next_sequence, .. } | DeliveryState::Ended { next_sequence, .. } => {
            Some(next_sequence)
        }
        DeliveryState::Fresh | DeliveryState::Running(_) | DeliveryState::Pausing(_) => None,
    };
    let first = next_sequence.unwrap_or(sequence_of(from.packet));
    let own = stream.home;
    // FEC names packets by their numbers on the title's own timeline; then no other rendition is sent.
    if stream.fec.is_some() && plan.scale.is_normal() {
        let sequence = sequence_of(from.packet);
        return Numbers { numbering: Numbering::Sequence(sequence), sequence, timeline: own };
    }
    if plan.scale.is_normal() && !stream.has_own_timeline {
        return Numbers { numbering: stream.numbering(shown, first), sequence: first, timeline: own };
    }
    let timestamp = stream.next_timestamp().unwrap_or(own.timestamp_base);
    // If the time cannot be read, timestamps jump, and no viewer is informed of the first
    // timestamp.
    let timestamp_base = timestamp.wrapping_sub(shown_ticks(shown, from));
    let timeline = Timeline { ssrc: own.ssrc, timestamp_base };
    Numbers { numbering: Numbering::Own(first), sequence: first, timeline }
}

/// Returns the contribution of the media time of a run's first packet to its timestamp.
fn shown_ticks(shown: ShownEntry<'_>, from: Origin) -> u32 {
    from.time.unwrap_or_else(|| shown.sent.access.join().time).0 as u32
}

/// A run that goes on, in the same or in another direction of the same, goes on to where it was going; a jump goes to the end of the title.
fn resumed_stop(stream: &PlaybackStream, shown: ShownEntry<'_>, start: Start, scale: Scale) -> Stop {
    match (start, stream.media) {
        (Start::Resume, DeliveryState::Paused { stop, .. }) => stop,
        (Start::Here, DeliveryState::Paused { stop, .. })
            if scale.is_reverse() == stream.scale.is_reverse() && stop != stream.shown().end() =>
        {
            shown.stop_at(stop.time)
        }
        _ => shown.end(),
    }
}

/// Interprets a play request, given where the stream stands. `scale` is the available speed.
fn decide(
    stream: &PlaybackStream,
    now: Instant,
    wanted: &PlayRequest,
    scale: Scale,
) -> Result<Decision, Refusal> {
    if stream.entry.is_live() {
        return decide_live(stream, now, wanted.span, wanted.in_stamps, wanted.told_by);
    }
    let is_reverse = scale.is_reverse();
    let span = wanted.span.map(|span| in_media_time(&stream.entry, span)).transpose()?;
    let span = span.map(|span| span.in_direction(is_reverse));
    let in_stamps = wanted.in_stamps && span.is_none_or(|span| !span.is_clock);
    if let Some(Span { from, to: Some(to), .. }) = span
        && (!is_reverse && to == MediaTicks(0)
            || matches!(from, From::At(from) if span_is_empty(from, to, is_reverse)))
    {
        return Err(Refusal::EmptyRange);
    }
    let sought = match span.map(|span| span.from) {
        Some(From::At(asked)) => Some(seek::locate(stream, now, asked, in_stamps)),
        Some(From::Beginning) => Some(Sought::at(MediaTicks(0))),
        Some(From::End) => Some(Sought::at(stream.entry.end())),
        Some(From::Here) | None => None,
    };
    let speed = wanted.speed.unwrap_or_default();
    let is_same = scale == stream.scale && speed == stream.speed;
    let start = match (span.map(|span| span.from), stream.media) {
        (None | Some(From::Here), DeliveryState::Running(_))
            if is_same && span.is_none_or(|span| span.to.is_none()) =>
        {
            return Ok(Decision::GoesOn);
        }
        (Some(From::At(_) | From::Beginning | From::End), _) => {
            let time = sought.map_or(MediaTicks(0), |sought| sought.time);
            if is_reverse && time == MediaTicks(0) {
                return Err(Refusal::BeginningReached);
            }
            Start::At(time)
        }
        (None | Some(From::Here), DeliveryState::Fresh) if is_reverse => {
            return Err(Refusal::BeginningReached);
        }
        (None | Some(From::Here), DeliveryState::Fresh) => Start::At(MediaTicks(0)),
        (None | Some(From::Here), DeliveryState::Ended { .. }) if is_reverse => Start::Here,
        // Played to the end: without a span it begins again, one from here has nothing left.
        (None, DeliveryState::Ended { .. }) => Start::At(MediaTicks(0)),
        (Some(From::Here), DeliveryState::Ended { .. }) => return Err(Refusal::EndReached),
        (None | Some(From::Here), _) if scale == stream.scale => Start::Resume,
        (None | Some(From::Here), _) => Start::Here,
    };
    let stop = match span {
        Some(Span { to: Some(to), .. }) => {
            let to =
                sought.map_or(Some(to), |sought| sought.end(to, is_reverse)).ok_or(Refusal::EmptyRange)?;
            Some(to)
        }
        // It ends where it will end then.
        Some(Span { to: None, .. }) if stream.entry.is_endless() && !is_reverse => None,
        Some(Span { to: None, .. }) => Some(if is_reverse { MediaTicks(0) } else { stream.entry.end() }),
        None => None,
    };
    Ok(Decision::Do(PlannedRun { start, stop, scale, speed, told_by: wanted.told_by }))
}

/// Whether nothing lies between two places in this direction. Only the beginning of the title is part of a span that ends there (RFC 7826
/// section 18.40).
fn span_is_empty(from: i64, to: MediaTicks, is_reverse: bool) -> bool {
    let to = to.0.cast_signed();
    if is_reverse { from <= to } else { to <= from }
}

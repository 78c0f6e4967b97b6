//! Places of live titles, and places by the time of day.
//!
//! ```text
//!   live title    ░░░░░░│ window: held packets        │ now
//!                       ▲ oldest place                ▲ last access point
//!                       │ from before it, or a pause  │ from behind it, "now", or the first PLAY from 0
//!                         longer than the window
//! ```
//!
//! A place outside the window is moved to its border: RFC 7826 section 13.4.8, "the server adjusts the play point to the requested border of
//! the window". Only titles that are complete refuse (section 13.4).

use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MEDIA_HZ, MediaTicks};

use super::keys::ConnKey;
use super::ports::TitleEntry;
use super::refusal::Refusal;
use super::run::{Decision, DeliveryState, PlannedRun, Start};
use super::seek::{From, Span};
use super::speed::Speed;
use super::stream::PlaybackStream;
use crate::limits::live::LIVE_EDGE_TICKS;

/// A span in the media time of a title.
///
/// # Errors
/// [`Refusal::NoClock`]; [`Refusal::OutsideRange`] if the title is complete and has nothing there.
pub(super) fn in_media_time(entry: &TitleEntry, span: Span) -> Result<Span, Refusal> {
    if !span.is_clock {
        return Ok(span);
    }
    let began = entry.began_unix_ms.ok_or(Refusal::NoClock)?.saturating_mul(MEDIA_HZ / 1_000);
    let from = match span.from {
        From::At(at) => {
            let at = at.saturating_sub(i64::try_from(began).unwrap_or(i64::MAX));
            let end = entry.end().0.cast_signed();
            if !entry.is_endless() && !(0..end).contains(&at) {
                return Err(Refusal::OutsideRange);
            }
            From::At(at.clamp(0, (end - 1).max(0)))
        }
        named => named,
    };
    let to = span.to.map(|to| MediaTicks(to.0.saturating_sub(began)));
    Ok(Span { from, to, is_clock: true })
}

/// Where a viewer of a live title begins, or that it goes on. There is one speed, and the end of a range is not looked at: players name the end that
/// they take the title to have.
pub(super) fn decide_live(
    stream: &PlaybackStream,
    now: Instant,
    asked: Option<Span>,
    in_stamps: bool,
    told_by: Option<ConnKey>,
) -> Result<Decision, Refusal> {
    let span = asked.map(|span| in_media_time(&stream.entry, span)).transpose()?;
    let is_running = matches!(stream.media, DeliveryState::Running(_));
    let start = match span {
        None if is_running => return Ok(Decision::GoesOn),
        None if matches!(stream.media, DeliveryState::Fresh | DeliveryState::Ended { .. }) => Start::Now,
        None => Start::Resume,
        Some(Span { from: From::Here | From::End, .. }) if is_running && is_at_edge(stream, now) => {
            return Ok(Decision::GoesOn);
        }
        Some(Span { from: From::Here | From::End, .. }) => Start::Now,
        // Players that know nothing of live titles begin at 0, and mean the earliest that there is to see.
        Some(Span { from: From::At(0), is_clock: false, .. }) if stream.is_fresh() => Start::Now,
        Some(Span { from: From::Beginning, .. }) => Start::At(MediaTicks(0)),
        Some(Span { from: From::At(at), is_clock, .. }) => {
            let stamp = Some(at).filter(|_| in_stamps && !is_clock);
            let at = stamp.and_then(|stamp| stream.entry.access.time_of_stamp(stamp)).unwrap_or(at);
            Start::At(MediaTicks(at.max(0).cast_unsigned()))
        }
    };
    let (scale, speed) = (Scale::NORMAL, Speed::NORMAL);
    Ok(Decision::Do(PlannedRun { start, stop: None, scale, speed, told_by }))
}

/// Whether a viewer is as near to the newest packet as one that joins now. A jump by less than [`LIVE_EDGE_TICKS`] is not worth the break.
fn is_at_edge(stream: &PlaybackStream, now: Instant) -> bool {
    let Some(position) = stream.position(now) else { return true };
    let access = &stream.entry.access;
    let next = access.access_at_or_after(MediaTicks(position.0.saturating_add(LIVE_EDGE_TICKS)));
    next.is_none_or(|next| next.packet >= access.join().packet)
}

//! What one user may have at once, and how many may watch one title. Streams count that have reserved room to play, whatever protocol they are for, and
//! players that fetch segments, of which others tell ([`millrace_rights::Viewers`]).

use millrace_core::time::Instant;
use millrace_core::units::BitRate;
use millrace_rights::{Counts, Limits, OverLimit, Quota, Viewers, Whose};

use super::Service;
use super::refusal::{FecRefusal, Refusal};
use super::stream::Stream;

/// As what a stream counts.
fn counted(stream: &Stream) -> impl Iterator<Item = Whose> {
    let title = (stream.counts != Counts::Fetched).then(|| Whose::title(&stream.entry.name));
    stream.counts.quota().map(of_user).into_iter().chain(title)
}

fn of_user(quota: &Quota) -> Whose {
    Whose::User(quota.user.clone())
}

/// A stream has reserved room.
pub(super) fn take(viewers: &Viewers, stream: &Stream) {
    counted(stream).for_each(|whose| viewers.begin(&whose, stream.rate));
}

/// It has given it back.
pub(super) fn give_back(viewers: &Viewers, stream: &Stream) {
    counted(stream).for_each(|whose| viewers.end(&whose, stream.rate));
}

/// The bit rate of a stream that has reserved room was `before`.
pub(super) fn change(viewers: &Viewers, stream: &Stream, before: u64) {
    counted(stream).for_each(|whose| viewers.change(&whose, before, stream.rate));
}

impl Service {
    /// Whether user and title may have one more with so many bits a second; what `own` has reserved is not counted against it.
    pub(super) fn room_by_counts(
        &self,
        now: Instant,
        (title, counts): (&str, &Counts),
        rate: u64,
        own: Option<&Stream>,
    ) -> Result<(), Refusal> {
        let viewers = &self.config.viewers;
        let own_in =
            |whose: &Whose| own.filter(|own| counted(own).any(|of| of == *whose)).map(|own| own.rate);
        if let (Some(max), true) = (self.config.max_streams_per_title, *counts != Counts::Fetched) {
            let (whose, streams) = (Whose::title(title), u32::try_from(max).unwrap_or(u32::MAX));
            let limits = Limits { streams: Some(streams), bits_per_s: None };
            let room = viewers.room(now, &whose, limits, rate, own_in(&whose));
            room.map_err(|_| Refusal::TitleStreams { max })?;
        }
        let Some(quota) = counts.quota() else { return Ok(()) };
        let whose = of_user(quota);
        viewers.room(now, &whose, quota.limits, rate, own_in(&whose)).map_err(|over| match over {
            OverLimit::Streams { max, .. } => Refusal::UserStreams { max },
            OverLimit::Rate { used, max, more, .. } => Refusal::UserRate { used, max, more },
        })
    }

    /// Whether the user of a stream may have so many bits a second more, for what is beside the title.
    pub(super) fn user_room_for_more(&self, stream: &Stream, more: u64) -> Result<(), FecRefusal> {
        let Some(quota) = stream.counts.quota() else { return Ok(()) };
        let Some(max) = quota.limits.bits_per_s.map(BitRate) else { return Ok(()) };
        let used =
            self.config.viewers.rate(&of_user(quota)) + if stream.is_reserved { 0 } else { stream.rate };
        if used.saturating_add(more) > max.0 {
            return Err(FecRefusal::UserRate { used: BitRate(used), max, more: BitRate(more) });
        }
        Ok(())
    }
}

//! What one user may have at once, and how many may watch one title, whatever protocol they watch by. Streams count that have reserved room to play, and viewers
//! that fetch segments.

use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::counted::{CountedViewer, Whose, players};
use super::exhausted::Exhausted;
use super::refusal::{FecRefusal, Refusal};
use super::state::Service;
use super::stream::PlaybackStream;

impl Service {
    /// Whether user and title may have one more; what `own` has reserved is not counted against it.
    pub(super) fn room_by_counts(
        &self,
        who: CountedViewer<'_>,
        own: Option<&PlaybackStream>,
    ) -> Result<(), Refusal> {
        let own = own.and_then(CountedViewer::of);
        let used = |whose: &Whose| {
            let (streams, rate) =
                self.usage.watched().used(whose, who.player, |other| self.fetchers.sending(other));
            match own.filter(|own| own.whose().any(|of| of == *whose)) {
                Some(own) => (streams - 1, rate - own.rate),
                None => (streams, rate),
            }
        };
        let title = Whose::Title(base(who.title).into());
        if let Some(max) = self.config.max_streams_per_title
            && !who.title.is_empty()
            && used(&title).0 + self.counts_as(&title, who) > max
        {
            return Err(Refusal::Exhausted(Exhausted::TitleStreams { max }));
        }
        let Some(Quota { user, limits }) = who.quota else { return Ok(()) };
        let user = Whose::User(user.clone());
        let ((streams, rate), count) = (used(&user), self.counts_as(&user, who));
        if let Some(max) = limits.streams
            && streams + count > max as usize
        {
            return Err(Refusal::Exhausted(Exhausted::UserStreams { max }));
        }
        let more = who.rate.saturating_mul(count as u64);
        match limits.bits_per_s.map(BitRate) {
            Some(max) if rate.saturating_add(more) > max.0 => {
                Err(Refusal::Exhausted(Exhausted::UserRate { used: BitRate(rate), max, more: BitRate(more) }))
            }
            _ => Ok(()),
        }
    }

    /// Number of players that a viewer counts as if it is sent one more segment.
    fn counts_as(&self, whose: &Whose, who: CountedViewer<'_>) -> usize {
        let Some(player) = who.player else { return 1 };
        players(self.usage.watched().places(whose, player) + 1, self.fetchers.sending(player) + 1)
    }

    /// Checks whether a player that continues fetching may be sent one more segment at the same
    /// time. If that makes it count as several players, the limits apply.
    pub(super) fn room_for_segment(&self, who: CountedViewer<'_>) -> Result<(), Refusal> {
        let is_one = who.player.is_none_or(|player| players(0, self.fetchers.sending(player) + 1) == 1);
        if is_one { Ok(()) } else { self.room_by_counts(who, None) }
    }

    /// Checks whether the user of a stream may have this many more bits a second, for data beside
    /// the title.
    pub(super) fn user_room_for_more(&self, stream: &PlaybackStream, more: u64) -> Result<(), FecRefusal> {
        let Some(Quota { user, limits }) = &stream.quota else { return Ok(()) };
        let Some(max) = limits.bits_per_s.map(BitRate) else { return Ok(()) };
        let (_, used) = self
            .usage
            .watched()
            .used(&Whose::User(user.clone()), None, |player| self.fetchers.sending(player));
        let used = used + if stream.is_reserved { 0 } else { stream.rate };
        if used.saturating_add(more) > max.0 {
            return Err(FecRefusal::UserRate { used: BitRate(used), max, more: BitRate(more) });
        }
        Ok(())
    }
}

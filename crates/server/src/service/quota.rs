//! What one user may have at once, and how many may watch one title. Streams count that have reserved room to play, whatever protocol they are for.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_core::units::BitRate;
use millrace_rights::{Quota, base};

use super::Service;
use super::refusal::{FecRefusal, Refusal};
use super::stream::Stream;

/// What is taken.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    users: HashMap<Arc<str>, Taken>,
    titles: HashMap<Box<str>, usize>,
}

/// By one user.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    streams: usize,
    rate: u64,
}

impl Quotas {
    /// A stream has reserved room.
    pub(super) fn take(&mut self, stream: &Stream) {
        if let Some(quota) = &stream.quota {
            let taken = self.users.entry(Arc::clone(&quota.user)).or_default();
            (taken.streams, taken.rate) = (taken.streams + 1, taken.rate + stream.rate);
        }
        *self.titles.entry(title_of(stream).into()).or_default() += 1;
    }

    /// It has given it back.
    pub(super) fn give_back(&mut self, stream: &Stream) {
        if let Some(quota) = &stream.quota
            && let Some(taken) = self.users.get_mut(&quota.user)
        {
            (taken.streams, taken.rate) = (taken.streams - 1, taken.rate - stream.rate);
            if taken.streams == 0 {
                self.users.remove(&quota.user);
            }
        }
        if let Some(count) = self.titles.get_mut(title_of(stream)) {
            *count -= 1;
            if *count == 0 {
                self.titles.remove(title_of(stream));
            }
        }
    }

    /// The bit rate of a stream that has reserved room was `before`.
    pub(super) fn change(&mut self, stream: &Stream, before: u64) {
        if let Some(taken) = stream.quota.as_ref().and_then(|quota| self.users.get_mut(&quota.user)) {
            taken.rate = taken.rate - before + stream.rate;
        }
    }
}

/// The title as it is counted: what was made of it is watched as well.
fn title_of(stream: &Stream) -> &str {
    base(&stream.entry.name)
}

impl Service {
    /// Whether the user may play so many bits a second more; what `own` has reserved is not counted against it.
    pub(super) fn room_for_user(
        &self,
        quota: Option<&Quota>,
        rate: u64,
        own: Option<&Stream>,
    ) -> Result<(), Refusal> {
        let Some(quota) = quota else { return Ok(()) };
        let taken = self.quotas.users.get(&quota.user).copied().unwrap_or_default();
        let is_own = |stream: &&Stream| stream.quota.as_ref().is_some_and(|own| own.user == quota.user);
        let (own_streams, own_rate) = own.filter(is_own).map_or((0, 0), |own| (1, own.rate));
        if let Some(max) = quota.limits.streams
            && taken.streams - own_streams >= max as usize
        {
            return Err(Refusal::UserStreams { max });
        }
        let used = taken.rate - own_rate;
        match quota.limits.bits_per_s.map(BitRate) {
            Some(max) if used.saturating_add(rate) > max.0 => {
                Err(Refusal::UserRate { used: BitRate(used), max, more: BitRate(rate) })
            }
            _ => Ok(()),
        }
    }

    /// Whether one more may watch a title.
    pub(super) fn room_for_title(&self, title: &str, own: Option<&Stream>) -> Result<(), Refusal> {
        let Some(max) = self.config.max_streams_per_title else { return Ok(()) };
        let taken = self.quotas.titles.get(base(title)).copied().unwrap_or_default();
        let is_own = own.is_some_and(|own| title_of(own) == base(title));
        if taken - usize::from(is_own) >= max { Err(Refusal::TitleStreams { max }) } else { Ok(()) }
    }

    /// Whether the user of a stream may have so many bits a second more, for what is beside the title.
    pub(super) fn user_room_for_more(&self, stream: &Stream, more: u64) -> Result<(), FecRefusal> {
        let Some(quota) = &stream.quota else { return Ok(()) };
        let Some(max) = quota.limits.bits_per_s.map(BitRate) else { return Ok(()) };
        let taken = self.quotas.users.get(&quota.user).map_or(0, |taken| taken.rate);
        let used = taken + if stream.is_reserved { 0 } else { stream.rate };
        if used.saturating_add(more) > max.0 {
            return Err(FecRefusal::UserRate { used: BitRate(used), max, more: BitRate(more) });
        }
        Ok(())
    }
}

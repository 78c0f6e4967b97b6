//! Checks which members of the volume are there and how they answer, and logs changes. Lists
//! damaged titles for the next scrub.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as StdInstant};

use anyhow::Context;
use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_DAMAGED_TITLES;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_make::confine::explain;
use millrace_offload::clock::MonotonicClock;
use millrace_store::cache::{Cache, MemberHealth, MemberReport};
use millrace_store::members::{MemberState, SlotReport};
use millrace_store::volume::Volume;

use crate::limits::DAMAGE_RELIST_NS;
use crate::limits::control::MEMBERS_LOOK_EVERY;

/// The thread that looks. A thread of its own: a disk that hangs may hold it for as long as it likes.
pub(super) struct MembersWatch {
    /// Damaged titles; it stops when this is dropped.
    damaged: Sender<TitleId>,
    thread: JoinHandle<()>,
}

impl MembersWatch {
    /// Starts it; members missing from the start are reported at once.
    pub(super) fn start(volume: Arc<Volume>) -> anyhow::Result<Self> {
        let (damaged, noted) = channel();
        let mut known = volume.members().report();
        known.iter().filter_map(trouble).for_each(|what| tracing::warn!("{what}"));
        let run = move || {
            let look = || {
                if volume.members().refresh() {
                    let now = volume.members().report();
                    tell(&known, &now);
                    known = now;
                }
            };
            watch(&noted, MEMBERS_LOOK_EVERY, |title| volume.note_damaged(title), look);
        };
        let thread =
            std::thread::Builder::new().name("members".into()).spawn(run).context("members: thread")?;
        Ok(Self { damaged, thread })
    }

    /// Has a title listed as damaged in the store.
    pub(super) fn list_damaged(&self, title: TitleId) {
        // If the thread is gone, there is one title less in the list.
        let _ = self.damaged.send(title);
    }

    /// Stops it, unless a disk holds it: then it ends with the process.
    pub(super) fn stop(self) {
        drop(self.damaged);
        if self.thread.is_finished() {
            // It ends only on request, so it has nothing to report.
            let _ = self.thread.join();
        }
    }
}

/// Notes titles as they come, and looks each time `look_every` has passed, however many come. Ends
/// with the sender.
fn watch(
    titles: &Receiver<TitleId>,
    look_every: Duration,
    mut note: impl FnMut(TitleId),
    mut look: impl FnMut(),
) {
    let mut look_at = StdInstant::now() + look_every;
    loop {
        match titles.recv_timeout(look_at.saturating_duration_since(StdInstant::now())) {
            Ok(title) => note(title),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = StdInstant::now();
        if now >= look_at {
            look();
            look_at = now + look_every;
        }
    }
}

/// Damaged titles that were listed, and when.
#[derive(Default)]
pub(super) struct DamageWatch {
    listed: HashMap<TitleId, Instant>,
}

impl DamageWatch {
    /// Passes on the titles that the cache found damaged since the last call, for the list.
    pub(super) fn look(&mut self, cache: &Cache, members: &MembersWatch) {
        while let Some(title) = cache.damaged_title() {
            let now = MonotonicClock.now();
            self.listed.retain(|_, at| now.ns_since(*at) < DAMAGE_RELIST_NS);
            if self.listed.len() < MAX_DAMAGED_TITLES && !self.listed.contains_key(&title) {
                self.listed.insert(title, now);
                members.list_damaged(title);
            }
        }
    }
}

/// How the members answer to reads, as last reported.
#[derive(Default)]
pub(super) struct HealthWatch {
    known: Vec<MemberReport>,
    /// It was reported that CRCs cannot be read.
    warned_of_crcs: bool,
}

impl HealthWatch {
    /// Reports which members are no longer read, or are again. [`MembersWatch`] reports missing and
    /// stale ones.
    pub(super) fn look(&mut self, cache: &Cache) {
        let now = cache.members();
        for member in &now {
            let before = self.known.iter().find(|known| known.index == member.index);
            let before = before.map_or(MemberHealth::Healthy, |known| known.health);
            match member.health {
                health if health == before => {}
                MemberHealth::Missing | MemberHealth::Stale => {}
                MemberHealth::Healthy => tracing::info!("member {} is healthy again", member.index),
                MemberHealth::Slow | MemberHealth::Failing => tracing::warn!("{}", member.summary()),
            }
        }
        self.known = now;
        if !self.warned_of_crcs && cache.stats().sums_only > 0 {
            self.warned_of_crcs = true;
            tracing::warn!(
                "the CRCs of some packets cannot be read; these packets are checked by their 16-bit sums only; run millrace scrub"
            );
        }
    }
}

/// Returns the problem of a slot.
pub(super) fn trouble(slot: &SlotReport) -> Option<String> {
    let why = match (&slot.absent, slot.state) {
        (Some(absent), _) => explain(absent.clone()),
        (None, MemberState::Active) => return None,
        (None, state) => format!("{state}; run: millrace repair --store {}", slot.dir.display()),
    };
    Some(format!("member {} at {} is not used: {why}", slot.index, slot.dir.display()))
}

fn tell(before: &[SlotReport], now: &[SlotReport]) {
    for slot in now {
        let old = before.get(slot.index);
        if old == Some(slot) {
            continue;
        }
        match trouble(slot) {
            Some(what) => tracing::warn!("{what}"),
            None => tracing::info!("member {} at {} is used again", slot.index, slot.dir.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hands `titles` titles to a watch that looks every `look_every`; returns how many it noted,
    /// and how often it looked.
    fn watched(titles: u8, look_every: Duration) -> (usize, usize) {
        let (sender, receiver) = channel();
        (0..titles).for_each(|title| sender.send(TitleId([title; 16])).unwrap());
        drop(sender);
        let (mut noted, mut looks) = (Vec::new(), 0);
        watch(&receiver, look_every, |title| noted.push(title), || looks += 1);
        noted.dedup();
        (noted.len(), looks)
    }

    #[test]
    fn members_are_not_looked_at_for_each_title() {
        assert_eq!(watched(100, Duration::from_secs(3600)), (100, 0));
    }

    #[test]
    fn titles_that_keep_coming_do_not_hold_up_the_members() {
        assert_eq!(watched(100, Duration::ZERO), (100, 100));
    }
}

//! The manager's member monitor: which members are asked, which are probed, and the counters.

use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::time::Instant;

use super::super::health::{Health, MemberFault, MemberHealth, Standing};
use super::super::order::{MemberView, Order, Role, SpanOrder, SpanResult};
use super::super::read::Owed;
use super::super::stats::CacheCounters;
use crate::limits::MAX_MEMBERS;
use crate::limits::cache::{MEMBER_LOOK_NS, PROBE_BYTES};
use crate::member_set::MemberSet;
use crate::members::Members;

/// Health of the members, and the state needed to monitor it.
pub(super) struct MemberMonitor {
    health: Health,
    counters: Arc<CacheCounters>,
    /// The last correct span of each member, which a probe reads again.
    known: [Option<(TitleRef, SpanOrder)>; MAX_MEMBERS],
    /// Reads that were given up and have not ended, each with its member's disk at the start of the
    /// read; at most as many as may be put aside.
    owed: Vec<(Owed, u32)>,
    /// The member that is being probed.
    probing: Option<u16>,
    /// The members' epochs when they were last looked at.
    epochs: [u32; MAX_MEMBERS],
    /// Members seen, in a volume of several or with parity.
    members: usize,
    /// Members that are not healthy.
    unwell: MemberSet,
    /// How often one has become healthy again, or has other files.
    returns: u64,
    /// The volume's own list, and when it was last looked at.
    volume: Option<(Arc<Members>, Instant)>,
}

impl MemberMonitor {
    pub(super) fn new(counters: Arc<CacheCounters>) -> Self {
        let known = std::array::from_fn(|_| None);
        let health = Health::default();
        Self {
            health,
            counters,
            known,
            owed: Vec::new(),
            probing: None,
            epochs: [0; MAX_MEMBERS],
            members: 0,
            unwell: MemberSet::EMPTY,
            returns: 0,
            volume: None,
        }
    }

    /// The members are those of this volume.
    pub(super) fn watch(&mut self, now: Instant, members: Arc<Members>) {
        self.volume = Some((members, now));
        self.take_standing(now);
    }

    /// Checks the volume's list of members from time to time.
    pub(super) fn look(&mut self, now: Instant) {
        if let Some((_, at)) = &mut self.volume
            && now.ns_since(*at) >= MEMBER_LOOK_NS
        {
            *at = now;
            self.take_standing(now);
        }
    }

    fn take_standing(&mut self, now: Instant) {
        let Some((members, _)) = &self.volume else { return };
        for member in 0..members.len().min(MAX_MEMBERS) as u16 {
            let slot = usize::from(member);
            if self.health.stand(now, member, Standing::of(members, member), members.disk(slot)) {
                // That was on another disk.
                self.known[slot] = None;
            }
            let epoch = members.epoch(slot);
            if std::mem::replace(&mut self.epochs[slot], epoch) != epoch {
                self.health.has_other_files(now, member);
                self.returns += 1;
            }
        }
        self.members = self.members.max(members.len().min(MAX_MEMBERS));
        self.publish();
    }

    /// Returns how often a member has come back or was repaired. Earlier reads may lack data that
    /// is available now.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// Whom to ask.
    pub(super) fn view(&self, now: Instant) -> MemberView {
        self.health.view(now)
    }

    /// Members that owe answers to reads that were given up.
    pub(super) fn owing(&self) -> MemberSet {
        self.health.owing()
    }

    /// Counts the results of an order's spans and records their meaning for the members' health.
    /// `wrong`: members whose bytes did not match their sums; `late`: those given up. Returns the
    /// members whose spans failed.
    pub(super) fn note(
        &mut self,
        now: Instant,
        title: TitleRef,
        order: &Order,
        results: &[SpanResult<'_>],
        (wrong, late): (MemberSet, MemberSet),
    ) -> MemberSet {
        let (mut failed, mut noted) = (MemberSet::EMPTY, MemberSet::EMPTY);
        let known = self.members;
        for (span, result) in order.spans.iter().zip(results) {
            let Some(member) = span.member else { continue };
            let Some(counters) = self.counters.of_members.get(usize::from(member)) else { continue };
            self.members = self.members.max(usize::from(member) + 1);
            match result {
                Ok(bytes) => {
                    let (read, bytes) = (u64::from(!span.joined), bytes.len() as u64);
                    counters.bytes.add(bytes);
                    if !wrong.contains(member) {
                        counters.reads.add(read);
                        if span.role.is_units() {
                            counters.unit_reads.add(read);
                            counters.unit_bytes.add(bytes);
                        }
                        self.remember(title, span);
                    }
                }
                Err(libc::ETIMEDOUT) if late.contains(member) => failed.insert(member),
                // Not begun, or given up because of others: no fault of its own.
                Err(libc::ETIMEDOUT) => {}
                Err(errno) => {
                    counters.note_error(*errno);
                    failed.insert(member);
                    if !noted.contains(member) {
                        self.health.note(now, member, MemberFault::Error(*errno));
                    }
                    noted.insert(member);
                }
            }
        }
        for member in wrong.iter() {
            self.health.note(now, member, MemberFault::Wrong);
            self.counters.of_members[usize::from(member)].wrong.add(1);
        }
        if !(failed | wrong).is_empty() || self.members > known {
            self.publish();
        }
        failed
    }

    /// Files of these members (slots) could not be opened.
    pub(super) fn refused(&mut self, now: Instant, refusals: &[(u16, i32)]) {
        for &(member, errno) in refusals {
            let Some(counters) = self.counters.of_members.get(usize::from(member)) else { continue };
            self.members = self.members.max(usize::from(member) + 1);
            counters.note_error(errno);
            self.health.note(now, member, MemberFault::Error(errno));
        }
        if !refusals.is_empty() {
            self.publish();
        }
    }

    fn remember(&mut self, title: TitleRef, span: &SpanOrder) {
        if let (Role::Data { .. } | Role::Parity { .. }, Some(member)) = (span.role, span.member)
            && let Some(known) = self.known.get_mut(usize::from(member))
        {
            *known = Some((title, span.clone()));
        }
    }

    /// A title is closed: its files are not kept open for probes.
    pub(super) fn forget_title(&mut self, title: TitleRef) {
        for known in &mut self.known {
            if known.as_ref().is_some_and(|(of, _)| *of == title) {
                *known = None;
            }
        }
    }

    /// Whether a file of a title is kept open for probes.
    #[cfg(test)]
    pub(super) fn remembers(&self, title: TitleRef) -> bool {
        self.known.iter().flatten().any(|(of, _)| *of == title)
    }

    /// Something becomes of a read that no extent is waiting for.
    #[cfg(test)]
    pub(super) fn blame(&mut self, now: Instant, member: u16, outcome: MemberFault) {
        self.members = self.members.max(usize::from(member) + 1);
        self.health.note(now, member, outcome);
        self.publish();
    }

    /// These members have not answered in time.
    pub(super) fn late(&mut self, now: Instant, members: MemberSet) {
        for member in members.iter() {
            self.health.note(now, member, MemberFault::Late);
            self.counters.of_members[usize::from(member)].late.add(1);
        }
        self.publish();
    }

    /// Reads that were begun at `since` have been given up.
    pub(super) fn given_up(&mut self, since: Instant, owed: &[Owed]) {
        for &owed in owed {
            if let Some(disk) = self.health.stuck(owed.member, since) {
                self.owed.push((owed, disk));
            }
        }
        self.counters.hung_reads.add(owed.len() as u64);
        self.publish();
    }

    /// A read that was given up has ended after all.
    pub(super) fn came_late(&mut self, now: Instant, owed: Owed) {
        if let Some(at) = self.owed.iter().position(|(known, _)| *known == owed) {
            let (_, disk) = self.owed.swap_remove(at);
            self.health.unstuck(now, owed.member, disk);
        }
        self.publish();
    }

    /// When a probe is due.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        if self.probing.is_some() { None } else { self.health.poll_at() }
    }

    /// Returns the title and span to read to find out whether a suspended member is healthy again.
    /// The caller must call [`MemberMonitor::probed`] afterwards.
    pub(super) fn next_probe(&mut self, now: Instant) -> Option<(TitleRef, SpanOrder)> {
        while self.probing.is_none() {
            let member = self.health.next_probe(now)?;
            self.counters.probes.add(1);
            let known = self.known.get(usize::from(member)).and_then(Option::as_ref);
            let Some((title, span)) = known else {
                // No data is known to be on it: the next read from it will show.
                self.health.probed(now, member, true);
                self.publish();
                continue;
            };
            self.probing = Some(member);
            let (title, mut span) = (*title, span.clone());
            span.bytes.end = span.bytes.end.min(span.bytes.start + PROBE_BYTES);
            return Some((title, span));
        }
        None
    }

    /// Whether errors or wrong bytes of a member are why it is suspended: other files may lie there by now.
    pub(super) fn is_failing(&self, member: u16) -> bool {
        self.health.of(member) == MemberHealth::Failing
    }

    /// The probe under way has ended like this.
    pub(super) fn probed(&mut self, now: Instant, good: bool) {
        if let Some(member) = self.probing.take() {
            self.health.probed(now, member, good);
            self.publish();
        }
    }

    /// Publishes the members' health, and detects members that have come back.
    fn publish(&mut self) {
        let members = 0..self.members as u16;
        let unwell: MemberSet =
            members.filter(|&member| self.health.of(member) != MemberHealth::Healthy).collect();
        self.returns += u64::from(!(self.unwell - unwell).is_empty());
        self.unwell = unwell;
        self.counters.members.set(self.members);
        for (member, counters) in (0..).zip(self.counters.of_members.iter().take(self.members)) {
            counters.set_health(self.health.of(member));
            counters.suspensions.set(self.health.suspensions(member) as usize);
            counters.owed.set(self.health.owed(member) as usize);
        }
        let owed = (0..self.members as u16).map(|member| self.health.owed(member) as usize);
        self.counters.hung_now.set(owed.sum());
    }
}

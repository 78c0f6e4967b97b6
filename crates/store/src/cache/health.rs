//! Which members of the volume are asked for media: a state machine for each, without I/O, on a clock that is passed in.
//!
//! ```text
//!             a late answer, a device that is gone, errors in a row
//!   healthy ────────────────────────────────────────────────────────► suspended (slow | failing) ──┐
//!      ▲                                                                   │   ▲     a bad probe:  │
//!      └───────────────── GOOD_PROBES good probes in a row ────────────────┘   └─ twice the time ──┘
//!
//!   missing, stale: as the volume says; missing members are asked for nothing, stale ones last, for data and parity
//! ```
//!
//! Health determines the order in which members are asked, and nothing else: for an extent that is
//! unavailable without members that are suspended, late or behind, these are asked too before the
//! extent is reported as unavailable ([`Effort`](super::order::Effort)).
//!
//! Hysteresis keeps an unstable member from being asked each time it comes back: a probe reads data
//! that the member returned correctly before; several must be answered in time; and a member that
//! fails again soon after it came back waits twice as long. This also applies to wrong bytes: a
//! probe does not look at them, but the first extents that are read from the member again do, and
//! no viewer is sent them.

use crate::limits::MAX_MEMBERS;
use crate::limits::cache::{ERROR_POINTS, PAROLE_NS, POINT_NS, PROBE_GAP_NS, SUSPEND_POINTS, WRONG_POINTS};
pub(super) use crate::limits::cache::{FIRST_PROBE_NS, GOOD_PROBES, HUNG_NS, MAX_PROBE_NS};
use millrace_core::time::Instant;

use super::order::MemberView;
use crate::member_set::MemberSet;
use crate::members::Members;

/// The volume's view of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It holds all its data.
    #[default]
    Active,
    /// It is not there.
    Missing,
    /// It is there but does not hold everything.
    Stale,
}

impl Standing {
    /// Returns the volume's current view of a member.
    pub(super) fn of(members: &Members, member: u16) -> Self {
        let slot = usize::from(member);
        if members.is_usable(slot) {
            Self::Active
        } else if members.is_present(slot) {
            Self::Stale
        } else {
            Self::Missing
        }
    }

    /// How a member is that stands so, if by its reads it is `by_reads`.
    pub(super) fn health_of(self, by_reads: MemberHealth) -> MemberHealth {
        match (self, by_reads) {
            (Self::Missing, _) => MemberHealth::Missing,
            (Self::Stale, _) => MemberHealth::Stale,
            (Self::Active, MemberHealth::Slow | MemberHealth::Failing) => by_reads,
            (Self::Active, _) => MemberHealth::Healthy,
        }
    }
}

/// Why a read from a member was not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberFault {
    /// It failed with this `errno`.
    Error(i32),
    /// No answer within [`SLOW_READ_NS`](millrace_core::limits::SLOW_READ_NS).
    Late,
    /// It did not have its stored sum.
    Wrong,
}

/// How a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberHealth {
    /// It is asked for media.
    #[default]
    Healthy,
    /// It did not answer in time: others are asked first until probes are answered in time again.
    Slow,
    /// Reading from it failed: others are asked first until probes succeed again.
    Failing,
    /// It is not there.
    Missing,
    /// It is there but does not hold everything: it has to be repaired.
    Stale,
}

impl std::fmt::Display for MemberHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::Slow => "slow",
            Self::Failing => "failing",
            Self::Missing => "missing",
            Self::Stale => "stale",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Suspension {
    why: MemberHealth,
    next_probe_ns: u64,
    probing: bool,
    good: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct MemberHistory {
    standing: Standing,
    disk: u32,
    /// Since when it has been on this disk.
    disk_since_ns: u64,
    points: u64,
    /// When points were last forgotten.
    points_at_ns: u64,
    suspended: Option<Suspension>,
    /// Time to the next probe after the next bad one.
    backoff_ns: u64,
    /// Until when a new suspension goes on with this back-off.
    parole_until_ns: u64,
    /// Reads that were given up and have not come yet, and since when it has answered none of them.
    stuck: u32,
    stuck_since_ns: u64,
    suspensions: u64,
}

impl MemberHistory {
    fn health(&self) -> MemberHealth {
        self.standing.health_of(self.suspended.map_or(MemberHealth::Healthy, |suspension| suspension.why))
    }

    fn hangs(&self, now_ns: u64) -> bool {
        self.stuck > 0 && now_ns.saturating_sub(self.stuck_since_ns) >= HUNG_NS
    }

    fn add_points(&mut self, now_ns: u64, points: u64) -> bool {
        let forgotten = now_ns.saturating_sub(self.points_at_ns) / POINT_NS;
        self.points = self.points.saturating_sub(forgotten);
        self.points_at_ns += forgotten * POINT_NS;
        self.points += points;
        self.points >= SUSPEND_POINTS
    }

    fn suspend(&mut self, now_ns: u64, why: MemberHealth) {
        if let Some(suspension) = &mut self.suspended {
            // Reads that were under way end badly too: no reason to punish it more.
            suspension.good = 0;
            return;
        }
        let fresh = self.backoff_ns == 0 || now_ns >= self.parole_until_ns;
        self.backoff_ns = if fresh { FIRST_PROBE_NS } else { (self.backoff_ns * 2).min(MAX_PROBE_NS) };
        let next_probe_ns = now_ns.saturating_add(self.backoff_ns);
        self.suspended = Some(Suspension { why, next_probe_ns, probing: false, good: 0 });
        self.suspensions += 1;
    }

    fn probed(&mut self, now_ns: u64, good: bool) {
        let Some(suspension) = &mut self.suspended else { return };
        suspension.probing = false;
        if !good {
            suspension.good = 0;
            self.backoff_ns = (self.backoff_ns * 2).min(MAX_PROBE_NS);
            suspension.next_probe_ns = now_ns.saturating_add(self.backoff_ns);
            return;
        }
        suspension.good += 1;
        suspension.next_probe_ns = now_ns.saturating_add(PROBE_GAP_NS);
        if suspension.good >= GOOD_PROBES {
            self.suspended = None;
            self.points = 0;
            self.parole_until_ns = now_ns.saturating_add(PAROLE_NS);
        }
    }
}

/// All members.
#[derive(Default)]
pub(super) struct Health {
    members: [MemberHistory; MAX_MEMBERS],
}

impl Health {
    /// Records the volume's view of a member, and its disk ([`Members::disk`]). If the disk is
    /// another one, the known state is forgotten, and the answer is `true`.
    pub(super) fn stand(&mut self, now: Instant, member: u16, standing: Standing, disk: u32) -> bool {
        let Some(known) = self.members.get_mut(usize::from(member)) else { return false };
        let is_other = known.disk != disk;
        if is_other {
            let (disk_since_ns, suspensions) = (now.0, known.suspensions);
            *known = MemberHistory { disk, disk_since_ns, suspensions, ..MemberHistory::default() };
        }
        known.standing = standing;
        is_other
    }

    /// What became of a read. `true`: it suspends the member.
    pub(super) fn note(&mut self, now: Instant, member: u16, outcome: MemberFault) -> bool {
        let Some(known) = self.members.get_mut(usize::from(member)) else { return false };
        let was = known.suspended.is_some();
        match outcome {
            MemberFault::Late => known.suspend(now.0, MemberHealth::Slow),
            MemberFault::Error(errno) if device_is_gone(errno) => known.suspend(now.0, MemberHealth::Failing),
            MemberFault::Error(_) => {
                if known.add_points(now.0, ERROR_POINTS) {
                    known.suspend(now.0, MemberHealth::Failing);
                }
            }
            MemberFault::Wrong => {
                if known.add_points(now.0, WRONG_POINTS) {
                    known.suspend(now.0, MemberHealth::Failing);
                }
            }
        }
        !was && known.suspended.is_some()
    }

    /// A read of this member was given up before it came; it was begun at `since`. Gives the disk that it belongs to, for
    /// [`Health::unstuck`]; none: it was asked of another disk, which this one is not blamed for.
    pub(super) fn stuck(&mut self, member: u16, since: Instant) -> Option<u32> {
        let known = self.members.get_mut(usize::from(member))?;
        if since.0 < known.disk_since_ns {
            return None;
        }
        known.stuck_since_ns = if known.stuck == 0 { since.0 } else { known.stuck_since_ns.min(since.0) };
        known.stuck += 1;
        Some(known.disk)
    }

    /// A read of this disk that was given up has come after all: the member does not hang, though it may owe others.
    pub(super) fn unstuck(&mut self, now: Instant, member: u16, disk: u32) {
        if let Some(known) = self.members.get_mut(usize::from(member)).filter(|known| known.disk == disk) {
            known.stuck = known.stuck.saturating_sub(1);
            known.stuck_since_ns = known.stuck_since_ns.max(now.0);
        }
    }

    /// Returns the members to ask first: missing, stale and hanging members are not asked,
    /// suspended ones are avoided. For an extent that is unavailable this way, all present members
    /// are asked.
    pub(super) fn view(&self, now: Instant) -> MemberView {
        let mut view = MemberView { now, ..MemberView::default() };
        for (number, member) in (0..).zip(&self.members) {
            match member.health() {
                MemberHealth::Healthy => {}
                MemberHealth::Slow | MemberHealth::Failing if !member.hangs(now.0) => {
                    view.avoid.insert(number)
                }
                MemberHealth::Slow | MemberHealth::Failing => view.hung.insert(number),
                MemberHealth::Stale => view.stale.insert(number),
                MemberHealth::Missing => view.lost.insert(number),
            }
        }
        view.lost |= view.hung | view.stale;
        view
    }

    /// This member has other files now, because it was repaired: errors and wrong bytes of the old ones say nothing of these.
    /// One that was slow is probed at once: that is its disk.
    pub(super) fn has_other_files(&mut self, now: Instant, member: u16) {
        let Some(known) = self.members.get_mut(usize::from(member)) else { return };
        known.points = 0;
        known.backoff_ns = 0;
        match &mut known.suspended {
            Some(Suspension { why: MemberHealth::Failing, .. }) if known.stuck == 0 => known.suspended = None,
            Some(suspension) => suspension.next_probe_ns = suspension.next_probe_ns.min(now.0),
            None => {}
        }
    }

    /// Returns a member that must be probed now; [`Health::probed`] has to follow. A member is not
    /// probed while it owes answers.
    pub(super) fn next_probe(&mut self, now: Instant) -> Option<u16> {
        let at = self.members.iter().position(|member| member.probe_at().is_some_and(|at| at <= now.0))?;
        if let Some(suspension) = &mut self.members[at].suspended {
            suspension.probing = true;
        }
        Some(at as u16)
    }

    /// Records the result of the probe.
    pub(super) fn probed(&mut self, now: Instant, member: u16, good: bool) {
        if let Some(known) = self.members.get_mut(usize::from(member)) {
            known.probed(now.0, good);
        }
    }

    /// When [`Health::next_probe`] has one.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        self.members.iter().filter_map(MemberHistory::probe_at).min().map(Instant)
    }

    /// Members that owe answers to reads that were given up.
    pub(super) fn owing(&self) -> MemberSet {
        let owing = (0..).zip(&self.members).filter(|(_, member)| member.stuck > 0);
        owing.map(|(number, _)| number).collect()
    }

    /// How a member is.
    pub(super) fn of(&self, member: u16) -> MemberHealth {
        self.members.get(usize::from(member)).map_or(MemberHealth::Missing, MemberHistory::health)
    }

    /// How often it was suspended.
    pub(super) fn suspensions(&self, member: u16) -> u64 {
        self.members.get(usize::from(member)).map_or(0, |member| member.suspensions)
    }

    /// Reads that were given up and have not come.
    pub(super) fn owed(&self, member: u16) -> u32 {
        self.members.get(usize::from(member)).map_or(0, |member| member.stuck)
    }
}

impl MemberHistory {
    fn probe_at(&self) -> Option<u64> {
        let suspension = self.suspended.filter(|suspension| !suspension.probing)?;
        (self.standing == Standing::Active && self.stuck == 0).then_some(suspension.next_probe_ns)
    }
}

/// Errors that say that the device or the mount is gone: there is no point in trying again.
fn device_is_gone(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENXIO
            | libc::ENODEV
            | libc::ESTALE
            | libc::ENOTCONN
            | libc::ESHUTDOWN
            | libc::EBADF
            | libc::ETIMEDOUT
    )
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;

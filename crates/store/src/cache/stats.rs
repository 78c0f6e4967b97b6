//! Counters of the cache: written by the manager, read by anybody.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::ids::{TitleId, TitleRef};
use millrace_core::time::Instant;

use super::error::CacheError;
use super::handle::ReadFailure;
use super::health::MemberHealth;
use super::source::TrackId;
use crate::limits::cache::{MAX_DAMAGE_KEPT, TROUBLE_INTERVAL_NS};
use crate::limits::{MAX_DAMAGE_UNTOLD, MAX_MEMBERS};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:ident,)+) => {
        millrace_core::counters! {
            /// A snapshot of the cache's activity and contents. Every request is either a hit, a
            /// join or a miss.
            pub struct CacheStats {
                $($(#[doc = $doc])+ $kind $name,)+
                /// Extents that are lent out now.
                gauge leased,
            }
        }

        /// The live counters.
        #[derive(Default)]
        pub(super) struct CacheCounters {
            $(pub(super) $name: Counter,)+
            /// The reads from each member; a volume with one member is not counted.
            pub(super) of_members: [MemberCounters; MAX_MEMBERS],
            trouble: Mutex<Troubles>,
            damage: Mutex<VecDeque<Damage>>,
            damaged_titles: Mutex<VecDeque<TitleId>>,
        }

        impl CacheCounters {
            /// What concerns room for more viewers.
            pub(super) fn positions(&self) -> Positions {
                Positions { used: self.positions.get(), max: self.positions_max.get() }
            }

            /// All counters but `leased`, which the arena knows.
            pub(super) fn snapshot(&self) -> CacheStats {
                CacheStats { $($name: self.$name.get(),)+ leased: 0 }
            }
        }
    };
}

counters! {
    /// Extents in the arena.
    gauge extents,
    /// Extents that hold nothing.
    gauge free,
    /// Extents that hold media.
    gauge resident,
    /// Titles open.
    gauge titles,
    /// Playheads known: streams that will need something.
    gauge playheads,
    /// Their positions in titles, by extent: playheads at the same position share the extents they
    /// hold.
    gauge positions,
    /// Such places that the memory carries: beyond it viewers wait for each other's memory.
    gauge positions_max,
    /// Reads begun.
    sum reads,
    /// Of these, reads ahead that no stream waited for when they began.
    sum reads_ahead,
    /// Reads that wait for their turn.
    gauge queued,
    /// Reads in flight.
    gauge reading,
    /// Bytes read from data files, with what alignment adds.
    sum bytes_read,
    /// Bytes read from metadata files.
    sum meta_bytes_read,
    /// Requests for extents in memory.
    sum hits,
    /// Requests for extents about to be read for another stream or ahead: they shared that read.
    sum joins,
    /// Wants that caused a read.
    sum misses,
    /// Extents that had to go for others.
    sum evictions,
    /// Reads with a waiting stream that found every extent leased and had to wait for one to be
    /// returned.
    sum waits_for_space,
    /// Grants after their deadline.
    sum late_grants,
    /// Extents whose bytes did not match their checksums even when read again.
    sum checksum_errors,
    /// Extents with packets left out because they are damaged and cannot be restored, counted each
    /// time one is read.
    sum damaged,
    /// Packets that were left out of them.
    sum damaged_packets,
    /// Extents that could not be read.
    sum read_errors,
    /// Reads done again because the bytes did not match their checksums.
    sum retries,
    /// Wants given up because their stream had too many newer ones.
    sum displaced,
    /// Members of the volume, if it has several or parity.
    gauge members,
    /// Extents that were served although a member that holds something of them could not be read.
    sum degraded,
    /// Bytes of media that were decoded from what survived.
    sum decoded_bytes,
    /// Extents of titles with CRCs when no copy of the CRCs could be read: only the sums of 16 bits
    /// were compared.
    sum sums_only,
    /// Extents that were given with holes, to viewers who repair them.
    sum with_holes,
    /// Reads given up because a member did not answer in time.
    sum hung_reads,
    /// Reads that were given up and have not ended: their memory is set aside.
    gauge hung_now,
    /// Bytes of memory that is set aside for them.
    gauge aside_bytes,
    /// Reads that looked whether a suspended member is well again.
    sum probes,
}

millrace_core::counters! {
    /// The cache's reads from one member of the volume.
    pub struct MemberFigures {
        /// Reads that came in time and were right; one for each file that extents which were read together came from.
        sum reads,
        /// Bytes that came.
        sum bytes,
        /// Of these reads, those of media and parity; the others are of records.
        sum unit_reads,
        /// The bytes they returned.
        sum unit_bytes,
        /// Reads that failed.
        sum errors,
        /// Reads that were not answered in time.
        sum late,
        /// Extents with bytes from it that did not match their stored sums.
        sum wrong,
        /// How often it was suspended.
        sum suspensions,
        /// Reads that were given up and that it still owes an answer.
        gauge owed,
        /// Whether it is well; 0: slow, failing, missing or stale.
        gauge healthy,
    }
}

/// Places in titles at which viewers are, as far as the memory goes: [`Cache::positions`](super::Cache::positions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Positions {
    /// Those that there are, by extent. Viewers at the same one count once.
    pub used: u64,
    /// Those that the memory carries.
    pub max: u64,
}

impl Positions {
    /// Checks whether there is capacity for `more` additional viewers, each at a position of its
    /// own.
    ///
    /// # Errors
    /// [`CacheError::NoRoom`] if they have not.
    pub fn admit(self, more: u64) -> Result<(), CacheError> {
        let Self { used, max } = self;
        if used.saturating_add(more) <= max { Ok(()) } else { Err(CacheError::NoRoom { used, max }) }
    }
}

/// The cache's view of one member of the volume at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MemberReport {
    /// Its place in the volume.
    pub index: u16,
    /// How it is.
    pub health: MemberHealth,
    /// Reads that came in time and were right; one for each file that extents which were read together came from.
    pub reads: u64,
    /// Bytes that came.
    pub bytes: u64,
    /// Of these reads, those of media and parity; the others are of records.
    pub unit_reads: u64,
    /// The bytes they returned.
    pub unit_bytes: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The last error's `errno`; 0: none yet.
    pub last_errno: u64,
    /// Reads that were not answered in time.
    pub late: u64,
    /// Extents with bytes from it that did not match their stored sums.
    pub wrong: u64,
    /// How often it was suspended.
    pub suspensions: u64,
    /// Reads that were given up and that it still owes an answer.
    pub owed: u64,
}

impl MemberReport {
    /// Returns the part of the report that can be counted.
    pub fn figures(&self) -> MemberFigures {
        let &Self { reads, bytes, unit_reads, unit_bytes, errors, late, wrong, suspensions, owed, .. } = self;
        let healthy = u64::from(self.health == MemberHealth::Healthy);
        MemberFigures {
            reads,
            bytes,
            unit_reads,
            unit_bytes,
            errors,
            late,
            wrong,
            suspensions,
            owed,
            healthy,
        }
    }

    /// For the log and for people: "member 3 is slow: ...".
    pub fn summary(&self) -> String {
        let Self { index, health, errors, late, wrong, .. } = self;
        let last = match i32::try_from(self.last_errno) {
            Ok(errno) if errno != 0 => format!(" (the last: {})", std::io::Error::from_raw_os_error(errno)),
            _ => String::new(),
        };
        format!("member {index} is {health}: {errors} errors{last}, {late} late answers, {wrong} wrong sums")
    }
}

/// The live counters of a member.
#[derive(Default)]
pub(super) struct MemberCounters {
    health: Counter,
    pub(super) reads: Counter,
    pub(super) bytes: Counter,
    pub(super) unit_reads: Counter,
    pub(super) unit_bytes: Counter,
    pub(super) errors: Counter,
    pub(super) last_errno: Counter,
    pub(super) late: Counter,
    pub(super) wrong: Counter,
    pub(super) suspensions: Counter,
    pub(super) owed: Counter,
}

impl MemberCounters {
    pub(super) fn note_error(&self, errno: i32) {
        self.errors.add(1);
        self.last_errno.set(usize::try_from(errno).unwrap_or(0));
    }

    pub(super) fn set_health(&self, health: MemberHealth) {
        self.health.set(HEALTHS.iter().position(|&known| known == health).unwrap_or(0));
    }

    fn report(&self, index: u16) -> MemberReport {
        MemberReport {
            index,
            health: HEALTHS.get(self.health.get() as usize).copied().unwrap_or_default(),
            reads: self.reads.get(),
            bytes: self.bytes.get(),
            unit_reads: self.unit_reads.get(),
            unit_bytes: self.unit_bytes.get(),
            errors: self.errors.get(),
            last_errno: self.last_errno.get(),
            late: self.late.get(),
            wrong: self.wrong.get(),
            suspensions: self.suspensions.get(),
            owed: self.owed.get(),
        }
    }
}

/// How health is kept in a counter.
const HEALTHS: [MemberHealth; 5] = [
    MemberHealth::Healthy,
    MemberHealth::Slow,
    MemberHealth::Failing,
    MemberHealth::Missing,
    MemberHealth::Stale,
];

/// One counter. The manager alone writes it.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn set(&self, n: usize) {
        self.0.store(n as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An extent that could not be served: for one line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The title.
    pub title: TitleRef,
    /// Which title that is.
    pub id: TitleId,
    /// What of it: its media, or one of its parity tracks.
    pub track: TrackId,
    /// Its extent.
    pub extent: u32,
    /// The kind of failure.
    pub failure: ReadFailure,
    /// The data file, if the title is whole in one and has no parity.
    pub path: Option<std::path::PathBuf>,
    /// Where the extent's bytes lie in the title.
    pub bytes: std::ops::Range<u64>,
    /// Members of the volume that did not deliver the correct data, if known.
    pub members: Vec<u16>,
    /// Failures since the last report, this one included.
    pub failures: u64,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (id, extent, bytes) = (self.id, self.extent, &self.bytes);
        match (&self.path, self.track) {
            (Some(path), _) => write!(f, "{}: bytes {}..{}", path.display(), bytes.start, bytes.end),
            (None, TrackId::Media | TrackId::Live | TrackId::Growing | TrackId::Derived(_)) => {
                write!(f, "title {id}: bytes {}..{} of its media", bytes.start, bytes.end)
            }
            (None, TrackId::Parity(track)) => write!(f, "title {id}: parity track {track}, extent {extent}"),
        }?;
        write!(f, ": {}", self.failure)?;
        if let [first, others @ ..] = &self.members[..] {
            write!(f, " (member{} {first}", if others.is_empty() { "" } else { "s" })?;
            others.iter().try_for_each(|other| write!(f, ", {other}"))?;
            f.write_str(")")?;
        }
        if self.failures > 1 {
            write!(f, " ({} such failures since the last report)", self.failures)?;
        }
        f.write_str("; its viewers were sent a BYE, no others are affected; ")?;
        f.write_str(match self.failure {
            ReadFailure::MembersLost { .. } => "bring the members back, or run repair",
            ReadFailure::Io(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
            ReadFailure::Checksum if self.path.is_some() => {
                "more of it than --max-damaged allows is damaged: run fsck, then add the film again"
            }
            _ if self.path.is_some() => "run fsck, then add the film again",
            _ => "run scrub; if a disk is bad, replace it and run repair",
        })
    }
}

/// Packets of a title that are damaged and cannot be restored, or whose records are: for one line in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The title.
    pub title: TitleRef,
    /// Which title that is.
    pub id: TitleId,
    /// The data file, if the title is whole in one and has no parity.
    pub path: Option<PathBuf>,
    /// From the first packet to the last, counted from the title's start.
    pub span: Range<u32>,
    /// How many of these are damaged.
    pub packets: u32,
    /// Viewers get them all the same, as far as their CRCs prove them: only their records are damaged.
    pub are_sent: bool,
    /// Where the span lies in the title.
    pub bytes: Range<u64>,
    /// Members of the volume that did not deliver the correct data, if known.
    pub members: Vec<u16>,
}

impl Damage {
    /// Returns a message for the log. `name`: the title's name, if known.
    pub fn summary(&self, name: Option<&str>) -> String {
        let title = name.map_or_else(|| self.id.to_string(), ToOwned::to_owned);
        let (packets, first, last) = (self.packets, self.span.start, self.span.end.saturating_sub(1));
        let which = match packets {
            1 => format!("packet {first}"),
            _ if u64::from(packets) == u64::from(last) + 1 - u64::from(first) => {
                format!("packets {first} to {last}")
            }
            _ => format!("{packets} of the packets {first} to {last}"),
        };
        if self.are_sent {
            return format!(
                "title {title}: the stored records of {which} are damaged; the packets are checked by their CRCs and sent; \
                 further damage of its records is not reported; run millrace scrub, and add the film again if it cannot repair them"
            );
        }
        let verb = if packets == 1 { "is" } else { "are" };
        let Range { start, end } = self.bytes;
        let place = match (&self.path, &self.members[..]) {
            (Some(path), _) => format!("bytes {start}..{end} of {}", path.display()),
            (None, []) => format!("bytes {start}..{end} of its media"),
            (None, members) => {
                let members: Vec<_> = members.iter().map(ToString::to_string).collect();
                format!("bytes {start}..{end} of its media, member {}", members.join(", "))
            }
        };
        let cure = match self.path {
            Some(_) => "run millrace fsck --full, which finds all of it, then add the film again",
            None => "run millrace scrub",
        };
        format!(
            "title {title}: {which} {verb} damaged and left out ({place}); its viewers go on without; further damage of this \
             title is only counted; {cure}"
        )
    }
}

#[derive(Default)]
struct Troubles {
    last: Option<Trouble>,
    reported: Option<Instant>,
}

impl CacheCounters {
    /// Notes a failure.
    pub(super) fn note_trouble(&self, mut trouble: Trouble) {
        let mut troubles = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        trouble.failures += troubles.last.as_ref().map_or(0, |last| last.failures);
        troubles.last = Some(trouble);
    }

    /// Notes damage of a title.
    pub(super) fn note_damage(&self, damage: Damage) {
        let mut kept = self.damage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if kept.len() < MAX_DAMAGE_KEPT {
            kept.push_back(damage);
        }
    }

    /// Notes a title in which damage was found, whether it was made up for or not.
    pub(super) fn note_damaged_title(&self, id: TitleId) {
        let mut untold = self.damaged_titles.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if untold.len() < MAX_DAMAGE_UNTOLD && !untold.contains(&id) {
            untold.push_back(id);
        }
    }

    /// The first such title that was not taken yet.
    pub(super) fn take_damaged_title(&self) -> Option<TitleId> {
        self.damaged_titles.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front()
    }

    /// The first damage that was not taken yet.
    pub(super) fn take_damage(&self) -> Option<Damage> {
        self.damage.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front()
    }

    /// Returns a report on each member of the volume.
    pub(super) fn member_reports(&self) -> Vec<MemberReport> {
        let members = self.of_members.iter().take(self.members.get() as usize);
        (0..).zip(members).map(|(index, member)| member.report(index)).collect()
    }

    /// The last failure that was not reported yet, at most one a second.
    pub(super) fn take_trouble(&self, now: Instant) -> Option<Trouble> {
        let mut troubles = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if troubles.reported.is_some_and(|at| now.ns_since(at) < TROUBLE_INTERVAL_NS) {
            return None;
        }
        let trouble = troubles.last.take()?;
        troubles.reported = Some(now);
        Some(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(extent: u32) -> Trouble {
        let (path, failure) = (Some("/films/a.ts".into()), ReadFailure::Checksum);
        let (title, id, members) = (TitleRef(1), TitleId([0xab; 16]), Vec::new());
        Trouble {
            title,
            id,
            track: TrackId::Media,
            extent,
            failure,
            path,
            bytes: 0..1316,
            members,
            failures: 1,
        }
    }

    #[test]
    fn member_reports_return_recorded_health_and_errors() {
        let counters = CacheCounters::default();
        assert_eq!(counters.member_reports(), []);
        counters.members.set(3);
        for (place, health) in HEALTHS.into_iter().enumerate() {
            counters.of_members[1].set_health(health);
            assert_eq!(counters.member_reports()[1].health, health, "{place}");
        }
        counters.of_members[1].errors.add(2);
        counters.of_members[1].last_errno.set(libc::EIO as usize);
        let reports = counters.member_reports();
        assert_eq!((reports.len(), reports[0].index, reports[2].health), (3, 0, MemberHealth::Healthy));
        let said = reports[1].summary();
        assert!(said.starts_with("member 1 is stale: 2 errors (the last: Input/output error"), "{said}");
        assert!(reports[0].summary().ends_with("0 errors, 0 late answers, 0 wrong sums"));
    }

    #[test]
    fn trouble_names_title_and_members_where_there_are_several() {
        let id = "ab".repeat(16);
        let one = Trouble { path: None, members: vec![2], ..trouble(7) };
        let said = one.to_string();
        let expected = format!(
            "title {id}: bytes 0..1316 of its media: data and stored checksums do not match (member 2);"
        );
        assert!(said.starts_with(&expected), "{said}");
        assert!(said.ends_with("run scrub; if a disk is bad, replace it and run repair"), "{said}");
        let failure = ReadFailure::Io(libc::EMFILE);
        let said = Trouble { track: TrackId::Parity(1), failure, members: vec![0, 3], ..one }.to_string();
        assert!(said.starts_with(&format!("title {id}: parity track 1, extent 7: read error: ")), "{said}");
        assert!(said.contains("(members 0, 3);") && said.ends_with("(ulimit -n)"), "{said}");
        assert!(trouble(1).to_string().ends_with("run fsck, then add the film again"));
    }

    #[test]
    fn take_trouble_with_many_failures_reports_once_per_second() {
        let counters = CacheCounters::default();
        let second = Instant(5_000_000_000);
        assert_eq!(counters.take_trouble(second), None);
        (0..10).for_each(|extent| counters.note_trouble(trouble(extent)));
        let report = counters.take_trouble(second).unwrap();
        assert_eq!((report.extent, report.failures), (9, 10));
        assert!(
            report
                .to_string()
                .starts_with("/films/a.ts: bytes 0..1316: data and stored checksums do not match")
        );
        counters.note_trouble(trouble(3));
        assert_eq!(counters.take_trouble(second.plus_ns(TROUBLE_INTERVAL_NS - 1)), None);
        let report = counters.take_trouble(second.plus_ns(TROUBLE_INTERVAL_NS)).unwrap();
        assert_eq!((report.extent, report.failures), (3, 1));
    }
}

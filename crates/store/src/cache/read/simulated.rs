//! Reading in virtual time: files are read by the thread that asks, when their simulated disk would
//! have answered.
//!
//! A part takes a time that is drawn from the seed, and the delay of the [`ReadFaults`] of its member.
//! While a member hangs, none of its parts is answered.

use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;

use super::super::order::{Order, SpanResult};
use super::part::{Arrived, ReadPart};
use super::parts::{PartId, ReadParts};
use super::staging::Staging;
use super::{ExtentReader, Owed, Unanswered};
use crate::disk::{ReadFault, ReadFaults};
use crate::limits::cache::{SIM_READ_LEAST_NS, SIM_READ_SPREAD_NS};

/// A part that its disk has not answered.
struct AskedPart {
    id: PartId,
    part: ReadPart,
    due: Instant,
}

/// Simulated disks.
pub(in crate::cache) struct Simulated {
    parts: ReadParts,
    asked: Vec<AskedPart>,
    faults: ReadFaults,
    random: SplitMix,
}

impl Simulated {
    /// Creates disks for `places` places, with memory for the `usual` number of simultaneous reads.
    ///
    /// # Errors
    /// When memory is refused.
    pub(in crate::cache) fn new(
        (places, usual): (usize, usize),
        faults: ReadFaults,
        seed: u64,
    ) -> io::Result<Self> {
        let parts = ReadParts::new(places, Staging::new(usual)?);
        Ok(Self { parts, asked: Vec::new(), faults, random: SplitMix(seed) })
    }

    /// Answers the parts that are due, in the order of their requests.
    fn answer(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.asked.len() {
            let AskedPart { part, due, .. } = &self.asked[index];
            if *due > now || hangs(part, &self.faults) {
                index += 1;
                continue;
            }
            let AskedPart { id, mut part, .. } = self.asked.remove(index);
            let mut read = 0;
            // Those that fail may become more.
            while read < part.reads.len() {
                read_one(&mut part, read, &self.faults);
                read += 1;
            }
            self.parts.bring_back(id, part);
        }
    }
}

fn member_of(part: &ReadPart) -> u16 {
    part.member.unwrap_or(0)
}

/// Whether a read of the part is answered by nothing.
fn hangs(part: &ReadPart, faults: &ReadFaults) -> bool {
    let fault = faults.of(member_of(part));
    fault == ReadFault::Hang || part.ranges().any(|range| fault.on(&range) == ReadFault::Hang)
}

fn read_one(part: &mut ReadPart, index: usize, faults: &ReadFaults) {
    let member = member_of(part);
    loop {
        let file = part.reads[index].file.clone();
        let (into, _, offset) = part.rest(index);
        let read = file.get().read_at(into, offset);
        let read = read.and_then(|got| faults.after_read(member, offset, &mut into[..got]));
        let result = match read {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        if part.arrived(index, result) != Arrived::Again {
            return;
        }
    }
}

impl ExtentReader for Simulated {
    fn name(&self) -> &'static str {
        "simulated disks"
    }

    fn begin_run(&mut self, now: Instant, batch: &[(usize, &Order)]) {
        for id in self.parts.begin(batch) {
            let Some(part) = self.parts.lend(id) else { continue };
            let late = self.faults.of(member_of(&part)).delay_ns(part.bytes());
            let takes = SIM_READ_LEAST_NS + self.random.below(SIM_READ_SPREAD_NS);
            self.asked.push(AskedPart { id, part, due: now.plus_ns(takes).plus_ns(late) });
        }
    }

    fn wait(&mut self, now: Instant, _limit: Option<Duration>) {
        self.answer(now);
    }

    fn next_done(&mut self) -> Option<usize> {
        self.parts.next_done()
    }

    fn has_done(&self) -> bool {
        self.parts.has_done()
    }

    fn results(&self, place: usize) -> Vec<SpanResult<'_>> {
        self.parts.results(place)
    }

    fn forget(&mut self, place: usize) {
        self.parts.clear(place);
    }

    fn unanswered(&mut self, now: Instant, place: usize) -> Unanswered {
        self.parts.unanswered(now, place, |_| false)
    }

    fn forgive(&mut self, now: Instant, ns: u64) {
        self.parts.forgive(now, ns);
    }

    fn give_up(&mut self, place: usize) -> Vec<Owed> {
        let aside = self.parts.give_up(place, |_| None);
        aside.into_iter().filter_map(|id| self.parts.owed(id)).collect()
    }

    fn next_late(&mut self) -> Option<Owed> {
        self.parts.next_late()
    }

    fn aside_bytes(&self) -> usize {
        self.parts.aside_bytes()
    }

    fn next_answer(&self) -> Option<Instant> {
        let answered = self.asked.iter().filter(|asked| !hangs(&asked.part, &self.faults));
        answered.map(|asked| asked.due).min()
    }
}

//! From an order to an extent: begins the read, collects the data, builds the extent, and repeats
//! reads where necessary.
//!
//! An extent that does not arrive whole is ordered again with more [`Effort`]. Each step asks more
//! members for more. Only the last step can find the extent unavailable, from the results of each
//! codeword. Members that are suspended, failing, late or stale are asked later than others, but
//! they are asked.
//!
//! If one member does not answer a read of many members, the read is given up after
//! [`SLOW_READ_NS`](millrace_core::limits::SLOW_READ_NS) if the others have the data needed. If
//! they do not, it keeps waiting until [`HUNG_NS`]: a busy disk is no reason to lose a viewer. A
//! title without members waits as long as its disk takes, because there is nothing else to read. If
//! the disk reports that it cannot read the extent, it is asked once more, block by block, and the
//! data received when nothing more arrives is all there is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::pool::ExtentContent;
use millrace_core::time::Instant;

use super::super::aligned::ALIGN;
use super::super::handle::ReadFailure;
use super::super::health::HUNG_NS;
use super::super::order::{Built, Effort, LeftOut, MAX_SPANS, MemberView, Order, SpanOrder, SpanResult};
use super::super::policy::ReadOrder;
use super::super::source::{OpenTitle, OrderResults};
use super::super::stats::Trouble;
use super::{Manager, forget_cached};
use crate::limits::MAX_ASIDE_BYTES;
use crate::limits::cache::{MAX_HUNG_BYTES, MAX_READ_NS, MAX_READ_TRIES, READ_LOOK_NS, STALL_NS};
use crate::member_set::MemberSet;
use crate::transform::Derivation;

/// The disk of a title without members counts as the first member.
const PLAIN: MemberSet = MemberSet::of(0);

/// A read that was begun.
pub(super) struct Flight {
    /// The read it serves.
    read: ReadOrder,
    order: Order,
    effort: Effort,
    tries: u32,
    /// When the extent was ordered first.
    first: Instant,
    begun: Instant,
    /// Time of the next check; only for reads of members.
    pub(super) look_at: Option<Instant>,
    /// No read is in progress: a member does not answer when its files are opened, and the extent
    /// is unavailable without it.
    is_waiting: bool,
    /// Members that have failed for this extent; [`PLAIN`]: the disk of a title without members.
    failed: MemberSet,
    /// Of these, those that did not answer in time.
    timed_out: MemberSet,
    /// Members whose packets were each read separately.
    pieces: MemberSet,
    /// Members that have given wrong bytes for it.
    wrong: MemberSet,
    /// Members that have not answered this order in time.
    late: MemberSet,
    /// Members that had not answered others for long when the order was made: it did without them, whatever they do since.
    hung: MemberSet,
    /// [`MemberMonitor::returns`](super::member_monitor::MemberMonitor::returns) when the order was made.
    returns: u64,
    /// For a title without members: memory of the data missing at the last check, and since when it
    /// has not decreased.
    missing: (usize, Instant),
}

impl Flight {
    fn new(now: Instant, read: ReadOrder) -> Self {
        let order = Order::empty(read.key.extent, read.spare);
        Self {
            read,
            order,
            effort: Effort::Usual,
            tries: 0,
            first: now,
            begun: now,
            look_at: None,
            is_waiting: false,
            failed: MemberSet::EMPTY,
            timed_out: MemberSet::EMPTY,
            pieces: MemberSet::EMPTY,
            wrong: MemberSet::EMPTY,
            late: MemberSet::EMPTY,
            hung: MemberSet::EMPTY,
            returns: 0,
            missing: (0, now),
        }
    }

    /// Changes the extent, which has been built, if its title is a transformed one.
    pub(super) fn transform(&mut self, content: &ExtentContent, scratch: &mut Vec<u8>) {
        let ReadOrder { title, fill, .. } = &mut self.read;
        if let Some(derivation) = title.kind().derivation() {
            derivation.apply_to_extent(content, fill.bytes_mut(), scratch);
        }
    }

    /// Whether that may take long.
    pub(super) fn has_slow_transform(&self) -> bool {
        self.read.title.kind().derivation().is_some_and(Derivation::is_slow)
    }

    /// Members that are not well as far as this extent goes.
    fn at_fault(&self) -> MemberSet {
        self.failed | self.late | self.wrong | self.order.absent
    }
}

impl Manager {
    /// Begins the reads that the policy wants. Returns the number of reads begun.
    pub(super) fn begin_reads(&mut self, now: Instant) -> usize {
        let mut begun = 0;
        while let Some(place) = self.free_places.pop() {
            let Some(read) = self.policy.next_read(now) else {
                self.free_places.push(place);
                break;
            };
            begun += 1;
            if let Some(flight) = self.make_order(now, place, Flight::new(now, read)) {
                let run = self.make_run(now, (place, flight));
                begun += run.len() - 1;
                self.begin_run(now, run);
            }
        }
        begun
    }

    /// The extents that are read together with a first one: of many members a single one would be read in small pieces.
    fn make_run(&mut self, now: Instant, first: (usize, Flight)) -> Vec<(usize, Flight)> {
        let most = first.1.read.title.run_extents(self.read_bytes);
        let mut run = vec![first];
        while let Some((_, last)) = run.last()
            && run.len() < most
            && last.effort == Effort::Usual
            && let Some(place) = self.free_places.pop()
        {
            let Some(read) = self.policy.next_of_run(now, &last.read) else {
                self.free_places.push(place);
                break;
            };
            let Some(mut flight) = self.make_order(now, place, Flight::new(now, read)) else { break };
            let spans = run.iter().map(|(_, flight)| flight.order.spans.len()).sum::<usize>();
            if spans + flight.order.spans.len() > MAX_SPANS / 2 {
                // If it fails, each span is a read more, and a part has no numbers for more than that.
                self.begin_run(now, vec![(place, flight)]);
                break;
            }
            flight.order.join(run.iter().map(|(_, flight)| &flight.order));
            run.push((place, flight));
        }
        run
    }

    /// Orders an extent by itself and begins to read it.
    fn order_read(&mut self, now: Instant, place: usize, flight: Flight) {
        if let Some(flight) = self.make_order(now, place, flight) {
            self.begin_run(now, vec![(place, flight)]);
        }
    }

    /// Orders the extent with the least effort that may succeed, starting from the flight's.
    /// `None`: it has failed, or waits.
    fn make_order(&mut self, now: Instant, place: usize, mut flight: Flight) -> Option<Flight> {
        let title = Arc::clone(&flight.read.title);
        loop {
            let view = self.view_for(now, &flight);
            (flight.pieces, flight.hung) = (flight.pieces | view.pieces, view.hung);
            let thorough = flight.effort > Effort::Usual;
            let order = title.order(flight.read.key.extent, flight.read.spare, view, thorough);
            self.monitor.refused(now, &title.take_refusals());
            match order {
                Ok(order) => {
                    flight.order = order;
                    flight.tries += 1;
                    return Some(flight);
                }
                Err(failure) if failure == ReadFailure::OutOfRange || !self.try_harder(&mut flight) => {
                    self.give_up_or_wait(now, place, flight, (failure, view.lost));
                    return None;
                }
                Err(_) => {}
            }
        }
    }

    fn begin_run(&mut self, now: Instant, run: Vec<(usize, Flight)>) {
        let batch: Vec<_> = run.iter().map(|(place, flight)| (*place, &flight.order)).collect();
        self.reader.begin_run(now, &batch);
        for (place, mut flight) in run {
            let of_members = flight.order.spans.iter().any(|span| span.member.is_some());
            (flight.begun, flight.late, flight.returns) = (now, MemberSet::EMPTY, self.monitor.returns());
            (flight.is_waiting, flight.missing) = (false, (0, now));
            flight.look_at = (of_members || flight.order.in_blocks).then(|| now.plus_ns(READ_LOOK_NS));
            self.flights[place] = Some(flight);
        }
    }

    /// The next step of effort. `false`: there is none.
    fn try_harder(&self, flight: &mut Flight) -> bool {
        let has_members = flight.read.title.kind().members().is_some();
        // An order may have become thorough by itself, around members that are avoided.
        let thorough = flight.effort > Effort::Usual || flight.order.thorough;
        flight.effort = match flight.effort {
            _ if !has_members && !(flight.failed - flight.pieces).is_empty() => Effort::All,
            _ if !thorough => Effort::Thorough,
            Effort::Usual | Effort::Thorough if has_members => Effort::All,
            effort if has_members && !(flight.failed - flight.timed_out - flight.pieces).is_empty() => effort,
            // A member that was already asked for this extent and did not answer is not asked
            // again.
            Effort::All
                if has_members
                    && !(flight.hung - flight.timed_out).is_empty()
                    && self.reader.aside_bytes() <= MAX_HUNG_BYTES =>
            {
                Effort::Last
            }
            _ => return false,
        };
        true
    }

    /// Returns which members to ask for an extent, and with what effort, after the previous
    /// attempts.
    fn view_for(&self, now: Instant, flight: &Flight) -> MemberView {
        let view = self.monitor.view(now);
        let Flight { failed, timed_out, late, wrong, .. } = *flight;
        let reopen = (failed - timed_out) | wrong | flight.order.absent;
        let all = MemberView { all: true, pieces: failed - timed_out, reopen, ..view };
        match flight.effort {
            Effort::Usual | Effort::Thorough => MemberView { lost: view.lost | failed | late, ..view },
            Effort::All => MemberView { lost: view.lost - view.stale, ..all },
            Effort::Last => MemberView { lost: view.lost - view.stale - view.hung, ..all },
        }
    }

    /// One read has ended: builds the extent, or reads once more, or gives up.
    pub(super) fn take_read(&mut self, now: Instant, place: usize, mut flight: Flight) {
        let results = self.reader.results(place);
        self.counters.bytes_read.add(bytes_of(&flight.order, &results, true));
        self.counters.meta_bytes_read.add(bytes_of(&flight.order, &results, false));
        if refuses_direct(&flight.order, &results)
            && flight.read.title.may_direct()
            && flight.tries < MAX_READ_TRIES
        {
            // The file could be opened for direct reads but does not take them.
            flight.read.title.refuse_direct();
            return self.order_read(now, place, flight);
        }
        let (title, order) = (flight.read.key.title, &flight.order);
        let read = OrderResults { reference: title, title: &flight.read.title, order, spans: &results };
        let built = self.builder.assemble(read, flight.read.fill.bytes_mut());
        let wrong = match built {
            Built::Done(filled) | Built::Damaged { filled, .. } => filled.wrong,
            Built::More { wrong } | Built::Failed { wrong, .. } => wrong,
        };
        let failed = self.monitor.note(now, title, order, &results, (wrong, flight.late));
        if !self.policy.is_open(title) {
            self.monitor.forget_title(title); // It was closed while it was read.
        }
        let all_came = results.iter().all(Result::is_ok);
        flight.failed |= failed | failed_in_places(&flight.order, &results);
        flight.timed_out |= failed & flight.late;
        flight.wrong |= wrong;
        let (failure, damaged) = match built {
            Built::Done(filled) => {
                self.damage.note_whole(&flight.read);
                self.count_filled(&flight, &filled.content, filled.decoded_bytes);
                self.counters.sums_only.add(filled.sums_only.into());
                if let Some(packets) = filled.unrecorded {
                    self.say_damage(&flight, (packets, true));
                }
                if filled.unrecorded.is_some() || filled.sums_only || !filled.wrong.is_empty() {
                    self.counters.note_damaged_title(flight.read.title.source().id());
                }
                return self.finish_read(now, place, flight, filled.content);
            }
            Built::More { .. } => (ReadFailure::Checksum, None),
            Built::Failed { failure, .. } => (failure, None),
            Built::Damaged { filled, left_out, failure } => (failure, Some((filled, left_out))),
        };
        // The only copy is read again only if the data received was wrong, or in blocks.
        let may_try = !(flight.failed - flight.pieces).is_empty()
            || flight.read.title.kind().members().is_some()
            || media_came(&flight.order, &results);
        if !may_try || flight.tries >= MAX_READ_TRIES || !self.try_harder(&mut flight) {
            let Some(flight) = self.wait_for_silent(now, place, flight) else { return };
            return match damaged {
                // Sends the correct packets and leaves the others out.
                Some((filled, left_out)) if self.is_bearable(&flight, left_out) => {
                    self.count_filled(&flight, &filled.content, filled.decoded_bytes);
                    self.counters.sums_only.add(filled.sums_only.into());
                    self.finish_read(now, place, flight, filled.content);
                }
                _ => {
                    let at_fault = flight.at_fault();
                    self.fail_read(now, place, flight.read, (failure, at_fault));
                }
            };
        }
        if all_came {
            // Memory or a cable may have been at fault: read again, past the kernel's cache.
            self.counters.retries.add(1);
            flight.order.spans.iter().for_each(forget_cached);
        }
        self.order_read(now, place, flight);
    }

    /// Fails an extent that nothing more can be done for, unless a member that did not answer when
    /// its files were opened may still do so in time.
    fn give_up_or_wait(
        &mut self,
        now: Instant,
        place: usize,
        flight: Flight,
        (failure, lost): (ReadFailure, MemberSet),
    ) {
        if let Some(flight) = self.wait_for_silent(now, place, flight) {
            let at_fault = lost | flight.at_fault();
            self.fail_read(now, place, flight.read, (failure, at_fault));
        }
    }

    /// Returns the flight unless a member that did not answer when its files were opened may still
    /// do so in time.
    fn wait_for_silent(&mut self, now: Instant, place: usize, mut flight: Flight) -> Option<Flight> {
        let is_silent = !flight.read.title.take_silent().is_empty();
        if is_silent && flight.tries < MAX_READ_TRIES && now.ns_since(flight.first) < HUNG_NS {
            flight.is_waiting = true;
            flight.look_at = Some(now.plus_ns(READ_LOOK_NS));
            self.flights[place] = Some(flight);
            return None;
        }
        Some(flight)
    }

    /// Returns whether a stream may continue without these packets. If so, they are counted, and
    /// reported once per title.
    fn is_bearable(&mut self, flight: &Flight, left_out: LeftOut) -> bool {
        if !self.damage.note(&flight.read, left_out) {
            return false;
        }
        self.counters.damaged.add(1);
        self.counters.damaged_packets.add(u64::from(left_out.packets));
        self.say_damage(flight, (left_out, false));
        self.counters.note_damaged_title(flight.read.title.source().id());
        true
    }

    /// Reports, once, that packets of a title are damaged, or that only their records are damaged
    /// and the packets are sent.
    fn say_damage(&mut self, flight: &Flight, packets: (LeftOut, bool)) {
        let at_fault = flight.failed | flight.wrong | flight.order.absent;
        if let Some(damage) = self.damage.say(&flight.read, packets, at_fault) {
            self.counters.note_damage(damage);
        }
    }

    fn count_filled(&self, flight: &Flight, content: &ExtentContent, decoded_bytes: u64) {
        let Order { absent, left_out, .. } = flight.order;
        let with_holes = content.spare > 0 && !is_last_resort(flight, content);
        let has_members = flight.read.title.kind().members().is_some();
        let failed = has_members && !flight.failed.is_empty();
        if !absent.is_empty() || !left_out.is_empty() || failed || decoded_bytes > 0 || with_holes {
            self.counters.degraded.add(1);
        }
        self.counters.decoded_bytes.add(decoded_bytes);
        self.counters.with_holes.add(u64::from(with_holes));
    }

    /// An extent is there.
    pub(super) fn end_read(&mut self, now: Instant, place: usize, flight: Flight, content: ExtentContent) {
        self.free_places.push(place);
        self.policy.finish(now, flight.read.key, flight.read.fill, Ok(content));
        if flight.returns != self.monitor.returns() && content.spare > 0 {
            // The streams that waited accept the holes; later requests must get the data available
            // now.
            self.policy.drop_holes();
        }
    }

    /// Fails the read of an unavailable extent; `at_fault`: the members of the volume that caused
    /// this.
    fn fail_read(
        &mut self,
        now: Instant,
        place: usize,
        read: ReadOrder,
        (failure, at_fault): (ReadFailure, MemberSet),
    ) {
        if failure != ReadFailure::OutOfRange {
            self.note_failure(&read, failure, at_fault);
        }
        self.free_places.push(place);
        self.policy.finish(now, read.key, read.fill, Err(failure));
    }

    fn note_failure(&self, read: &ReadOrder, failure: ReadFailure, at_fault: MemberSet) {
        match failure {
            ReadFailure::Checksum => self.counters.checksum_errors.add(1),
            _ => self.counters.read_errors.add(1),
        }
        let (extent, source) = (read.key.extent, read.title.source());
        if matches!(failure, ReadFailure::Checksum | ReadFailure::Io(libc::EIO | libc::ENODATA)) {
            self.counters.note_damaged_title(source.id());
        }
        let (path, members) = whereabouts(&read.title, at_fault);
        self.counters.note_trouble(Trouble {
            title: read.key.title,
            id: source.id(),
            track: source.track(),
            extent,
            failure,
            path,
            bytes: read.title.geometry(extent).map_or(0..0, |geometry| geometry.data),
            members,
            failures: 1,
        });
    }

    /// This thread should have run at `due` and runs at `now`: if that is much later, the processor
    /// was busy. The members' answers in the meantime have not been seen, so the time is not
    /// counted against them.
    pub(super) fn forgive(&mut self, now: Instant, due: Instant) {
        let stalled = now.ns_since(due);
        if stalled < STALL_NS {
            return;
        }
        self.reader.forgive(now, stalled);
        let flights = self.flights.iter_mut().flatten();
        let times = flights.flat_map(|flight| [&mut flight.first, &mut flight.begun, &mut flight.missing.1]);
        let times = times.chain(&mut self.probe);
        times.for_each(|at| *at = at.plus_ns(stalled).min(now));
    }

    /// Checks reads of many members that take long. Returns the number given up. A read with
    /// nothing missing only waits for collection and is never given up.
    pub(super) fn look_after_reads(&mut self, now: Instant) -> usize {
        let mut given_up = 0;
        for place in 0..self.flights.len() {
            let due = |flight: &Flight| flight.look_at.is_some_and(|at| at <= now);
            let Some(mut flight) = self.flights[place].take_if(|flight| due(flight)) else { continue };
            flight.look_at = Some(now.plus_ns(READ_LOOK_NS));
            if flight.is_waiting {
                flight.tries += 1;
                self.order_read(now, place, flight);
            } else if self.should_give_up(now, place, &mut flight) {
                given_up += 1;
                let owed = self.reader.give_up(place);
                self.monitor.given_up(flight.begun, &owed);
                self.take_read(now, place, flight);
            } else {
                self.flights[place] = Some(flight);
            }
        }
        given_up
    }

    fn should_give_up(&mut self, now: Instant, place: usize, flight: &mut Flight) -> bool {
        let missing = self.reader.unanswered(now, place);
        if flight.order.in_blocks {
            return self.should_give_up_blocks(now, missing.bytes, flight);
        }
        let view = self.monitor.view(now);
        // What waits for its turn behind others of a member that does not answer will not be answered either.
        let silent = view.lost | view.avoid | self.monitor.owing();
        let is_over = now.ns_since(flight.begun) >= MAX_READ_NS;
        let hopeless = missing.late | if is_over { missing.queued } else { missing.queued & silent };
        let news = missing.late - flight.late;
        // A late member that has answered in the meantime is as good as any other: its data is
        // available. If one has answered, others equally slow may be about to: they have until the
        // next check.
        let came = !(flight.late - missing.members).is_empty();
        flight.late = (flight.late & missing.members) | hopeless;
        if !news.is_empty() {
            self.monitor.late(now, news);
        }
        if flight.late.is_empty() || came || self.reader.aside_bytes() + missing.bytes > MAX_ASIDE_BYTES {
            return false;
        }
        // An order that asks all members waits for all members.
        let others = (flight.effort < Effort::All).then(|| {
            let view = self.view_for(now, flight);
            flight.read.title.order(flight.read.key.extent, flight.read.spare, view, true)
        });
        match others {
            Some(Ok(order)) if !flight.read.title.kind().is_missed(&order) => flight.tries < MAX_READ_TRIES,
            // Nothing else can be read.
            _ if flight.read.title.tolerance() == 0 => false,
            // As long as something comes, the disks are only busy.
            _ => {
                now.ns_since(missing.news.unwrap_or(flight.begun)) >= HUNG_NS
                    || now.ns_since(flight.begun) >= MAX_READ_NS
            }
        }
    }
}

impl Manager {
    /// For a read in blocks with `missing` bytes of memory missing: returns whether to give those
    /// blocks up because nothing more arrives.
    fn should_give_up_blocks(&self, now: Instant, missing: usize, flight: &mut Flight) -> bool {
        if flight.missing.0 != missing {
            flight.missing = (missing, now);
        }
        let is_over = now.ns_since(flight.missing.1) >= HUNG_NS || now.ns_since(flight.begun) >= MAX_READ_NS;
        missing > 0 && is_over && self.reader.aside_bytes() + missing <= MAX_ASIDE_BYTES
    }
}

/// Returns whether an extent of media is leased although it lacks packets that cannot be repaired.
fn is_last_resort(flight: &Flight, content: &ExtentContent) -> bool {
    content.is_damaged() && flight.read.title.kind().holes_are_damage()
}

/// The data file of a title that is whole in one, or those of its members that are at fault.
pub(super) fn whereabouts(title: &OpenTitle, at_fault: MemberSet) -> (Option<PathBuf>, Vec<u16>) {
    let Some(members) = title.kind().members() else {
        return (title.kind().data_path().map(Path::to_path_buf), Vec::new());
    };
    let slots = (0..members.stripes.members()).map(|position| members.files.slot(position));
    (None, slots.filter(|&slot| at_fault.contains(slot)).collect())
}

/// Bytes that were read of media (or parity) or of everything else, with what alignment adds.
fn bytes_of(order: &Order, results: &[SpanResult<'_>], media: bool) -> u64 {
    let spans = order
        .spans
        .iter()
        .zip(results)
        .filter(|(span, result)| span.role.is_units() == media && result.is_ok());
    let aligned = |bytes: &std::ops::Range<u64>| {
        bytes.end.next_multiple_of(ALIGN as u64) - bytes.start / ALIGN as u64 * ALIGN as u64
    };
    spans.map(|(span, _)| aligned(&span.bytes)).sum()
}

/// Whether all media came that was ordered.
fn media_came(order: &Order, results: &[SpanResult<'_>]) -> bool {
    order.spans.iter().zip(results).all(|(span, result)| !span.role.is_units() || result.is_ok())
}

/// [`PLAIN`] if a title without members could not be read somewhere, though another place may be read: a bad sector, or the end of a
/// file that was cut off. Else the device is gone, or the read was wrong.
fn failed_in_places(order: &Order, results: &[SpanResult<'_>]) -> MemberSet {
    // For a bad sector, direct reads give ENODATA.
    let places = [libc::EIO, libc::ENODATA, libc::EILSEQ, libc::EBADMSG, libc::EUCLEAN, libc::EREMOTEIO];
    let is_one = |(span, result): (&SpanOrder, &SpanResult<'_>)| {
        span.member.is_none() && span.role.is_units() && result.is_err_and(|errno| places.contains(&errno))
    };
    if order.spans.iter().zip(results).any(is_one) { PLAIN } else { MemberSet::EMPTY }
}

/// Whether a file that is open for direct reads does not take them.
fn refuses_direct(order: &Order, results: &[SpanResult<'_>]) -> bool {
    order.spans.iter().zip(results).any(|(span, result)| span.direct && *result == Err(libc::EINVAL))
}

#[cfg(test)]
#[path = "blocks_tests.rs"]
mod blocks_tests;

#[cfg(test)]
#[path = "flights_tests.rs"]
mod tests;

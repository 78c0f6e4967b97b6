//! From an order to an extent: begin the read, take what has come, build, and read again what has to be read again.
//!
//! A read of many members that one of them does not answer is given up after [`SLOW_READ_NS`] if the others have what is
//! needed. If they have not, it goes on waiting until [`HUNG_NS`]: a busy disk is no reason to lose a viewer. A title on one
//! member waits as long as its disk takes: there is nothing else to read.

use millrace_core::limits::{MAX_ASIDE_BYTES, SLOW_READ_NS};
use millrace_core::pool::ExtentContent;
use millrace_core::time::Instant;

use super::super::door::ReadFailure;
use super::super::health::HUNG_NS;
use super::super::order::{Built, MemberView, Order, Role, SpanResult, bit};
use super::super::policy::ReadOrder;
use super::super::source::{ALIGN, OpenTitle};
use super::super::stats::Trouble;
use super::{Manager, forget_cached};

/// A read of many members is looked at each time that this has passed.
const LOOK_NS: u64 = SLOW_READ_NS / 4;
/// An extent is read so often at most. Each time at least one member less can be asked.
const MAX_TRIES: u32 = 8;

/// A read that was begun.
pub(super) struct Flight {
    /// What it is for.
    read: ReadOrder,
    order: Order,
    /// It was read before and was not good enough.
    again: bool,
    tries: u32,
    begun: Instant,
    /// When it is to be looked at: reads of members only.
    pub(super) look_at: Option<Instant>,
    /// Members that have failed for this extent, as bits.
    failed: u32,
    /// Members that have given wrong bytes for it, as bits.
    wrong: u32,
    /// Members that have not answered this order in time, as bits.
    late: u32,
    /// [`Care::returns`](super::care::Care::returns) when the order was made.
    returns: u64,
}

impl Flight {
    fn new(now: Instant, read: ReadOrder, order: Order) -> Self {
        let (begun, look_at, again, tries) = (now, None, false, 1);
        Self { read, order, again, tries, begun, look_at, failed: 0, wrong: 0, late: 0, returns: 0 }
    }
}

impl Manager {
    /// Begins what the policy wants to be read. Gives the number of reads begun.
    pub(super) fn begin_reads(&mut self, now: Instant) -> usize {
        let mut begun = 0;
        while let Some(place) = self.free_places.pop() {
            let Some(read) = self.policy.next_read(now) else {
                self.free_places.push(place);
                break;
            };
            begun += 1;
            let order = read.title.order(read.key.extent, read.spare, self.care.view(now), false);
            self.care.refused(now, &read.title.take_refusals());
            match order {
                Ok(order) => self.begin_read(now, place, Flight::new(now, read, order)),
                Err(failure) => self.fail_read(now, place, read, (failure, self.care.view(now).lost)),
            }
        }
        begun
    }

    fn begin_read(&mut self, now: Instant, place: usize, mut flight: Flight) {
        self.reader.begin(now, place, &flight.order);
        let of_members = flight.order.spans.iter().any(|span| span.member.is_some());
        (flight.begun, flight.late, flight.returns) = (now, 0, self.care.returns());
        flight.look_at = of_members.then(|| now.plus_ns(LOOK_NS));
        self.flights[place] = Some(flight);
    }

    /// Reads the extent once more, from whom may be asked for it now.
    fn read_again(&mut self, now: Instant, place: usize, mut flight: Flight) {
        let view = self.view_for(now, &flight);
        let order = flight.read.title.order(flight.read.key.extent, flight.read.spare, view, flight.again);
        self.care.refused(now, &flight.read.title.take_refusals());
        match order {
            Ok(order) => {
                flight.order = order;
                flight.tries += 1;
                self.begin_read(now, place, flight);
            }
            Err(failure) => self.fail_read(now, place, flight.read, (failure, view.lost | flight.wrong)),
        }
    }

    /// Whom to ask for an extent that was tried before.
    fn view_for(&self, now: Instant, flight: &Flight) -> MemberView {
        let view = self.care.view(now);
        MemberView { lost: view.lost | flight.failed | flight.late, ..view }
    }

    /// One read has ended: builds the extent, or reads once more, or gives up.
    pub(super) fn take_read(&mut self, now: Instant, place: usize, mut flight: Flight) {
        let results = self.reader.results(place);
        self.counters.bytes_read.add(bytes_of(&flight.order, &results, true));
        self.counters.meta_bytes_read.add(bytes_of(&flight.order, &results, false));
        if refuses_direct(&flight.order, &results)
            && flight.read.title.may_direct()
            && flight.tries < MAX_TRIES
        {
            // The file could be opened for direct reads but does not take them.
            flight.read.title.refuse_direct();
            return self.read_again(now, place, flight);
        }
        let (extent, title) = (flight.read.fill.bytes_mut(), (flight.read.key.title, &*flight.read.title));
        let built = self.builder.assemble(title, &flight.order, &results, extent);
        let wrong = match built {
            Built::Done(filled) => filled.wrong,
            Built::More { wrong } | Built::Failed { wrong, .. } => wrong,
        };
        let blame = (wrong, flight.late);
        let failed = self.care.note(now, flight.read.key.title, &flight.order, &results, blame);
        if !self.policy.is_open(flight.read.key.title) {
            // It was closed while it was read.
            self.care.forget_title(flight.read.key.title);
        }
        let all_came = results.iter().all(Result::is_ok);
        let news = failed & !flight.failed != 0;
        flight.failed |= failed;
        flight.wrong |= wrong;
        let (outcome, again) = match built {
            Built::Done(filled) => {
                self.count_filled(&flight, &filled.content, filled.decoded_bytes);
                self.counters.sums_only.add(filled.sums_only.into());
                (Ok(filled.content), false)
            }
            Built::More { .. } => (Err(ReadFailure::Checksum), true),
            Built::Failed { failure: ReadFailure::Checksum, .. } => {
                (Err(ReadFailure::Checksum), !flight.again || news)
            }
            Built::Failed { failure, .. } => (Err(failure), news),
        };
        if !again || flight.tries >= MAX_TRIES {
            return match outcome {
                Ok(content) => self.end_read(now, place, flight, content),
                Err(failure) => {
                    let at_fault = flight.failed | flight.late | flight.wrong | flight.order.absent;
                    self.fail_read(now, place, flight.read, (failure, at_fault));
                }
            };
        }
        if all_came {
            // Memory or a cable may have been at fault, not the disk: read again, past what the kernel remembers.
            self.counters.retries.add(1);
            flight.order.spans.iter().for_each(forget_cached);
        }
        flight.again = true;
        self.read_again(now, place, flight);
    }

    fn count_filled(&self, flight: &Flight, content: &ExtentContent, decoded_bytes: u64) {
        let Order { absent, left_out, .. } = flight.order;
        if absent | left_out | flight.failed != 0 || decoded_bytes > 0 || content.spare > 0 {
            self.counters.degraded.add(1);
        }
        self.counters.decoded_bytes.add(decoded_bytes);
        self.counters.with_holes.add(u64::from(content.spare > 0));
    }

    /// An extent is there.
    fn end_read(&mut self, now: Instant, place: usize, flight: Flight, content: ExtentContent) {
        self.free_places.push(place);
        self.policy.finish(now, flight.read.key, flight.read.fill, Ok(content));
        if flight.returns != self.care.returns() && content.spare > 0 {
            // Those who waited make do with it; whoever comes now is to have what can be had now.
            self.policy.drop_holes();
        }
    }

    /// An extent cannot be had; `at_fault`: because of these members of the volume, as bits.
    fn fail_read(
        &mut self,
        now: Instant,
        place: usize,
        read: ReadOrder,
        (failure, at_fault): (ReadFailure, u32),
    ) {
        if failure != ReadFailure::OutOfRange {
            self.note_failure(&read, failure, at_fault);
        }
        self.free_places.push(place);
        self.policy.finish(now, read.key, read.fill, Err(failure));
    }

    fn note_failure(&self, read: &ReadOrder, failure: ReadFailure, at_fault: u32) {
        match failure {
            ReadFailure::Checksum => self.counters.checksum_errors.add(1),
            _ => self.counters.read_errors.add(1),
        }
        let (extent, source) = (read.key.extent, read.title.source());
        let mut members = Vec::new();
        let path = match source.members() {
            Some((rows, files)) => {
                members.extend((0..rows.members()).map(|position| files.slot(position)));
                members.retain(|&slot| at_fault & bit(slot) != 0);
                None
            }
            None => Some(source.data_path().to_path_buf()),
        };
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

    /// Looks after reads of many members that take long. Gives the number of those given up: never one of which nothing is
    /// missing, which only waits to be taken.
    pub(super) fn look_after_reads(&mut self, now: Instant) -> usize {
        let mut given_up = 0;
        for place in 0..self.flights.len() {
            let due = |flight: &Flight| flight.look_at.is_some_and(|at| at <= now);
            let Some(mut flight) = self.flights[place].take_if(|flight| due(flight)) else { continue };
            flight.look_at = Some(now.plus_ns(LOOK_NS));
            if self.should_give_up(now, place, &mut flight) {
                given_up += 1;
                let owed = self.reader.give_up(place);
                self.care.given_up(flight.begun, &owed);
                self.counters.aside_bytes.set(self.reader.aside_bytes());
                self.take_read(now, place, flight);
            } else {
                self.flights[place] = Some(flight);
            }
        }
        given_up
    }

    fn should_give_up(&mut self, now: Instant, place: usize, flight: &mut Flight) -> bool {
        let missing = self.reader.unanswered(now, place);
        let view = self.care.view(now);
        // What waits for its turn behind others of a member that does not answer will not be answered either.
        let hopeless = missing.late | missing.queued & (view.lost | view.avoid);
        let news = missing.late & !flight.late;
        // Who was late and has answered meanwhile is as good as any other: what it gave is at hand. Where one has, others that are
        // as slow may be about to: they have until the next look.
        let came = flight.late & !missing.members != 0;
        flight.late = flight.late & missing.members | hopeless;
        if news != 0 {
            self.care.late(now, news);
        }
        if flight.late == 0 || came || self.reader.aside_bytes() + missing.bytes > MAX_ASIDE_BYTES {
            return false;
        }
        let others = flight.read.title.order(
            flight.read.key.extent,
            flight.read.spare,
            self.view_for(now, flight),
            true,
        );
        match others {
            Ok(order) if !is_missed(&flight.read.title, &order) => flight.tries < MAX_TRIES,
            // Nothing else can be read.
            _ if tolerance(&flight.read.title) == 0 => false,
            _ => now.ns_since(flight.begun) >= HUNG_NS,
        }
    }
}

/// Members of a title that may be lost.
fn tolerance(title: &OpenTitle) -> usize {
    title.source().members().map_or(0, |(rows, _)| rows.tolerance())
}

/// Whether what an order of a parity track leaves out is missed: film may have left with holes that nothing else repairs.
fn is_missed(title: &OpenTitle, order: &Order) -> bool {
    title.source().track() > 0 && order.left_out.count_ones() as usize > tolerance(title)
}

/// Bytes that were read of film (or parity) or of everything else, with what alignment adds.
fn bytes_of(order: &Order, results: &[SpanResult<'_>], film: bool) -> u64 {
    let is_film = |role| matches!(role, Role::Data { .. } | Role::Parity { .. });
    let spans =
        order.spans.iter().zip(results).filter(|(span, result)| is_film(span.role) == film && result.is_ok());
    let aligned = |bytes: &std::ops::Range<u64>| {
        bytes.end.next_multiple_of(ALIGN as u64) - bytes.start / ALIGN as u64 * ALIGN as u64
    };
    spans.map(|(span, _)| aligned(&span.bytes)).sum()
}

/// Whether a file that is open for direct reads does not take them.
fn refuses_direct(order: &Order, results: &[SpanResult<'_>]) -> bool {
    order.spans.iter().zip(results).any(|(span, result)| span.direct && *result == Err(libc::EINVAL))
}

#[cfg(test)]
#[path = "flights_tests.rs"]
mod tests;

//! Which spans of the members' files an extent needs: as little as possible while nothing is wrong, everything that survives of
//! its stripes otherwise.

use std::ops::Range;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::Instant;

use super::spare::{Missing, demanded};
use crate::cache::handle::ReadFailure;
use crate::cache::member_files::{FileTable, MemberFiles, OpenFile, TitleFile, first_copy, is_exhaustion};
use crate::cache::order::{ExtentQuery, MemberView, Order, Role, SpanFile, SpanOrder};
use crate::cache::source::{Geometry, OpenTitle, TitleMembers};
use crate::limits::cache::GAP_BYTES;
use crate::member_set::PositionSet;
use crate::meta::{CrcFile, MetaFile};
use crate::stripes::StripeLayout;

/// An order being made.
struct Maker<'a> {
    title: &'a OpenTitle,
    table: &'a FileTable,
    files: &'a dyn MemberFiles,
    stripes: StripeLayout,
    direct: bool,
    /// Positions that cannot be asked.
    lost: PositionSet,
    /// Positions that are asked only if it does not work without them.
    avoided: PositionSet,
    /// Positions that are asked for data and parity only: records on them may be older.
    units_only: PositionSet,
    /// Positions whose packets are each read separately.
    pieces: PositionSet,
    /// Every member that is not lost is asked for everything.
    all: bool,
    now: Instant,
    /// This process can open no more files: no member is to blame for a file not opened.
    exhausted: Option<i32>,
    order: Order,
}

/// What to read for an extent of media with member files.
pub(super) fn media(
    title: &OpenTitle,
    members: TitleMembers<'_>,
    query: ExtentQuery,
) -> Result<Order, ReadFailure> {
    order(title, members, query, |maker| {
        maker.look_at_members(query.view, true);
        maker.media()
    })
}

/// What to read for an extent of the parity track with this number.
pub(super) fn track(
    title: &OpenTitle,
    members: TitleMembers<'_>,
    number: u8,
    query: ExtentQuery,
) -> Result<Order, ReadFailure> {
    order(title, members, query, |maker| {
        maker.look_at_members(query.view, false);
        maker.track(number)
    })
}

fn order<'a>(
    title: &'a OpenTitle,
    TitleMembers { stripes, files, table }: TitleMembers<'a>,
    ExtentQuery { extent, spare, view, thorough }: ExtentQuery,
    make: impl FnOnce(&mut Maker<'a>) -> Result<(), ReadFailure>,
) -> Result<Order, ReadFailure> {
    let direct = title.may_direct();
    let order = Order { thorough: thorough || view.all, all: view.all, ..Order::empty(extent, spare) };
    let MemberView { now, all, .. } = view;
    let mut maker = Maker {
        title,
        table,
        files,
        stripes,
        direct,
        lost: PositionSet::EMPTY,
        avoided: PositionSet::EMPTY,
        units_only: PositionSet::EMPTY,
        pieces: PositionSet::EMPTY,
        all,
        now,
        exhausted: None,
        order,
    };
    let made = make(&mut maker);
    // An order to all members is the last one, and it lacks the files that could not be opened.
    let is_short = view.all && maker.order.left_out.len() > stripes.tolerance();
    match (made, maker.exhausted) {
        (Ok(()), Some(errno)) if is_short => Err(ReadFailure::Io(errno)),
        (Ok(()), _) => Ok(maker.order),
        (Err(ReadFailure::MembersLost { .. } | ReadFailure::Io(_)), Some(errno)) => {
            Err(ReadFailure::Io(errno))
        }
        (Err(failure), _) => Err(failure),
    }
}

/// The part of `bytes` of the title that lies on a position: one range of its data file.
pub(super) fn data_span(stripes: &StripeLayout, position: usize, bytes: &Range<u64>) -> Range<u64> {
    let (end, unit_bytes) = (bytes.end.min(stripes.media_bytes()), stripes.unit_bytes() as u64);
    let touched = stripes.stripes_of(bytes);
    let start_of =
        |stripe: u32, unit: usize| u64::from(stripe) * stripes.stripe_bytes() + unit as u64 * unit_bytes;
    let here = |stripe: u32| {
        let units = stripes.units_on(position, stripe).take_while(|&unit| unit < stripes.k());
        units.map(move |unit| (stripe, unit, start_of(stripe, unit)))
    };
    let is_touched = |&(_, _, start): &(u32, usize, u64)| start < end && start + unit_bytes > bytes.start;
    // Each position has each unit once in as many stripes as there are members: no search is longer.
    let first = touched.clone().flat_map(here).find(is_touched);
    let last = touched.rev().find_map(|stripe| here(stripe).filter(is_touched).last());
    let (Some((stripe, unit, start)), Some((last_stripe, last_unit, last_start))) = (first, last) else {
        return 0..0;
    };
    let skip = bytes.start.saturating_sub(start);
    stripes.offset_of(stripe, unit) + skip
        ..stripes.offset_of(last_stripe, last_unit) + unit_bytes.min(end - last_start)
}

impl Maker<'_> {
    fn positions(&self) -> Range<u16> {
        0..self.stripes.members() as u16
    }

    /// Records which members cannot be asked, or should rather not be. A member whose data file
    /// cannot be opened counts as lost; nothing else depends on missing parity.
    fn look_at_members(&mut self, view: MemberView, is_media: bool) {
        for position in self.positions() {
            let (place, slot) = (usize::from(position), self.files.slot(position.into()));
            if view.reopen.contains(slot) {
                self.table.reopen(place, self.now);
            }
            if self.all && !view.lost.contains(slot) {
                self.look_at_one_of_all(position, view.pieces.contains(slot));
            } else if view.lost.contains(slot) || !self.files.is_usable(place) {
                self.lost.insert(position);
            } else if is_media
                && self.stripes.data_file_bytes(place) > 0
                && self.open(position, TitleFile::Data).is_none()
            {
                self.lost.insert(position);
                self.order.absent.insert(slot);
            } else if view.avoid.contains(slot) {
                self.avoided.insert(position);
            }
        }
    }

    /// The same when all members are asked for everything: any member that is present may hold some
    /// of it, whatever else it lacks.
    fn look_at_one_of_all(&mut self, position: u16, pieces: bool) {
        let place = usize::from(position);
        match (self.files.is_usable(place), self.files.is_present(place)) {
            (true, _) => {}
            (false, true) => self.units_only.insert(position),
            (false, false) => self.lost.insert(position),
        }
        if pieces {
            self.pieces.insert(position);
        }
    }

    fn open(&mut self, position: u16, kind: TitleFile) -> Option<OpenFile> {
        match self.table.get(self.files, position.into(), (kind, self.direct), self.now) {
            Ok(file) => Some(file),
            Err(errno) => {
                self.exhausted = self.exhausted.or(errno.filter(|&errno| is_exhaustion(errno)));
                None
            }
        }
    }

    /// Adds a span, if it is not empty and the file can be opened.
    fn push(&mut self, position: u16, kind: TitleFile, role: Role, bytes: Range<u64>) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let slot = self.files.slot(position.into());
        let Some(open) = self.open(position, kind) else {
            self.order.absent.insert(slot);
            return false;
        };
        let (member, direct) = (Some(slot), open.direct);
        let file = SpanFile::own(open.file, open.may_wait);
        let piece = match role.is_units() && self.pieces.contains(position) {
            true => DEFAULT_PACKET_BYTES as u64,
            false => bytes.end - bytes.start,
        };
        // Units are whole packets, but for the title's last.
        for start in bytes.clone().step_by(piece as usize) {
            let (file, bytes) = (file.clone(), start..(start + piece).min(bytes.end));
            self.order.spans.push(SpanOrder { role, member, file, direct, bytes, joined: false });
        }
        true
    }

    fn media(&mut self) -> Result<(), ReadFailure> {
        let geometry = self.title.geometry(self.order.extent).ok_or(ReadFailure::OutOfRange)?;
        let touched = self.stripes.stripes_of(&geometry.data);
        let spans: Vec<_> = self
            .positions()
            .map(|position| data_span(&self.stripes, position.into(), &geometry.read))
            .collect();
        self.choose(&spans, &touched, &geometry.read)?;
        if !self.order.thorough {
            for (position, bytes) in self.positions().zip(spans) {
                if !self.order.left_out.contains(position) {
                    self.push(position, TitleFile::Data, Role::Data { position }, bytes);
                }
            }
            self.crcs(TitleFile::Crcs, Role::Crcs, geometry.crcs.clone());
            return self.records(&geometry);
        }
        let unasked = self.lost | self.avoided;
        for position in self.positions().filter(|&position| !unasked.contains(position)) {
            let place = usize::from(position);
            let (data, parity) = (
                self.stripes.data_range(place, touched.clone()),
                self.stripes.parity_range(place, touched.clone()),
            );
            if !self.push(position, TitleFile::Data, Role::Data { position }, data) {
                self.order.left_out.insert(position);
            }
            self.push(position, TitleFile::Parity, Role::Parity { position }, parity);
        }
        self.records(&geometry)?;
        self.stripe_records(&touched, touched.end)?;
        if self.title.source().has_crcs() {
            let (first, packets) = self.stripes.media_records(&touched);
            self.crcs(TitleFile::Crcs, Role::Crcs, CrcFile::block_range(first, packets));
        }
        Ok(())
    }

    /// Decides between reading the extent's data, the same without the data that the viewer
    /// repairs, and everything; sets `thorough` and `left_out`. Avoided members are left out as
    /// long as this works, but viewers repair only lost data: data that can be decoded or read late
    /// is sent, which leaves viewers their parity for losses on the network.
    fn choose(
        &mut self,
        spans: &[Range<u64>],
        touched: &Range<u32>,
        media: &Range<u64>,
    ) -> Result<(), ReadFailure> {
        let is_needed =
            |out: PositionSet| spans.iter().zip(0..).any(|(span, at)| !span.is_empty() && out.contains(at));
        if self.all {
            self.order.left_out = self.lost;
            return if self.can_be_had(touched, media) { Ok(()) } else { Err(self.members_lost()) };
        }
        // FEC is for default-size packets.
        let repairs = self.title.layout().packet_bytes() == DEFAULT_PACKET_BYTES && self.order.spare > 0;
        for out in [self.lost | self.avoided, self.lost] {
            let without = !self.order.thorough
                && (!is_needed(out)
                    || repairs
                        && out == self.lost
                        && demanded(&self.stripes, touched, out)
                            .is_some_and(|spare| spare <= self.order.spare));
            let decodes = out.len() <= self.stripes.tolerance() || !is_needed(out);
            if without || decodes {
                self.order.left_out = out;
                self.order.thorough |= !without;
                self.avoided = self.avoided & out;
                return Ok(());
            }
        }
        Err(self.members_lost())
    }

    /// Returns whether each codeword has enough symbols on the members that are asked, provided
    /// they return the data they hold.
    fn can_be_had(&self, touched: &Range<u32>, media: &Range<u64>) -> bool {
        let (stripes, unit_bytes) = (&self.stripes, self.stripes.unit_bytes() as u64);
        let is_gone = |stripe: u32, unit: usize| self.lost.contains(stripes.position_of(stripe, unit) as u16);
        let is_needed = |stripe: u32, unit: usize| {
            let start = u64::from(stripe) * stripes.stripe_bytes() + unit as u64 * unit_bytes;
            start < media.end && start + unit_bytes > media.start
        };
        touched.clone().all(|stripe| {
            let missing = Missing::of_stripe(stripes, stripe, self.lost);
            missing.data + missing.parity <= stripes.m()
                || !(0..stripes.k()).any(|unit| is_needed(stripe, unit) && is_gone(stripe, unit))
        })
    }

    fn members_lost(&self) -> ReadFailure {
        let (lost, may) = (self.lost.len() as u8, self.stripes.tolerance() as u8);
        ReadFailure::MembersLost { lost, may }
    }

    /// Records of the extent's packets.
    fn records(&mut self, geometry: &Geometry) -> Result<(), ReadFailure> {
        self.copies(TitleFile::Meta, Role::Meta, geometry.meta.clone())?;
        self.copies(TitleFile::Sums, Role::Sums, geometry.sums.clone())
    }

    /// Records of all packets of stripes `touched.start..to`, as far as there are, and of the parity of the stripes touched.
    fn stripe_records(&mut self, touched: &Range<u32>, to: u32) -> Result<(), ReadFailure> {
        let (first, packets) = self.stripes.media_records(&(touched.start..to));
        self.copies(TitleFile::StripeMeta, Role::StripeMeta, MetaFile::block_range(first, packets))?;
        let (first, packets) = self.stripes.parity_records(touched);
        self.copies(TitleFile::ParityMeta, Role::ParityMeta, MetaFile::block_range(first, packets))?;
        if self.title.source().has_crcs() {
            self.crcs(TitleFile::ParityCrcs, Role::ParityCrcs, CrcFile::block_range(first, packets));
        }
        Ok(())
    }

    /// Adds the CRCs if they are available: without them the sums are still there.
    fn crcs(&mut self, kind: TitleFile, role: Role, bytes: Range<u64>) {
        let _ = self.copies(kind, role, bytes);
    }

    /// Records are the same on every member: they are read from one of them, always the same as long as that works, or from
    /// enough of them that one is good, or from all.
    fn copies(&mut self, kind: TitleFile, role: Role, bytes: Range<u64>) -> Result<(), ReadFailure> {
        let wanted = match (self.all, self.order.thorough) {
            (true, _) => self.stripes.members(),
            (false, true) => (self.stripes.tolerance() + 1).max(2),
            (false, false) => 1,
        };
        let members = self.stripes.members() as u16;
        let home = first_copy(self.title.source().id(), members.into()) as u16;
        let (mut got, mut failed) = (0, false);
        for slow in [false, true] {
            for position in (0..members).map(|step| (home + step) % members) {
                let is_slow = self.avoided.contains(position);
                if got < wanted && is_slow == slow && !(self.lost | self.units_only).contains(position) {
                    let pushed = self.push(position, kind, role, bytes.clone());
                    got += usize::from(pushed);
                    failed |= !pushed;
                }
            }
        }
        match (got, failed) {
            (0, true) => Err(ReadFailure::Io(libc::ENOENT)),
            (0, false) => Err(self.members_lost()),
            _ => Ok(()),
        }
    }

    /// Orders the parity units of the stripes that make up an extent of a parity track. Unreadable
    /// units are left out: nothing is computed in their place.
    fn track(&mut self, track: u8) -> Result<(), ReadFailure> {
        let units = self.stripes.spread().parities(track);
        let touched = self.title.packets_of(self.order.extent).ok_or(ReadFailure::OutOfRange)?;
        let touched = self.stripes.track_stripes(track, &touched);
        // Media is sent with holes that its viewers repair from this parity. As for media, members
        // that are only avoided are asked as soon as the others do not make up for them.
        let out = self.lost | self.avoided;
        let does = out.len() <= self.stripes.tolerance() && !self.all;
        let out = if does { out } else { self.lost };
        self.order.left_out = out;
        let mut runs: Vec<Option<Range<u64>>> = vec![None; self.stripes.members()];
        let k = self.stripes.k();
        for (stripe, unit) in
            touched.clone().flat_map(|stripe| units.clone().map(move |parity| (stripe, k + parity)))
        {
            let position = self.stripes.position_of(stripe, unit);
            let start = self.stripes.offset_of(stripe, unit);
            let end = start + self.stripes.unit_bytes() as u64;
            match &mut runs[position] {
                Some(run) if start - run.end < GAP_BYTES => run.end = end,
                run => {
                    if let Some(bytes) = run.replace(start..end) {
                        self.push_parity(position as u16, bytes);
                    }
                }
            }
        }
        for (position, run) in (0u16..).zip(runs) {
            if let Some(bytes) = run {
                self.push_parity(position, bytes);
            }
        }
        self.stripe_records(&touched, touched.end + 1)
    }

    fn push_parity(&mut self, position: u16, bytes: Range<u64>) {
        if !self.order.left_out.contains(position) {
            self.push(position, TitleFile::Parity, Role::Parity { position }, bytes);
        }
    }
}

#[cfg(test)]
#[path = "needs_tests.rs"]
mod tests;

//! Titles for fast forward, rewind and slow motion, made of another title and kept beside it.
//!
//! ```text
//!  volume ► source ► scan (pictures, units, h264, h265, mpeg2) ► plan ► picture by picture: source ► rewrite ► mux ► indexer ► writer
//!           verified  one pass: where pictures are                 which, when                       40 ms slots    as an ingest
//! ```
//!
//! A derived title (`volume/derived.rs`) has the pictures of its parent at other times, and no
//! audio. Fast and backwards it shows pictures that can be decoded alone; up to twice as fast all
//! that others refer to, if these fit; slowly all. Its rate is never above the parent's peak, and
//! it has no picture that is damaged in the parent. `docs/design/0025-trick-titles.md` explains
//! why.

pub(crate) mod alone;
mod error;
mod h265;
mod mpeg2;
mod mux;
pub(crate) mod pace;
mod pictures;
mod plan;
mod scan;
mod source;

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::scale::Scale;
use millrace_core::units::{ByteLen, Count};
use millrace_media::codec::VideoSyntax;
use millrace_media::{h264, units};
use millrace_store::StoreError;
use millrace_store::volume::{Derived, FinishTitle, TitleInfo, TitleWriter, Volume};

pub use self::error::TrickError;
use self::mux::Mux;
use self::pace::{SlotCapacity, slot_of, slots_of};
use self::plan::{How, Order, ShownPicture, TrickPlan};
use self::scan::{Scanned, scan};
use self::source::PacketSource;
use crate::ingest::indexer::Indexer;
use crate::ingest::{Indexed, StreamError};

/// How far the making of derived titles is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrickProgress {
    /// The parent is being read: the bytes read.
    Reading(u64),
    /// The title of this speed is being written: the pictures written, and their total.
    Writing(Scale, u64, u64),
}

/// Result for one requested speed.
#[derive(Debug)]
pub struct SpeedResult {
    /// The speed.
    pub scale: Scale,
    /// The title; `None` if it was there already.
    pub result: Result<Option<TitleInfo>, TrickError>,
}

/// Makes titles of these speeds from `parent`, except those that exist already. The parent is read
/// once; then each speed is made complete, durable and visible before the next begins. `tell`
/// receives the progress; `cancel` stops it within a fraction of a second.
///
/// # Errors
/// If nothing can be made of the parent at any speed; the error of a single speed is in its
/// [`SpeedResult`].
pub fn make(
    volume: &Volume,
    parent: &TitleInfo,
    scales: &[Scale],
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(TrickProgress),
) -> Result<Vec<SpeedResult>, TrickError> {
    build(volume, parent, scales, cancel, tell, None)
}

/// The same for one speed that a viewer has requested: the title is marked as made on use. Before
/// anything is written, `room` is called to find out whether there is space for this many bytes on
/// all members together.
///
/// # Errors
/// As [`make`], and [`TrickError::NoSpace`] if `room` refuses.
pub fn make_on_use(
    volume: &Volume,
    parent: &TitleInfo,
    scale: Scale,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(TrickProgress),
    room: &mut dyn FnMut(u64) -> bool,
) -> Result<Option<TitleInfo>, TrickError> {
    let mut made = build(volume, parent, &[scale], cancel, tell, Some(room))?;
    made.pop().map_or(Ok(None), |made| made.result)
}

/// Called to find out whether there is space for this many bytes.
type AskRoom<'a> = Option<&'a mut dyn FnMut(u64) -> bool>;

fn build(
    volume: &Volume,
    parent: &TitleInfo,
    scales: &[Scale],
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(TrickProgress),
    mut room: AskRoom<'_>,
) -> Result<Vec<SpeedResult>, TrickError> {
    if parent.derived.is_some() {
        return Err(TrickError::Derived);
    }
    let found = volume.speeds_of(parent.id)?;
    // A title that was made for viewers is now requested by another caller, and stays.
    let is_wanted = |scale: &Scale, info: &TitleInfo| {
        scales.contains(scale) && info.derived.is_some_and(|derived| derived.on_use)
    };
    if room.is_none() {
        let mut wanted = found.iter().filter(|(scale, info)| is_wanted(scale, info));
        wanted.try_for_each(|(_, info)| volume.keep(info.id))?;
    }
    let there: Vec<Scale> = found.into_iter().map(|(scale, _)| scale).collect();
    let is_missing = |scale: &&Scale| !there.contains(scale) && !scale.is_normal();
    let needs_all = |scale: &Scale| (25..=200).contains(&scale.hundredths());
    let missing: Vec<Scale> = scales.iter().filter(is_missing).copied().collect();
    let mut source = PacketSource::open(volume, parent.id)?;
    let scanned = match missing.is_empty() {
        true => None,
        false => {
            let all = missing.iter().any(needs_all);
            let mut go_on = |bytes| {
                tell(TrickProgress::Reading(bytes));
                !cancel.load(Ordering::Relaxed)
            };
            Some(scan(&mut source, all, &mut go_on)?)
        }
    };
    let mut made: Vec<SpeedResult> = Vec::new();
    for &scale in scales {
        if made.iter().any(|made| made.scale == scale) {
            continue;
        }
        let result = match &scanned {
            _ if scale.is_normal() => Err(TrickError::Normal),
            Some(scanned) if missing.contains(&scale) => {
                let derived = Derived { on_use: room.is_some(), ..Derived::at_speed(parent.id, scale) };
                let mut making = Making { volume, parent, derived, scanned, source: &mut source, cancel };
                making.make(tell, &mut room).map(Some)
            }
            _ => Ok(None),
        };
        let is_over = matches!(result, Err(TrickError::Cancelled));
        made.push(SpeedResult { scale, result });
        if is_over {
            break;
        }
    }
    Ok(made)
}

/// One derived title being made.
struct Making<'a> {
    volume: &'a Volume,
    parent: &'a TitleInfo,
    derived: Derived,
    scanned: &'a Scanned,
    source: &'a mut PacketSource,
    cancel: &'a AtomicBool,
}

impl Making<'_> {
    fn make(
        &mut self,
        tell: &mut dyn FnMut(TrickProgress),
        room: &mut AskRoom<'_>,
    ) -> Result<TitleInfo, TrickError> {
        let (parent, derived) = (self.parent, self.derived);
        let no_room = || TrickError::NoRoom { peak: parent.peak_rate, scale: derived.scale() };
        let shape = SlotCapacity::below(parent.peak_rate).ok_or_else(no_room)?;
        let (parent_duration, peak) = (parent.duration, parent.peak_rate);
        let order = Order { scanned: self.scanned, derived, parent_duration, peak, shape };
        let plan = order.plan()?;
        let bytes = self.volume.bytes_to_store(order.most_bytes(&plan), self.packet_sizes().len());
        if room.as_mut().is_some_and(|room| !room(bytes)) {
            return Err(TrickError::NoSpace(ByteLen(bytes)));
        }
        let mut writer = TitleWriter::begin(self.volume, &parent.packet_sizes)?;
        let indexed = self.write(&plan, shape, &mut writer, tell)?;
        // The plan makes sure of it; a title that broke this rule would cost other viewers their room.
        if indexed.peak_rate > parent.peak_rate {
            return Err(no_room());
        }
        let duration = derived.duration(parent.duration).max(indexed.duration);
        // Shown to its end, also where the last picture is over before.
        let (bases, end) = (indexed.index.bases().to_vec(), indexed.index.parts().end);
        let title = indexed.finish(String::new(), parent.source.clone());
        let index = title.index.with_presentation(bases, end.map(|end| end.max(duration)));
        Ok(writer.commit(FinishTitle {
            duration,
            index: index.map_err(StoreError::from)?,
            notes: vec![note(&plan)],
            derived: Some(derived),
            ..title
        })?)
    }

    fn write(
        &mut self,
        plan: &TrickPlan,
        shape: SlotCapacity,
        writer: &mut TitleWriter,
        tell: &mut dyn FnMut(TrickProgress),
    ) -> Result<Indexed, TrickError> {
        let mut mux = Mux::new(&self.scanned.program, shape, plan.delay);
        let mut indexer = Indexer::new(&self.packet_sizes(), false, true);
        let (mut picture, mut rewritten) = (Vec::new(), Vec::new());
        let total = plan.shown.len() as u64;
        let mut written = 0;
        for (done, shown) in (0u64..).zip(&plan.shown) {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(TrickError::Cancelled);
            }
            tell(TrickProgress::Writing(self.derived.scale(), done, total));
            let found = &self.scanned.pictures[shown.number].found;
            self.source.picture(found, &mut picture)?;
            mux.advance_to(slot_of(shown.dts));
            match plan.how {
                How::Key if self.alone(shown, written, &picture, &mut rewritten) => {
                    written += 1;
                    mux.picture(&rewritten, shown.pts, shown.dts, true);
                }
                // One whose slices turn out to be damaged is left out.
                How::Key => {}
                How::Thinned | How::All => mux.picture(&picture, shown.pts, shown.dts, found.is_access),
            }
            index(&mut indexer, &mut mux, writer)?;
        }
        let slots = slots_of(self.derived.duration(self.parent.duration));
        while mux.slot() + 1 < slots {
            mux.advance_to((mux.slot() + 1000).min(slots - 1));
            index(&mut indexer, &mut mux, writer)?;
        }
        indexer.finish(writer).map_err(stream_error)
    }

    fn packet_sizes(&self) -> Vec<u16> {
        let default = DEFAULT_PACKET_BYTES as u16;
        let others = self.parent.packet_sizes.iter().copied().filter(|&size| size != default);
        std::iter::once(default).chain(others).collect()
    }

    /// Writes the picture to `out` as one that may follow any other. `number` distinguishes it from
    /// its neighbours.
    fn alone(&self, shown: &ShownPicture, number: u32, picture: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let found = &self.scanned.pictures[shown.number].found;
        let parameters = found.alone.and_then(|number| self.scanned.parameters.get(usize::from(number)));
        let Some(parameters) = parameters else { return false };
        let second = picture.get(found.second as usize..).filter(|_| found.second > 0);
        let first = &picture[..if second.is_some() { found.second as usize } else { picture.len() }];
        match (self.scanned.program.syntax, &parameters.h264) {
            (VideoSyntax::H264, Some((sps, pps))) => {
                out.extend(h264::DELIMITER);
                out.extend_from_slice(&parameters.bytes);
                let is_whole = h264::rewrite_picture(first, second, sps, pps, number & 1, out).is_some();
                out.extend(h264::END);
                is_whole
            }
            (VideoSyntax::H265, _) => {
                out.extend(h265::DELIMITER);
                out.extend_from_slice(&parameters.bytes);
                units::split(picture).for_each(|nal| h265::rewrite(units::trimmed(nal), out));
                out.extend(h265::END);
                true
            }
            (VideoSyntax::Mpeg2, _) => {
                out.extend_from_slice(&parameters.bytes);
                mpeg2::rewrite(picture, out);
                out.extend(mpeg2::END);
                true
            }
            _ => false,
        }
    }
}

fn index(indexer: &mut Indexer, mux: &mut Mux, writer: &mut TitleWriter) -> Result<(), TrickError> {
    let out = mux.take();
    indexer.run(out, false, writer).map_err(stream_error)?;
    out.clear();
    Ok(())
}

/// The stream was made here: nothing but the store can be wrong with it.
fn stream_error(error: StreamError) -> TrickError {
    match error {
        StreamError::Store(error) => TrickError::Store(error),
        other => TrickError::Stream(Box::new(other)),
    }
}

fn note(plan: &TrickPlan) -> String {
    let shown = plan.shown.chunk_by(|one, next| one.number == next.number).count() as u64;
    match plan.how {
        How::Key if plan.dropped > 0 => format!(
            "{}; {} left out where they come too fast for the peak rate or the eye",
            Count(shown, "key picture"),
            plan.dropped
        ),
        How::Key => Count(shown, "key picture").to_string(),
        How::Thinned => format!("{}: all that others refer to", Count(shown, "picture")),
        How::All => format!("all {}", Count(shown, "picture")),
    }
}

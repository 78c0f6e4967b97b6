//! The state of each stream: its position and the extents it waits for.

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::limits::{AGAIN_PLACES, MAX_STREAMS_PER_ENGINE};

use super::plan::{ExtentKey, Waiter};
use super::playheads::{Ns, PlayheadPosition, StreamKey};
use crate::limits::MAX_WANTS_PER_STREAM;

/// Where a stream's playhead is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// In which title.
    pub(super) title: TitleRef,
    /// Where in it.
    pub(super) place: PlayheadPosition,
}

/// Requirements of one run of a stream on an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExtentNeed {
    /// The run: its wants are not those of another, even for the same extent.
    pub(super) run: RunSerial,
    /// By when.
    pub(super) by: Ns,
    /// Packets of one codeword that it can do without.
    pub(super) spare: u8,
    /// Place in the extent of the first packet that it needs.
    pub(super) place: u16,
}

/// A want that has not been answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PendingWant {
    key: ExtentKey,
    serial: u64,
    need: ExtentNeed,
}

impl PendingWant {
    fn is(&self, key: ExtentKey, serial: u64) -> bool {
        self.key == key && self.serial == serial
    }
}

#[derive(Clone, Debug, Default)]
struct StreamWants {
    generation: u32,
    /// Unanswered wants, oldest first.
    open: [Option<PendingWant>; MAX_WANTS_PER_STREAM],
    head: Option<Head>,
    /// Packets of one codeword that it can do without: the maximum of all its requests. It may want
    /// one extent whole because it does not receive all stripes of the extent; this does not apply
    /// to the extents after it.
    spare: u8,
    /// Up to where the title was read ahead for this playhead.
    ahead_end: u32,
    /// Which timer of this stream is the valid one.
    timer: u32,
}

/// The streams of all engines. Grows with the largest index in use, up to [`MAX_STREAMS_PER_ENGINE`] and [`AGAIN_PLACES`] per engine.
#[derive(Debug)]
pub(super) struct StreamTable {
    handles: Vec<Vec<Option<StreamWants>>>,
    /// Serial number of the last request of all streams. It never repeats, even when one stream
    /// takes the place of another.
    serial: u64,
}

impl StreamTable {
    /// Creates an empty table for `handles` engines.
    pub(super) fn new(handles: usize) -> Self {
        Self { handles: vec![Vec::new(); handles], serial: 0 }
    }

    fn get(&self, key: StreamKey) -> Option<&StreamWants> {
        self.handles.get(usize::from(key.handle))?.get(key.index as usize)?.as_ref()
    }

    fn get_mut(&mut self, key: StreamKey) -> Option<&mut StreamWants> {
        self.handles.get_mut(usize::from(key.handle))?.get_mut(key.index as usize)?.as_mut()
    }

    /// Generation of the stream known under this key.
    pub(super) fn generation(&self, key: StreamKey) -> Option<u32> {
        self.get(key).map(|stream| stream.generation)
    }

    /// Notes a stream, if it is not known yet, and how many packets of a codeword it can do without. `false`: the key is beyond
    /// the limit.
    pub(super) fn enter(&mut self, key: StreamKey, generation: u32, spare: u8) -> bool {
        let Some(handle) = self.handles.get_mut(usize::from(key.handle)) else { return false };
        let index = key.index as usize;
        if index >= MAX_STREAMS_PER_ENGINE + AGAIN_PLACES {
            return false;
        }
        if index >= handle.len() {
            handle.resize_with(index + 1, || None);
        }
        let stream =
            handle[index].get_or_insert_with(|| StreamWants { generation, ..StreamWants::default() });
        stream.spare = stream.spare.max(spare);
        true
    }

    /// Packets of one codeword that the stream can do without.
    pub(super) fn spare(&self, key: StreamKey) -> u8 {
        self.get(key).map_or(0, |stream| stream.spare)
    }

    /// Removes a stream. Returns its playhead and the requests it was waiting for.
    pub(super) fn remove(
        &mut self,
        key: StreamKey,
    ) -> (Option<Head>, impl Iterator<Item = ExtentKey> + use<>) {
        let handle = self.handles.get_mut(usize::from(key.handle));
        let stream = handle.and_then(|handle| handle.get_mut(key.index as usize)).and_then(Option::take);
        let stream = stream.unwrap_or_default();
        (stream.head, stream.open.into_iter().flatten().map(|open| open.key))
    }

    /// Every stream of one engine.
    pub(super) fn of_handle(&self, handle: u16) -> Vec<StreamKey> {
        let streams = self.handles.get(usize::from(handle)).map_or(&[][..], Vec::as_slice);
        let known = streams.iter().enumerate().filter(|(_, stream)| stream.is_some());
        known.map(|(index, _)| StreamKey { handle, index: index as u32 }).collect()
    }

    /// The stream's playhead.
    pub(super) fn head(&self, key: StreamKey) -> Option<Head> {
        self.get(key)?.head
    }

    /// Moves the stream's playhead; returns where it was.
    pub(super) fn set_head(&mut self, key: StreamKey, head: Option<Head>) -> Option<Head> {
        let stream = self.get_mut(key)?;
        std::mem::replace(&mut stream.head, head)
    }

    /// If this run of the stream already waits for this extent, replaces its need.
    pub(super) fn rewant(&mut self, key: StreamKey, extent: ExtentKey, need: ExtentNeed) -> bool {
        let Some(stream) = self.get_mut(key) else { return false };
        let same = |open: &&mut PendingWant| open.key == extent && open.need.run == need.run;
        stream.open.iter_mut().flatten().find(same).map(|open| open.need = need).is_some()
    }

    /// Notes a want that cannot be answered yet. Returns its waiter, and the want that had to give way if the stream
    /// has more of them than it may: after several seeks, the oldest is of no use to it.
    pub(super) fn wait(
        &mut self,
        key: StreamKey,
        extent: ExtentKey,
        need: ExtentNeed,
    ) -> Option<(Waiter, Option<ExtentKey>)> {
        self.serial += 1;
        let serial = self.serial;
        let stream = self.get_mut(key)?;
        let displaced = stream.open[MAX_WANTS_PER_STREAM - 1].is_some().then(|| stream.open[0]).flatten();
        if displaced.is_some() {
            stream.open[0] = None;
        }
        close_gaps(&mut stream.open);
        let open = PendingWant { key: extent, serial, need };
        *stream.open.iter_mut().find(|place| place.is_none())? = Some(open);
        let id = StreamId { index: key.index, generation: stream.generation };
        let waiter = Waiter { handle: key.handle, stream: id, serial };
        Some((waiter, displaced.map(|open| open.key)))
    }

    fn open(&self, extent: ExtentKey, waiter: &Waiter) -> Option<&PendingWant> {
        let key = StreamKey { handle: waiter.handle, index: waiter.stream.index };
        self.get(key)?.open.iter().flatten().find(|open| open.is(extent, waiter.serial))
    }

    /// Whether a waiter still waits.
    pub(super) fn is_waiting(&self, extent: ExtentKey, waiter: &Waiter) -> bool {
        self.open(extent, waiter).is_some()
    }

    /// Returns a waiter's need for the extent; `None` if it no longer waits.
    pub(super) fn needs(&self, extent: ExtentKey, waiter: &Waiter) -> Option<ExtentNeed> {
        self.open(extent, waiter).map(|open| open.need)
    }

    /// Takes back a waiter's want, which is about to be answered. `None`: it does not wait any more.
    pub(super) fn answered(&mut self, extent: ExtentKey, waiter: &Waiter) -> Option<ExtentNeed> {
        let key = StreamKey { handle: waiter.handle, index: waiter.stream.index };
        let stream = self.get_mut(key)?;
        let is_it = |open: &Option<PendingWant>| open.is_some_and(|open| open.is(extent, waiter.serial));
        let open = stream.open.iter_mut().find(|open| is_it(open))?.take();
        close_gaps(&mut stream.open);
        open.map(|open| open.need)
    }

    /// Up to where was read ahead for this playhead.
    pub(super) fn ahead_end(&self, key: StreamKey) -> u32 {
        self.get(key).map_or(0, |stream| stream.ahead_end)
    }

    /// Notes up to where was read ahead, and makes all timers of this stream but the returned one invalid.
    pub(super) fn set_ahead_end(&mut self, key: StreamKey, end: u32) -> Option<u32> {
        let stream = self.get_mut(key)?;
        stream.ahead_end = end;
        stream.timer = stream.timer.wrapping_add(1);
        Some(stream.timer)
    }

    /// Whether this is the stream's valid timer.
    pub(super) fn is_timer(&self, key: StreamKey, timer: u32) -> bool {
        self.get(key).is_some_and(|stream| stream.timer == timer)
    }
}

/// Moves the entries to the front, in the same order.
fn close_gaps(open: &mut [Option<PendingWant>]) {
    let mut kept = 0;
    for i in 0..open.len() {
        if open[i].is_some() {
            open.swap(kept, i);
            kept += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamKey = StreamKey { handle: 0, index: 3 };

    fn extent(extent: u32) -> ExtentKey {
        ExtentKey { title: TitleRef(1), extent }
    }

    fn need(by: Ns) -> ExtentNeed {
        ExtentNeed { run: RunSerial(1), by, spare: 0, place: 0 }
    }

    #[test]
    fn want_counts_until_answered_displaced_or_removed() {
        let mut streams = StreamTable::new(1);
        assert!(streams.enter(STREAM, 7, 0));
        let (first, none) = streams.wait(STREAM, extent(0), need(5)).unwrap();
        assert_eq!((none, first.stream.generation), (None, 7));
        let waiters: Vec<_> = (1..MAX_WANTS_PER_STREAM as u32)
            .map(|e| streams.wait(STREAM, extent(e), need(6)).unwrap())
            .collect();
        assert!(waiters.iter().all(|(_, displaced)| displaced.is_none()));
        assert!(streams.is_waiting(extent(0), &first));
        let (_, displaced) = streams.wait(STREAM, extent(99), need(7)).unwrap();
        assert_eq!(displaced, Some(extent(0)));
        assert_eq!(streams.answered(extent(0), &first), None, "displaced");
        assert!(streams.rewant(STREAM, extent(1), need(4)));
        assert_eq!(streams.answered(extent(1), &waiters[0].0), Some(need(4)));
        assert_eq!(streams.answered(extent(1), &waiters[0].0), None, "answered twice");
        let (_, displaced) = streams.wait(STREAM, extent(1), need(8)).unwrap();
        assert_eq!(displaced, None, "there was room again");
        assert!(!streams.is_waiting(extent(1), &waiters[0].0), "an older want for the same extent");
        let (head, waited) = streams.remove(STREAM);
        assert_eq!((head, waited.count()), (None, MAX_WANTS_PER_STREAM));
        assert!(!streams.rewant(STREAM, extent(99), need(9)));
    }

    /// A run and the one that is queued behind it may both need the same extent, one of them whole.
    #[test]
    fn wants_of_different_runs_are_answered_apart() {
        let mut streams = StreamTable::new(1);
        assert!(streams.enter(STREAM, 7, 0));
        let (first, _) = streams.wait(STREAM, extent(0), ExtentNeed { spare: 2, ..need(5) }).unwrap();
        let next = ExtentNeed { run: RunSerial(2), ..need(6) };
        assert!(!streams.rewant(STREAM, extent(0), next), "another run waits for it");
        let (second, _) = streams.wait(STREAM, extent(0), next).unwrap();
        assert!(streams.rewant(STREAM, extent(0), ExtentNeed { by: 3, ..next }));
        assert_eq!(streams.answered(extent(0), &first), Some(ExtentNeed { spare: 2, ..need(5) }));
        assert_eq!(streams.answered(extent(0), &second), Some(ExtentNeed { by: 3, ..next }));
    }

    #[test]
    fn enter_beyond_stream_limit_returns_false() {
        let mut streams = StreamTable::new(1);
        assert!(!streams.enter(
            StreamKey { handle: 0, index: (MAX_STREAMS_PER_ENGINE + AGAIN_PLACES) as u32 },
            0,
            0
        ));
        assert!(!streams.enter(StreamKey { handle: 1, index: 0 }, 0, 0));
        assert!(streams.enter(STREAM, 0, 0) && streams.enter(StreamKey { index: 1, ..STREAM }, 0, 0));
        assert_eq!(streams.of_handle(0), [StreamKey { index: 1, ..STREAM }, STREAM]);
        assert_eq!(streams.of_handle(9), []);
    }

    #[test]
    fn set_ahead_end_invalidates_older_timers() {
        let mut streams = StreamTable::new(1);
        streams.enter(STREAM, 0, 0);
        let old = streams.set_ahead_end(STREAM, 4).unwrap();
        let new = streams.set_ahead_end(STREAM, 5).unwrap();
        assert!(!streams.is_timer(STREAM, old) && streams.is_timer(STREAM, new));
        assert_eq!(streams.ahead_end(STREAM), 5);
    }
}

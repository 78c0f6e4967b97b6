//! Ranges of an object in order, several of them on their way at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::task::JoinHandle;

use crate::limits::{RANGE_BYTES, RANGES_AHEAD};

/// Reads an object from its beginning to its end.
pub(crate) struct RangeReader {
    store: Arc<dyn ObjectStore>,
    path: ObjectPath,
    bytes: u64,
    /// Where the next range to be requested begins.
    next: u64,
    ahead: VecDeque<(Range<u64>, JoinHandle<object_store::Result<Bytes>>)>,
}

impl RangeReader {
    pub(crate) fn new(store: &Arc<dyn ObjectStore>, path: &ObjectPath, bytes: u64) -> Self {
        Self::starting_at(0, store, path, bytes)
    }

    pub(crate) fn starting_at(
        next: u64,
        store: &Arc<dyn ObjectStore>,
        path: &ObjectPath,
        bytes: u64,
    ) -> Self {
        Self { store: Arc::clone(store), path: path.clone(), bytes, next, ahead: VecDeque::new() }
    }

    /// The next range and its bytes, which may be fewer; `None` at the end. Must run within a runtime.
    pub(crate) async fn next(&mut self) -> Option<(Range<u64>, object_store::Result<Bytes>)> {
        while self.ahead.len() < RANGES_AHEAD && self.next < self.bytes {
            let range = self.next..(self.next + RANGE_BYTES).min(self.bytes);
            self.next = range.end;
            let (store, path, wanted) = (Arc::clone(&self.store), self.path.clone(), range.clone());
            self.ahead.push_back((range, tokio::spawn(async move { store.get_range(&path, wanted).await })));
        }
        let (range, task) = self.ahead.front_mut()?;
        let (range, result) = (range.clone(), task.await);
        self.ahead.pop_front();
        Some((range, result.unwrap_or_else(|error| Err(error.into()))))
    }
}

impl Drop for RangeReader {
    fn drop(&mut self) {
        self.ahead.iter().for_each(|(_, task)| task.abort());
    }
}

//! Index and packet times of a title in one packet size, and reading them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_store::StoreError;
use millrace_store::blocking::Timeout;
use millrace_store::index::TitleIndex;
use millrace_store::stripes::StripeLayout;
use millrace_store::volume::TitleFiles;

use crate::service::{AccessPoint, AccessPoints, FecMatrix, Presentation, TimeBase};

/// Returns the title's time stamps according to the index, moved by `offset`.
pub(super) fn presentation(index: &TitleIndex, offset: u64) -> Presentation {
    let bases = index.bases().iter().map(|base| {
        let first_pts = (base.first_pts + offset) % PTS_MODULUS;
        TimeBase { time: base.time, first_pts }
    });
    Presentation::new(index.parts().end, bases.collect())
}

/// Returns the FEC that can be sent for these stripes; `None` without parity, or if a header of ST
/// 2022-1 has no room for them.
pub(super) fn matrix(stripes: &StripeLayout) -> Option<FecMatrix> {
    let small = |n: usize| u8::try_from(n).ok().filter(|&n| n > 0);
    Some(FecMatrix {
        data_units: small(stripes.k())?,
        parity_units: small(stripes.m())?,
        unit_packets: u8::try_from(stripes.unit_packets()).ok()?,
    })
}

/// Index and packet times of a title in one packet size. An opener puts the files in; readers never
/// wait for one to be opened.
pub(super) struct Access {
    packet_bytes: usize,
    held: Mutex<LockedFiles>,
}

/// The files, locked for as long as it takes to look.
#[derive(Default)]
struct LockedFiles {
    files: Option<Arc<TitleFiles>>,
    /// They could not be read: another member may have what this one has no longer. The index is in memory and still good.
    is_stale: bool,
}

impl Access {
    pub(super) fn new(packet_bytes: usize) -> Self {
        Self { packet_bytes, held: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, LockedFiles> {
        // Each change is one assignment: a panic elsewhere cannot leave it half done.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are files that can be read, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        let held = self.lock();
        held.files.is_some() && !held.is_stale
    }

    /// Reads from these files from now on.
    pub(super) fn set(&self, files: TitleFiles) {
        let now = LockedFiles { files: Some(Arc::new(files)), is_stale: false };
        let before = std::mem::replace(&mut *self.lock(), now);
        // Closes them, which may wait for a disk: the lock has been released.
        drop(before);
    }

    /// Returns the files, or `None` if they are not open, or are damaged: then the title starts at
    /// its beginning, and opening it will report the error.
    pub(super) fn files(&self) -> Option<Arc<TitleFiles>> {
        self.lock().files.clone()
    }

    /// Reads a page of the files. If this fails, or is not as fast as media reads, they must be
    /// opened again.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&TitleFiles) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let files = self.files()?;
        let of = Arc::clone(&files);
        let read = files.members.ask(files.home, Timeout::Brief, move |_| read(&of));
        let read = read.and_then(|read| read).ok();
        if read.is_none() {
            let mut held = self.lock();
            // Others may have been put in meanwhile.
            held.is_stale |= held.files.as_ref().is_some_and(|now| Arc::ptr_eq(now, &files));
        }
        read
    }
}

impl AccessPoints for Access {
    fn is_stale(&self) -> bool {
        self.lock().is_stale
    }

    fn access_at_or_before(&self, time: MediaTicks) -> AccessPoint {
        let start = AccessPoint { packet: 0, time: MediaTicks(0) };
        let Some(files) = self.files() else { return start };
        let point = files.index.access_at_or_before(time);
        if self.packet_bytes == DEFAULT_PACKET_BYTES {
            return AccessPoint { packet: point.packet, time: point.time };
        }
        // The packet with this byte begins before it, and earlier: the announced time must be the
        // packet's own.
        let packet = files.packet_of_default(point.packet);
        self.time_of(packet).map_or(start, |time| AccessPoint { packet, time })
    }

    fn access_at_or_after(&self, time: MediaTicks) -> Option<AccessPoint> {
        // In another size a packet begins before the byte that it should begin with.
        let files = self.files().filter(|_| self.packet_bytes == DEFAULT_PACKET_BYTES)?;
        let points = files.index.access_points();
        let point = points.get(points.partition_point(|point| point.time < time))?;
        Some(AccessPoint { packet: point.packet, time: point.time })
    }

    fn packet_at(&self, time: MediaTicks) -> u32 {
        let exact = self.read(move |files| files.packet_at(time));
        // Where records are damaged, the index alone is near enough.
        exact.or_else(|| Some(self.files()?.packet_by_index(time))).unwrap_or(0)
    }

    fn time_of(&self, packet: u32) -> Option<MediaTicks> {
        let exact = self.read(move |files| {
            let mut meta = [PacketMeta::default()];
            files.read_metas(packet, &mut meta).map(|()| meta[0].time())
        });
        exact.or_else(|| self.time_near(packet))
    }

    fn time_near(&self, packet: u32) -> Option<MediaTicks> {
        Some(self.files()?.time_by_index(packet))
    }
}

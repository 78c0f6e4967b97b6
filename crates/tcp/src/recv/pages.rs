//! Memory for received data, in pages of fixed size (NTT 1996 section 4.1).
//!
//! The memory is divided into clusters. A cluster has an address and a mask: a page's place is the
//! address with the masked value of a cyclic counter as its page number, so taking a page is an
//! addition and a check whether it is free, and changing a cluster's mask changes the size of its
//! pages. A page still in use when the counter comes around is skipped and counted. The data in a
//! page is defined by an offset and an effective length; a segment is never in a chain of buffers.

use super::reassembly::EARLY;
use super::reports::{ReportId, Reports, SackReport};
use crate::limits::{MAX_PAGE_BYTES, MAX_PAGE_SKIPS, MIN_PAGE_BYTES, MIN_REPORTS};
use crate::seq::Seq;
use crate::shares::Shares;

/// A page: the cluster in the upper bits, its number there in the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId(u32);

/// Bits of a [`PageId`] that are the number.
const NUMBER_BITS: u32 = 28;
const CLUSTERS: usize = 1 << (31 - NUMBER_BITS);

impl PageId {
    /// No page.
    pub const NONE: Self = Self(u32::MAX);

    /// Whether it is [`PageId::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }

    /// The cluster that it is of.
    #[inline]
    pub const fn cluster(self) -> usize {
        (self.0 >> NUMBER_BITS) as usize
    }

    const fn number(self) -> u32 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

/// How large a cluster and its pages are. Both are rounded down to powers of two, and pages kept between [`MIN_PAGE_BYTES`] and
/// [`MAX_PAGE_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    /// All of it.
    pub bytes: u32,
    /// One page.
    pub page_bytes: u32,
}

impl ClusterSize {
    /// Where a cluster begins behind what there is up to `end`, and its length: at a multiple of it.
    fn place_behind(self, end: &mut usize) -> (usize, u32) {
        let bytes = down_to_power_of_two(self.bytes.max(MIN_PAGE_BYTES));
        let address = end.next_multiple_of(bytes as usize);
        *end = address + bytes as usize;
        (address, bytes)
    }
}

/// State of a page in use.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Sequence number of the first effective byte.
    pub seq: Seq,
    /// Where the effective bytes begin.
    pub offset: u16,
    /// How many there are.
    pub length: u16,
    /// The connection's page with the next higher sequence numbers.
    pub next: PageId,
    is_used: bool,
    group: u8,
}

const _: () = assert!(size_of::<Page>() == 16);

impl Page {
    const FREE: Self =
        Self { seq: Seq(0), offset: 0, length: 0, next: PageId::NONE, is_used: false, group: 0 };

    /// The sequence number behind its last effective byte.
    #[inline]
    pub fn end(&self) -> Seq {
        self.seq + u32::from(self.length)
    }
}

#[derive(Debug)]
struct Cluster {
    /// Where it begins in the memory: a multiple of its size, so that page numbers are put below it.
    address: usize,
    /// Which bits of the counter are a page number.
    mask: u32,
    page_shift: u32,
    counter: u32,
    used: u32,
    bytes: u32,
    shares: Shares,
    /// One for each page of the shortest size.
    pages: Box<[Page]>,
}

/// All pages of all connections.
#[derive(Debug)]
pub struct Pages {
    memory: Box<[u8]>,
    clusters: Box<[Cluster]>,
    /// Reports on data that is in them out of order.
    reports: Reports,
    skipped: u64,
    refused: u64,
}

impl Pages {
    /// Clusters of these sizes, at most 8. What follows them is left out.
    pub fn new(sizes: &[ClusterSize]) -> Self {
        let mut end = 0;
        let cluster = |size: &ClusterSize| {
            let (address, bytes) = size.place_behind(&mut end);
            let pages = vec![Page::FREE; (bytes / MIN_PAGE_BYTES) as usize].into();
            let mut cluster = Cluster {
                address,
                mask: 0,
                page_shift: 0,
                counter: 0,
                used: 0,
                bytes,
                shares: Shares::default(),
                pages,
            };
            cluster.set_page_bytes(size.page_bytes);
            cluster
        };
        let clusters: Box<[Cluster]> = sizes.iter().take(CLUSTERS).map(cluster).collect();
        let early = clusters.get(EARLY).map_or(0, |cluster| cluster.mask + 1);
        let reports = Reports::new(early.max(MIN_REPORTS));
        Self { memory: vec![0; end].into(), clusters, reports, skipped: 0, refused: 0 }
    }

    #[inline]
    pub(super) fn report(&self, id: ReportId) -> Option<&SackReport> {
        if id.is_none() { None } else { self.reports.get(id) }
    }

    #[inline]
    pub(super) fn reports(&mut self) -> &mut Reports {
        &mut self.reports
    }

    /// Returns the bytes that clusters of these sizes take, including the gaps between them.
    pub fn bytes_of(sizes: &[ClusterSize]) -> usize {
        let mut end = 0;
        let pages = |size: &ClusterSize| {
            let (_, bytes) = size.place_behind(&mut end);
            (bytes / MIN_PAGE_BYTES) as usize * size_of::<Page>()
        };
        let pages: usize = sizes.iter().take(CLUSTERS).map(pages).sum();
        let early = sizes.get(EARLY).map_or(0, |size| size.bytes / size.page_bytes.max(MIN_PAGE_BYTES));
        end + pages + Reports::bytes(early.max(MIN_REPORTS))
    }

    /// Changes the size of a cluster's pages. False, and nothing changes, while one of them is in use or when there is no such cluster.
    pub fn set_page_bytes(&mut self, cluster: usize, page_bytes: u32) -> bool {
        let Some(cluster) = self.clusters.get_mut(cluster).filter(|cluster| cluster.used == 0) else {
            return false;
        };
        cluster.set_page_bytes(page_bytes);
        true
    }

    /// Bytes of a page of a cluster; 0 if there is no such cluster.
    #[inline]
    pub fn page_bytes(&self, cluster: usize) -> u32 {
        self.clusters.get(cluster).map_or(0, |cluster| 1 << cluster.page_shift)
    }

    /// Pages of a cluster in use, and all of its pages.
    pub fn used(&self, cluster: usize) -> (u32, u32) {
        self.clusters.get(cluster).map_or((0, 0), |cluster| (cluster.used, cluster.mask + 1))
    }

    /// Pages of all clusters in use.
    pub fn all_used(&self) -> u32 {
        self.clusters.iter().map(|cluster| cluster.used).sum()
    }

    /// Pages in use that the counters met.
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }

    /// How often there was no page.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// Divides the pages of each cluster among groups, while none is in use.
    pub fn share_out(&mut self, groups: u8) {
        for cluster in self.clusters.iter_mut().filter(|cluster| cluster.used == 0) {
            cluster.shares = Shares::new(cluster.mask + 1, groups);
        }
    }

    /// An empty page of a cluster, to begin with `seq`; `None` if all are in use, or as good as all.
    #[inline]
    pub fn take(&mut self, cluster: usize, seq: Seq) -> Option<PageId> {
        self.take_for(0, cluster, seq)
    }

    /// The same for a group; `None` also if it has its share ([`Pages::share_out`]).
    #[inline]
    pub fn take_for(&mut self, group: u8, cluster: usize, seq: Seq) -> Option<PageId> {
        let found = self.clusters.get_mut(cluster).and_then(|of| of.take(group, seq, &mut self.skipped));
        self.refused += u64::from(found.is_none());
        found.map(|number| PageId((cluster as u32) << NUMBER_BITS | number))
    }

    /// Gives a page back. One that is not in use stays as it is.
    #[inline]
    pub fn release(&mut self, id: PageId) {
        let Some(cluster) = self.clusters.get_mut(id.cluster()) else { return };
        let Some(page) = cluster.pages.get_mut(id.number() as usize).filter(|page| page.is_used) else {
            return;
        };
        page.is_used = false;
        cluster.used -= 1;
        cluster.shares.give(page.group);
    }

    /// Returns the state of a page; `None` if it is not in use.
    #[inline]
    pub fn page(&self, id: PageId) -> Option<&Page> {
        let cluster = self.clusters.get(id.cluster())?;
        cluster.pages.get(id.number() as usize).filter(|page| page.is_used)
    }

    /// The same to be changed.
    #[inline]
    pub fn page_mut(&mut self, id: PageId) -> Option<&mut Page> {
        let cluster = self.clusters.get_mut(id.cluster())?;
        cluster.pages.get_mut(id.number() as usize).filter(|page| page.is_used)
    }

    /// The effective bytes of a page.
    #[inline]
    pub fn bytes(&self, id: PageId) -> &[u8] {
        let Some(page) = self.page(id) else { return &[] };
        let from = self.address(id) + usize::from(page.offset);
        self.memory.get(from..from + usize::from(page.length)).unwrap_or_default()
    }

    /// What of a page is free behind the effective bytes.
    #[inline]
    pub fn room(&mut self, id: PageId) -> &mut [u8] {
        let Some(&Page { offset, length, .. }) = self.page(id) else { return &mut [] };
        let address = self.address(id);
        let from = address + usize::from(offset) + usize::from(length);
        let to = address + self.page_bytes(id.cluster()) as usize;
        self.memory.get_mut(from..to).unwrap_or_default()
    }

    /// Where a page begins in the memory.
    #[inline]
    fn address(&self, id: PageId) -> usize {
        self.clusters
            .get(id.cluster())
            .map_or(0, |cluster| cluster.address | (id.number() as usize) << cluster.page_shift)
    }
}

impl Cluster {
    fn set_page_bytes(&mut self, page_bytes: u32) {
        let page_bytes =
            down_to_power_of_two(page_bytes.clamp(MIN_PAGE_BYTES, MAX_PAGE_BYTES)).min(self.bytes);
        self.page_shift = page_bytes.trailing_zeros();
        self.mask = self.bytes / page_bytes - 1;
    }

    #[inline]
    fn take(&mut self, group: u8, seq: Seq, skipped: &mut u64) -> Option<u32> {
        if self.used > self.mask || !self.shares.has_room(group) {
            return None;
        }
        for _ in 0..=MAX_PAGE_SKIPS.min(self.mask) {
            let number = self.counter & self.mask;
            self.counter = self.counter.wrapping_add(1);
            let page = self.pages.get_mut(number as usize)?;
            if !page.is_used {
                *page = Page { seq, is_used: true, group, ..Page::FREE };
                self.used += 1;
                self.shares.take(group);
                return Some(number);
            }
            *skipped += 1;
        }
        None
    }
}

const fn down_to_power_of_two(number: u32) -> u32 {
    1 << (u32::BITS - 1 - number.leading_zeros())
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;

//! The server as the web side sees it: the titles of a volume, and the control plane.

use std::path::Path;
use std::sync::Arc;

use millrace_core::counters::CounterSample;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_server::control::Asker;
use millrace_store::index::TitleIndex;
use millrace_store::volume::{MediaReader, TitleInfo, Volume};
use millrace_web::{Fetch, Order, Site, SiteError, Status, ViewerAdmission};
use tokio::sync::mpsc::UnboundedSender;

/// The site. Indexes and tables are read from the volume as it is, whatever its disks do: only the
/// cache's reads are simulated.
pub struct SimSite {
    volume: Arc<Volume>,
    titles: Vec<TitleInfo>,
    orders: UnboundedSender<Order>,
    control: Asker,
}

impl SimSite {
    /// The site of a server.
    pub fn new(
        volume: Arc<Volume>,
        titles: Vec<TitleInfo>,
        orders: UnboundedSender<Order>,
        control: Asker,
    ) -> Self {
        Self { volume, titles, orders, control }
    }

    fn find(&self, name: &str) -> Result<&TitleInfo, SiteError> {
        self.titles.iter().find(|title| title.name == name).ok_or(SiteError::NoTitle)
    }
}

fn unreadable(error: impl std::fmt::Display) -> SiteError {
    SiteError::Unreadable(error.to_string())
}

impl Site for SimSite {
    fn titles(&self) -> Vec<TitleInfo> {
        self.titles.clone()
    }

    fn title(&self, name: &str) -> Option<TitleInfo> {
        self.find(name).ok().cloned()
    }

    fn renditions(&self, _: &str) -> Vec<TitleInfo> {
        Vec::new()
    }

    fn index(&self, name: &str) -> Result<Arc<TitleIndex>, SiteError> {
        let id = self.find(name)?.id;
        Ok(self.volume.open_title(id, DEFAULT_PACKET_BYTES).map_err(unreadable)?.index)
    }

    fn read(&self, name: &str, from: u64, out: &mut [u8]) -> Result<(), SiteError> {
        let mut reader = MediaReader::open(&self.volume, self.find(name)?.id).map_err(unreadable)?;
        reader.read_exact(from, out).map_err(unreadable)
    }

    fn is_served_folder(&self, _: &Path) -> bool {
        false
    }

    fn send(&self, order: Order) {
        // Without a control plane the order is dropped: the server was killed.
        drop(self.orders.send(order));
    }

    fn fetch(&self, fetch: Fetch) {
        self.control.fetch(fetch);
    }

    fn has_viewer_sessions(&self) -> bool {
        true
    }

    fn admit_viewer(&self, admission: ViewerAdmission) {
        self.control.admit_viewer(admission);
    }

    fn status(&self) -> Result<Status, SiteError> {
        Ok(Status::default())
    }

    fn remove(&self, _: &str) -> Result<(), SiteError> {
        Err(SiteError::NoTitle)
    }

    fn titles_version(&self) -> u64 {
        1
    }

    fn pictures_version(&self) -> u64 {
        1
    }

    fn counters(&self, _: &mut dyn FnMut(CounterSample<'_>)) {}
}

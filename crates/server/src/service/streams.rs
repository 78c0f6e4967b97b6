//! The streams, and how they are found.

use millrace_core::ids::TitleRef;

use super::event::ServiceEvent;

/// A place that its engine was ordered to clear: it is taken, and its title open, until the engine
/// reports that it is clear.
pub(super) struct Closing {
    pub(super) title: TitleRef,
    /// Titles made from it that are open beside it.
    pub(super) made: Vec<TitleRef>,
    /// The title's name, for reports on its runs still to come; `None`: FEC, which has no such
    /// reports.
    pub(super) name: Option<String>,
    /// What to tell then; `None` if the stream goes on in another place.
    pub(super) ended: Option<ServiceEvent>,
}

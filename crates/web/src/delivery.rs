//! Orders for bytes of titles: asks the server to send them, or to count a segment made here.

use std::sync::Arc;

use millrace_core::units::BitRate;
use millrace_store::volume::TitleInfo;

use crate::access::SeenBy;
use crate::answer::Sending;
use crate::context::{RoutedRequest, ServerContext};
use crate::outcome::{Counted, Outcome, outcome};
use crate::request::RequestSource;
use crate::site::{DeliveryRefusal, Fetch, Order, OrderSocket, OrderedMedia, OrderedSegment};

/// Media that a request is answered with.
#[derive(Debug)]
pub(crate) struct MediaOrder {
    pub(crate) media: OrderedMedia,
    pub(crate) source: RequestSource,
    /// The name that the viewer's program gives itself.
    pub(crate) agent: Option<String>,
}

impl RoutedRequest<'_> {
    /// Asks whether a viewer may have a segment that is made, and counts it as a viewer if so. The
    /// return value reports the part of the segment taken.
    pub(crate) async fn may_fetch(
        self,
        title: &TitleInfo,
        seen: &SeenBy,
        segment: OrderedSegment,
        sound: Option<BitRate>,
    ) -> Result<Sending, DeliveryRefusal> {
        let (done, told) = tokio::sync::oneshot::channel();
        let RequestSource { peer, id, .. } = self.source;
        let (label, agent, title) = (id.to_string(), self.request.fields.agent(), title.clone());
        let quota = seen.quota();
        let (sending, over) = tokio::sync::oneshot::channel();
        self.shared.site.fetch(Fetch { peer, label, agent, title, quota, segment, sound, done, over });
        let may =
            told.await.unwrap_or_else(|_| Err(DeliveryRefusal::Full("the server is ending".to_owned())));
        may.map(|()| Sending::new(sending))
    }
}

impl ServerContext {
    /// Hands an order to an engine to send. The status is that of the response, if only the order's outcome counts it.
    pub(crate) fn order(&self, socket: OrderSocket, order: MediaOrder, status: Option<u16>) -> Outcome {
        let MediaOrder { media, source, agent } = order;
        let RequestSource { peer, id, .. } = source;
        // Of a live title it is not known here how much was sent.
        let (length, label) =
            (media.length().map_or(0, |_| media.bytes.end - media.bytes.start), id.to_string());
        let (done, outcome) = outcome(Some(Counted { totals: Arc::clone(&self.totals), length, status }));
        self.site.send(Order { socket, peer, media, label, agent, done });
        outcome
    }
}

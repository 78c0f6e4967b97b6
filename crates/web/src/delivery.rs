//! Orders for bytes of titles: asks the server to send them, or to count a segment made here.

use millrace_core::units::BitRate;
use millrace_store::volume::TitleInfo;

use crate::access::SeenBy;
use crate::answer::Sending;
use crate::context::{RoutedRequest, ServerContext};
use crate::request::RequestSource;
use crate::site::{Delivery, DeliveryRefusal, Fetch, Order, OrderSocket, OrderedMedia, OrderedSegment};

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
        let RequestSource { peer, id } = self.source;
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
    /// Hands an order to an engine to send, and returns the outcome.
    pub(crate) async fn deliver(&self, socket: OrderSocket, order: MediaOrder) -> Delivery {
        let (done, told) = tokio::sync::oneshot::channel();
        let MediaOrder { media, source, agent } = order;
        let RequestSource { peer, id } = source;
        // Of a live title it is not known here how much was sent.
        let (length, label) =
            (media.length().map_or(0, |_| media.bytes.end - media.bytes.start), id.to_string());
        self.site.send(Order { socket, peer, media, label, agent, done });
        // If the sender is dropped, the connection is gone.
        let delivery = told.await.unwrap_or(Delivery::Broken);
        self.totals.add(|c| {
            c.media_orders += 1;
            match &delivery {
                Delivery::Sent { .. } => c.media_bytes += length,
                Delivery::Refused { .. } => c.media_refused += 1,
                Delivery::Broken => c.media_broken += 1,
            }
        });
        delivery
    }
}

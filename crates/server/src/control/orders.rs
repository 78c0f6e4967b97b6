//! Bytes of titles that the web side orders ([`millrace_web::Order`]): each connection comes with its order, and is written to by an engine as an RTSP
//! viewer's with interleaved media is.
//!
//! ```text
//!   Order ─► opened ─► admitted, room reserved ─► head written ─► bytes played ─► all taken ─► engine lets go ─► Delivery
//!              │            │ refused: nothing has been written                  │ viewer or title gone
//!              └────────────┴─► Delivery::Refused                                └─► Delivery::Broken
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use millrace_core::ids::ViewerSession;
use millrace_core::limits::MAX_AHEAD_MS;
use millrace_core::limits::web::{MAX_BYTES_STALL_NS, MAX_ORDER_HEAD_BYTES};
use millrace_core::time::MediaTicks;
use millrace_web::{DeliveredAmount, Delivery, DeliveryRefusal, Order, OrderedMedia};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::connection::ControlConnection;
use super::hub::{Hub, SharedHub};
use super::stream::ViewerStream;
use crate::limits::OPENING_NS;
use crate::service::{
    ConnKey, EndReason, Exhausted, FecWish, Fetch, FetchedSegment, Fetching, Refusal, StreamKey, StreamPath,
    StreamRequest, Which,
};

/// An order without its connection.
struct OrderedBytes {
    viewer: SocketAddr,
    media: OrderedMedia,
    label: String,
    agent: Option<String>,
}

/// The outcome of an order that was not carried out.
enum Failure {
    Refused(DeliveryRefusal),
    Broken,
}

/// Takes orders for as long as there is a sender.
pub(super) async fn take(hub: SharedHub, mut orders: UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        spawn_local(serve(Rc::clone(&hub), order));
    }
}

async fn serve(hub: SharedHub, order: Order) {
    let Order { socket, peer, media, label, agent, done } = order;
    let viewer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    let wanted = OrderedBytes { viewer, media, label, agent };
    let Ok(stream) = ViewerStream::of_order(socket, wanted.media.is_endless()) else {
        // No descriptor can be watched: its viewer sees the connection end.
        return done.send(Delivery::Broken);
    };
    let session = wanted.media.segment.as_ref().and_then(|segment| segment.session);
    let opened = hub.borrow_mut().accept_order(stream, viewer, session);
    let line = match opened {
        Ok(line) => line,
        Err((stream, refusal)) => {
            drop(stream);
            return done.send(Delivery::Refused(DeliveryRefusal::Full(refusal.to_string())));
        }
    };
    // Whatever came of it, the connection can be used further only when no engine writes to it.
    let outcome = match deliver(&hub, &line, &wanted).await {
        Err(Failure::Broken) => Err(Failure::Broken),
        Ok(()) => returned(&line).await,
        refused => {
            let is_asked = hub.borrow_mut().take_back(line.key);
            let back = if is_asked { returned(&line).await } else { Ok(()) };
            back.and(refused)
        }
    };
    hub.borrow_mut().hang_up(line.key);
    drop(line);
    done.send(match outcome {
        Ok(()) => Delivery::Sent,
        Err(Failure::Refused(why)) => Delivery::Refused(why),
        Err(Failure::Broken) => Delivery::Broken,
    });
}

/// Sends the ordered data; returns when the last byte has been taken, or the order has ended
/// otherwise.
async fn deliver(hub: &SharedHub, line: &ControlConnection, wanted: &OrderedBytes) -> Result<(), Failure> {
    if wanted.media.before.len() > MAX_ORDER_HEAD_BYTES {
        return Err(Failure::Refused(DeliveryRefusal::Broken(
            "the head of the response is too long".to_owned(),
        )));
    }
    let stream = begin(hub, line, wanted).await?;
    hub.borrow_mut().play_order(line.key, stream, wanted).map_err(|_| Failure::Broken)?;
    loop {
        if line.order.sent.get() {
            return Ok(());
        }
        if line.order.over.get() || line.order.lost.get() || line.broken.get() {
            return Err(Failure::Broken);
        }
        tokio::select! {
            () = line.wake.notified() => {}
            () = line.stream.endless_viewer_gone() => return Err(Failure::Broken),
        }
    }
}

/// Waits for the title to be opened, and takes everything that its sending needs.
async fn begin(
    hub: &SharedHub,
    line: &ControlConnection,
    wanted: &OrderedBytes,
) -> Result<StreamKey, Failure> {
    let room = Rc::clone(&hub.borrow().room);
    let opening = async {
        loop {
            while hub.borrow().is_congested() {
                room.notified().await;
            }
            line.order.opened.set(false);
            let tried = hub.borrow_mut().try_order(line.key, wanted);
            match tried {
                Err(Refusal::Opening) => {}
                other => return other,
            }
            while !line.order.opened.get() {
                line.wake.notified().await;
            }
        }
    };
    let begun = timeout(Duration::from_nanos(OPENING_NS), opening).await.unwrap_or(Err(Refusal::TimedOut));
    hub.borrow_mut().end_opening(line.key);
    begun.map_err(|refusal| Failure::Refused(refused(&refusal)))
}

/// Waits until no engine writes to the connection any more.
async fn returned(line: &ControlConnection) -> Result<(), Failure> {
    let back = async {
        while !line.order.returned.get() {
            if line.order.lost.get() || line.broken.get() {
                return Err(Failure::Broken);
            }
            line.wake.notified().await;
        }
        Ok(())
    };
    timeout(Duration::from_nanos(MAX_BYTES_STALL_NS), back).await.unwrap_or(Err(Failure::Broken))
}

fn known_segment(segment: millrace_web::OrderedSegment) -> FetchedSegment {
    let millrace_web::OrderedSegment { conn, number, at, length, session } = segment;
    FetchedSegment { conn, number, at, length, session }
}

/// What viewers may know of a refusal.
fn refused(refusal: &Refusal) -> DeliveryRefusal {
    match refusal {
        Refusal::Gone | Refusal::EmptyRange => DeliveryRefusal::Gone,
        Refusal::MembersLost(_)
        | Refusal::Unfit(_)
        | Refusal::TimedOut
        | Refusal::Exhausted(Exhausted::OpenTitles)
        | Refusal::Broken => DeliveryRefusal::Broken(refusal.to_string()),
        _ => DeliveryRefusal::Full(refusal.to_string()),
    }
}

/// Answers whether a viewer of segments that the web side makes may have one, and learns how much
/// of it the viewer has taken.
pub(super) fn fetch(hub: &SharedHub, fetch: millrace_web::Fetch) {
    let (may, done, over) = hub.borrow_mut().try_fetch(fetch);
    let fetching = match may {
        Ok(fetching) => fetching,
        Err(refusal) => {
            // It may have gone.
            let _ = done.send(Err(refused(&refusal)));
            return;
        }
    };
    let _ = done.send(Ok(()));
    let hub = Rc::clone(hub);
    spawn_local(async move {
        let taken = over.await.unwrap_or_default();
        hub.borrow_mut().end_fetch(fetching, taken);
    });
}

/// Admits a viewer that asks for a playlist.
pub(super) fn admit_viewer(hub: &SharedHub, admission: millrace_web::ViewerAdmission) {
    let (admitted, done) = hub.borrow_mut().try_viewer(admission);
    // It may have gone: its session ends by itself.
    let _ = done.send(admitted.map(Some).map_err(|refusal| refused(&refusal)));
}

/// Whether there is room, and the channels to and from the web side.
type Tried = (
    Result<Fetching, Refusal>,
    oneshot::Sender<Result<(), DeliveryRefusal>>,
    oneshot::Receiver<DeliveredAmount>,
);

/// Where the answer to a viewer that asks for a playlist goes.
type ViewerAnswer = oneshot::Sender<Result<Option<ViewerSession>, DeliveryRefusal>>;

impl Hub {
    fn try_viewer(
        &mut self,
        admission: millrace_web::ViewerAdmission,
    ) -> (Result<ViewerSession, Refusal>, ViewerAnswer) {
        let now = self.now();
        let millrace_web::ViewerAdmission { peer, session, .. } = admission;
        let ended = session.filter(|&session| admission.is_reloaded && !self.service.has_session(session));
        let Some(fresh) = ended.or_else(|| self.server.new_viewer_session()) else {
            return (Err(Refusal::Busy), admission.done);
        };
        let segment =
            FetchedSegment { conn: 0, number: 0, at: MediaTicks(0), length: MediaTicks(0), session };
        let fetch = Fetch {
            viewer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            label: &admission.label,
            agent: admission.agent.as_deref(),
            quota: admission.quota.as_ref(),
            title: &admission.title,
            mean_rate: admission.mean_rate,
            peak_rate: admission.peak_rate,
            segment,
            is_sound: false,
        };
        let admitted = self.service.admit_viewer(now, &fetch, admission.by_engine, fresh);
        self.flush();
        (admitted, admission.done)
    }

    fn try_fetch(&mut self, fetch: millrace_web::Fetch) -> Tried {
        let now = self.now();
        let millrace_web::Fetch { peer, label, agent, title, quota, segment, sound, done, over } = fetch;
        let fetch = Fetch {
            viewer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            label: &label,
            agent: agent.as_deref(),
            quota: quota.as_ref(),
            title: &title.name,
            mean_rate: sound.unwrap_or(title.mean_rate),
            peak_rate: sound.unwrap_or(title.peak_rate),
            segment: known_segment(segment),
            is_sound: sound.is_some(),
        };
        let may = self.service.fetch(now, &fetch);
        self.flush();
        (may, done, over)
    }

    fn end_fetch(&mut self, fetching: Fetching, taken: DeliveredAmount) {
        let (now, DeliveredAmount { bytes, is_whole }) = (self.now(), taken);
        self.service.end_fetch(now, fetching, bytes, is_whole);
        self.flush();
    }

    fn try_order(&mut self, conn: ConnKey, wanted: &OrderedBytes) -> Result<StreamKey, Refusal> {
        let tried = self.admit_order(conn, wanted);
        match tried {
            // The command to play follows.
            Ok(_) => self.flush_unrung(),
            Err(_) => self.flush(),
        }
        tried
    }

    /// Admits the stream of an order and reserves its room, or takes nothing.
    fn admit_order(&mut self, conn: ConnKey, wanted: &OrderedBytes) -> Result<StreamKey, Refusal> {
        let (now, media, service) = (self.now(), &wanted.media, &mut self.service);
        service.prepare(now, conn, &media.title)?;
        let entry = service.find_for_bytes(&media.title).ok_or(Refusal::Gone)?;
        service.check_members(&entry)?;
        let request = StreamRequest {
            which: Which::New { label: wanted.label.clone(), agent: wanted.agent.clone() },
            viewer: wanted.viewer,
            conn: Some(conn),
            entry,
            path: StreamPath::Bytes { conn },
            fec: FecWish::Silent,
            rendition: None,
            quota: media.quota.as_deref().cloned(),
            segment: media.segment.as_deref().copied().map(known_segment),
        };
        let stream = service.admit(now, request)?.stream;
        let reserved = service.reserve_bytes(now, stream, &media.bytes);
        if reserved.is_err() {
            service.close(now, stream, EndReason::TornDown);
        }
        reserved.map(|()| stream)
    }

    /// Sends the part that goes before, then the bytes.
    fn play_order(&mut self, conn: ConnKey, stream: StreamKey, wanted: &OrderedBytes) -> Result<(), Refusal> {
        let (now, media) = (self.now(), &wanted.media);
        self.write_to(conn, media.before.clone());
        let ahead_ms = media.ahead_ms.min(MAX_AHEAD_MS.into()) as u16;
        let played = self.service.play_bytes(now, stream, &media.bytes, ahead_ms);
        self.flush();
        played
    }

    fn end_opening(&mut self, conn: ConnKey) {
        self.service.end_opening(conn);
    }

    /// `false`: no engine writes to it.
    fn take_back(&mut self, conn: ConnKey) -> bool {
        let is_asked = self.service.take_back(conn);
        self.flush();
        is_asked
    }
}

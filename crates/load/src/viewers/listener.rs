//! Listeners: streams that a sender sends without a request, as TS packets in UDP datagrams or as
//! RTP, to an address of this machine or to a multicast group. One is a socket and a meter.
//!
//! A listener is up with its first packet; one that hears nothing in the time for a reply fails.

use millrace_client::listen::address::{Carriage, ListenUrl};
use millrace_client::listen::socket::open;
use millrace_client::net::{Batch, Inlet};
use millrace_client::sdp::Description;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::{PAYLOAD_TYPE_MP2T, RtpHeader};

use crate::choice::TitleChoice;
use crate::limits::{FEW_VIEWERS, MAX_DRAINS};
use crate::meter::{Ending, Meter};
use crate::outcome::{Live, SocketCounts, ViewerOutcome};
use crate::plan::LoadPlan;
use crate::raw_meter::RawMeter;
use crate::target::Seat;
use crate::viewer::{Interest, LoadViewer, Status, ViewerCommand, ViewerContext, ViewerStage};

/// The kind of the only descriptor that a listener has.
const KIND: u8 = 0;

enum ListenMeter {
    Raw(Box<RawMeter>),
    /// The payload type is that of the first packet.
    Rtp {
        meter: Box<Meter>,
        is_described: bool,
    },
}

/// One listener.
pub(crate) struct Listener {
    inlet: Inlet,
    counts: ListenMeter,
    inspect: bool,
    stage: ViewerStage,
    began: Instant,
    /// Until when the first packet must have come.
    deadline: Option<Instant>,
    setup_us: Option<u64>,
    failure: Option<String>,
}

impl Listener {
    /// Begins to listen.
    pub(crate) fn new(
        plan: &LoadPlan,
        seat: Seat,
        url: &ListenUrl,
        now: Instant,
        lent: &mut ViewerContext<'_>,
    ) -> Result<Self, String> {
        let options = &plan.options;
        // In turn, every target has every n-th viewer. Otherwise each viewer has a number of ports that is its own.
        let number = match options.titles {
            TitleChoice::InTurn => seat.index / plan.targets.len().max(1) as u32,
            _ => seat.index,
        };
        let place = url.place(number)?;
        let socket = open(url, place, plan.local_of(seat.index))?;
        let trains = Batch::Trains(if options.streams > FEW_VIEWERS { 2 } else { 4 });
        let inlet =
            Inlet::new(socket, trains, options.receive_buffer_bytes).map_err(|error| error.to_string())?;
        lent.watch(KIND, inlet.socket(), Interest::Read)
            .map_err(|error| format!("epoll: {}", error.kind()))?;
        let inspect = plan.inspects(seat.index);
        let counts = match url.carriage {
            Carriage::Raw => ListenMeter::Raw(Box::new(RawMeter::new(options.nominal_rate, inspect))),
            Carriage::Rtp => ListenMeter::Rtp { meter: Box::default(), is_described: false },
            Carriage::Nvod => return Err("a load has no viewers of near video on demand".to_owned()),
        };
        Ok(Self {
            inlet,
            counts,
            inspect,
            stage: ViewerStage::Starting,
            began: now,
            deadline: Some(now + options.reply_timeout),
            setup_us: None,
            failure: None,
        })
    }

    /// Takes one batch; returns the number of datagrams.
    fn take(&mut self, now: Instant, lent: &mut ViewerContext<'_>) -> usize {
        let (counts, inspect) = (&mut self.counts, self.inspect);
        let media_clock = lent.plan.options.media_clock;
        let drained = self.inlet.drain(|datagram| {
            let delay_ns = lent.unix_ns.saturating_sub(datagram.arrival_ns);
            lent.read_delay.saturating_record(delay_ns / 1000);
            match counts {
                ListenMeter::Raw(meter) => meter.datagram(lent.lateness, datagram.arrival_ns, datagram.bytes),
                ListenMeter::Rtp { meter, is_described } => {
                    if !*is_described && let Some(description) = describe(datagram.bytes) {
                        meter.describe(&description, inspect, media_clock);
                        *is_described = true;
                    }
                    meter.rtp(lent.lateness, now, datagram.arrival_ns, datagram.bytes);
                }
            }
        });
        match drained {
            Ok(count) => {
                if self.stage == ViewerStage::Starting && self.live().packets > 0 {
                    self.setup_us = Some(now.ns_since(self.began) / 1000);
                    (self.stage, self.deadline) = (ViewerStage::Playing, None);
                }
                count
            }
            Err(error) => {
                self.failure.get_or_insert_with(|| format!("socket: {}", error.kind()));
                self.stage = ViewerStage::Done;
                0
            }
        }
    }
}

/// Describes a stream by its first packet: a transport stream is recognized by its payload type or
/// its looks.
fn describe(datagram: &[u8]) -> Option<Description> {
    let (header, payload) = RtpHeader::parse(datagram)?;
    let looks_like_ts = payload.len().is_multiple_of(188) && payload.first() == Some(&0x47);
    Some(Description {
        name: String::new(),
        payload_type: header.payload_type,
        is_transport_stream: header.payload_type == PAYLOAD_TYPE_MP2T || looks_like_ts,
        clock_hz: 90_000,
        control: None,
        session_control: None,
        range: None,
    })
}

impl LoadViewer for Listener {
    fn handle_ready(&mut self, now: Instant, _kind: u8, lent: &mut ViewerContext<'_>) {
        if self.stage < ViewerStage::Leaving {
            self.take(now, lent); // what is left makes the next event
        }
    }

    fn handle_timeout(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            // It may have come in this very turn.
            self.take(now, lent);
            if self.stage == ViewerStage::Starting {
                let seconds = lent.plan.options.reply_timeout.as_secs_f64();
                self.failure = Some(format!("no packet within {seconds} s"));
                self.stage = ViewerStage::Done;
            }
            self.deadline = None;
        }
    }

    fn command(&mut self, _now: Instant, _command: ViewerCommand, _lent: &mut ViewerContext<'_>) -> bool {
        false // nobody is there who could be asked
    }

    fn drain(&mut self, now: Instant, lent: &mut ViewerContext<'_>) {
        for _ in 0..MAX_DRAINS {
            if self.stage >= ViewerStage::Leaving || self.take(now, lent) == 0 {
                return;
            }
        }
    }

    fn leave(&mut self, _now: Instant, _lent: &mut ViewerContext<'_>) {
        if self.stage == ViewerStage::Starting {
            self.failure.get_or_insert_with(|| "no packet before time was over".to_owned());
        }
        self.stage = ViewerStage::Done;
    }

    fn status(&self) -> Status {
        Status { stage: self.stage, poll_at: self.deadline }
    }

    fn live(&self) -> Live {
        match &self.counts {
            ListenMeter::Raw(meter) => {
                Live { packets: meter.packets(), payload_bytes: meter.payload_bytes(), lost: meter.lost() }
            }
            ListenMeter::Rtp { meter, .. } => {
                Live { packets: meter.packets(), payload_bytes: meter.payload_bytes(), lost: meter.lost() }
            }
        }
    }

    fn media_inlet(&self) -> Option<&Inlet> {
        Some(&self.inlet)
    }

    fn end(&mut self, lent: &mut ViewerContext<'_>) -> ViewerOutcome {
        let measured = match &mut self.counts {
            ListenMeter::Raw(meter) => meter.finish(lent.lateness, lent.unix_ns),
            ListenMeter::Rtp { meter, .. } => meter.finish(lent.lateness, lent.unix_ns, Ending::default()),
        };
        ViewerOutcome {
            failure: self.failure.take(),
            setup_us: self.setup_us,
            measured: self.setup_us.is_some().then_some(measured),
            socket: Some(SocketCounts::of(&self.inlet)),
            ..ViewerOutcome::default()
        }
    }
}

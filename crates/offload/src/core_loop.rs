//! The loop of a dedicated core. Each phase is bounded, not inlined (so that a profile shows it by name), and returns
//! how much work it did.
//!
//! ```text
//!   commands ──► arrivals ──► leases ──► connections ──► receive ──► send (frame, pace, packet I/O) ──► departures ──► wants ──► events ──► idle
//! ```

use std::sync::Arc;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{MAX_BATCH_BURSTS, MAX_BURST_NS, RETRY_NS, RING_RECORDS};
use millrace_core::seam::{Clock, SendOutcome, TransmitBatch};
use millrace_core::time::Instant;
use millrace_engine::{Engine, LeaseFailure, Start, StopReason, StreamEvent, StreamSpec};
use millrace_store::cache::{CacheHandle, Grant, ReadFailure};

use crate::adaptive_burst::AdaptiveBurst;
use crate::bell::EventBell;
use crate::command::{Command, Event};
use crate::extent_refetch::ExtentRefetch;
use crate::idle::{IdlePolicy, Wait};
use crate::limits::{BATCHES_PER_TURN, COMMANDS_PER_TURN, LEASES_PER_TURN, LINGER_NS};
use crate::load::LoadMeter;
use crate::loop_tx::LoopTx;

/// Everything one loop owns.
pub struct CoreLoop<C, T> {
    /// The real clock, or a virtual one in tests.
    pub clock: C,
    /// Streams and their pacing.
    pub engine: Engine,
    /// The way to the cache.
    pub handle: CacheHandle,
    /// The egress path.
    pub tx: T,
    /// From the control side.
    pub commands: rtrb::Consumer<Command>,
    /// To the control side.
    pub events: rtrb::Producer<Event>,
    /// Rung when an event was published.
    pub control_bell: Arc<EventBell>,
    /// Rung by the control side and by the cache.
    pub bell: Arc<EventBell>,
    /// What to do when there is nothing to do.
    pub idle: IdlePolicy,
    /// How busy the core is.
    pub load: LoadMeter,
    /// The length of bursts.
    pub adaptive_burst: AdaptiveBurst,
    /// Extents that the egress path needs again.
    refetch: ExtentRefetch,
    state: LoopState,
}

/// State that a loop keeps from turn to turn.
struct LoopState {
    outcomes: [SendOutcome; MAX_BATCH_BURSTS],
    /// An event of the engine that neither ring had room for.
    held: Option<StreamEvent>,
    /// When [`Command::Stop`] came.
    stopping: Option<Instant>,
    /// A connection has to be tried again by time.
    conns_pending: bool,
    /// A device has not yet returned the data it sends.
    tx_pending: bool,
    /// This turn has published events that the control side waits for.
    has_news: bool,
}

impl<C: Clock, T: LoopTx> CoreLoop<C, T> {
    /// Puts the parts together.
    #[allow(clippy::too_many_arguments)] // one place builds it, by field name
    pub fn new(
        clock: C,
        engine: Engine,
        handle: CacheHandle,
        tx: T,
        commands: rtrb::Consumer<Command>,
        events: rtrb::Producer<Event>,
        control_bell: Arc<EventBell>,
        bell: Arc<EventBell>,
        idle: IdlePolicy,
        load: LoadMeter,
        adaptive_burst: AdaptiveBurst,
    ) -> Self {
        let outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        let state = LoopState {
            outcomes,
            held: None,
            stopping: None,
            conns_pending: false,
            tx_pending: false,
            has_news: false,
        };
        Self {
            clock,
            engine,
            handle,
            tx,
            commands,
            events,
            control_bell,
            bell,
            idle,
            load,
            adaptive_burst,
            refetch: ExtentRefetch::default(),
            state,
        }
    }

    /// Runs until [`Command::Stop`], then until all streams are closed or [`LINGER_NS`] has passed, so that viewers hear
    /// that it is over and the control side their totals.
    pub fn run(&mut self) {
        loop {
            let (now, work) = self.turn();
            if let Some(since) = self.state.stopping {
                let is_over = self.engine.counters().open == 0 || now.ns_since(since) > LINGER_NS;
                if work == 0 && is_over {
                    self.tx.shut_down(now);
                    self.load.publish(self.engine.counters(), self.tx.counters());
                    break;
                }
            }
            if work == 0 {
                self.wait(now);
            }
        }
    }

    /// One turn: all phases once. Returns its time and how much work it did.
    pub fn turn(&mut self) -> (Instant, usize) {
        let now = self.clock.now();
        let mut work = self.take_commands(now);
        self.state.tx_pending = self.tx.tend(now);
        work += self.take_leases(now);
        work += self.serve_connections(now);
        work += self.send(now);
        work += self.tx.depart(now);
        work += self.post_wants(now);
        work += self.publish_events(now);
        if std::mem::take(&mut self.state.has_news) {
            self.control_bell.ring();
        }
        // A turn's work is accounted to this turn: most wake-ups have one turn with work, and then
        // one without.
        let ended = self.clock.now();
        self.load.turn(ended, work, self.engine.counters(), self.tx.counters());
        if let Some(burst_ns) = self.adaptive_burst.look(now, self.load.busy_ns()) {
            self.engine.set_burst_ns(burst_ns);
        }
        (now, work)
    }

    #[inline(never)]
    fn take_commands(&mut self, now: Instant) -> usize {
        for taken in 0..COMMANDS_PER_TURN {
            // A command may need one event as its answer: without room for it, the command waits.
            if self.events.slots() < 2 {
                return taken;
            }
            let Ok(command) = self.commands.pop() else { return taken };
            self.carry_out(now, command);
        }
        COMMANDS_PER_TURN
    }

    fn carry_out(&mut self, now: Instant, command: Command) {
        let (stream, run, result) = match command {
            Command::Open { stream: id, dest, quiet, once } => {
                let lends = self.tx.is_zero_copy(&dest);
                (id, None, self.engine.open(now, StreamSpec { id, dest, quiet, lends, once }))
            }
            Command::Play { stream, at, ahead_ms, run } => {
                (stream, Some(run.run), self.engine.play(now, stream, Start { at, ahead_ms }, run))
            }
            Command::Queue { stream, cut, run } => {
                (stream, Some(run.run), self.engine.queue(now, stream, cut, run))
            }
            Command::Pause { stream } => (stream, None, self.engine.pause(now, stream)),
            Command::Measure { stream } => return self.publish_backlog(now, stream),
            Command::Close { stream } => {
                self.publish_backlog(now, stream);
                (stream, None, self.engine.close(now, stream))
            }
            Command::ConnAdd { conn, socket } => {
                return if let Err(errno) = self.tx.add_conn(conn, socket) {
                    self.conn_gone(now, conn, errno)
                };
            }
            Command::ConnWrite { conn, bytes } => {
                let result = self.tx.write_control(conn, &bytes);
                self.publish_quietly(Event::Recycle { bytes });
                return if let Err(errno) = result {
                    self.conn_gone(now, conn, errno)
                };
            }
            Command::ConnRemove { conn } => {
                // Memory sent there may be written to only when the device has released it.
                let socket = self.tx.remove_conn(conn);
                self.engine.conn_gone(now, conn);
                return self.publish(Event::ConnRemoved { conn, socket });
            }
            Command::ConnReturn { conn } => {
                self.engine.conn_leaves(now, conn);
                return if !self.tx.return_conn(conn) {
                    self.publish(Event::ConnReturned { conn, socket: None })
                };
            }
            Command::Unreachable { dest, errno } => return self.tx.note_unreachable(dest, errno),
            Command::Stop => {
                self.engine.finish(now);
                return self.state.stopping = self.state.stopping.or(Some(now));
            }
        };
        if let Err(refusal) = result {
            self.publish(Event::Refused { stream, run, refusal });
        }
    }

    #[inline(never)]
    fn take_leases(&mut self, now: Instant) -> usize {
        let streams = self.engine.streams();
        for taken in 0..LEASES_PER_TURN {
            let Some(grant) = self.handle.poll() else { return taken };
            let Some(grant) = self.refetch.answer(now, streams, grant, &mut self.tx, &mut self.handle) else {
                continue;
            };
            let Grant { stream, run, extent, lease, .. } = grant;
            match lease {
                Ok(lease) => self.engine.handle_lease(now, stream, run, extent, lease),
                Err(failure) => {
                    self.engine.handle_lease_failed(now, stream, run, extent, lease_failure(failure));
                }
            }
        }
        LEASES_PER_TURN
    }

    #[inline(never)]
    fn send(&mut self, now: Instant) -> usize {
        let mut bursts = 0;
        for _ in 0..BATCHES_PER_TURN {
            if self.engine.poll_bursts(now) == 0 {
                break;
            }
            let count = self.engine.batch().len();
            let outcomes = &mut self.state.outcomes[..count];
            self.tx.send(self.engine.batch(), outcomes);
            self.engine.handle_sent(now, outcomes);
            bursts += count;
        }
        bursts
    }

    #[inline(never)]
    fn serve_connections(&mut self, now: Instant) -> usize {
        self.state.conns_pending = self.tx.flush_conns();
        let mut served = 0;
        while let Some((stream, packets)) = self.tx.poll_done() {
            self.engine.handle_done(now, stream, packets);
            served += 1;
        }
        while let Some(conn) = self.tx.poll_conn_writable() {
            self.engine.conn_writable(now, conn);
            served += 1;
        }
        while self.events.slots() >= 2
            && let Some((conn, errno)) = self.tx.poll_conn_gone()
        {
            self.conn_gone(now, conn, errno);
            served += 1;
        }
        served + self.publish_returned()
    }

    fn publish_returned(&mut self) -> usize {
        let mut published = 0;
        while self.events.slots() >= 2
            && let Some((conn, socket)) = self.tx.poll_conn_returned()
        {
            self.publish(Event::ConnReturned { conn, socket: Some(socket) });
            published += 1;
        }
        published
    }

    #[inline(never)]
    fn post_wants(&mut self, now: Instant) -> usize {
        if matches!(self.state.held, Some(StreamEvent::Left { .. })) {
            // It must reach the cache before a want of the same stream.
            return 0;
        }
        let mut posted = self.refetch.post(now, self.engine.streams(), &mut self.tx, &mut self.handle);
        while let Some(want) = self.engine.poll_want() {
            if let Some(lease) = self.handle.lend(now, &want) {
                self.engine.handle_lease(now, want.stream, want.run, want.extent, lease);
            } else if !self.handle.want(&want) {
                self.engine.want_refused(&want);
                break;
            }
            posted += 1;
        }
        self.handle.tell(now);
        posted
    }

    #[inline(never)]
    fn publish_events(&mut self, now: Instant) -> usize {
        let mut published = 0;
        let mut has_news = false;
        while let Some(event) = self.state.held.take().or_else(|| self.engine.poll_event()) {
            let taken = match event {
                StreamEvent::Left { stream } => self.handle.leave(now, stream),
                event => self.events.push(Event::Stream(event)).is_ok(),
            };
            if !taken {
                self.state.held = Some(event);
                break;
            }
            has_news |= self.is_awaited(event);
            published += 1;
            self.retire_finished(now, event);
        }
        self.state.has_news |= has_news || self.events.slots() < RING_RECORDS / 2;
        published
    }

    /// Behind the only run of a stream the connection leaves at once: the control side would have to
    /// be woken only to ask for it.
    fn retire_finished(&mut self, now: Instant, event: StreamEvent) {
        if let StreamEvent::RunEnded { stream, end } = event
            && end.reason == StopReason::Finished
            && let Some(conn) = self.engine.retire(now, stream)
        {
            // One that has broken is reported so.
            self.tx.return_conn(conn);
            // In this turn, so that the control side is woken once for all of it.
            self.publish_returned();
        }
    }

    /// Whether the control side waits for an event. A stream of bytes is of interest to it only when its run ends, and the cache's
    /// events are not meant for it.
    fn is_awaited(&self, event: StreamEvent) -> bool {
        match event {
            StreamEvent::Left { .. } => false,
            StreamEvent::RunBegan { stream, .. } | StreamEvent::Drained { stream, .. } => {
                !self.engine.is_bytes(stream)
            }
            _ => true,
        }
    }

    /// Publishes the answer to a command; the caller has seen that there is room.
    fn publish(&mut self, event: Event) {
        let pushed = self.events.push(event);
        debug_assert!(pushed.is_ok(), "take_commands keeps room for answers");
        self.state.has_news = true;
    }

    /// Does the same for an event that is not awaited: it is found with the next event, or when
    /// waiting events leave too little room.
    fn publish_quietly(&mut self, event: Event) {
        let pushed = self.events.push(event);
        debug_assert!(pushed.is_ok(), "take_commands keeps room for answers");
        self.state.has_news |= self.events.slots() < RING_RECORDS / 2;
    }

    fn publish_backlog(&mut self, now: Instant, stream: StreamId) {
        let backlog = self.engine.conn_of(stream).and_then(|conn| self.tx.backlog_bytes(conn));
        if let Some(backlog_bytes) = backlog {
            let behind_ns = self.engine.behind_ns(now, stream);
            self.publish(Event::Backlog { stream, backlog_bytes, behind_ns });
        } else if let Some(errno) = self.engine.group_errno(stream) {
            self.publish(Event::GroupState { stream, errno });
        }
    }

    fn conn_gone(&mut self, now: Instant, conn: ConnId, errno: i32) {
        self.engine.conn_gone(now, conn);
        self.publish(Event::ConnGone { conn, errno });
    }

    #[inline(never)]
    fn wait(&mut self, now: Instant) {
        let earlier = |a: Option<Instant>, b: Option<Instant>| a.into_iter().chain(b).min();
        let mut next = earlier(self.engine.poll_at(), self.tx.next_due(now));
        next = earlier(next, self.handle.tell_at());
        if self.state.conns_pending || self.state.tx_pending || self.state.held.is_some() {
            let retry = now.plus_ns(RETRY_NS);
            next = Some(next.map_or(retry, |next| next.min(retry)));
        }
        let Wait::Sleep(limit) = self.idle.wait(now, next) else { return std::hint::spin_loop() };
        let others = [self.tx.full_conns_fd(), self.tx.incoming_fd()];
        if self.engine.shares_wakes() && limit.as_nanos() <= u128::from(MAX_BURST_NS) {
            // All wake-ups of streams are one: events from other sources within this short time
            // wait for it too.
            self.bell.rest(others, limit);
            return self.load.slept(self.clock.now());
        }
        self.bell.announce_sleep();
        // The last look: a thread that adds work after this sees the announcement and rings.
        if self.commands.is_empty() && self.handle.is_quiet() && !self.tx.is_asked() {
            self.bell.sleep_beside(others, Some(limit));
            self.load.slept(self.clock.now());
        } else {
            self.bell.awake();
        }
    }
}

fn lease_failure(failure: ReadFailure) -> LeaseFailure {
    match failure {
        ReadFailure::Io(errno) => LeaseFailure::Io(errno),
        ReadFailure::Checksum => LeaseFailure::Checksum,
        ReadFailure::MembersLost { lost, may } => LeaseFailure::MembersLost { lost, may },
        ReadFailure::NoTitle => LeaseFailure::NoTitle,
        ReadFailure::OutOfRange => LeaseFailure::OutOfRange,
        ReadFailure::Passed { .. } => LeaseFailure::Passed,
        ReadFailure::Ended => LeaseFailure::Ended,
        ReadFailure::FeederLost => LeaseFailure::SourceLost,
    }
}

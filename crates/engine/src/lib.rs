//! Paces streams on a clock that is passed in.
//!
//! An [`Engine`] is a state machine: it reads no clock, opens no file or socket, allocates nothing after
//! [`Engine::new`], and logs nothing. Time and extents come in through its arguments, packets go out as descriptors. One
//! engine belongs to one loop on one core; nothing in it is shared.
//!
//! # Four families of methods
//!
//! | family | methods | called by |
//! | --- | --- | --- |
//! | commands | [`open`](Engine::open) [`play`](Engine::play) [`queue`](Engine::queue) [`pause`](Engine::pause) [`close`](Engine::close) [`conn_leaves`](Engine::conn_leaves) [`conn_gone`](Engine::conn_gone) [`finish`](Engine::finish) | the control side, through the loop |
//! | arrivals | [`handle_lease`](Engine::handle_lease) [`handle_lease_failed`](Engine::handle_lease_failed) [`handle_sent`](Engine::handle_sent) [`handle_done`](Engine::handle_done) [`conn_writable`](Engine::conn_writable) | the loop, when the cache or the device has answered |
//! | egress | [`poll_want`](Engine::poll_want) [`poll_bursts`](Engine::poll_bursts) [`batch`](Engine::batch) [`poll_event`](Engine::poll_event) [`poll_at`](Engine::poll_at) | the loop, every turn |
//! | getters | [`streams`](Engine::streams) [`conn_of`](Engine::conn_of) [`counters`](Engine::counters) | anybody |
//!
//! # A turn
//!
//! ```text
//! let now = clock.now();                                   // once a turn
//! for command in commands.take(COMMANDS_PER_TURN) { .. }   // open, play, pause, close
//! while let Some(grant) = handle.poll() { engine.handle_lease(now, ..) }
//! while let Some(want) = engine.poll_want() {
//!     if !handle.want(&want) { engine.want_refused(&want); break; }
//! }
//! while engine.poll_bursts(now) > 0 {                      // as often as the turn's budget allows
//!     let n = engine.batch().len();
//!     tx.send(engine.batch(), &mut outcomes[..n]);
//!     engine.handle_sent(now, &outcomes[..n]);
//! }
//! while events.has_room() { let Some(event) = engine.poll_event() else { break }; .. }
//! idle_until(engine.poll_at());                            // or until a ring has something
//! ```
//!
//! The order within a turn is free, but for one rule: `poll_bursts`, sending, `handle_sent` belong together.
//! A command, a read that fails, or another `poll_bursts` in between takes the batch back: it is empty, its
//! packets count as not sent and are due again. Before it sleeps, a loop polls wants after the last
//! `poll_bursts`: packets that are missing in their extent ([`RunMedia::spare`]) are passed over there, and
//! with them perhaps the end of an extent. A [`StreamEvent::Left`] must reach the cache before the wants that
//! are polled after it.
//!
//! # What it promises
//!
//! * A packet leaves at its departure time ([`pace`]) or up to one burst before it, never later if the loop calls in time;
//!   behind time, at no more than 5/4 of the stream's own rate from any burst to any later one.
//! * A run that may send ahead ([`Start::ahead_ms`]) begins with this lead, a burst at a time, and
//!   keeps it. The run is not late, and does not catch up, as long as it is not behind the pace
//!   that it would have without.
//! * Every packet of a run leaves once, in order; nothing is skipped except packets that a run
//!   leaves out by itself ([`StepPattern`]), that a destination refused, or that are missing in an extent
//!   lent to a viewer that repairs ([`RunMedia::spare`]).
//! * Every run that was accepted ends with one [`StreamEvent::RunEnded`]; its title may be closed after that. No lease, failure or event
//!   of one run touches another.
//! * A stream holds two leases at most, none unless it plays, none while its connection has taken
//!   nothing for 200 ms. An extent goes back as soon as the device took the last of its packets.
//!   Where the device reads them for longer ([`StreamSpec::lends`]), the extent goes back when the
//!   device reports that it is done; the stream waits when
//!   [`MAX_HELD_PER_STREAM`](crate::limits::MAX_HELD_PER_STREAM) of its extents, or all places of
//!   the engine, are taken this way.
//! * Whatever happens to one stream (its disk, its connection, its address) touches no other.
//! * All operations are O(1) but [`conn_leaves`](Engine::conn_leaves), [`conn_gone`](Engine::conn_gone) and [`conn_writable`](Engine::conn_writable), which take as long as the connection has streams, and
//!   [`finish`](Engine::finish), which walks the stream table.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | departure times | `crates/engine/src/lib.rs`, then `pace/` |
//! | wake-ups of a loop | `docs/design/0031-shared-wake-ups.md`, `crates/engine/src/engine/egress.rs`, `CoreLoop::wait` |
//! | bytes for HTTP | `crates/engine/src/engine/rush.rs`, `docs/design/0038-web.md`, section "Long writes" |
//! | viewers that do not read their connection | `docs/design/0013-tcp-egress.md`, `crates/engine/src/engine/waiting.rs` |
//! | streams and runs | `docs/design/0012-runs.md`, `crates/engine/src/stream.rs` |
//! | sending ahead, leaving out, and devices that read late | `docs/design/0023-sending-ahead.md`, `crates/engine/src/held.rs` |
#![forbid(unsafe_code)]

mod batch;
mod conns;
mod engine;
mod frame;
mod held;
pub mod limits;
pub mod pace;
mod queue;
mod rtcp;
mod stream;
mod types;

pub use engine::Engine;
pub use types::{
    EngineConfig, EngineCounters, FailReason, LeaseFailure, Numbering, Refusal, RunCut, RunEnd, RunMedia,
    RunSpec, Start, StepPattern, StopReason, StreamEvent, StreamSpec,
};

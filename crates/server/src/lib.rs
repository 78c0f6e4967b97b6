//! The `millrace` program: its commands, and the control plane, whose decisions the engine's loop
//! executes.
//!
//! | module | holds |
//! | --- | --- |
//! | [`rtsp`] | messages: framing, parsing, replies; no sockets, no sessions |
//! | [`sdp`] | the description of a title that DESCRIBE answers |
//! | [`admission`] | whether cores, disks, cache and links carry one more viewer, judged by their measured load |
//! | [`service`] | titles, admission, streams: a state machine without I/O that knows no protocol, the clock is passed in |
//! | [`session`] | the service's RTSP face: requests to replies, session names, expiry; without I/O too |
//! | [`control`] | sockets and tasks that carry out what both decide; the log and the counters of what happens |
//! | [`library`] | the titles that can be asked for, in step with folders and store |
//! | [`cast`] | titles in a row, sent to UDP addresses or fed to a live title |
//! | [`live`] | live sources, and the titles that are made of them while they are sent |
//! | [`date`] | dates in texts |
//! | [`day_time`] | times of day, for programmes of channels and recordings |
//! | [`cmds`] | the subcommands |
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the offload engine as a command | `docs/guide/engine.md`, `crates/server/src/cmds/engine/mod.rs`; where it may be: `place.rs`, which `serve --tcp engine` uses too |
//! | viewers by the offload engine, and the loss of its interface | `docs/guide/offload.md`, `crates/server/src/control/offload.rs`, for HTTP `control/http.rs`; `crates/server/src/cmds/serve/tcp.rs` |
//! | opening a title while others are served | `docs/design/0022-opening.md`, `crates/server/src/service/opening.rs`, `crates/server/src/library/reader.rs` |
//! | admission of viewers, and the life of a stream | `crates/server/src/service/mod.rs`, `docs/design/0014-service.md` |
//! | the place for another protocol | `docs/design/0014-service.md`, its section on further protocols; `ARCHITECTURE.md`, "Where further protocols are put" |
//! | RTSP requests | `docs/ref/rtsp.md`, `crates/server/src/session/` |
//! | RTSP through HTTP, by two connections | `crates/server/src/control/tunnel.rs`, `crates/server/src/rtsp/tunnel.rs`; from the HTTP port `crates/web/src/front/conn.rs` |
//! | the admission model | `crates/server/src/admission/mod.rs`, `docs/design/0017-admission.md` |
//! | trick play | `docs/design/0026-trick-play.md`, `crates/server/src/service/scale.rs` |
//! | change to another bit rate, also by itself | `docs/design/0030-renditions.md`, `crates/server/src/service/rendition.rs`, `adapt.rs` |
//! | trick titles made on use, and their removal | `crates/server/src/library/on_use/mod.rs`, `crates/server/src/cmds/serve/maker.rs`, `docs/design/0032-made-on-use.md` |
//! | log, counters and request ids | `docs/guide/metrics.md`, `crates/server/src/service/event.rs`, `crates/server/src/control/counters.rs`, `titles.rs` |
//! | settings and the sources of their values | `crates/server/src/cmds/settings/mod.rs`, `docs/ref/config.md` |
//! | files of a folder as titles, also when they move or change | `docs/guide/ingest.md`, `crates/server/src/cmds/serve/librarian.rs`, `crates/server/src/library/watch.rs`, `crates/store/src/volume/sources.rs`; their names: `crates/store/src/naming.rs`, `crates/store/src/volume/name.rs` |
//! | quotas of a user, and the webhook | `crates/server/src/service/quota.rs`, `crates/rights/src/advice.rs`, `crates/web/src/webhook.rs` |
//! | viewers of segments | `docs/design/0038-web.md`, `crates/server/src/service/fetch.rs` |
//! | live sources | `docs/guide/live.md`, `docs/design/0048-live-sources.md`, `crates/server/src/live/mod.rs`, `crates/make/src/live/mod.rs` |
//! | casts and channels | `docs/guide/channels.md`, `docs/design/0050-channels.md`, `crates/server/src/cast/mod.rs`, `crates/make/src/channel/mod.rs` |
//! | the start of the server | `crates/server/src/cmds/serve/run.rs` |
#![forbid(unsafe_code)]

pub mod admission;
pub mod cast;
pub mod cmds;
pub mod control;
pub mod date;
pub mod day_time;
pub mod library;
pub mod limits;
pub mod live;
pub mod rtsp;
pub mod sdp;
pub mod service;
pub mod session;

//! Transformations of a title's packets that keep their length, made when an extent is filled and
//! shared by all viewers of the transformed track.
//!
//! ```text
//!   --transform 'deu=select:audio=deu,subtitles=none'
//!        │ spec                                       tables: what the title's beginning says of its programmes
//!        ▼                                                 ▼
//!   Transforms ── NamedTransform ── bind(title) ──► Derivation ── apply(block) ──► the same packets, changed
//!                                                      └── report: blocks, failures, what is to be logged
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `block` | an extent's packets, and the trait of their changes |
//! | `derivation` | a named transformation bound to a title |
//! | [`spec`] | what operators write |
//! | [`tables`] | the programmes of a title, from its first bytes |
//! | [`select`] | streams left out: null packets, and program map tables without them |
//! | [`restamp`] | clock, time stamps and continuity counters moved |
//! | [`wasm`] | a module of the operator's |
//! | [`report`] | the outcome |
//!
//! A transformation sees one block at a time, an extent's packets, and keeps nothing from one to the next: extents are filled in any order
//! and more than once. It changes bytes within TS packets; how many there are, how long, and when they leave stays as it is.
//! `docs/design/0028-transformations.md`.

mod block;
mod derivation;
pub mod report;
pub mod restamp;
pub mod select;
pub mod spec;
pub mod tables;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use self::block::{Applied, BindError, PacketBlock, Transform, TransformError, TsBytes};
pub use self::derivation::{Chain, Derivation, DeriveTitleError, timeline_of};
pub use self::report::{Failure, TransformActivity, TransformCounters};
pub use self::select::NULL_PACKET;
pub use self::spec::{NamedTransform, SpecError, Transforms};
pub use self::tables::StreamTables;

//! The emulated link: a bad network between two network namespaces, made by ourselves: loss, delay, reordering, duplicates, damage, ECN marks, a bottleneck.
//!
//! | file | holds |
//! | --- | --- |
//! | `spec` | [`Impairment`] and [`LinkSpec`]: the words in which a link is described |
//! | `model` | [`ImpairmentModel`]: what happens to each packet and when it leaves, without I/O or clock |
//! | `counts` | [`LinkCounts`]: exact counts of the link's actions |
//! | `alter` | bits that are flipped and marks that are set in packets |
//! | `classify` | which packets are RTP |
//! | `run` | [`TunLink`]: two TUN devices ([`millrace_netio::tun::Tun`]), joined by a thread |
//! | [`limits`] | bounds |
//!
//! A kernel may be built without `netem`; TUN devices are available nearly everywhere. The link
//! counts its actions packet by packet, so that a receiver's own counts can be compared with them.
//!
//! No part of the product: benchmarks and tests use it.
//!
//! ## Where to read on
//!
//! | topic | read |
//! | --- | --- |
//! | the emulated network of tests | `docs/guide/link.md`, `docs/design/0004-emulated-link.md` |
#![forbid(unsafe_code)]

mod alter;
mod classify;
mod counts;
pub mod limits;
mod model;
mod run;
mod spec;

pub use alter::LinkPacket;
pub use classify::{Traffic, classify};
pub use counts::{LinkCounts, LinkStats};
pub use model::{Departure, ImpairmentModel};
pub use run::TunLink;
pub use spec::{BurstLoss, Impairment, LinkSpec, LinkSpecError, QueueBound, RateLimit, Reorder, Share};

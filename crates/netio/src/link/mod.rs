//! A bad network between two network namespaces, made by ourselves: loss, delay, reordering, duplicates, damage, ECN marks, a bottleneck.
//!
//! | file | holds |
//! | --- | --- |
//! | `spec` | [`Impairment`] and [`LinkSpec`]: the words in which a link is described |
//! | `model` | [`ImpairmentModel`]: what happens to each packet and when it leaves, without I/O or clock |
//! | `counts` | [`LinkCounts`]: exact counts of the link's actions |
//! | `alter` | bits that are flipped and marks that are set in packets |
//! | `classify` | which packets are RTP |
//! | `tun` | [`Tun`]: a network device whose packets are read and written as a file |
//! | `gso_tun`, `train` | [`GsoTun`]: the same for a TCP stack, whose segments go through it in trains |
//! | `run` | [`TunLink`]: two such devices, joined by a thread |
//!
//! A kernel may be built without `netem`; TUN devices are available nearly everywhere. The link
//! counts its actions packet by packet, so that a receiver's own counts can be compared with them.

mod alter;
mod classify;
mod counts;
mod gso_tun;
mod model;
mod run;
mod spec;
mod train;
mod tun;

pub use alter::LinkPacket;
pub use classify::{Traffic, classify};
pub use counts::{LinkCounts, LinkStats};
pub use gso_tun::GsoTun;
pub use model::{Departure, ImpairmentModel};
pub use run::TunLink;
pub use spec::{BurstLoss, Impairment, LinkSpec, LinkSpecError, QueueBound, RateLimit, Reorder, Share};
pub use tun::Tun;

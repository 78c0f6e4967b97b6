//! The self-measurement of one interface, and the shorter question whether AF_XDP works on it.

use std::sync::Arc;

use millrace_core::limits::{EXTENT_BYTES, XDP_ASIDE_EXTENTS};
use millrace_core::pool::ExtentArena;
use millrace_offload::egress_select::measure::{CostTable, Effort, TargetInterface, measure};
use millrace_offload::hugepage::PageRegion;
use millrace_offload::route::HopTable;
use millrace_offload::xdp::{Strategy, XdpConfig, XdpTx};

/// Datagrams after which the kernel is made to look: a batch of single ones.
pub(super) const TX_BUDGET: u32 = 64;
/// Streams that a measurement pretends to have.
const STREAMS: usize = 64;

/// The findings about an interface.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EgressFindings {
    /// The figures.
    pub(crate) table: CostTable,
    /// How its AF_XDP device sends; `None` if there is none.
    pub(crate) strategy: Option<Strategy>,
}

/// Measures an interface. `Err`: why nothing could be measured.
pub(crate) fn measure_now(target: &TargetInterface) -> Result<EgressFindings, String> {
    let mut strategy = None;
    let mut open = |arena: Arc<ExtentArena>, hops: HopTable| {
        let device = XdpTx::open(config(&target.name, arena), hops).map_err(|error| error.to_string())?;
        strategy = Some(device.strategy());
        Ok::<_, String>(device)
    };
    let measured = measure(target, Effort::default(), Some(&mut open)).map_err(|error| error.to_string())?;
    if let Some(why) = measured.no_xdp {
        tracing::warn!("{}: AF_XDP is not possible: {why}", target.name);
    }
    Ok(EgressFindings { table: measured.table, strategy })
}

/// Opens a device and closes it again: how would it send?
pub(crate) fn probe(interface: &str) -> Result<Strategy, String> {
    let arena = staging_arena().map_err(|error| error.to_string())?;
    let device = XdpTx::open(config(interface, arena), HopTable::fixed(Vec::new()));
    device.map(|device| device.strategy()).map_err(|error| error.to_string())
}

fn config(interface: &str, arena: Arc<ExtentArena>) -> XdpConfig {
    XdpConfig {
        interface: interface.to_owned(),
        queue: 0,
        arena,
        strategy: None,
        streams: STREAMS,
        port: 9,
        rtcp_port: 9,
        tx_budget: TX_BUDGET,
    }
}

/// Memory for the frames of a device that copies payloads: one huge page.
pub(super) fn staging_arena() -> std::io::Result<Arc<ExtentArena>> {
    let region = PageRegion::present(u64::from(XDP_ASIDE_EXTENTS) * EXTENT_BYTES as u64)?;
    Ok(ExtentArena::with_aside(Box::new(region), XDP_ASIDE_EXTENTS))
}

//! Opening AF_XDP devices for the engines: at the start, and again when an interface has come back.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_core::limits::XDP_ASIDE_EXTENTS;
use millrace_core::pool::ExtentArena;
use millrace_offload::egress_select::measure::TargetInterface;
use millrace_offload::egress_select::{
    DeviceEvent, DeviceIndex, DeviceSide, DeviceSupervisor, EgressPlan, Opener,
};
use millrace_offload::route::RouteWatch;
use millrace_offload::xdp::{Strategy, XdpConfig, XdpTx};

use super::measure::{TX_BUDGET, staging_arena};
use super::{Egress, Interface};

/// Source ports of RTP and RTCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// Of RTP.
    pub(crate) rtp: u16,
    /// Of RTCP.
    pub(crate) rtcp: u16,
}

/// Opens devices.
pub(crate) struct Devices {
    interfaces: Vec<Interface>,
    watch: RouteWatch,
    /// The cache, with room aside for the headers of devices that chain.
    cache: Arc<ExtentArena>,
    /// Memory for the frames of the others, used again when one is opened again.
    staging: HashMap<(usize, usize), Arc<ExtentArena>>,
    streams: usize,
    ports: Ports,
}

impl Devices {
    /// Extents that the cache has to set aside for them.
    pub(crate) fn aside_extents(egress: &Egress, engines: u32) -> u32 {
        let chained = egress.interfaces.iter().filter(|interface| interface.is_chained()).count();
        chained as u32 * engines * XDP_ASIDE_EXTENTS
    }

    /// Opens the devices of all engines, as far as that is possible now, and minds them from then on.
    ///
    /// # Errors
    /// If a thread or a netlink socket cannot be created.
    pub(crate) fn start(
        egress: &Egress,
        sides: Vec<DeviceSide<XdpTx>>,
        cache: Arc<ExtentArena>,
        streams: usize,
        ports: Ports,
    ) -> anyhow::Result<Option<DeviceSupervisor>> {
        if egress.interfaces.is_empty() {
            return Ok(None);
        }
        let devices = Self {
            interfaces: egress.interfaces.clone(),
            watch: RouteWatch::start()?,
            cache,
            staging: HashMap::new(),
            streams,
            ports,
        };
        Ok(Some(DeviceSupervisor::start(sides, egress.interfaces.len(), devices)?))
    }

    fn name(&self, place: DeviceIndex) -> &str {
        self.interfaces.get(place.slot).map_or("?", |interface| interface.name.as_str())
    }
}

impl Opener<XdpTx> for Devices {
    fn open(&mut self, place: DeviceIndex) -> Result<(EgressPlan, XdpTx), String> {
        let interface = self.interfaces.get(place.slot).ok_or("there is no such device")?.clone();
        let target = TargetInterface::of(&interface.name).map_err(|error| error.to_string())?;
        if !target.is_up {
            return Err(format!("{} is down or has no carrier", interface.name));
        }
        let arena = if interface.is_chained() {
            Arc::clone(&self.cache)
        } else {
            let key = (place.engine, place.slot);
            match self.staging.get(&key) {
                Some(arena) => Arc::clone(arena),
                None => {
                    let arena = staging_arena().map_err(|error| error.to_string())?;
                    self.staging.insert(key, Arc::clone(&arena));
                    arena
                }
            }
        };
        let config = XdpConfig {
            interface: interface.name,
            queue: place.engine as u32,
            arena,
            // Not known yet: the interface was down. What chains would need the cache's memory, so that is left out.
            strategy: Some(interface.strategy.unwrap_or(Strategy::Staging)),
            streams: self.streams,
            port: self.ports.rtp,
            rtcp_port: self.ports.rtcp,
            tx_budget: TX_BUDGET,
        };
        let device = XdpTx::open(config, self.watch.table()).map_err(|error| error.to_string())?;
        Ok((interface.plan, device))
    }

    fn tell(&mut self, place: DeviceIndex, news: DeviceEvent<'_>) {
        let (name, engine) = (self.name(place), place.engine);
        match news {
            DeviceEvent::Opened => tracing::info!("{name}: AF_XDP is open, queue {engine}"),
            DeviceEvent::Lost(why) => {
                tracing::warn!("{name}: {why}; its viewers continue over kernel sockets")
            }
            DeviceEvent::NotNow(why) => {
                tracing::warn!("{name}: AF_XDP cannot be opened now, viewers use kernel sockets: {why}");
            }
        }
    }
}

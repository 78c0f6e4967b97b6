//! Errors of the probe.

use millrace_netio::bpf::BpfError;

/// The probe could not be attached or used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel refused something.
    #[error("probe: {0}")]
    Bpf(#[from] BpfError),
    /// The interface carries something else than Ethernet or bare IP.
    #[error(
        "probe: interface {name} is of link type {link_type}; only Ethernet, loopback and tun interfaces can be probed"
    )]
    LinkType {
        /// Name of the interface.
        name: String,
        /// `ARPHRD_` number of the kernel.
        link_type: u16,
    },
    /// There is no such slot.
    #[error("probe: slot {slot}: there are {slots}; attach the probe with a larger max_streams")]
    NoSlot {
        /// Slot asked for.
        slot: u32,
        /// Slots there are.
        slots: u32,
    },
    /// The media cannot be measured.
    #[error("probe: {what}; {remedy}")]
    Media {
        /// The fault.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
}

//! Errors of a load. Each message states the problem, its place and the remedy.

use millrace_client::ClientError;

use crate::drop_probe::ProbeError;

/// Why a load could not be run. What happens to single viewers is in the report.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// What viewers are to do cannot be read.
    #[error(
        "behaviour: got \"{given}\": {why}; write for example watch:70,zap 8s:20,pause 5s for 3s:5,seek 10s:4,leave 15s:1, \
         or a script: pause@5,play@8"
    )]
    Behaviour {
        /// The part that is wrong.
        given: String,
        /// The problem with it.
        why: &'static str,
    },
    /// The probe in the kernel is unavailable.
    #[error("interface {interface}: {source}")]
    Probe {
        /// The interface intended for it.
        interface: String,
        /// The cause.
        source: ProbeError,
    },
    /// Not enough file descriptors, ports or the like for the sessions asked for.
    #[error("{what}: {wanted} needed, {allowed} allowed; {advice}")]
    Limit {
        /// The resource in short supply.
        what: &'static str,
        /// How many are needed.
        wanted: u64,
        /// How many there are.
        allowed: u64,
        /// What to do.
        advice: &'static str,
    },
    /// An option, a target or a socket, as with a single player.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl LoadError {
    /// Whether another command line would avoid it.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Behaviour { .. } => true,
            Self::Client(error) => error.is_usage(),
            Self::Probe { .. } | Self::Limit { .. } => false,
        }
    }
}

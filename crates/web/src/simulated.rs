//! The web side in a simulation of the whole server: no listeners and no threads. It runs on the
//! simulation's own runtime, whose clock is virtual, and reads files in place
//! (`millrace_store::sim`).

use std::sync::Arc;

use millrace_rights::Gate;
use tokio::sync::watch;

use crate::context::ServerContext;
use crate::events::Feed;
use crate::forwarded::TrustedProxies;
use crate::front::Arrivals;
use crate::limits::WebLimits;
use crate::site::Site;
use crate::totals::Totals;

/// The web side. Its connections are tasks of the `LocalSet` in which they are taken.
#[derive(Debug)]
pub struct SimulatedWeb {
    arrivals: Arrivals,
    /// As long as this is there, the server does not end.
    _ends: watch::Sender<bool>,
}

impl SimulatedWeb {
    /// One without connections.
    pub fn new(limits: WebLimits, gate: Arc<Gate>, totals: Arc<Totals>, site: Arc<dyn Site>) -> Self {
        let (ends, ended) = watch::channel(false);
        let shared = Arc::new(ServerContext::new(
            site,
            limits,
            TrustedProxies::default(),
            gate,
            Feed::default(),
            totals,
            ended,
        ));
        Self { arrivals: Arrivals::new(&shared), _ends: ends }
    }

    /// Where connections are brought.
    pub fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }
}

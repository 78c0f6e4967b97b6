//! Settings that all threads of a load share.

use std::net::IpAddr;
use std::sync::Arc;

use millrace_client::clock::SystemClock;
use millrace_client::error::ClientError;
use millrace_client::rtsp::dialogue::DialogueConfig;
use millrace_client::sdp::Take;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::choice::TitlePicker;
use crate::error::LoadError;
use crate::options::{Inspect, LoadOptions};
use crate::probe::LoadProbe;
use crate::series::Series;
use crate::target::LoadTarget;

/// With [`Inspect::Sample`] the transport streams of about this many viewers are inspected.
const SAMPLED: u32 = 500;

/// Settings that all threads of a load share.
pub(crate) struct LoadPlan {
    pub(crate) options: LoadOptions,
    pub(crate) targets: Vec<LoadTarget>,
    pub(crate) dialogue: DialogueConfig,
    pub(crate) titles: TitlePicker,
    pub(crate) probe: Option<Arc<LoadProbe>>,
    pub(crate) series: Series,
    pub(crate) interval_ns: u64,
    pub(crate) began: Instant,
    /// When each viewer begins, after `began`.
    pub(crate) starts_ns: Vec<u64>,
    /// When all viewers have begun.
    pub(crate) ramp_end: Instant,
    /// When they end.
    pub(crate) end: Instant,
}

impl LoadPlan {
    /// When viewer `index` begins.
    pub(crate) fn start_of(&self, index: u32) -> Instant {
        self.began.plus_ns(self.starts_ns[index as usize])
    }

    /// Whether the transport stream of viewer `index` is looked into.
    pub(crate) fn inspects(&self, index: u32) -> bool {
        match self.options.inspect {
            Inspect::All => true,
            Inspect::None => false,
            Inspect::Sample => index.is_multiple_of(self.options.streams.div_ceil(SAMPLED)),
        }
    }

    /// Address of this machine for viewer `index`.
    pub(crate) fn local_of(&self, index: u32) -> Option<IpAddr> {
        let local = &self.options.local;
        (!local.is_empty()).then(|| local[index as usize % local.len()])
    }

    /// Where in the title viewer `index` begins.
    pub(crate) fn place_of(&self, index: u32) -> MediaTicks {
        let spread =
            u128::from(self.options.start_spread.0) * u128::from(index) / u128::from(self.options.streams);
        MediaTicks(self.options.start.0.saturating_add(spread as u64))
    }
}

/// Makes room for `needed` descriptors.
fn raise_descriptors(needed: u64) -> Result<(), LoadError> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let maximum = now.maximum.map(|maximum| maximum.max(needed));
    let allowed = now.maximum.unwrap_or(u64::MAX);
    // The second call is the one allowed to an ordinary user: up to the hard limit.
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: Some(needed.min(allowed)), ..now }))
        .map_err(|error| ClientError::Socket { what: "limit of descriptors", source: error.into() })?;
    let reached = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if reached < needed {
        return Err(LoadError::Limit {
            what: "file descriptors",
            wanted: needed,
            allowed: reached,
            advice: "ask for fewer viewers, share RTCP sockets, or raise the limit (ulimit -Hn)",
        });
    }
    Ok(())
}

pub(crate) fn plan(options: &LoadOptions) -> Result<LoadPlan, LoadError> {
    options.check()?;
    let local = options.local.first().copied();
    let targets =
        options.targets.iter().map(|text| LoadTarget::parse(text, local)).collect::<Result<_, _>>()?;
    raise_descriptors(options.descriptors())?;
    let attach = |interface: &String| LoadProbe::attach(interface, options.streams, options.probe_passes);
    let probe = options.probe.as_ref().map(attach).transpose()?.map(Arc::new);
    let began = SystemClock.now();
    let (starts_ns, arrivals_ns) = options.arrivals.times_ns(options.streams, options.seed);
    let ramp_end = began.plus_ns(arrivals_ns);
    let interval_ns = options.interval.as_nanos() as u64;
    let reply_timeout_ns = u64::try_from(options.reply_timeout.as_nanos()).unwrap_or(u64::MAX);
    Ok(LoadPlan {
        targets,
        dialogue: DialogueConfig {
            user_agent: options.user_agent.as_str().into(),
            reply_timeout_ns,
            take: Take::Any,
            fec: options.fec,
        },
        probe,
        titles: TitlePicker::new(options.titles, options.targets.len()),
        series: Series::new(options.threads, interval_ns),
        interval_ns,
        began,
        starts_ns,
        ramp_end,
        end: ramp_end + options.duration,
        options: options.clone(),
    })
}

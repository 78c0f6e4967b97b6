//! How a benchmark is run, and how it talks while it runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::units::BitRate;

/// How a benchmark runs. Where a value is `None` or empty, the benchmark makes its own choice.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tiny inputs: shows that the benchmark still works, its figures mean nothing.
    pub tiny: bool,
    /// Fewer runs and shorter ones: figures for a first look.
    pub quick: bool,
    /// The program that serves, for benchmarks of the whole: the `millrace` binary.
    pub program: PathBuf,
    /// Viewers, for benchmarks that have them.
    pub streams: Option<usize>,
    /// Length of the measured part.
    pub duration_s: Option<u64>,
    /// Where large files may be made; a folder of its own below it is removed at the end.
    pub scratch: PathBuf,
    /// A server to measure instead of ours: a command line.
    pub server_cmd: Option<String>,
    /// Pattern of this server's addresses.
    pub url: Option<String>,
    /// Rates of the titles.
    pub rates: Vec<BitRate>,
    /// Ways to carry media: `udp`, `tcp`, `http`, ...
    pub transports: Vec<String>,
    /// Number of titles that viewers are spread over.
    pub titles: Option<usize>,
    /// Names of the servers to measure beside ours.
    pub peers: Vec<String>,
    /// Names of the parts to measure, where a benchmark has some; all if none is named.
    pub only: Vec<String>,
    /// Segmentation offload of the veth pair: both ways by default.
    pub offload: Option<bool>,
    /// How our server sends UDP packets: `kernel` or `xdp`; by default, its own choice.
    pub backend: Option<String>,
    /// The offload engine has a TUN device, not an Ethernet interface by AF_XDP.
    pub tun: bool,
    /// How often the measured part is repeated.
    pub runs: Option<usize>,
    /// How long a comparison goes on while its targets are undecided.
    pub limit_s: Option<u64>,
    /// Cores that the server may use.
    pub cores: Option<usize>,
    /// Set when the user wants to stop: a benchmark looks at it between steps and passes it on to what takes long.
    pub cancel: Arc<AtomicBool>,
    /// Told what happens.
    pub progress: ProgressSink,
}

/// The user stopped the benchmark. An error, so that it travels with `?` and everything is dropped on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped before it was done")
    }
}

impl std::error::Error for Cancelled {}

impl Options {
    /// The benchmark's own choices, with `program` as the server.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            tiny: false,
            quick: false,
            program: program.into(),
            streams: None,
            duration_s: None,
            scratch: PathBuf::from("."),
            server_cmd: None,
            url: None,
            rates: Vec::new(),
            transports: Vec::new(),
            titles: None,
            peers: Vec::new(),
            only: Vec::new(),
            offload: None,
            backend: None,
            tun: false,
            runs: None,
            limit_s: None,
            cores: None,
            cancel: Arc::new(AtomicBool::new(false)),
            progress: ProgressSink::silent(),
        }
    }

    /// The same with tiny inputs.
    pub fn tiny(program: impl Into<PathBuf>) -> Self {
        Self { tiny: true, ..Self::new(program) }
    }

    /// `tiny`, `quick` or `full`, whichever kind of run this is.
    pub fn pick<T>(&self, tiny: T, quick: T, full: T) -> T {
        match (self.tiny, self.quick) {
            (true, _) => tiny,
            (false, true) => quick,
            (false, false) => full,
        }
    }

    /// How long a comparison goes on while its targets are undecided: a minute, a third of it for a
    /// quick look.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.limit_s.unwrap_or(self.pick(0, 20, 60)))
    }

    /// To be called between steps.
    ///
    /// # Errors
    /// [`Cancelled`] when the user wants to stop.
    pub fn go_on(&self) -> Result<(), Cancelled> {
        if self.cancel.load(Ordering::Relaxed) { Err(Cancelled) } else { Ok(()) }
    }

    /// Reports the present step: a few words, no line break.
    pub fn say(&self, step: &str) {
        (self.progress.0)(step);
    }
}

/// Receives messages about the progress.
#[derive(Clone)]
pub struct ProgressSink(Arc<dyn Fn(&str) + Send + Sync>);

impl ProgressSink {
    /// To `tell`.
    pub fn to(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Creates a progress that is discarded.
    pub fn silent() -> Self {
        Self::to(|_| ())
    }
}

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressSink")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_outranks_quick() {
        let mut options = Options::new("x");
        assert_eq!(options.pick(1, 2, 3), 3);
        options.quick = true;
        assert_eq!(options.pick(1, 2, 3), 2);
        options.tiny = true;
        assert_eq!(options.pick(1, 2, 3), 1);
    }

    #[test]
    fn cancel_is_visible_in_cloned_options() {
        let options = Options::tiny("x");
        let copy = options.clone();
        assert_eq!(copy.go_on(), Ok(()));
        options.cancel.store(true, Ordering::Relaxed);
        assert_eq!(copy.go_on(), Err(Cancelled));
    }

    #[test]
    fn progress_reaches_who_listens() {
        let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
        let ear = Arc::clone(&heard);
        let mut options = Options::tiny("x");
        options.say("nobody hears this");
        options.progress = ProgressSink::to(move |step| ear.lock().unwrap().push(step.to_owned()));
        options.say("round 1 of 9");
        assert_eq!(*heard.lock().unwrap(), ["round 1 of 9"]);
    }
}

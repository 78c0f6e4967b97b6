//! All checks, by phase.

mod browser;
mod cast;
mod ffmpeg;
mod gstreamer;
mod hls;
mod own;
mod vlc;
mod wire;

use super::Lab;
use super::films::TestMedia;
use super::network::{Ground, no_namespaces};
use super::server::Server;

/// A player must end by itself this long after the film's length: 2.5 s until the server sends BYE,
/// the rest for starting the program, opening and closing the session.
const END_SECONDS: f64 = 6.0;

/// Figures if it passed, otherwise the fault.
type CheckOutcome = Result<String, String>;

/// Plays something and judges what arrived.
type Try = dyn Fn(&Lab, &Server) -> CheckOutcome + Send + Sync;

/// One check.
pub(super) struct Check {
    pub(super) name: String,
    /// Only in the long form.
    pub(super) long: bool,
    /// Not beside others.
    pub(super) alone: bool,
    /// Programs without which it is skipped.
    pub(super) needs: &'static [&'static str],
    /// What else is missing, if anything is: then it is skipped too.
    pub(super) impossible: fn() -> Option<String>,
    pub(super) run: Box<Try>,
}

/// A server on some ground, and the checks tried there.
pub(super) struct CheckPhase {
    pub(super) word: &'static str,
    pub(super) title: &'static str,
    /// Why this machine cannot do it, if so.
    pub(super) impossible: fn() -> Option<String>,
    pub(super) ground: fn(&Lab) -> Result<Ground, String>,
    fill: fn(&mut Vec<Check>),
}

pub(super) const PHASES: &[CheckPhase] = &[
    CheckPhase {
        word: "loop",
        title: "on the loopback",
        impossible: || None,
        ground: |_| Ok(Ground::loopback()),
        fill: |checks| {
            ffmpeg::add(checks);
            gstreamer::add(checks);
            own::add(checks);
            vlc::add(checks);
            hls::add(checks);
            browser::add(checks);
        },
    },
    CheckPhase {
        word: "wire",
        title: "between network namespaces, checksums in software",
        impossible: no_namespaces,
        ground: |_| Ground::namespaces(),
        fill: |checks| {
            wire::add(checks);
            cast::add(checks);
        },
    },
    CheckPhase {
        word: "blocked",
        title: "between network namespaces, UDP dropped by the client's firewall",
        impossible: no_namespaces,
        ground: |_| Ground::without_udp(),
        fill: wire::add_blocked,
    },
    CheckPhase {
        word: "engine",
        title: "between network namespaces, RTSP by the offload engine at a TUN device",
        impossible: no_namespaces,
        ground: |_| Ground::by_engine(),
        fill: wire::add_by_engine,
    },
];

impl CheckPhase {
    /// Its checks in the short or the long form, named `phase/player/...`.
    pub(super) fn checks(&self, long: bool) -> Vec<Check> {
        let mut checks = Vec::new();
        (self.fill)(&mut checks);
        checks.retain(|c| long || !c.long);
        for check in &mut checks {
            check.name = format!("{}/{}", self.word, check.name);
        }
        checks
    }
}

/// How RTP travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    const BOTH: [Self; 2] = [Self::Udp, Self::Tcp];

    fn word(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// Films of the short form.
const SHORT_FILMS: [&str; 3] = ["cbr", "vbr", "bframes"];

/// Films whose time stamps begin elsewhere than FFmpeg's usual 1.4 s, or wrap: where players look for a position by time stamps.
const ODD_TIMES: [&str; 3] = ["from-zero", "from-5000s", "wraps"];
/// Others that are unlike those of the short form: more than one program, and very short.
const ODD_FILMS: [&str; 2] = ["two-programs", "half-second"];

impl Check {
    fn new(
        name: String,
        needs: &'static [&'static str],
        run: impl Fn(&Lab, &Server) -> CheckOutcome + Send + Sync + 'static,
    ) -> Self {
        Self { name, long: false, alone: false, needs, impossible: || None, run: Box::new(run) }
    }

    /// A check that plays one film over one transport; `run` gets the film and a name for its logs.
    fn playing(
        player: &str,
        what: &str,
        film: &'static str,
        transport: Transport,
        needs: &'static [&'static str],
        run: impl Fn(&Lab, &Server, &TestMedia, &str) -> CheckOutcome + Send + Sync + 'static,
    ) -> Self {
        let name = format!("{player}/{what}/{}/{film}", transport.word());
        let log = name.clone();
        Self::new(name, needs, move |lab, server| run(lab, server, lab.film(film)?, &log))
    }

    fn only_long(mut self) -> Self {
        self.long = true;
        self
    }

    /// In the short form by UDP alone.
    fn short_by_udp(mut self, transport: Transport) -> Self {
        self.long = transport == Transport::Tcp;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_long_form_has_more() {
        let names = |long| PHASES.iter().flat_map(|p| p.checks(long)).map(|c| c.name).collect::<Vec<_>>();
        let (short, long) = (names(false), names(true));
        assert!(short.len() >= 15 && long.len() > short.len(), "{} and {}", short.len(), long.len());
        assert!(short.iter().all(|name| long.contains(name)));
        let unique: std::collections::BTreeSet<_> = long.iter().collect();
        assert_eq!(unique.len(), long.len());
    }
}

//! Other servers, as they are installed here, each with a configuration of its own: to know how
//! good we are, we need a comparison.
//!
//! Everything that can serve the same titles to the same receiver is a [`Peer`]: how to find it, how to start it, what
//! viewers ask for. Nothing here is started as a service of the machine: all run in the server's namespace, on the
//! server's cores, and are gone when they are no longer held.

mod ffmpeg;
mod gstreamer;
mod live555;
mod mediamtx;
mod millrace;
mod multicat;
mod nginx;
mod peer;
mod reference;
mod vlc;
mod zlmediakit;

pub use millrace::{custom, stats_file};
pub(crate) use nginx::serves as nginx_serves;
pub use peer::Peer;
pub(crate) use peer::{HTTP_PORT, HTTPS_PORT, run};

/// Ourselves.
pub const OURSELVES: Peer = millrace::PEER;

/// All others.
pub const ALL: &[Peer] = &[
    reference::RING,
    reference::EVENTS,
    reference::PROCESS,
    reference::SENDFILE,
    nginx::PEER,
    zlmediakit::PEER,
    mediamtx::PEER,
    live555::PEER,
    gstreamer::PEER,
    multicat::PEER,
    ffmpeg::PEER,
    vlc::PEER,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_unique_names_and_install_hints() {
        let mut names: Vec<&str> = ALL.iter().map(|peer| peer.name).collect();
        assert!(ALL.iter().all(|peer| !peer.install.is_empty()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(OURSELVES.missing().is_none());
    }
}

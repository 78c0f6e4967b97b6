//! Players of HLS that are no browsers, from the server's page: transport streams and fragmented MP4.

use super::gstreamer::{self, LAUNCH};
use super::{Check, vlc};
use crate::interop::films::{DEMO_CBR, JOINED, TestMedia};
use crate::interop::server::Server;

/// Playlists of a title, and what their segments are.
const PLAYLISTS: [(&str, &str); 2] = [("ts", "index.m3u8"), ("cmaf", "cmaf.m3u8")];

pub(super) fn add(checks: &mut Vec<Check>) {
    for (word, playlist) in PLAYLISTS {
        for film in ["cbr", "bframes", DEMO_CBR, "wraps", JOINED] {
            let is_short = film == "bframes" || film == DEMO_CBR;
            let url = move |server: &Server, film: &TestMedia| -> Result<String, String> {
                Ok(format!("{}titles/{}/{playlist}", server.page()?, film.name))
            };
            let name = |player: &str| format!("{player}/hls/{word}/{film}");
            let (log, vlc_log) = (name("gst"), name("vlc"));
            let by_gst = Check::new(name("gst"), LAUNCH, move |lab, server| {
                let film = lab.film(film)?;
                gstreamer::decode(server, film, &url(server, film)?, &log)
            });
            let by_vlc = Check::new(name("vlc"), vlc::NEEDS, move |lab, server| {
                let film = lab.film(film)?;
                vlc::record(server, film, &url(server, film)?, &film.pictures, &vlc_log)
            });
            // VLC 3 gives up where fragmented MP4 restarts with a header of its own.
            let by_vlc = (word == "ts" || film != JOINED).then_some(by_vlc);
            let both = [Some(by_gst), by_vlc].into_iter().flatten();
            checks.extend(both.map(|check| if is_short { check } else { check.only_long() }));
        }
    }
}

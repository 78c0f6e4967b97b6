//! VLC, as Debian builds it: its RTSP is that of SAT>IP (SETUP without DESCRIBE, one session known by its header
//! only, no TCP). It records what it receives, because a picture on a screen that is not there proves nothing.

use std::os::unix::fs::PermissionsExt;

use super::{Check, END_SECONDS, ODD_TIMES, Outcome, Transport};
use crate::interop::films::{DEMO_CBR, DEMO_VBR, FRAMES_PER_SECOND, Film, Frames, difference, to_the_end};
use crate::interop::server::Server;

const NEEDS: &[&str] = &["cvlc", "setpriv"];

/// Pictures that may be missing at either end: the recorder starts and stops at whole groups of packets.
const EDGE_FRAMES: usize = FRAMES_PER_SECOND;

pub(super) fn add(checks: &mut Vec<Check>) {
    let films = [DEMO_CBR, DEMO_VBR, "cbr", "vbr", "bframes", "big", "two-programs"];
    for film in films.into_iter().chain(ODD_TIMES) {
        let check = Check::playing("vlc", "record", film, Transport::Udp, NEEDS, |_, server, film, log| {
            record(server, film, log)
        });
        checks.push(if film == DEMO_CBR { check } else { check.only_long() });
    }
}

fn record(server: &Server, film: &Film, log: &str) -> Outcome {
    // VLC refuses to run as root, so its folder must be open to the user it runs as.
    let folder = server.folder().join(format!("vlc-{}", film.name));
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let file = folder.join("recorded.ts");
    let ended = server
        .client("cvlc")
        .args("-q --no-video-title-show --play-and-exit --sout")
        .arg(format!("#std{{access=file,mux=ts,dst={}}}", file.display()))
        .arg(server.url(film)?)
        .arg("vlc://quit")
        .env("HOME", &folder)
        .unprivileged()
        .run(&server.log(log), film.seconds + 2.0 * END_SECONDS)?;
    ended.ok("cvlc")?;
    if !file.is_file() {
        return Err(format!("VLC recorded nothing: {}", ended.last_words()));
    }
    let pictures = Frames::of_file(&file, "0:v:0", &server.log(&format!("{log}-decoded")))?.pictures;
    let at = to_the_end(&film.pictures, &pictures, EDGE_FRAMES)
        .ok_or_else(|| difference(&film.pictures, &pictures))?;
    if at > EDGE_FRAMES {
        return Err(format!("{} pictures recorded, {at} missing before the first", pictures.len()));
    }
    let (got, all) = (pictures.len(), film.pictures.len());
    Ok(format!(
        "{got} of {all} pictures recorded, all equal, ended {:.1} s after the film",
        ended.seconds - film.seconds
    ))
}

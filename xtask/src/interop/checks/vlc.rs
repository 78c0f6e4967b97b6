//! VLC, as Debian builds it: its RTSP is that of SAT>IP (SETUP without DESCRIBE, one session known
//! by its header only, no TCP). It records the stream, because a picture on a screen that is not
//! there proves nothing.

use std::os::unix::fs::PermissionsExt;

use super::{Check, CheckOutcome, END_SECONDS, ODD_TIMES, Transport};
use crate::interop::films::{
    DEMO_CBR, DEMO_VBR, FRAMES_PER_SECOND, GROUP_SECONDS, JOINED, LOWER, PART_SECONDS, RUNGS, TestMedia,
};
use crate::interop::frames::{Frames, difference, to_the_end};
use crate::interop::server::Server;

pub(super) const NEEDS: &[&str] = &["cvlc", "setpriv"];

/// Pictures that may be missing at either end: the recorder starts and stops at whole groups of packets.
const EDGE_FRAMES: usize = FRAMES_PER_SECOND;

pub(super) fn add(checks: &mut Vec<Check>) {
    let films = [DEMO_CBR, DEMO_VBR, "cbr", "vbr", "bframes", "big", "two-programs", JOINED];
    for film in films.into_iter().chain(ODD_TIMES) {
        let check = Check::playing("vlc", "record", film, Transport::Udp, NEEDS, |_, server, film, log| {
            record(server, film, &server.url(film)?, &film.pictures, log)
        });
        checks.push(if film == DEMO_CBR { check } else { check.only_long() });
    }
    checks.push(Check::playing("vlc", "rendition", RUNGS, Transport::Udp, NEEDS, |_, server, film, log| {
        let url = format!("{}?rendition={LOWER}", server.url(film)?);
        record(server, film, &url, &film.lower, log)
    }));
}

/// Records the stream from `url`: the film with these pictures.
pub(super) fn record(
    server: &Server,
    film: &TestMedia,
    url: &str,
    wanted: &[String],
    log: &str,
) -> CheckOutcome {
    // VLC refuses to run as root, so its folder must be open to the user it runs as.
    let folder = server.folder().join(log.replace('/', "-") + "-folder");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let file = folder.join("recorded.ts");
    let ended = server
        .client("cvlc")
        .args("-q --no-video-title-show --play-and-exit --sout")
        .arg(format!("#std{{access=file,mux=ts,dst={}}}", file.display()))
        .arg(url)
        .arg("vlc://quit")
        .env("HOME", &folder)
        .unprivileged()
        .run(&server.log(log), film.seconds + 2.0 * END_SECONDS)?;
    ended.ok("cvlc")?;
    if !file.is_file() {
        return Err(format!("VLC recorded nothing: {}", ended.last_words()));
    }
    let pictures = Frames::of_file(&file, "0:v:0", &server.log(&format!("{log}-decoded")))?.pictures;
    if film.is_joined {
        let note = across_the_join(wanted, &pictures)?;
        return Ok(format!("{note}, ended {:.1} s after the film", ended.seconds - film.seconds));
    }
    let at = to_the_end(wanted, &pictures, EDGE_FRAMES).ok_or_else(|| difference(wanted, &pictures))?;
    if at > EDGE_FRAMES {
        return Err(format!("{} pictures recorded, {at} missing before the first", pictures.len()));
    }
    let (got, all) = (pictures.len(), wanted.len());
    Ok(format!(
        "{got} of {all} pictures recorded, all equal, ended {:.1} s after the film",
        ended.seconds - film.seconds
    ))
}

/// Where two recordings were joined VLC starts its clock and its decoder again: the pictures from a few before the join to the next access
/// point behind its first are missing or damaged, and only these.
fn across_the_join(film: &[String], recorded: &[String]) -> CheckOutcome {
    let join = PART_SECONDS as usize * FRAMES_PER_SECOND;
    let again = join + GROUP_SECONDS * FRAMES_PER_SECOND;
    let before = film.iter().zip(recorded).take_while(|(a, b)| a == b).count();
    let rest = recorded.iter().position(|sum| *sum == film[again]).unwrap_or(recorded.len());
    let is_whole = to_the_end(&film[again..], &recorded[rest..], EDGE_FRAMES) == Some(0);
    if before + EDGE_FRAMES < join || rest > again || !is_whole {
        return Err(format!("{before} pictures to the join at {join}; {}", difference(film, recorded)));
    }
    Ok(format!("{before} pictures to the join at {join}, all equal, and from {again} to the end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn across_the_join_allows_loss_only_around_join() {
        let film: Vec<String> = (0..400).map(|number| number.to_string()).collect();
        let damaged = vec!["damaged".to_owned(); 60];
        for recorded in [
            film.clone(),
            [&film[..190], &damaged[..20], &film[250..]].concat(),
            [&film[..200], &film[250..394]].concat(),
        ] {
            assert!(across_the_join(&film, &recorded).is_ok());
        }
        for recorded in [
            [&film[..170], &film[250..]].concat(),
            [&film[..200], &film[251..]].concat(),
            [&film[..200], &damaged, &film[250..]].concat(),
            [&film[..200], &film[250..370]].concat(),
            [&film[..200], &film[250..300], &film[310..]].concat(),
            film[1..].to_vec(),
            film[..200].to_vec(),
        ] {
            assert!(across_the_join(&film, &recorded).is_err());
        }
    }
}

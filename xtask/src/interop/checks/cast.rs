//! Multicast: players that receive a channel from its group. The channel plays one film in a loop, so every picture that is shown must be
//! one of the film's, and enough of them.

use std::os::unix::fs::PermissionsExt;

use super::{Check, CheckOutcome, vlc};
use crate::interop::Lab;
use crate::interop::films::{FRAMES_PER_SECOND, TestMedia};
use crate::interop::frames::Frames;
use crate::interop::server::Server;

/// The film of the channel.
const FILM: &str = "cbr";
/// Pictures to receive.
const PICTURES: usize = 4 * FRAMES_PER_SECOND;
/// For starting the program, joining and closing.
const SECONDS: f64 = 20.0;

pub(super) fn add(checks: &mut Vec<Check>) {
    let check = |name: &str, needs, play: fn(&Server, &TestMedia) -> CheckOutcome| {
        Check::new(format!("{name}/multicast/{FILM}"), needs, move |lab: &Lab, server: &Server| {
            play(server, lab.film(FILM)?)
        })
    };
    checks.push(check("ffmpeg", &["ffmpeg"], ffmpeg));
    checks.push(check("gst", &["gst-launch-1.0"], gstreamer));
    checks.push(check("vlc", vlc::NEEDS, vlc_records));
}

fn ffmpeg(server: &Server, film: &TestMedia) -> CheckOutcome {
    let client = server.client("ffmpeg").args("-v error -nostdin -rtsp_transport udp_multicast -i");
    let client = client.arg(server.channel_url());
    let client = client.args(&format!("-map 0:v:0 -frames:v {PICTURES} -f framemd5 -"));
    let ended = client.run(&server.log("ffmpeg-multicast"), SECONDS)?;
    ended.ok("ffmpeg")?;
    judge(film, &Frames::parse(&ended.out).pictures, PICTURES)
}

fn gstreamer(server: &Server, film: &TestMedia) -> CheckOutcome {
    let source = format!("rtspsrc location={} protocols=udp-mcast ! rtpmp2tdepay", server.channel_url());
    let pipeline = format!("{source} ! tsdemux ! h264parse ! avdec_h264 ! video/x-raw,format=I420");
    let client = server.client("gst-launch-1.0");
    let sink = "checksumsink hash=md5 sync=false";
    let client = client.args(&format!("-q {pipeline} ! identity eos-after={} ! {sink}", PICTURES + 1));
    let ended = client.run(&server.log("gst-multicast"), SECONDS)?;
    ended.ok("gst-launch-1.0")?;
    let sums = ended.out.lines().filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned);
    judge(film, &sums.collect::<Vec<_>>(), PICTURES)
}

fn vlc_records(server: &Server, film: &TestMedia) -> CheckOutcome {
    // VLC refuses to run as root, so its folder must be open to the user it runs as.
    let folder = server.folder().join("vlc-multicast-folder");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)))
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    let file = folder.join("recorded.ts");
    let seconds = PICTURES / FRAMES_PER_SECOND + 2;
    let ended = server
        .client("cvlc")
        .args(&format!(
            "-q --no-video-title-show --satip-multicast --run-time {seconds} --play-and-exit --sout"
        ))
        .arg(format!("#std{{access=file,mux=ts,dst={}}}", file.display()))
        .arg(server.channel_url())
        .arg("vlc://quit")
        .env("HOME", &folder)
        .unprivileged()
        .run(&server.log("vlc-multicast"), SECONDS)?;
    ended.ok("cvlc")?;
    if !file.is_file() {
        return Err(format!("VLC recorded nothing: {}", ended.last_words()));
    }
    let pictures = Frames::of_file(&file, "0:v:0", &server.log("vlc-multicast-decoded"))?.pictures;
    // It begins and ends wherever it is: a picture at either end may be torn.
    let inner = pictures.get(1..pictures.len().saturating_sub(1)).unwrap_or_default();
    judge(film, inner, FRAMES_PER_SECOND)
}

fn judge(film: &TestMedia, shown: &[String], least: usize) -> CheckOutcome {
    let foreign = shown.iter().filter(|sum| !film.pictures.contains(sum)).count();
    match shown.len() {
        count if foreign > 0 => Err(format!("{foreign} of {count} pictures are damaged")),
        count if count < least => Err(format!("{count} pictures, at least {least} are wanted")),
        count => Ok(format!("{count} pictures, all of the film")),
    }
}

//! Between two namespaces: the counters of the receiving side's kernel, and a firewall that drops
//! UDP.

use super::{Check, CheckOutcome, Transport, ffmpeg, gstreamer, own, vlc};
use crate::interop::Lab;
use crate::interop::network::UdpCounters;
use crate::interop::server::Server;
use crate::workspace;

/// Until a player gives up UDP and asks for TCP: FFmpeg and GStreamer both wait 5 s.
const GIVE_UP_SECONDS: f64 = 8.0;

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        checks.push(Check::playing("own", "whole", "cbr", transport, &[], move |lab, server, film, log| {
            own::whole(lab, server, film, transport, log)
        }));
        checks.push(Check::playing(
            "ffmpeg",
            "whole",
            "vbr",
            transport,
            &["ffmpeg"],
            move |_, server, film, log| {
                ffmpeg::whole(server, film, &format!("-rtsp_transport {}", transport.word()), 0.0, log)
            },
        ));
    }
    let mut counters = Check::new("kernel/checksums".into(), &["python3"], checksums);
    counters.alone = true;
    checks.push(counters);
}

pub(super) fn add_blocked(checks: &mut Vec<Check>) {
    let ffmpeg = Check::new("ffmpeg/falls-back/cbr".into(), &["ffmpeg"], |lab, server| {
        ffmpeg::whole(server, lab.film("cbr")?, "", GIVE_UP_SECONDS, "ffmpeg-falls-back")
    });
    let gst = Check::new("gst/falls-back/cbr".into(), &["gst-launch-1.0"], |lab, server| {
        gstreamer::launch(server, lab.film("cbr")?, "udp+tcp", GIVE_UP_SECONDS, "gst-falls-back")
    });
    checks.extend([ffmpeg.only_long(), gst.only_long()]);
}

/// Interleaved in connections that the offload engine carries. VLC, as Debian builds it, knows no interleaved RTP: it plays the same title by UDP from the
/// kernel's address meanwhile.
pub(super) fn add_by_engine(checks: &mut Vec<Check>) {
    let tcp = Transport::Tcp;
    checks.push(Check::playing("own", "whole", "cbr", tcp, &[], move |lab, server, film, log| {
        own::whole(lab, server, film, tcp, log)
    }));
    checks.push(Check::playing("ffmpeg", "whole", "vbr", tcp, &["ffmpeg"], |_, server, film, log| {
        ffmpeg::whole(server, film, "-rtsp_transport tcp", 0.0, log)
    }));
    // UDP, which these ask for first, is refused.
    checks.push(Check::new("ffmpeg/goes-on/cbr".into(), &["ffmpeg"], |lab, server| {
        ffmpeg::whole(server, lab.film("cbr")?, "", 0.0, "ffmpeg-goes-on")
    }));
    checks.push(Check::new("gst/goes-on/cbr".into(), &["gst-launch-1.0"], |lab, server| {
        gstreamer::launch(server, lab.film("cbr")?, "udp+tcp", 0.0, "gst-goes-on")
    }));
    checks.push(Check::playing(
        "gst",
        "launch",
        "bframes",
        tcp,
        &["gst-launch-1.0"],
        |_, server, film, log| gstreamer::launch(server, film, "tcp", 0.0, log),
    ));
    checks.push(Check::playing(
        "vlc",
        "kernel",
        "cbr",
        Transport::Udp,
        vlc::NEEDS,
        |_, server, film, log| vlc::record(server, film, &server.kernel_url(film)?, &film.pictures, log),
    ));
}

/// After films have been played here: the receiving kernel has seen many datagrams and not one with a wrong
/// checksum. Then one is sent on purpose, because a counter that never moves proves nothing.
fn checksums(lab: &Lab, server: &Server) -> CheckOutcome {
    let (Some(client), Some(here)) = (&server.client_namespace, &server.server_namespace) else {
        return Err("this phase has no namespaces".into());
    };
    let played = UdpCounters::read(client)?;
    if played.checksum_errors + played.buffer_errors != 0 || played.received < 1000 {
        return Err(format!("the receiving kernel counts {played:?}"));
    }
    crate::interop::process::ProgramSpec::new("python3")
        .arg(workspace::root().join("scripts/interop/wrong_checksum.py"))
        .arg("10.213.77.2")
        .inside(Some(here))
        .run(&lab.dir.join("wrong-checksum"), 10.0)?
        .ok("wrong_checksum.py")?;
    let after = UdpCounters::read(client)?;
    if after.checksum_errors != 1 {
        return Err(format!("one wrong checksum was sent but the receiving kernel counts {after:?}"));
    }
    Ok(format!(
        "{} datagrams received, 0 wrong checksums, 0 dropped; 1 sent on purpose was seen",
        played.received
    ))
}

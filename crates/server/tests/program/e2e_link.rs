//! The server and our receivers over a bad link: the packets that the receivers miss are exactly
//! the packets that the link has lost.
//!
//! Needs root and TUN devices; skipped with a message otherwise.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::support::two_hosts::{Site, listen};
use crate::support::{Server, film, millrace, ok, run};
use millrace_lab::link_host::{LinkSpec, LinkStats};
use millrace_lab::netns::TwoHosts;
use millrace_load::{Arrivals, LoadOptions, load};

/// A server at the far end of an emulated link; `None`, with the reason printed, if this process may not make one.
fn site(link: &str, film_secs: u64) -> Option<Site> {
    let root = rustix::process::geteuid().is_root();
    if !root || !Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: emulated links need root and /dev/net/tun");
        return None;
    }
    let link: LinkSpec = link.parse().unwrap();
    Some(Site::new(TwoHosts::with_link(link.there, link.back).unwrap(), film_secs, &listen(), &[]))
}

fn there(site: &Site) -> LinkStats {
    site.scene.hosts.link_stats().unwrap()[0]
}

/// Plays and compares; that something was lost is no failure here.
fn play(site: &Site, transport: &str, output: &Path) -> serde_json::Value {
    let (data, output) = (site.scene.data.to_str().unwrap(), output.to_str().unwrap());
    site.scene.play(&["--transport", transport, "-o", output, "--verify", data])
}

#[test]
fn play_over_lossy_link_reports_exactly_its_losses() {
    let link = "loss 1%, burst-loss 1% x4, duplicate 1%, reorder 1% by 3 within 1s, delay 10ms, jitter 2ms; delay 10ms";
    let Some(site) = site(link, 6) else { return };
    let report = play(&site, "udp", Path::new("null"));
    let there = there(&site);
    let (link, packets) = (there.rtp, site.scene.packets());
    let seen = |name: &str| report["sequence"][name].as_i64().unwrap_or(0).cast_unsigned();
    assert_eq!((there.unplanned(), link.waiting), (0, 0), "{there}");
    assert!(
        link.received >= packets && link.lost > 0 && link.reordered > 0 && link.duplicated > 0,
        "{there}"
    );
    assert_eq!(report["packets"].as_u64().unwrap() + link.lost, link.received, "{there} {report}");
    assert_eq!(seen("duplicates"), link.duplicated, "{there} {report}");
    assert_eq!(seen("reordered"), link.reordered, "{there} {report}");
    assert_eq!(seen("strays"), 0, "{there} {report}");
    let lost = seen("lost") + seen("lost_at_start") + seen("lost_at_end");
    if report["sequence"]["lost_at_end"].is_null() {
        // The report or the BYE with the number of packets got lost: no receiver can know.
        assert!(lost <= link.lost, "{there} {report}");
    } else {
        assert_eq!(lost, link.lost, "{there} {report}");
    }
}

#[test]
fn load_over_lossy_link_reports_exactly_its_losses() {
    let link = "loss 1%, duplicate 1%, reorder 1% by 5 within 1s, delay 5ms; delay 5ms";
    let Some(site) = site(link, 4) else { return };
    let mut options = LoadOptions::new(vec![site.server.title("film")], 10);
    options.arrivals = Arrivals::Ramp(Duration::from_secs(1));
    // Everybody sees the film to its end, and the BYE 2.5 s after it.
    options.duration = Duration::from_secs(9);
    let report =
        site.scene.hosts.on_client(|| load(&options, &AtomicBool::new(false), &mut |_| ())).unwrap().unwrap();
    let there = there(&site);
    let link = there.rtp;
    assert_eq!((report.played, report.failed), (10, 0), "{report}");
    assert_eq!((there.unplanned(), link.waiting), (0, 0), "{there}");
    assert!(link.lost > 0 && link.reordered > 0 && link.duplicated > 0, "{there}");
    // The streams overtake each other as well, which no receiver can see: not every overtaken packet is one of its own
    // stream's.
    assert!(report.reordered > 0 && report.reordered <= link.reordered, "{there} {report}");
    assert_eq!(report.packets + link.lost, link.received, "{there} {report}");
    assert_eq!(report.duplicates, link.duplicated, "{there} {report}");
    let lost = report.lost + report.lost_at_start + report.lost_at_end;
    // A receiver that did not hear the end cannot know of packets lost right before it.
    let is_known = report.sessions_ended == 10;
    assert!(lost == link.lost || !is_known && lost < link.lost, "{there} {report}");
}

#[test]
fn interleaved_in_tcp_no_byte_is_missing() {
    let Some(site) = site("loss 1%, reorder 1% by 3, delay 10ms, jitter 2ms; loss 0.5%, delay 10ms", 6)
    else {
        return;
    };
    let output = site.scene.dir.path().join("copy.ts");
    let report = play(&site, "tcp", &output);
    let there = there(&site);
    assert!(std::fs::read(&output).unwrap() == std::fs::read(&site.scene.data).unwrap(), "{report}");
    assert_eq!(report["sequence"]["lost"], 0, "{report}");
    assert!(there.all.lost > 0 && there.all.is_conserved(), "{there}");
    assert_eq!(there.rtp.received, 0, "nothing went by UDP: {there}");
}

#[test]
fn load_with_link_option_emulates_its_own_link() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: emulated links need root and /dev/net/tun");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let source = film(dir.path(), "film.ts", 4);
    ok(&["add", "--quiet", source.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    let mut command = millrace();
    command.args(["serve", "--listen", "0.0.0.0:0", "--cache", "32MiB", "--store"]).arg(&store);
    let server = Server::spawn(command);
    let url = format!("rtsp://127.0.0.1:{}/film", server.addr.port());
    let link = "loss 2%, delay 5ms; delay 5ms";
    let args =
        ["load", &url, "--streams", "4", "--duration", "9s", "--json", "--max-loss", "20%", "--link", link];
    let done = run(&args);
    assert!(done.status.success(), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let (link, count) = (&report["link"], |value: &serde_json::Value| value.as_u64().unwrap());
    let rtp = &link["to_viewers"]["rtp"];
    assert_eq!(link["spec"], "loss 2%, delay 5ms; delay 5ms");
    assert!(count(&rtp["lost"]) > 0, "{link}");
    assert_eq!(count(&report["packets"]) + count(&rtp["lost"]), count(&rtp["received"]), "{report}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("nsenter --net=/proc/") && said.contains("rtsp://10.78."), "{said}");
    // As text, and with targets and links that make no sense.
    let text = ok(&["load", &url, "--streams", "2", "--duration", "1s", "--quiet", "--link", "none"]);
    assert!(text.contains("link: none") && text.contains("to the viewers:"), "{text}");
    let wrong = run(&["load", &url, "--link", "los 2%"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("write one or more of: loss 1%"), "{wrong:?}");
}

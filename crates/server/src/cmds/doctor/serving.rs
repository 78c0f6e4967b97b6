//! What `serve` and `add` need beside the kernel: ffmpeg, hls.js, ports, space for titles.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

use millrace_core::units::ByteLen;
use millrace_make::ingest::is_sandbox_complete;
use millrace_offload::probe::Finding;

use super::checks::{CheckResult, finding};
use crate::cmds::StoreArgs;
use crate::cmds::serve::DEFAULT_PORTS;
use crate::limits::web::{DEFAULT_HTTP_PORT, HTTP_PORTS};

/// Less than this is soon used up: an hour at 8 Mb/s.
const LITTLE_SPACE_BYTES: u64 = 4 << 30;

/// All checks.
pub(super) fn all() -> Vec<Finding> {
    let http = DEFAULT_HTTP_PORT..DEFAULT_HTTP_PORT + HTTP_PORTS;
    vec![program("ffmpeg"), program("ffprobe"), sandbox(), hls_js(), ports(&DEFAULT_PORTS, http), space()]
}

/// The version that a program prints first.
fn version(program: &str) -> CheckResult {
    let output = Command::new(program).arg("-version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot be started: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.lines().next().filter(|_| output.status.success()) {
        Some(line) => Ok(line.split(" Copyright").next().unwrap_or(line).to_owned()),
        None => Err(format!("{program} -version ends with {}", output.status)),
    }
}

fn program(name: &'static str) -> Finding {
    finding(
        name,
        version(name),
        "everything that is not MPEG-TS: MP4, Matroska, AVI and others; posters, renditions, fast forward",
        "apt-get install ffmpeg, or name it: --ffmpeg PROGRAM; its ffprobe is expected beside it",
    )
}

fn sandbox() -> Finding {
    let found = match is_sandbox_complete() {
        Ok(true) => Ok("files, network, other programs".to_owned()),
        Ok(false) => Err("this kernel knows only a part of the rules".to_owned()),
        Err(error) => Err(format!("cannot be made: {error}")),
    };
    finding(
        "ffmpeg sandbox",
        found,
        "films of strangers: ffmpeg is kept from all other files, the network and other programs",
        "use Linux 6.12 or newer with Landlock (lsm=landlock,... at boot), or take in only films that you trust",
    )
}

fn hls_js() -> Finding {
    let found = match millrace_web::HAS_HLS_JS {
        true => Ok("built in".to_owned()),
        false => Err("not built in".to_owned()),
    };
    finding(
        "hls.js",
        found,
        "playing on the page in browsers that have no HLS of their own",
        "run scripts/npm.sh page and build again",
    )
}

/// Whether a server could listen on a port of all addresses.
fn is_free(port: u16) -> Result<(), std::io::Error> {
    let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    TcpListener::bind(all).or_else(|_| TcpListener::bind(SocketAddr::from(([0; 4], port)))).map(drop)
}

/// `serve` needs one of each: it takes the first that is free.
fn ports(rtsp: &[u16], mut http: Range<u16>) -> Finding {
    let of = |port: u16| match is_free(port) {
        Ok(()) => format!("{port} is free"),
        Err(error) => format!("{port}: {error}"),
    };
    let detail = rtsp.iter().copied().chain([http.start]).map(of).collect::<Vec<_>>().join("; ");
    let is_room = rtsp.iter().any(|port| is_free(*port).is_ok()) && http.any(|port| is_free(port).is_ok());
    finding(
        "ports",
        if is_room { Ok(detail) } else { Err(detail) },
        "RTSP at 554 or 8554, HTTP at 8080 or one of the next: where serve listens by itself",
        "if that is not millrace serve, choose other ports: --listen ADDR:PORT, --http ADDR:PORT; to see what uses them: ss -ltnp",
    )
}

/// Free bytes of the file system that a path is on, or would be on.
fn free_bytes(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|path| path.exists())?;
    rustix::fs::statvfs(there).ok().map(|stat| stat.f_bavail * stat.f_frsize)
}

fn space_for(dir: &Path, free: Option<u64>) -> CheckResult {
    let Some(free) = free else {
        return Err(format!("{}: cannot determine the free space", dir.display()));
    };
    let detail = format!("{} free for {}", ByteLen(free), dir.display());
    if free < LITTLE_SPACE_BYTES { Err(detail) } else { Ok(detail) }
}

fn space() -> Finding {
    let found = match StoreArgs::of_environment().dir() {
        Err(error) => Err(error.to_string()),
        Ok(dir) => space_for(&dir, free_bytes(&dir)),
    };
    finding(
        "space",
        found,
        "titles: the store keeps a copy of each film",
        "name a larger disk: --store DIR, or MILLRACE_STORE",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_a_program_that_is_not_there_says_so() {
        assert!(version("/none/ffmpeg").unwrap_err().contains("cannot be started"));
        assert!(version("false").unwrap_err().contains("ends with"));
    }

    #[test]
    fn port_in_use_is_not_free() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        assert!(is_free(listener.local_addr().unwrap().port()).is_err());
    }

    #[test]
    fn ports_need_a_free_one_for_rtsp_and_for_http() {
        let taken = [(); 2].map(|()| TcpListener::bind("[::]:0").unwrap());
        let [rtsp, http] = taken.each_ref().map(|listener| listener.local_addr().unwrap().port());
        // A port that was free a moment ago.
        let free = {
            let listener = TcpListener::bind("[::]:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let works = |rtsp: &[u16], http: Range<u16>| ports(rtsp, http).works;
        assert!(works(&[rtsp, free], free..free + 1));
        assert!(!works(&[rtsp], free..free + 1) && !works(&[free], http..http + 1));
        let Finding { detail, .. } = ports(&[rtsp, free], http..http + 1);
        assert!(detail.contains(&format!("{rtsp}: ")) && detail.contains(&format!("{free} is free")));
    }

    #[test]
    fn hls_js_and_space_are_as_they_are_found() {
        assert_eq!(hls_js().works, millrace_web::HAS_HLS_JS);
        let of = |free| space_for(Path::new("/films"), free);
        assert_eq!(of(Some(LITTLE_SPACE_BYTES)).unwrap(), "4GiB free for /films");
        assert!(of(Some(LITTLE_SPACE_BYTES - 1)).is_err() && of(None).is_err());
    }

    #[test]
    fn space_of_a_store_that_is_not_there_is_that_of_its_disk() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(free_bytes(&dir.path().join("a/b")).is_some(), free_bytes(dir.path()).is_some());
        assert!(free_bytes(dir.path()).unwrap() > 0);
    }
}

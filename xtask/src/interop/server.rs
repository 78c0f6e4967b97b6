//! The program under test, started as a user would start it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Lab;
use super::films::TestMedia;
use super::network::{Ground, SERVER_DEVICE};
use super::process::{ProgramSpec, RunningProgram};

/// Time for taking in all films and opening the port.
const READY_SECONDS: f64 = 90.0;
/// Time for ending after Ctrl-C.
const END_SECONDS: f64 = 10.0;

/// The line that the program prints when it has looked through its folders. Films that changed a
/// moment ago come later; for each film that can be played it prints its URL.
const READY: &str = "ready rtsp://";

/// A running server and the way to it.
pub(crate) struct Server {
    running: RunningProgram,
    /// Where players play.
    base: String,
    /// At the kernel's address.
    kernel_base: String,
    ready_after: f64,
    pub(super) client_namespace: Option<String>,
    pub(super) server_namespace: Option<String>,
    logs: PathBuf,
}

/// Whether a line of the server's output reports that a title can be played: the line of a title
/// that was there at the start, or the log line of one that came later.
fn announces(line: &str, name: &str) -> bool {
    let shown = line.split_once(" new: ").map_or(line, |(_, shown)| shown);
    shown.strip_prefix(name).is_some_and(|rest| rest.starts_with("  "))
}

impl Server {
    /// Starts it and waits until it reports that it is ready.
    pub(super) fn start(lab: &Lab, phase: &str, ground: &Ground) -> Result<Self, String> {
        let address = format!("{}:{}", ground.host, free_port(ground)?);
        let logs = lab.dir.join(phase);
        std::fs::create_dir_all(&logs).map_err(|e| format!("{} cannot be made: {e}", logs.display()))?;
        let mut running = ProgramSpec::new(&lab.millrace)
            .arg("serve")
            .arg(lab.dir.join("films"))
            .arg("--store")
            .arg(lab.store())
            .args(&format!("--listen {address} --admission off"))
            .args(ground.engine.as_ref().map_or("", |(_, args)| args))
            .args(&channel_args(lab, ground)?)
            .inside(ground.server.as_deref())
            .start(&logs.join("server"))?;
        let kernel_base = format!("rtsp://{address}");
        let by_engine = ground.engine.as_ref().map(|(host, _)| kernel_base.replace(ground.host, host));
        loop {
            let said = running.output() + &running.errors();
            let is_offered = |film: &TestMedia| said.lines().any(|line| announces(line, film.name));
            if said.contains(READY) && lab.films.iter().all(is_offered) {
                break;
            }
            if running.ended()?.is_some() || running.seconds() > READY_SECONDS {
                let ended = running.wait(0.0)?;
                ended.ok("millrace serve")?;
                return Err(format!("millrace serve ended before it was ready: {}", ended.last_words()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self {
            ready_after: running.seconds(),
            running,
            base: by_engine.unwrap_or_else(|| kernel_base.clone()),
            kernel_base,
            client_namespace: ground.client.clone(),
            server_namespace: ground.server.clone(),
            logs,
        })
    }

    pub(super) fn readiness(&self) -> String {
        format!("{} after {:.1} s", self.base, self.ready_after)
    }

    pub(super) fn url(&self, film: &TestMedia) -> Result<String, String> {
        Ok(format!("{}/{}", self.base, film.stored()?.title))
    }

    /// The channel, where there is one ([`channel_args`]).
    pub(super) fn channel_url(&self) -> String {
        format!("{}/live/lobby", self.kernel_base)
    }

    /// The address of its page.
    pub(super) fn page(&self) -> Result<String, String> {
        let said = self.running.output();
        let address = said.lines().find_map(|line| line.strip_prefix("page "));
        address.map(str::to_owned).ok_or_else(|| "the server has printed no address of its page".to_owned())
    }

    /// The same at the kernel's address, if players play by an offload engine.
    pub(super) fn kernel_url(&self, film: &TestMedia) -> Result<String, String> {
        Ok(format!("{}/{}", self.kernel_base, film.stored()?.title))
    }

    /// A program on the client's side.
    pub(super) fn client(&self, program: impl Into<std::ffi::OsString>) -> ProgramSpec {
        ProgramSpec::new(program).inside(self.client_namespace.as_deref())
    }

    /// A file name for the output of a check's program.
    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.logs.join(name.replace('/', "-"))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.logs
    }

    /// Ends it as Ctrl-C would; it must end soon, with status 0 and without a panic in its log.
    pub(super) fn stop(&mut self) -> Result<String, String> {
        if self.running.ended()?.is_some() {
            let ended = self.running.wait(0.0)?;
            return Err(format!("the server ended while films were playing: {}", ended.last_words()));
        }
        let asked = self.running.seconds();
        self.running.interrupt()?;
        let ended = self.running.wait(asked + END_SECONDS)?;
        ended.ok("millrace serve, after Ctrl-C")?;
        match [&ended.out, &ended.err]
            .into_iter()
            .flat_map(|log| log.lines())
            .find(|line| line.contains("panicked at"))
        {
            Some(panic) => Err(format!("a panic in the server's log: {panic}")),
            None => Ok(format!("{:.1} s after Ctrl-C, status 0", ended.seconds - asked)),
        }
    }
}

/// Between namespaces, the server has a channel of one film in a loop, and groups.
fn channel_args(lab: &Lab, ground: &Ground) -> Result<String, String> {
    if ground.server.is_none() {
        return Ok(String::new());
    }
    let playlist = lab.dir.join("lobby.m3u");
    std::fs::write(&playlist, "films/cbr.ts\n").map_err(|e| format!("{}: {e}", playlist.display()))?;
    let groups = format!("239.192.0.0/16,interface={SERVER_DEVICE}");
    Ok(format!("--channel lobby={} --multicast {groups}", playlist.display()))
}

/// Returns an unused port. Namespaces are empty, so any will do there.
fn free_port(ground: &Ground) -> Result<u16, String> {
    if ground.server.is_some() {
        return Ok(8554);
    }
    let listener =
        TcpListener::bind((ground.host, 0)).map_err(|e| format!("no free port on {}: {e}", ground.host))?;
    Ok(listener.local_addr().map_err(|e| format!("the free port: {e}"))?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_announced_at_the_start_and_later() {
        assert!(announces("vbr  0:00:12.002  1.26Mb/s VBR", "vbr"));
        assert!(announces("2026-01-01T00:00:00Z  INFO new: vbr  0:00:12.002  1.26Mb/s  rtsp://h/vbr", "vbr"));
        assert!(!announces("vbr-long  0:00:12.002", "vbr") && !announces("  vlc rtsp://h/vbr", "vbr"));
    }
}

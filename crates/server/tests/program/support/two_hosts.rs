//! A server with one film on a host of its own and players on another: two network namespaces, joined by a veth pair or by an emulated
//! link. Making them needs root.
#![allow(unreachable_pub)]

use std::path::{Path, PathBuf};

use millrace_lab::netns::{SERVER_IP, TwoHosts};
use serde_json::Value;

use crate::support::{Server, add, film, run};

/// The server and all else.
pub struct Site {
    // The server ends before its host.
    pub server: Server,
    pub scene: Scene,
}

/// Everything but the server, for threads beside one that uses it.
pub struct Scene {
    pub hosts: TwoHosts,
    /// The title's data file.
    pub data: PathBuf,
    /// Store, film, and room for more.
    pub dir: tempfile::TempDir,
}

/// Where the server listens if nothing else matters.
pub fn listen() -> String {
    format!("{SERVER_IP}:8554")
}

impl Site {
    /// A film of some seconds, served with these arguments.
    pub fn new(hosts: TwoHosts, film_secs: u64, listen: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        add(&film(dir.path(), "film.ts", film_secs), &store);
        let titles = std::fs::read_dir(store.join("titles")).unwrap();
        let data = titles.map(|title| title.unwrap().path().join("data.ts")).find(|path| path.exists());
        let mut command = hosts.on_server(Path::new(env!("CARGO_BIN_EXE_millrace")));
        command.env_remove("MILLRACE_STORE").env_remove("RUST_LOG");
        command.env("XDG_CACHE_HOME", dir.path().join("cache"));
        command.args(["serve", "--listen", listen, "--cache", "32MiB", "--store"]).arg(&store).args(args);
        let server = Server::spawn(command);
        Self { server, scene: Scene { hosts, data: data.expect("the title's data"), dir } }
    }
}

impl Scene {
    /// Plays the film on the client host; the report, whatever the exit code.
    pub fn play(&self, args: &[&str]) -> Value {
        let url = format!("rtsp://{}/film", listen());
        let all = [&["play", &url, "--stats", "json"], args].concat();
        let done = self.hosts.on_client(|| run(&all)).unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?} {said}"))
    }

    /// Packets of the film.
    pub fn packets(&self) -> u64 {
        std::fs::metadata(&self.data).unwrap().len().div_ceil(1316)
    }
}

//! `millrace demo`: a first picture without films, settings or other programs. It is `serve` with a test film and a store
//! that is removed at the end.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, ensure};
use clap::{Args, Parser};
use millrace_cli::exit::usage;
use millrace_cli::signals::on_signals;
use tokio::signal::unix::SignalKind;

use super::remote::Remote;
use super::settings::Values;
use super::{Cli, CliCommand, serve};
use crate::limits::control::{DEMO_LOOK_EVERY, DEMO_LOOKS};
use crate::limits::web::{DEFAULT_HTTP_PORT, HTTP_PORTS};

/// The folder of the test film in packages, seen from the folder of the program.
const PACKAGED_FILMS: &str = "../share/millrace/demo";

/// A minute of a moving test picture with a tone. The same arguments give the same bytes, so that packages do too.
const TEST_FILM: &str = "-f lavfi -i testsrc2=s=854x480:r=25:d=60 -f lavfi -i sine=f=440:b=2:r=48000:d=60 \
                         -map 0:v -map 1:a -c:v libx264 -preset veryfast -crf 30 -pix_fmt yuv420p -g 50 \
                         -c:a aac -b:a 96k -ac 2 -fflags +bitexact -flags:v +bitexact -flags:a +bitexact -f mpegts";

/// Serve a test film, and open the page in a browser
///
/// Shows the server at work without films of your own, and keeps nothing: the titles are in a temporary store. The packages
/// have the test film; without it, ffmpeg makes one.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  millrace demo\n  millrace demo ~/films        the films there instead, which stay as they are\n  \
                        millrace demo --no-open --listen 127.0.0.1:8554 --http 127.0.0.1:8080"
)]
pub(super) struct DemoArgs {
    /// Folder with films to show instead of the test film
    #[arg(value_name = "DIR")]
    films: Option<PathBuf>,
    /// Address and port of RTSP [default: as of serve]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Address and port of the page [default: all addresses, port 8080 or the next free one]
    #[arg(long, value_name = "ADDR:PORT")]
    http: Option<SocketAddr>,
    /// Do not open a browser; without a display none is opened anyway
    #[arg(long)]
    no_open: bool,
    /// Write the test film to this file, and end: for the scripts that make packages
    #[arg(long, value_name = "FILE", hide = true)]
    write_film: Option<PathBuf>,
}

pub(super) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.write_film {
        make_film(file)?;
        return Ok(ExitCode::SUCCESS);
    }
    let scratch = tempfile::Builder::new()
        .prefix("millrace-demo-")
        .tempdir()
        .context("temporary store: no directory can be made; set TMPDIR to one with 100 MB of free space")?;
    let films = match &args.films {
        Some(films) => films.clone(),
        None => test_film(scratch.path())?,
    };
    let page = args.http.map_or_else(free_page, Ok)?;
    let serve = serve_args(args, &films, &scratch.path().join("store"), page)?;
    let opens = !args.no_open && has_display();
    std::thread::Builder::new()
        .name("page".into())
        .spawn(move || show_page(page, opens))
        .context("thread that opens the page")?;
    // It follows no settings: a reload is refused.
    serve::run(&serve, Values::default())
}

/// The folder of the test film: that of the packages, or a new one.
fn test_film(scratch: &Path) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("path of this program")?;
    let packaged = program.with_file_name(PACKAGED_FILMS);
    if packaged.is_dir() {
        return Ok(packaged);
    }
    let films = scratch.join("films");
    std::fs::create_dir(&films).with_context(|| format!("{}", films.display()))?;
    eprintln!("millrace: making a test film, a minute long");
    // Ctrl-C ends ffmpeg, and then this program by an error instead of at once: the directory is removed.
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    on_signals(&[SignalKind::interrupt(), SignalKind::terminate()], move || {
        flag.store(true, Ordering::Relaxed)
    })?;
    let made = make_film(&films.join("test-picture.ts"));
    ensure!(!stopped.load(Ordering::Relaxed), "test film: interrupted");
    made.map(|()| films)
}

fn make_film(file: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-nostdin", "-y"]).args(TEST_FILM.split_ascii_whitespace()).arg(file);
    let status = command.stdin(Stdio::null()).status().map_err(|error| {
        anyhow!("test film: ffmpeg cannot be started: {error}; install ffmpeg, or name a folder of films: millrace demo DIR")
    })?;
    ensure!(
        status.success(),
        "test film: ffmpeg failed with {status}; name a folder of films: millrace demo DIR"
    );
    Ok(())
}

/// The first free port that the page of a server usually has, on all addresses.
fn free_page() -> anyhow::Result<SocketAddr> {
    let any =
        |port| [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), SocketAddr::from(([0, 0, 0, 0], port))];
    let last = DEFAULT_HTTP_PORT + HTTP_PORTS - 1;
    (DEFAULT_HTTP_PORT..=last)
        .find_map(|port| any(port).into_iter().find(|address| TcpListener::bind(address).is_ok()))
        .with_context(|| {
            format!("page: other programs have the ports {DEFAULT_HTTP_PORT} to {last}; choose another with --http ADDR:PORT")
        })
}

/// The settings of the server: its defaults, whatever variables and files say. A demo of another server's store would change it.
fn serve_args(
    args: &DemoArgs,
    films: &Path,
    store: &Path,
    page: SocketAddr,
) -> anyhow::Result<Box<serve::ServeArgs>> {
    let mut line: Vec<std::ffi::OsString> = vec!["millrace".into(), "serve".into(), films.into()];
    line.extend(["--store".into(), store.into(), "--http".into(), page.to_string().into()]);
    // It opens a browser, and removes its own store.
    line.extend(["--sandbox".into(), "off".into()]);
    if let Some(listen) = args.listen {
        line.extend(["--listen".into(), listen.to_string().into()]);
    }
    match Cli::try_parse_from(line).map_err(|error| usage(error.into()))?.command {
        CliCommand::Serve(serve) => {
            serve.check().map_err(usage)?;
            Ok(serve)
        }
        _ => Err(anyhow!("the demo's settings are not those of serve")),
    }
}

/// Whether a browser would be seen.
fn has_display() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// Opens the page, or prints its address, when there is something on it.
fn show_page(page: SocketAddr, opens: bool) {
    let host =
        if page.ip().is_unspecified() { "localhost".to_owned() } else { serve::invite::own_host(page) };
    let url = format!("http://{}:{}/", serve::invite::in_url(&host), page.port());
    if let Ok(server) = Remote::plain(&url) {
        wait_for_title(&server);
    }
    let opened =
        opens.then(|| Command::new("xdg-open").arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).spawn());
    match opened {
        Some(Ok(mut browser)) => {
            println!("demo: {url} opens in your browser; Ctrl-C here ends the demo");
            // It has no other parent that would ask for its exit status.
            let _ = browser.wait();
        }
        _ => println!("demo: open {url} in a browser; Ctrl-C here ends the demo"),
    }
}

fn wait_for_title(server: &Remote) {
    let is_listed = || {
        let titles = server.get::<serde_json::Value>("api/v1/titles").ok();
        titles.is_some_and(|titles| titles["titles"].as_array().is_some_and(|titles| !titles.is_empty()))
    };
    for _ in 0..DEMO_LOOKS {
        if is_listed() {
            return;
        }
        std::thread::sleep(DEMO_LOOK_EVERY);
    }
}

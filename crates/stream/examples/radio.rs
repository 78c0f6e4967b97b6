//! A radio server: each file is a mount that plays from the server's start, again and again, for everybody alike. HTTP, with ICY titles in between for
//! players that ask for them.
//!
//! ```sh
//! cargo run --example radio -- --listen 127.0.0.1:8000 --rate 128kb/s news=/srv/news.mp3 /srv/film.ts
//! curl -s http://127.0.0.1:8000/news | ffplay -
//! ```

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_stream::limits::MAX_EXAMPLE_LINE_BYTES;
use millrace_stream::{
    BlockPacing, MediaSource, Reason, SourcePosition, StreamContext, StreamEngine, StreamEngineConfig,
    Transport,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const HELP: &str = "\
A radio server: plays files from its start on, again and again, to everybody who asks by HTTP.

usage: radio [--listen ADDRESS] [--rate RATE] [NAME=]FILE...

  --listen ADDRESS  where to listen; 127.0.0.1:8000 unless it is given
  --rate RATE       bit rate of files that are no transport streams, such as 96kb/s or 1.5Mb/s; 128kb/s unless it is given
  [NAME=]FILE       a file and where it is found: http://ADDRESS/NAME; its own name unless one is given

Files that end in .ts are transport streams, which have their own pace. All others are sent as they are, at --rate.";

/// Blocks of files that are no transport streams.
const BLOCK_BYTES: usize = 1000;
/// How far a listener is ahead of the mount, so that its player can begin at once.
const AHEAD: Duration = Duration::from_secs(3);
/// Time that a listener may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Media between two titles: more than a listener is ahead, so that only its first run is.
const TITLE_EVERY: Duration = Duration::from_secs(8);

struct Mount {
    name: String,
    source: MediaSource,
    kind: &'static str,
}

struct Station {
    engine: StreamEngine,
    mounts: Vec<Mount>,
    begun: Instant,
}

fn main() {
    if let Err(error) = run(std::env::args().skip(1).collect()) {
        eprintln!("radio: {error}");
        std::process::exit(2);
    }
}

pub(crate) fn run(arguments: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    let (mut listen, mut rate, mut files) = ("127.0.0.1:8000".to_owned(), "128kb/s".to_owned(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--listen" => listen = arguments.next().ok_or("--listen needs an address")?,
            "--rate" => rate = arguments.next().ok_or("--rate needs a bit rate")?,
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}\n\n{HELP}").into());
            }
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return Err(format!("no file to play\n\n{HELP}").into());
    }
    let pace = BlockPacing::at_rate(rate.parse()?, BLOCK_BYTES).ok_or("--rate: at least 1kb/s")?;
    let engine = StreamEngine::start(&StreamEngineConfig::default())?;
    let mounts = files.iter().map(|file| mount(&engine, file, pace)).collect::<Result<_, _>>()?;
    let station = Arc::new(Station { engine, mounts, begun: Instant::now() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen.parse::<SocketAddr>()?).await?;
        println!("ready http://{}/", listener.local_addr()?);
        tokio::select! {
            ended = tokio::signal::ctrl_c() => Ok(ended?),
            failed = accept(&listener, &station) => failed,
        }
    })
    // The runtime ends all listeners, and the engine with the last of them.
}

fn mount(
    engine: &StreamEngine,
    argument: &str,
    pace: BlockPacing,
) -> Result<Mount, Box<dyn std::error::Error>> {
    let (name, path) = match argument.split_once('=') {
        Some((name, path)) => (name.to_owned(), PathBuf::from(path)),
        None => {
            let path = PathBuf::from(argument);
            (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path)
        }
    };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let kind = match extension.as_deref() {
        Some("ts") => "video/mp2t",
        Some("aac") => "audio/aac",
        Some("ogg" | "opus") => "audio/ogg",
        _ => "audio/mpeg",
    };
    let source = open(engine, &path, kind == "video/mp2t", pace)?;
    Ok(Mount { name, source, kind })
}

fn open(
    engine: &StreamEngine,
    path: &Path,
    is_ts: bool,
    pace: BlockPacing,
) -> Result<MediaSource, millrace_stream::OpenError> {
    if is_ts { engine.transport_stream(path) } else { engine.plain_file(path, pace) }
}

async fn accept(listener: &TcpListener, station: &Arc<Station>) -> Result<(), Box<dyn std::error::Error>> {
    loop {
        let (peer, address) = listener.accept().await?;
        let station = Arc::clone(station);
        tokio::spawn(async move {
            match serve(&station, peer).await {
                Ok(bytes) => println!("{address}: {bytes} bytes"),
                Err(error) => println!("{address}: {error}"),
            }
        });
    }
}

/// A request, as far as it matters here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) wants_titles: bool,
}

/// The head of a request (RFC 9112 section 2.1); `None` if it is not one for something that is played.
pub(crate) fn parse(head: &[u8]) -> Option<Request> {
    let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
    let mut words = lines.next()?.split(' ');
    let ("GET", path, version) = (words.next()?, words.next()?, words.next()?) else { return None };
    if !version.starts_with("HTTP/1.") || words.next().is_some() {
        return None;
    }
    let wants_titles = lines
        .filter_map(|line| line.split_once(':'))
        .any(|(name, value)| name.eq_ignore_ascii_case("icy-metadata") && value.trim() == "1");
    Some(Request { path: path.trim_start_matches('/').to_owned(), wants_titles })
}

async fn serve(
    station: &Station,
    mut peer: TcpStream,
) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let mut head = Vec::new();
    tokio::time::timeout(REQUEST_TIMEOUT, async {
        while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_EXAMPLE_LINE_BYTES {
            head.push(peer.read_u8().await?);
        }
        io::Result::Ok(())
    })
    .await??;
    let Some(request) = parse(&head) else {
        peer.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await?;
        return Ok(0);
    };
    let Some(mount) = station.mounts.iter().find(|mount| mount.name == request.path) else {
        let list: String = station.mounts.iter().map(|mount| format!("/{}\n", mount.name)).collect();
        let status = if request.path.is_empty() { "200 OK" } else { "404 Not Found" };
        let page = format!("HTTP/1.0 {status}\r\nContent-Type: text/plain\r\n\r\n{list}");
        peer.write_all(page.as_bytes()).await?;
        return Ok(0);
    };
    play(station, mount, peer.into_std()?, request.wants_titles).await
}

/// Plays to one listener until it goes.
async fn play(
    station: &Station,
    mount: &Mount,
    peer: std::net::TcpStream,
    wants_titles: bool,
) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let source = &mount.source;
    let rate = source.rate();
    let title_every = (rate.0 / 8 * TITLE_EVERY.as_secs()).max(1);
    let titles = if wants_titles { format!("icy-metaint: {title_every}\r\n") } else { String::new() };
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: {}\r\nicy-name: {}\r\nicy-br: {}\r\n{titles}Cache-Control: no-cache\r\n\
         Connection: close\r\n\r\n",
        mount.kind,
        mount.name,
        rate.0 / 1000
    );
    let control = peer.try_clone()?;
    let mut stream = StreamContext::new(Transport::tcp(peer), source)?;
    // Where the mount is now.
    let length = source.time_of(source.newest()).max(Duration::from_millis(1));
    let place = Duration::from_nanos(u64::try_from(station.begun.elapsed().as_nanos() % length.as_nanos())?);
    let (mut at, end) = (source.byte_at(SourcePosition::Access(place))?, source.bytes().unwrap_or(u64::MAX));
    stream.start_at(SourcePosition::Byte(at)).ahead(AHEAD).control(&control)?.send_first(head)?;
    let (mut sent, mut to_title) = (0, title_every);
    loop {
        let title_at = at.saturating_add(to_title);
        stream.stop_at((wants_titles && title_at < end).then_some(SourcePosition::Byte(title_at)));
        let outcome = station.engine.run_async(&mut stream).await?;
        (sent, at, to_title) =
            (sent + outcome.bytes, outcome.next.byte, to_title.saturating_sub(outcome.bytes));
        if outcome.reason != Reason::Finished {
            // Its connection has something to be read: a player that goes, or that has more to say than it should.
            return Ok(sent);
        }
        stream.ahead(Duration::ZERO);
        if at == end {
            stream.start_at(SourcePosition::START);
            at = 0;
        }
        if wants_titles && to_title == 0 {
            stream.send_first(title_block(&mount.name))?;
            to_title = title_every;
        }
    }
}

/// Returns the title of the current media as ICY encodes it: its length in units of 16 bytes, then
/// the bytes.
fn title_block(name: &str) -> Vec<u8> {
    let name: String = name.chars().filter(|c| !c.is_control() && *c != '\'').take(60).collect();
    let text = format!("StreamTitle='{name}';");
    let units = text.len().div_ceil(16);
    let mut block = vec![units as u8];
    block.extend_from_slice(text.as_bytes());
    block.resize(1 + 16 * units, 0);
    block
}

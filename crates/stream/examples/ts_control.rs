//! A server with a protocol of one line: a transport stream in a connection, and commands in the other direction.
//!
//! ```sh
//! cargo run --example ts_control -- --listen 127.0.0.1:8001 high=/srv/film.ts low=/srv/film-low.ts
//! ffplay tcp://127.0.0.1:8001
//! (echo seek 60; sleep 10; echo quality low; sleep 10; echo quit) | nc 127.0.0.1 8001 | ffplay -
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use millrace_stream::limits::MAX_EXAMPLE_LINE_BYTES;
use millrace_stream::{
    MediaSource, Reason, SourcePosition, StreamContext, StreamEngine, StreamEngineConfig, Transport,
};

const HELP: &str = "\
Plays a film to everybody who connects, and does what they say in lines of text.

usage: ts_control [--listen ADDRESS] [QUALITY=]FILE...

  --listen ADDRESS  where to listen; 127.0.0.1:8001 unless it is given
  [QUALITY=]FILE    transport streams of one film, the first of which is played; its own name is a quality's unless one is given

commands, each in a line of its own:

  seek SECONDS   go on at the access point before
  faster, slower twice or half the speed
  quality NAME   go on in another file, at the same time of the film
  pause, play
  to PORT        send the film to this TCP port of the same host from now on; commands are answered then
  quit";

/// How long a client is still read after it has been notified of the end.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Speeds, in thousandths.
const SPEEDS: [u16; 6] = [250, 500, 1000, 2000, 4000, 8000];

fn main() {
    if let Err(error) = run(std::env::args().skip(1).collect()) {
        eprintln!("ts_control: {error}");
        std::process::exit(2);
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

struct Server {
    engine: StreamEngine,
    qualities: Vec<(String, MediaSource)>,
}

pub(crate) fn run(arguments: Vec<String>) -> Result<(), AnyError> {
    let (mut listen, mut files) = ("127.0.0.1:8001".to_owned(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            "--listen" => listen = arguments.next().ok_or("--listen needs an address")?,
            option if option.starts_with('-') => {
                return Err(format!("unknown option {option}\n\n{HELP}").into());
            }
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        return Err(format!("no film\n\n{HELP}").into());
    }
    let engine = StreamEngine::start(&StreamEngineConfig::default())?;
    let mut qualities = Vec::new();
    for file in &files {
        let (name, path) = file.split_once('=').unwrap_or((file, file));
        qualities.push((name.to_owned(), engine.transport_stream(path.as_ref())?));
    }
    let server = Arc::new(Server { engine, qualities });
    let listener = TcpListener::bind(listen.parse::<SocketAddr>()?)?;
    println!("ready tcp://{}", listener.local_addr()?);
    let clients = Arc::new(Mutex::new(Vec::new()));
    let (accepted, known) = (Arc::clone(&server), Arc::clone(&clients));
    // Ends with the process.
    std::thread::spawn(move || accept(&listener, &accepted, &known));
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(tokio::signal::ctrl_c())?;
    // A connection that is shut is something on the control descriptor: each run ends, and its thread.
    for (thread, peer) in std::mem::take(&mut *clients.lock().unwrap_or_else(PoisonError::into_inner)) {
        // It may have gone by itself.
        let _ = peer.shutdown(std::net::Shutdown::Both);
        let _ = thread.join();
    }
    Ok(())
}

type Clients = Mutex<Vec<(JoinHandle<()>, Arc<TcpStream>)>>;

fn accept(listener: &TcpListener, server: &Arc<Server>, clients: &Clients) {
    for peer in listener.incoming() {
        let Ok((peer, copy)) = peer.and_then(|peer| Ok((peer.try_clone()?, peer))) else { continue };
        let (server, copy) = (Arc::clone(server), Arc::new(copy));
        let ending = Arc::clone(&copy);
        let thread = std::thread::spawn(move || {
            match Client::new(&server, peer).and_then(Client::serve) {
                Ok(bytes) => println!("a client: {bytes} bytes"),
                Err(error) => println!("a client: {error}"),
            }
            hang_up(&ending);
        });
        let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|(thread, _)| !thread.is_finished());
        clients.push((thread, copy));
    }
}

/// Notifies the client of the end. Closing a connection with unread input takes back data that the
/// client has not received yet, so further input is read for a while.
fn hang_up(peer: &TcpStream) {
    // It may have gone by itself.
    let _ = peer.shutdown(std::net::Shutdown::Write);
    let _ = peer.set_read_timeout(Some(LAST_WORDS));
    let _ = io::copy(&mut peer.take(MAX_EXAMPLE_LINE_BYTES as u64), &mut io::sink());
}

/// Commands of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    Seek(Duration),
    Faster,
    Slower,
    Quality(String),
    Pause,
    Play,
    To(u16),
    Quit,
}

/// One line; `None` if it is none of the commands.
pub(crate) fn parse(line: &str) -> Option<Word> {
    let mut words = line.split_ascii_whitespace();
    let (word, value) = (words.next()?, words.next());
    let word = match (word, value) {
        ("seek", Some(seconds)) => Word::Seek(Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?),
        ("quality", Some(name)) => Word::Quality(name.to_owned()),
        ("to", Some(port)) => Word::To(port.parse().ok().filter(|port| *port > 0)?),
        ("faster", None) => Word::Faster,
        ("slower", None) => Word::Slower,
        ("pause", None) => Word::Pause,
        ("play", None) => Word::Play,
        ("quit", None) => Word::Quit,
        _ => return None,
    };
    words.next().is_none().then_some(word)
}

/// Bytes of a connection, as lines. A line that is too long ends it.
#[derive(Default)]
pub(crate) struct Lines(Vec<u8>);

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        self.0.extend_from_slice(bytes);
        let is_long = self.0.len() > MAX_EXAMPLE_LINE_BYTES && !self.0.contains(&b'\n');
        if is_long { Err("a line that is too long") } else { Ok(()) }
    }

    pub(crate) fn next_line(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim().to_owned())
    }
}

struct Client<'a> {
    server: &'a Server,
    peer: TcpStream,
    stream: StreamContext,
    lines: Lines,
    /// Index into [`SPEEDS`].
    speed: usize,
    plays: bool,
    /// The film goes through this connection, so nothing is answered.
    is_here: bool,
}

impl<'a> Client<'a> {
    fn new(server: &'a Server, peer: TcpStream) -> Result<Self, AnyError> {
        let (_, source) = &server.qualities[0];
        let mut stream = StreamContext::new(Transport::tcp(peer.try_clone()?), source)?;
        stream.control(&peer)?;
        Ok(Self { server, peer, stream, lines: Lines::default(), speed: 2, plays: true, is_here: true })
    }

    /// Plays and obeys commands until the client goes.
    fn serve(mut self) -> Result<u64, AnyError> {
        let mut sent = 0;
        loop {
            if self.plays {
                let outcome = self.server.engine.run(&mut self.stream)?;
                sent += outcome.bytes;
                match outcome.reason {
                    Reason::Control => {}
                    Reason::Finished => {
                        self.plays = false;
                        self.answer("end")?;
                        if self.is_here {
                            break;
                        }
                    }
                    other => return Err(format!("{other:?} after {sent} bytes").into()),
                }
            }
            let mut bytes = [0; 1024];
            match self.peer.read(&mut bytes)? {
                0 => break,
                count => self.lines.push(&bytes[..count])?,
            }
            while let Some(line) = self.lines.next_line() {
                match parse(&line) {
                    Some(Word::Quit) => return Ok(sent),
                    Some(word) => {
                        let done = self.obey(word);
                        self.answer(
                            &done.map_or_else(|error| format!("no: {error}"), |()| format!("ok {line}")),
                        )?;
                    }
                    None => self.answer(
                        "no: seek SECONDS, faster, slower, quality NAME, pause, play, to PORT, quit",
                    )?,
                }
            }
        }
        // Everything given to the connection is on its way before it is closed.
        self.stream.finish()?;
        Ok(sent)
    }

    fn answer(&mut self, text: &str) -> io::Result<()> {
        if self.is_here { Ok(()) } else { writeln!(self.peer, "{text}") }
    }

    /// Where the film is.
    fn time(&self) -> Duration {
        self.stream.source().time_of(self.stream.position().packet)
    }

    fn obey(&mut self, word: Word) -> Result<(), AnyError> {
        match word {
            Word::Seek(to) => {
                // Behind the end there is nothing to go on with.
                self.stream.source().byte_at(SourcePosition::Access(to))?;
                self.stream.start_at(SourcePosition::Access(to));
            }
            Word::Faster => self.speed = (self.speed + 1).min(SPEEDS.len() - 1),
            Word::Slower => self.speed = self.speed.saturating_sub(1),
            Word::Quality(name) => {
                let found = self.server.qualities.iter().find(|(quality, _)| *quality == name);
                let (_, source) = found.ok_or("there is no such quality")?;
                let time = self.time();
                self.stream.change_source(source)?.start_at(SourcePosition::Access(time));
            }
            Word::Pause => self.plays = false,
            Word::Play => self.plays = true,
            Word::To(port) => {
                let data = TcpStream::connect_timeout(
                    &SocketAddr::new(self.peer.peer_addr()?.ip(), port),
                    Duration::from_secs(5),
                )?;
                let place = SourcePosition::Byte(self.stream.position().byte);
                let mut stream = StreamContext::new(Transport::tcp(data), self.stream.source())?;
                stream.start_at(place).control(&self.peer)?;
                // The connection comes back, to be answered on.
                std::mem::replace(&mut self.stream, stream).finish()?;
                self.is_here = false;
            }
            Word::Quit => {}
        }
        self.stream.speed(SPEEDS[self.speed]);
        Ok(())
    }
}

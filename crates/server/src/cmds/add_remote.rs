//! `millrace add --server`: uploads films to a running server, by PUT. When a connection breaks, it
//! continues where the server is, if the server's data are the first bytes of the same file
//! (`docs/design/0041-uploads.md`).
//!
//! ```text
//!   GET titles/NAME ─► nothing there ─────────► PUT from the first byte ─┬─► 201: a title
//!         ▲            so much is there, and
//!         │            the file begins with it ► PUT of the rest ────────┼─► 4xx, 507: an error
//!         │            all is there, or another connection brings it ─┐  └─► broken off, 408, 409, 412, 503 ─┐
//!         └──────────────────────── a moment later ◄──────────────────┴──────────────────────────────────────┘
//! ```

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as StdInstant};

use anyhow::{Context, anyhow, bail, ensure};
use indicatif::ProgressBar;
use millrace_core::limits::web::UPLOAD_KEPT;
use millrace_core::units::ByteLen;
use millrace_store::volume::slug;
use serde::Deserialize;
use serde_json::Value;

use super::ls::RemoteTitle;
use super::progress;
use super::remote::{AnswerHead, Remote, read_head};
use crate::limits::control::{
    UPLOAD_CONTINUE_WAIT, UPLOAD_PIECE_BYTES, UPLOAD_RESTARTS, UPLOAD_RETRY, UPLOAD_TIMEOUT, UPLOAD_TURN,
};
use crate::limits::web::MAX_API_BYTES;

/// The files to upload, and how this is shown.
pub(super) struct Upload<'a> {
    pub(super) files: &'a [PathBuf],
    pub(super) name: Option<&'a str>,
    /// Do not continue with data that an earlier command left on the server.
    pub(super) restart: bool,
    pub(super) quiet: bool,
    pub(super) json: bool,
    pub(super) cancel: &'a AtomicBool,
}

/// Brings every file; one that fails does not stop the others.
pub(super) fn run(upload: &Upload<'_>, remote: &Remote) -> anyhow::Result<ExitCode> {
    remote.sign_in()?;
    let mut failed = 0;
    for file in upload.files {
        let start = StdInstant::now();
        match bring(upload, remote, file).with_context(|| file.display().to_string()) {
            Ok(title) if upload.json => super::print_json(&title)?,
            Ok(_) if upload.quiet => {}
            Ok(title) => {
                let title = RemoteTitle::deserialize(&title).context("the server's answer is not a title")?;
                let secs = start.elapsed().as_secs_f64();
                let rate = ByteLen((title.bytes() as f64 / secs.max(1e-6)) as u64);
                println!("added {}  in {secs:.1}s ({rate}/s)", title.line());
            }
            Err(error) => {
                failed += 1;
                super::complain(&error);
                if upload.cancel.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Uploads one file; returns the resulting title as the server's API reports it.
fn bring(upload: &Upload<'_>, remote: &Remote, path: &Path) -> anyhow::Result<Value> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        bail!(
            "is not a regular file; only regular files can be uploaded, because an upload has to be resumable"
        );
    }
    let wish = upload
        .name
        .map_or_else(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), str::to_owned);
    let name = slug(&wish);
    let is_shown = !upload.quiet && !upload.json;
    let bar = progress::bar("{msg} [{bar:30}] {percent:>3} %  {binary_bytes_per_sec}  {eta} left", !is_shown);
    bar.set_length(about.len().max(1));
    let of_file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let shown = super::terminal::name(&of_file);
    let mut one = One {
        remote,
        address: format!("titles/{name}"),
        name,
        file,
        total: about.len(),
        restart: upload.restart,
        cancel: upload.cancel,
        bar: &bar,
        shown,
        reached: 0,
        file_name: upload.name.map_or_else(|| of_file.into_owned(), str::to_owned),
        is_begun: false,
        is_whole: false,
        restarts: 0,
    };
    let brought = one.bring();
    bar.finish_and_clear();
    brought
}

/// A file on its way.
struct One<'a> {
    remote: &'a Remote,
    /// Its address below the page.
    address: String,
    name: String,
    file: File,
    total: u64,
    /// Start from the beginning, whatever the server has of it.
    restart: bool,
    cancel: &'a AtomicBool,
    bar: &'a ProgressBar,
    /// The file's name, for people.
    shown: String,
    /// The most that was sent, now or before.
    reached: u64,
    /// The server derives the display name from this.
    file_name: String,
    /// The server has taken it on.
    is_begun: bool,
    /// The server has reported that all of it has arrived.
    is_whole: bool,
    /// How often the server had lost it.
    restarts: u32,
}

/// Text in a header field (RFC 8187); letters and digits stay as they are.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// The result of an attempt.
enum AttemptOutcome {
    /// It is a title.
    Done(Value),
    /// To be tried again.
    Again { why: String, after: Duration },
}

/// The server's report on an upload in progress.
#[derive(Deserialize)]
struct UploadProgress {
    received_bytes: u64,
    total_bytes: Option<u64>,
    /// Hash of the received data, while no connection brings more.
    received_blake3: Option<String>,
    is_sending: bool,
    is_whole: bool,
}

impl One<'_> {
    fn bring(&mut self) -> anyhow::Result<Value> {
        let (mut since, mut best) = (StdInstant::now(), self.reached);
        let mut told = None;
        loop {
            let tried = self.attempt();
            if self.cancel.load(Ordering::Relaxed) && !matches!(tried, Ok(AttemptOutcome::Done(_))) {
                return Err(self.interrupted());
            }
            let (why, after) = match tried {
                Ok(AttemptOutcome::Done(title)) => return Ok(title),
                Ok(AttemptOutcome::Again { why, after }) => (why, after),
                // An upload that never began is not retried: the address may be wrong.
                Err(error) if !self.is_begun => return Err(error),
                Err(error) => match error.downcast::<Lost>() {
                    Ok(Lost(why)) => (why, UPLOAD_RETRY),
                    Err(error) => return Err(error),
                },
            };
            if self.reached > best {
                (since, best) = (StdInstant::now(), self.reached);
            }
            let limit = if self.is_begun { UPLOAD_KEPT } else { UPLOAD_TIMEOUT };
            if since.elapsed() > limit {
                bail!("{why}; gave up after {} s without progress", limit.as_secs());
            }
            if told.as_ref() != Some(&why) {
                self.bar.suspend(|| eprintln!("millrace: {}: {why}; trying again", self.shown));
                told = Some(why);
            }
            self.pause(after);
        }
    }

    /// Looks how far the server is, and brings the rest.
    fn attempt(&mut self) -> anyhow::Result<AttemptOutcome> {
        let (head, text) = self.ask(&self.address)?;
        let state = match head.status {
            404 => None,
            // Left by an earlier upload of this name, of another file perhaps.
            410 if !self.is_begun => None,
            200 => {
                let unknown =
                    || format!("{}: the answer is not that of a Millrace server", self.remote.place());
                Some(serde_json::from_slice::<UploadProgress>(&text).with_context(unknown)?)
            }
            _ => return self.judge(&head, &text),
        };
        let again = |why: &str| Ok(AttemptOutcome::Again { why: why.to_owned(), after: UPLOAD_RETRY });
        match state {
            Some(state) if state.is_whole => {
                self.is_whole = true;
                return again("the server has received everything and is finishing the title");
            }
            Some(state) if state.is_sending => {
                return again("another connection is still uploading this title");
            }
            Some(state) if !self.restart => {
                if let Some(hash) = self.hash_to_continue(&state)? {
                    return self.put(state.received_bytes, Some(&hash));
                }
            }
            Some(_) => {}
            None => {
                if (self.reached == self.total || self.is_whole)
                    && let Some(title) = self.title()?
                {
                    return Ok(AttemptOutcome::Done(title));
                }
            }
        }
        if self.reached > 0 {
            self.restarts += 1;
            if self.restarts > UPLOAD_RESTARTS {
                bail!("the server has lost the upload {} times; its log may say why", self.restarts);
            }
            self.bar.suspend(|| {
                eprintln!(
                    "millrace: {}: the server has lost the partial upload; starting again from the beginning",
                    self.shown
                );
            });
        }
        self.put(0, None)
    }

    /// The hash of the bytes that the server has, if they are the first ones of this file and it can be gone on behind them; `None`: there is nothing to go on
    /// with.
    fn hash_to_continue(&mut self, state: &UploadProgress) -> anyhow::Result<Option<String>> {
        let received = state.received_bytes;
        let Some(theirs) = state.received_blake3.as_ref().filter(|_| received > 0) else { return Ok(None) };
        let can_fit = received < self.total && state.total_bytes.is_none_or(|total| total == self.total);
        if can_fit && self.hash_of_first(received)? == *theirs {
            self.reached = self.reached.max(received);
            return Ok(Some(theirs.clone()));
        }
        bail!(
            "the server has {} of an unfinished upload named {}, and this file does not begin with them: it has changed since, or that was another file; \
             to upload this file from its beginning: --restart; to keep the other one: --name with another name",
            ByteLen(received),
            self.name
        )
    }

    fn hash_of_first(&mut self, count: u64) -> anyhow::Result<String> {
        self.bar.set_message(format!("comparing {}", self.shown));
        self.bar.set_position(0);
        self.file.seek(SeekFrom::Start(0))?;
        let (mut hash, mut left) = (blake3::Hasher::new(), count);
        let mut piece = vec![0; UPLOAD_PIECE_BYTES];
        while left > 0 {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(self.interrupted());
            }
            let read = self.read(&mut piece, left)?;
            hash.update(read);
            left -= read.len() as u64;
            self.bar.inc(read.len() as u64);
        }
        Ok(hash.finalize().to_hex().to_string())
    }

    /// Reads the next of the `left` remaining bytes of the file.
    fn read<'p>(&mut self, piece: &'p mut [u8], left: u64) -> anyhow::Result<&'p [u8]> {
        let most = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.file.read(&mut piece[..most])?;
        ensure!(count > 0, "became shorter during the upload");
        Ok(&piece[..count])
    }

    /// Returns the title that the upload has become without notice.
    fn title(&self) -> anyhow::Result<Option<Value>> {
        let (head, text) = self.ask(&format!("api/v1/titles/{}", self.name))?;
        if head.status != 200 {
            return Ok(None);
        }
        let title: Value = serde_json::from_slice(&text).context("the answer is not JSON")?;
        // A converted film has another length than its file.
        Ok((self.is_whole || title["bytes"].as_u64() == Some(self.total)).then_some(title))
    }

    /// Whether the server has all of it and makes the title.
    fn is_being_made(&mut self) -> anyhow::Result<bool> {
        let (head, text) = self.ask(&self.address)?;
        let state =
            if head.status == 200 { serde_json::from_slice::<UploadProgress>(&text).ok() } else { None };
        let is_whole = state.is_some_and(|state| state.is_whole);
        self.is_whole |= is_whole;
        Ok(is_whole)
    }

    /// Requests this address.
    fn ask(&self, path: &str) -> anyhow::Result<(AnswerHead, Vec<u8>)> {
        let answer = self.remote.try_ask("GET", path).map_err(|error| self.lost(error))?;
        let head = answer.head.clone();
        Ok((head, answer.text().map_err(|error| self.lost(error))?))
    }

    /// Brings everything from this byte on; the server must have those before, with this hash.
    fn put(&mut self, from: u64, hash: Option<&str>) -> anyhow::Result<AttemptOutcome> {
        self.bar.set_message(format!("uploading {}", self.shown));
        self.bar.set_position(from);
        self.bar.reset_eta();
        self.file.seek(SeekFrom::Start(from))?;
        let (left, last) = (self.total - from, self.total.saturating_sub(1));
        let mut head = self.remote.head("PUT", &self.address, "1.1");
        head += &format!("Content-Length: {left}\r\nExpect: 100-continue\r\nConnection: close\r\n");
        if from > 0 {
            head += &format!("Content-Range: bytes {from}-{last}/{}\r\n", self.total);
        }
        let file_name = percent_encoded(&self.file_name);
        head += &format!("Content-Disposition: attachment; filename*=UTF-8''{file_name}\r\n");
        if let Some(hash) = hash {
            head += &format!("If-Match: \"{hash}\"\r\n");
        }
        let mut stream = self.remote.connect().map_err(|error| self.lost(error))?;
        stream.set_open_ended(UPLOAD_TURN);
        let mut stream =
            BufReader::new(PollingStream { stream, cancel: self.cancel, timeout: UPLOAD_CONTINUE_WAIT });
        let sent = stream.get_mut().write_all(format!("{head}\r\n").as_bytes());
        sent.and_then(|()| stream.get_mut().flush()).map_err(|error| self.lost(error.into()))?;
        // A server that does not answer this expects the body all the same (RFC 9110 section
        // 10.1.1).
        match read_head(&mut stream) {
            Ok(AnswerHead { status: 100, .. }) => {}
            Ok(head) => return self.read_and_judge(&head, stream),
            Err(error) if is_silent(&error) => {}
            Err(error) => return Err(self.lost(error)),
        }
        (self.is_begun, self.restart) = (true, false);
        stream.get_mut().timeout = UPLOAD_TIMEOUT;
        let sent = self.send(stream.get_mut(), left)?;
        if sent.is_ok() {
            self.bar.set_message(format!("writing out {}", self.shown));
        }
        // A server that does not want the rest has reported this before it closed the connection.
        let answer = loop {
            match read_head(&mut stream) {
                Ok(AnswerHead { status: 100, .. }) => {}
                Ok(head) => break head,
                // Converting a film takes minutes.
                Err(error) if sent.is_ok() && is_silent(&error) && self.is_being_made()? => {}
                Err(error) => return Err(self.lost(sent.err().map_or(error, Into::into))),
            }
        };
        self.read_and_judge(&answer, stream)
    }

    /// Sends `left` bytes of the file. The outer error is the file's, the inner one the
    /// connection's.
    fn send(&mut self, to: &mut impl Write, mut left: u64) -> anyhow::Result<io::Result<()>> {
        let mut piece = vec![0; UPLOAD_PIECE_BYTES];
        while left > 0 {
            let read = self.read(&mut piece, left)?;
            if let Err(error) = to.write_all(read) {
                return Ok(Err(error));
            }
            left -= read.len() as u64;
            self.reached = self.reached.max(self.total - left);
            self.bar.inc(read.len() as u64);
        }
        Ok(to.flush())
    }

    fn read_and_judge(&self, head: &AnswerHead, body: impl Read) -> anyhow::Result<AttemptOutcome> {
        let mut text = Vec::new();
        match body.take(MAX_API_BYTES).read_to_end(&mut text) {
            Err(error) if head.status == 201 => Err(self.lost(error.into())),
            // If a connection ends within an error response, the head already holds the essential
            // part.
            _ => self.judge(head, &text),
        }
    }

    /// Evaluates the server's answer.
    fn judge(&self, head: &AnswerHead, text: &[u8]) -> anyhow::Result<AttemptOutcome> {
        let hint = match head.status {
            201 => {
                return Ok(AttemptOutcome::Done(
                    serde_json::from_slice(text).context("the answer is not JSON")?,
                ));
            }
            403 => "; a user needs the right to upload: millrace user add NAME --upload, on the server",
            409 if head.offset.is_none() => {
                "; to remove it: millrace rm --server; to choose another name: --name"
            }
            413 => "; the server's setting --max-upload says how much",
            _ => "",
        };
        let refused = self.remote.refusal(&self.address, head, text, hint);
        match head.status {
            408 | 409 | 412 | 429 | 502..=504 if head.status != 409 || head.offset.is_some() => {
                let after = head.retry_after.unwrap_or(UPLOAD_RETRY).clamp(UPLOAD_RETRY, UPLOAD_TIMEOUT / 4);
                Ok(AttemptOutcome::Again { why: refused.to_string(), after })
            }
            _ => Err(refused),
        }
    }

    /// The same error, marked if a connection was lost: another one may come to more.
    fn lost(&self, error: anyhow::Error) -> anyhow::Error {
        if error.chain().any(|cause| cause.is::<io::Error>()) || self.is_begun && is_cut(&error) {
            let what = super::words(&error);
            let place = self.remote.place();
            let what = if what.contains(&place) { what } else { format!("{place}: {what}") };
            return Lost(what).into();
        }
        error.context(self.remote.place())
    }

    fn interrupted(&self) -> anyhow::Error {
        if self.reached == 0 {
            return anyhow!("interrupted; nothing was uploaded");
        }
        anyhow!(
            "interrupted with {} of {} sent; the same command goes on from there within {} minutes",
            ByteLen(self.reached),
            ByteLen(self.total),
            UPLOAD_KEPT.as_secs() / 60
        )
    }

    fn pause(&self, time: Duration) {
        let end = StdInstant::now() + time;
        while StdInstant::now() < end && !self.cancel.load(Ordering::Relaxed) {
            std::thread::sleep(UPLOAD_TURN.min(end.saturating_duration_since(StdInstant::now())));
        }
    }
}

/// A connection was lost.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Lost(String);

/// An answer that ended before it was whole.
fn is_cut(error: &anyhow::Error) -> bool {
    let said = error.to_string();
    said.contains("cut off") || said.contains("does not speak HTTP")
}

fn is_silent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::TimedOut)
}

/// A connection with short time-outs, waited on for longer: between two of them it is looked whether the user has had enough.
struct PollingStream<'a, S> {
    stream: S,
    cancel: &'a AtomicBool,
    /// How long nothing may happen.
    timeout: Duration,
}

impl<S> PollingStream<'_, S> {
    fn wait<T>(&mut self, mut act: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
        let start = StdInstant::now();
        loop {
            // Not `Interrupted`, because readers and writers retry on it.
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            match act(&mut self.stream) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) =>
                {
                    if start.elapsed() >= self.timeout {
                        return Err(io::Error::new(ErrorKind::TimedOut, "the server does not answer"));
                    }
                }
                done => return done,
            }
        }
    }
}

impl<S: Read> Read for PollingStream<'_, S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.wait(|stream| stream.read(to))
    }
}

impl<S: Write> Write for PollingStream<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wait(|stream| stream.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times out so often before it answers.
    struct Slow(u32);

    impl Read for Slow {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            match self.0 {
                0 => {
                    to[0] = 7;
                    Ok(1)
                }
                _ => {
                    self.0 -= 1;
                    Err(ErrorKind::WouldBlock.into())
                }
            }
        }
    }

    #[test]
    fn waiting_read_from_silent_server_ends_on_timeout_or_cancel() {
        let cancel = AtomicBool::new(false);
        let read =
            |turns, timeout| PollingStream { stream: Slow(turns), cancel: &cancel, timeout }.read(&mut [0]);
        assert_eq!(read(9, Duration::from_secs(60)).unwrap(), 1);
        assert_eq!(read(9, Duration::ZERO).unwrap_err().kind(), ErrorKind::TimedOut);
        cancel.store(true, Ordering::Relaxed);
        let stopped = read(0, Duration::from_secs(60)).unwrap_err();
        assert_eq!(stopped.to_string(), "interrupted");
        assert_ne!(stopped.kind(), ErrorKind::Interrupted, "BufReader would begin anew");
    }
}

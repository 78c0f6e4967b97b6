//! The uploads that are under way, each with its name, its thread, and the connection that has it, if one has.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use millrace_core::address::network_of;
use millrace_core::ids::TitleId;
use millrace_core::limits::web::UPLOAD_BUFFER_BYTES;
use millrace_core::time::{Instant, NS_PER_S};
use millrace_rights::{Now, Visitor};
use millrace_store::volume::TitleInfo;
use millrace_store::volume::UploadNames;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::oneshot;

use super::asked::UploadRange;
use super::incoming::{Closed, UploadSender, line};
use super::pace::UploadThrottle;
use crate::answer::{Answer, Body};
use crate::conditions::has_tag;
use crate::limits::{MAX_UPLOAD_FAILURES, MAX_UPLOAD_THREADS, MAX_UPLOADS, RETRY_AFTER_S};
use crate::site::{NotTaken, Site};
use crate::totals::Totals;

/// Result of an upload.
pub(crate) type UploadOutcome = Result<TitleInfo, NotTaken>;

/// Position of an upload, also as the field of an answer (the name is from
/// draft-ietf-httpbis-resumable-upload).
const OFFSET: &str = "Upload-Offset";

/// All of them.
pub(crate) struct Uploads {
    table: Mutex<UploadTable>,
    /// Told when a thread has ended.
    ended: Condvar,
    pace: Mutex<UploadThrottle>,
    /// How long an upload whose client has gone waits for it.
    kept: Duration,
    totals: Arc<Totals>,
}

#[derive(Default)]
struct UploadTable {
    entries: BTreeMap<String, UploadEntry>,
    /// Counted up with each that begins.
    numbers: u64,
    /// Threads, those of uploads that were given up among them.
    threads: usize,
    /// No more are taken.
    is_over: bool,
    /// Uploads that became no title, oldest first: a client whose connection broke learns here
    /// that sending the file again is of no use.
    failures: VecDeque<UploadFailure>,
}

struct UploadFailure {
    name: String,
    cause: NotTaken,
    at: Instant,
}

struct UploadEntry {
    number: u64,
    owner: Owner,
    total: Option<u64>,
    received: u64,
    begun: Instant,
    /// The title that it replaces.
    replaces: Option<TitleId>,
    /// All has come, and is made a title.
    is_whole: bool,
    /// State that the next connection continues with; `None` while a connection has it.
    parked: Option<UploadHandle>,
}

/// The owner of an upload: a user or, for other visitors, their address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    visitor: Visitor,
    address: Option<IpAddr>,
}

impl Owner {
    pub(crate) fn new(visitor: &Visitor, peer: SocketAddr) -> Self {
        let address = match visitor {
            Visitor::User(_) => None,
            Visitor::Anybody | Visitor::Link(_) => Some(network_of(peer.ip())),
        };
        Self { visitor: visitor.clone(), address }
    }
}

impl UploadTable {
    /// Gives up an upload that waits for its client, so that waiting uploads do not block other
    /// clients. Candidates are uploads of owners with more uploads than the newcomer, and uploads
    /// so short that a restart costs nothing; the shortest goes. Returns false if there is no
    /// candidate.
    fn make_room(&mut self, newcomer: &Owner) -> bool {
        let count = |owner: &Owner| self.entries.values().filter(|entry| entry.owner == *owner).count();
        let of_newcomer = count(newcomer);
        let may_go = |entry: &&UploadEntry| {
            let is_small = entry.received <= UPLOAD_BUFFER_BYTES as u64;
            entry.parked.is_some() && !entry.is_whole && (is_small || count(&entry.owner) > of_newcomer)
        };
        let waiting = self.entries.iter().filter(|(_, entry)| may_go(entry));
        let least = waiting.min_by_key(|(_, entry)| entry.received).map(|(name, _)| name.clone());
        least.is_some_and(|name| self.entries.remove(&name).is_some())
    }
}

/// The thread of an upload, as seen from outside.
pub(crate) struct UploadHandle {
    line: UploadSender,
    /// Of the bytes received.
    hash: Box<blake3::Hasher>,
    pub(crate) outcome: oneshot::Receiver<UploadOutcome>,
}

/// An upload that a connection has. Dropped, it waits for another one; one that was not begun is forgotten.
pub(crate) struct UploadFeed {
    uploads: Arc<Uploads>,
    name: String,
    number: u64,
    pub(crate) received: u64,
    pub(crate) total: Option<u64>,
    /// Name of the file at its source.
    file_name: Option<String>,
    running: Option<UploadHandle>,
}

impl Uploads {
    pub(crate) fn new(bits_per_s: u64, kept: Duration, totals: Arc<Totals>) -> Self {
        Self {
            table: Mutex::default(),
            ended: Condvar::new(),
            pace: Mutex::new(UploadThrottle::new(bits_per_s)),
            kept,
            totals,
        }
    }

    fn lock(&self) -> MutexGuard<'_, UploadTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long this many bytes must wait for those of others.
    pub(crate) fn pace(&self, bytes: usize) -> Duration {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).take(Now::read().mono, bytes)
    }

    /// Gives all of them up, and waits for their threads.
    pub(crate) fn end(&self, limit: Duration) {
        let mut table = self.lock();
        table.is_over = true;
        table.entries.clear();
        let waited = self.ended.wait_timeout_while(table, limit, |table| table.threads > 0);
        let (table, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if table.threads > 0 {
            // Their remains are swept when the volume is opened next.
            tracing::warn!("{} uploads could not be cancelled in time", table.threads);
        }
    }

    /// Gives a connection the upload of this name: one that waits, if the request goes on with it, or a new one.
    pub(crate) fn claim(
        self: &Arc<Self>,
        name: &str,
        owner: &Owner,
        asked: &UploadRange,
        if_match: Option<&str>,
    ) -> Result<UploadFeed, Answer> {
        let mut table = self.lock();
        if table.is_over {
            return Err(Answer::error(503, "the server is ending"));
        }
        if let Some(entry) = table.entries.get_mut(name) {
            let is_busy = entry.is_whole || entry.parked.is_none();
            if entry.owner != *owner || is_busy {
                let what = "a title of this name is being uploaded";
                return Err(at(Answer::error(409, what), entry.received)
                    .with("Retry-After", RETRY_AFTER_S.to_string()));
            }
            // Only a request without a range restarts an upload; the received bytes are not discarded
            // for a range that does not match.
            if !asked.is_rest {
                return self.go_on(name, entry, asked, if_match);
            }
            entry.check(if_match)?;
            // The partial upload is given up together with its thread.
            table.entries.remove(name);
        }
        if asked.from > 0 {
            return Err(at(
                Answer::error(409, "nothing of this upload is here: begin with the first byte"),
                0,
            ));
        }
        if if_match.is_some() {
            return Err(Answer::error(412, "there is no partial upload here for If-Match to match"));
        }
        if table.entries.len() >= MAX_UPLOADS && !table.make_room(owner) {
            let answer = Answer::error(503, "too many uploads are under way");
            return Err(answer.with("Retry-After", RETRY_AFTER_S.to_string()));
        }
        table.failures.retain(|failure| failure.name != name);
        table.numbers += 1;
        let (number, total) = (table.numbers, asked.total);
        let entry = UploadEntry {
            number,
            owner: owner.clone(),
            total,
            received: 0,
            begun: Now::read().mono,
            replaces: asked.replaces,
            is_whole: false,
            parked: None,
        };
        table.entries.insert(name.to_owned(), entry);
        let name = name.to_owned();
        let file_name = asked.file_name.clone();
        Ok(UploadFeed {
            uploads: Arc::clone(self),
            name,
            number,
            received: 0,
            total,
            file_name,
            running: None,
        })
    }

    fn go_on(
        self: &Arc<Self>,
        name: &str,
        entry: &mut UploadEntry,
        asked: &UploadRange,
        if_match: Option<&str>,
    ) -> Result<UploadFeed, Answer> {
        if asked.replaces != entry.replaces {
            let what = "this upload was begun with another replace=ID, or without one: begin again with the first byte";
            return Err(at(Answer::error(409, what), entry.received));
        }
        if asked.from != entry.received {
            let what = format!("{} bytes of this upload are here: go on with the next one", entry.received);
            return Err(at(Answer::error(409, &what), entry.received));
        }
        let total = match (entry.total, asked.total) {
            (Some(before), Some(now)) if before != now => {
                return Err(Answer::error(
                    409,
                    &format!("this upload was said to have {before} bytes in all"),
                ));
            }
            (before, now) => before.or(now),
        };
        entry.check(if_match)?;
        entry.total = total;
        let (received, running) = (entry.received, entry.parked.take());
        let (name, number) = (name.to_owned(), entry.number);
        // Its thread already has the file's name.
        Ok(UploadFeed { uploads: Arc::clone(self), name, number, received, total, file_name: None, running })
    }

    /// `/api/v1/uploads`; `most_bytes` is the longest upload that is taken.
    pub(crate) fn list(&self, most_bytes: u64) -> Listed {
        let uploads = self.lock().entries.iter().map(|(name, entry)| shown(name, entry)).collect();
        Listed { uploads, most_bytes }
    }

    /// `/titles/NAME`: how far an upload is, or why it became no title.
    pub(crate) fn state(&self, name: &str) -> Answer {
        let table = self.lock();
        let Some(entry) = table.entries.get(name) else {
            let kept_ns = u64::try_from(self.kept.as_nanos()).unwrap_or(u64::MAX);
            let now = Now::read().mono;
            let is_recent =
                |failure: &&UploadFailure| failure.name == name && now.ns_since(failure.at) < kept_ns;
            if let Some(failure) = table.failures.iter().find(is_recent) {
                return Answer::error(410, &format!("the upload became no title: {}", failure.cause));
            }
            return Answer::error(
                404,
                "no upload of this name is under way; a title that is there has its name with .ts behind it",
            );
        };
        let answer = at(Answer::json(&shown(name, entry)), entry.received);
        match entry.hash() {
            Some(hash) => answer.with("ETag", tag(&hash)),
            None => answer,
        }
    }

    fn forget(&self, name: &str, number: u64) {
        let mut table = self.lock();
        if table.entries.get(name).is_some_and(|entry| entry.number == number) {
            table.entries.remove(name);
        }
    }

    fn with<R>(&self, name: &str, number: u64, change: impl FnOnce(&mut UploadEntry) -> R) -> Option<R> {
        self.lock().entries.get_mut(name).filter(|entry| entry.number == number).map(change)
    }
}

impl UploadEntry {
    /// Returns the hash of the bytes received; none while a connection brings more, or all of it
    /// becomes a title.
    fn hash(&self) -> Option<blake3::Hash> {
        self.parked.as_ref().map(|running| running.hash.finalize())
    }

    /// Refuses a request meant for other bytes than those received. Checked last: RFC 9110 section
    /// 13.2.1.
    fn check(&self, if_match: Option<&str>) -> Result<(), Answer> {
        let Some(wanted) = if_match else { return Ok(()) };
        if self.hash().is_some_and(|hash| has_tag(wanted, &tag(&hash), false)) {
            return Ok(());
        }
        let what = format!(
            "the {} bytes received so far are not those that If-Match names: to upload another file, start again without Content-Range",
            self.received
        );
        Err(at(Answer::error(412, &what), self.received))
    }
}

/// Returns the entity tag of the bytes received of an upload.
fn tag(hash: &blake3::Hash) -> String {
    format!("\"{}\"", hash.to_hex())
}

/// Says where an upload is.
fn at(answer: Answer, received: u64) -> Answer {
    answer.with(OFFSET, received.to_string())
}

impl UploadFeed {
    /// Whether its thread runs.
    pub(crate) fn is_begun(&self) -> bool {
        self.running.is_some()
    }

    /// Starts its thread; `replaced` is the title that it replaces.
    ///
    /// # Errors
    /// The thread cannot be started, or too many threads of abandoned uploads still hang on a disk.
    pub(crate) fn begin(&mut self, site: &Arc<dyn Site>, replaced: Option<TitleInfo>) -> io::Result<()> {
        let (line, mut incoming) = line(self.uploads.kept);
        let (done, outcome) = oneshot::channel();
        let thread = UploadThread::begin(&self.uploads, &self.name, self.number)?;
        let site = Arc::clone(site);
        let file_name = self.file_name.take();
        let run = move || {
            let upload = UploadNames { name: &thread.name, file_name: file_name.as_deref() };
            let taken = site.take_in(upload, replaced.as_ref(), &mut incoming);
            thread.uploads.totals.add(|c| match taken {
                Ok(_) => c.uploads += 1,
                Err(_) => c.uploads_failed += 1,
            });
            match &taken {
                Ok(title) => tracing::info!("{}: uploaded", title.name),
                Err(error) => {
                    tracing::info!("{}: the upload became no title: {error}", thread.name);
                    thread.record_failure(error);
                }
            }
            // The name is free before the outcome is reported.
            drop(thread);
            // The client may have gone.
            let _ = done.send(taken);
        };
        // If the thread cannot be started, its closure is dropped, and its place with it.
        std::thread::Builder::new().name("upload".to_owned()).spawn(run)?;
        self.running = Some(UploadHandle { line, hash: Box::default(), outcome });
        Ok(())
    }

    /// Bytes have come: they go on as soon as there is room.
    pub(crate) async fn put(&mut self, bytes: Bytes) -> Result<(), Closed> {
        let count = bytes.len() as u64;
        let Some(running) = &mut self.running else { return Err(Closed) };
        running.line.put(bytes.clone()).await?;
        // Hashed here, and not where ingest reads: ingest is behind by the content of the queue.
        running.hash.update(&bytes);
        self.received += count;
        let received = self.received;
        self.uploads.with(&self.name, self.number, |entry| entry.received = received);
        self.uploads.totals.add(|c| c.upload_bytes += count);
        Ok(())
    }

    /// Ends a complete upload: it becomes a title, whether or not its client waits for the result.
    pub(crate) fn end(mut self) -> Option<oneshot::Receiver<UploadOutcome>> {
        let UploadHandle { line, outcome, .. } = self.running.take()?;
        self.uploads.with(&self.name, self.number, |entry| entry.is_whole = true);
        line.end();
        Some(outcome)
    }

    /// Nothing is to become of it.
    pub(crate) fn give_up(mut self) {
        self.running = None;
        self.uploads.forget(&self.name, self.number);
    }

    /// Its thread has ended before all had come: why.
    pub(crate) async fn why(mut self) -> NotTaken {
        let gone = || NotTaken::Unavailable("the upload was given up".to_owned());
        match self.running.take() {
            Some(running) => running.outcome.await.ok().and_then(Result::err).unwrap_or_else(gone),
            None => gone(),
        }
    }

    /// More is to come, by another request.
    pub(crate) fn answer(&self) -> Answer {
        at(Answer { status: 202, headers: Vec::new(), body: Body::Bytes(Bytes::new()) }, self.received)
            .with("Cache-Control", "no-store")
    }
}

impl Drop for UploadFeed {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else {
            // It was not begun; or it is whole, or over, and its thread sees to the rest.
            let is_new = |entry: &mut UploadEntry| entry.received == 0 && !entry.is_whole;
            if self.uploads.with(&self.name, self.number, |entry| is_new(entry)) == Some(true) {
                self.uploads.forget(&self.name, self.number);
            }
            return;
        };
        self.uploads.with(&self.name, self.number, move |entry| entry.parked = Some(running));
    }
}

/// The place of a thread: given back when it ends, however it does.
struct UploadThread {
    uploads: Arc<Uploads>,
    name: String,
    number: u64,
}

impl UploadThread {
    fn begin(uploads: &Arc<Uploads>, name: &str, number: u64) -> io::Result<Self> {
        let mut table = uploads.lock();
        if table.threads >= MAX_UPLOAD_THREADS {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        table.threads += 1;
        uploads.totals.add(|c| c.uploads_now += 1);
        Ok(Self { uploads: Arc::clone(uploads), name: name.to_owned(), number })
    }

    /// Keeps the cause for clients that lost their connection. An upload that was given up or
    /// replaced has no such client, and one that failed for now may be repeated.
    fn record_failure(&self, cause: &NotTaken) {
        let mut table = self.uploads.lock();
        let is_current = table.entries.get(&self.name).is_some_and(|entry| entry.number == self.number);
        if !is_current || matches!(cause, NotTaken::Unavailable(_)) {
            return;
        }
        if table.failures.len() >= MAX_UPLOAD_FAILURES {
            table.failures.pop_front();
        }
        let failure = UploadFailure { name: self.name.clone(), cause: cause.clone(), at: Now::read().mono };
        table.failures.push_back(failure);
    }
}

impl Drop for UploadThread {
    fn drop(&mut self) {
        self.uploads.forget(&self.name, self.number);
        self.uploads.lock().threads -= 1;
        self.uploads.totals.add(|c| c.uploads_now -= 1);
        self.uploads.ended.notify_all();
    }
}

/// Titles that are being uploaded.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Listed {
    uploads: Vec<Upload>,
    /// Longest upload that is taken.
    most_bytes: u64,
}

/// A title that is being uploaded.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Upload {
    name: String,
    received_bytes: u64,
    total_bytes: Option<u64>,
    /// BLAKE3 of the bytes that have come, to be compared with those of the file before it is gone on with; null while a connection brings more, and when
    /// it is whole.
    received_blake3: Option<String>,
    /// Whether a connection brings it; else it waits for one.
    is_sending: bool,
    /// Whether all has come, and is made a title.
    is_whole: bool,
    age_s: u64,
    /// Whose it is, if that was asked.
    user: Option<String>,
}

fn shown(name: &str, entry: &UploadEntry) -> Upload {
    Upload {
        name: name.to_owned(),
        received_bytes: entry.received,
        total_bytes: entry.total,
        received_blake3: entry.hash().map(|hash| hash.to_hex().to_string()),
        is_sending: entry.parked.is_none() && !entry.is_whole,
        is_whole: entry.is_whole,
        age_s: Now::read().mono.ns_since(entry.begun) / NS_PER_S,
        user: match &entry.owner.visitor {
            Visitor::User(name) => Some(name.to_string()),
            Visitor::Anybody | Visitor::Link(_) => None,
        },
    }
}

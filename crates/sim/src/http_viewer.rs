//! A viewer by HTTP: its requests on one connection, and every byte of the answers compared with the
//! title.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::time::Instant;

use crate::http_answer::{AnswerHead, ExpectedAnswer, Playlist, ReceivedAnswer};
use crate::scenario::{HttpAction, HttpPlan};
use crate::users::ViewerAccess;
use crate::viewer::{ViewerEnd, ViewerWorld};

/// An answer makes progress this often: a file is paced, and a burst is an extent at most.
const PROGRESS_NS: u64 = 5_000_000_000;
/// This much later where parity has to make up for a member.
const PARITY_PROGRESS_NS: u64 = 4_000_000_000;
/// Viewers at one address differ by their port.
const FIRST_PORT: u16 = 40_000;
/// The server waits this long for the rest of a head, and answers a little later.
const HALF_HEAD_NS: u64 = 12_000_000_000;
/// The kernel gives a connection up whose other end is gone.
const DEAD_PEER_NS: u64 = 20_000_000_000;
/// A viewer that reads nothing for longer than this may be cut off.
const LONG_STALL_NS: u64 = 25_000_000_000;

/// A request that waits for its turn.
#[derive(Clone, Debug)]
enum PlannedRequest {
    /// Its text, and the answer to it.
    Known(String, ExpectedAnswer),
    /// Segments of the playlist that is known by then.
    Segments { first: u16, count: u16 },
}

/// State of a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HttpPhase {
    Active,
    Stalled(Instant),
    Vanished(Instant),
    Over(ViewerEnd),
}

/// Answers and bytes that a viewer has received.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedAmount {
    /// Bytes of titles in answers that were sent by an engine and came whole.
    pub media_bytes: u64,
    /// Such answers.
    pub media_answers: u64,
    /// Such answers that were cut off.
    pub cut: u64,
    /// Requests that were refused because everything was in use.
    pub refused: u64,
    /// Requests that its user has no right to.
    pub denied: u64,
}

/// One viewer with one connection.
pub struct HttpViewer {
    /// Its plan.
    pub plan: HttpPlan,
    /// The number of its connection.
    pub number: u32,
    /// Its address.
    pub address: SocketAddr,
    /// Its answers and bytes so far.
    pub received: ReceivedAmount,
    /// Reasons of its own for the end of its connection.
    pub faults_of_its_own: Vec<&'static str>,
    access: ViewerAccess,
    phase: HttpPhase,
    next_step: usize,
    next_step_at: Option<Instant>,
    /// Requests that it has not sent.
    planned: VecDeque<PlannedRequest>,
    /// Answers that it waits for, in order.
    expected: VecDeque<ExpectedAnswer>,
    unparsed: Vec<u8>,
    answer: Option<ReceivedAnswer>,
    playlist: Option<Playlist>,
    progress_at: Instant,
    /// It has sent bytes behind which nothing can be understood.
    is_spoiled: bool,
}

impl HttpViewer {
    /// A viewer that has just connected.
    pub fn new(plan: HttpPlan, number: u32, now: Instant, access: ViewerAccess) -> Self {
        let [high, low] = (number as u16).to_be_bytes();
        let ip = if plan.shares_address { [10, 2, 0, 1] } else { [10, 1, high, low] };
        let address = SocketAddr::from((ip, FIRST_PORT + number as u16));
        let first = plan.steps.first().map(|step| now.plus_ns(step.after_ns));
        Self {
            plan,
            number,
            address,
            access,
            received: ReceivedAmount::default(),
            faults_of_its_own: Vec::new(),
            phase: HttpPhase::Active,
            next_step: 0,
            next_step_at: first,
            planned: VecDeque::new(),
            expected: VecDeque::new(),
            unparsed: Vec::new(),
            answer: None,
            playlist: None,
            progress_at: now,
            is_spoiled: false,
        }
    }

    /// Whether the server must have nothing for it any more.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, HttpPhase::Over(_))
    }

    /// Whether the server must hold a stream for it. Those of one program at an address may count as
    /// one when they fetch segments.
    pub fn receives(&self) -> bool {
        let is_well = self.reads() && self.faults_of_its_own.is_empty();
        let counts = |answer: &ReceivedAnswer| {
            answer.is_media() && answer.is_under_way() && (self.plan.has_name || !answer.is_segment())
        };
        is_well && self.answer.as_ref().is_some_and(counts)
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<&ViewerEnd> {
        match &self.phase {
            HttpPhase::Over(end) => Some(end),
            _ => None,
        }
    }

    /// Whether it reads its connection.
    pub fn reads(&self) -> bool {
        self.phase == HttpPhase::Active
    }

    /// When it does something although nothing arrives.
    pub fn poll_at(&self) -> Option<Instant> {
        match self.phase {
            HttpPhase::Active => self.next_step_at,
            HttpPhase::Stalled(until) | HttpPhase::Vanished(until) => Some(until),
            HttpPhase::Over(_) => None,
        }
    }

    /// The server was killed: nothing that it owed is due any more.
    pub fn server_killed(&mut self) {
        self.faults_of_its_own.push("the server was killed");
    }

    /// Reads all bytes that have arrived, and carries out due actions.
    ///
    /// # Errors
    /// If the server broke an invariant.
    pub fn run(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        match self.phase {
            HttpPhase::Stalled(until) if until <= world.now => {
                self.phase = HttpPhase::Active;
                self.progress_at = world.now;
            }
            HttpPhase::Vanished(until) if until <= world.now => self.close(world, ViewerEnd::Left),
            _ => {}
        }
        if self.phase != HttpPhase::Active {
            return Ok(());
        }
        let is_over = {
            let mut network = world.network.lock();
            let before = self.unparsed.len();
            network.read_down(self.number, &mut self.unparsed);
            if self.unparsed.len() > before {
                self.progress_at = world.now;
            }
            network.conns.get(&self.number).is_none_or(|conn| conn.is_over())
        };
        self.take_answers(world)?;
        if is_over {
            return self.connection_ended(world);
        }
        while self.phase == HttpPhase::Active && self.next_step_at.is_some_and(|at| at <= world.now) {
            self.act(world);
        }
        if self.phase == HttpPhase::Active {
            self.send_requests(world);
            let is_done = self.expected.is_empty() && self.answer.is_none() && self.planned.is_empty();
            if is_done && self.next_step_at.is_none() {
                self.close(world, ViewerEnd::Left);
            }
        }
        Ok(())
    }

    fn act(&mut self, world: &ViewerWorld<'_>) {
        let now = world.now;
        let Some(step) = self.plan.steps.get(self.next_step).copied() else { return };
        self.next_step += 1;
        self.next_step_at = self.plan.steps.get(self.next_step).map(|step| now.plus_ns(step.after_ns));
        match step.action {
            HttpAction::Stall { for_ns } => {
                if for_ns > LONG_STALL_NS {
                    self.faults_of_its_own.push("stalled");
                }
                self.phase = HttpPhase::Stalled(now.plus_ns(for_ns));
            }
            HttpAction::Vanish => {
                self.faults_of_its_own.push("vanished");
                self.phase = HttpPhase::Vanished(now.plus_ns(DEAD_PEER_NS));
            }
            HttpAction::Close => {
                self.faults_of_its_own.push("closed its connection");
                self.close(world, ViewerEnd::Left);
            }
            HttpAction::Segments { first, count } => {
                if self.playlist.is_none() {
                    let text = get(&format!("/titles/{}/media.m3u8", world.title.name), "");
                    self.ask(text, ExpectedAnswer::Playlist, self.access.denial);
                }
                self.planned.push_back(PlannedRequest::Segments { first, count });
            }
            action => {
                let (text, expected) = request_of(action, world);
                let is_elsewhere = action == HttpAction::Missing;
                let denial = if is_elsewhere { self.access.denial_elsewhere } else { self.access.denial };
                self.ask(text, expected, denial);
            }
        }
    }

    /// Plans a request: `denial` is the status that it gets if it may not be answered.
    fn ask(&mut self, text: String, expected: ExpectedAnswer, denial: Option<u16>) {
        let request = match denial.filter(|_| !matches!(expected, ExpectedAnswer::Bad(_))) {
            // To be denied, HEAD is GET: its answer has a body.
            Some(status) => (text.replacen("HEAD", "GET", 1), ExpectedAnswer::Status(status)),
            None => (text, expected),
        };
        self.planned.push_back(PlannedRequest::Known(request.0, request.1));
    }

    /// Sends the requests whose turn it is: the next one when all are answered, or all at once.
    fn send_requests(&mut self, world: &ViewerWorld<'_>) {
        while !self.is_spoiled && (self.plan.pipelines || self.expected.is_empty() && self.answer.is_none()) {
            // The addresses of segments are in a playlist that may be on its way.
            let waits_for_playlist = matches!(self.planned.front(), Some(PlannedRequest::Segments { .. }))
                && self.expected.contains(&ExpectedAnswer::Playlist);
            if waits_for_playlist {
                break;
            }
            let Some(next) = self.planned.pop_front() else { break };
            match next {
                PlannedRequest::Known(text, expected) => {
                    self.is_spoiled = matches!(expected, ExpectedAnswer::Bad(_));
                    if self.expected.is_empty() && self.answer.is_none() {
                        self.progress_at = world.now;
                    }
                    self.expected.push_back(expected);
                    let text = self.access.sign(&text, "Host: 192.0.2.1\r\n");
                    let text = match self.plan.has_name {
                        true => text.replace(AGENT, &format!("{AGENT}-{}", self.number)),
                        false => text,
                    };
                    world.network.lock().write_up(self.number, text.into_bytes());
                }
                PlannedRequest::Segments { first, count } => {
                    // Without a playlist, the server had no room for this viewer.
                    let Some(playlist) = &self.playlist else { continue };
                    for segment in playlist.segments.iter().skip(first.into()).take(count.into()).rev() {
                        let text = get(&segment.address, "");
                        let expected = ExpectedAnswer::Segment { bytes: segment.bytes.clone() };
                        self.planned.push_front(PlannedRequest::Known(text, expected));
                    }
                }
            }
        }
        if self.is_spoiled {
            self.planned.clear();
            self.next_step_at = None;
        }
    }

    fn take_answers(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        loop {
            if let Some(answer) = &mut self.answer {
                let taken = answer.take(&self.unparsed, world.title, world.excuses)?;
                self.unparsed.drain(..taken);
                if !answer.is_whole() {
                    return Ok(());
                }
                if let Some(answer) = self.answer.take() {
                    self.finish(answer, world)?;
                }
                continue;
            }
            let Some(head) = AnswerHead::parse(&self.unparsed)? else { return Ok(()) };
            self.unparsed.drain(..head.len);
            let expected = self.expected.pop_front();
            let expected = expected
                .ok_or_else(|| format!("an answer to no request: {} {:?}", head.status, head.fields))?;
            self.answer = Some(ReceivedAnswer::begin(expected, head, world.title, world.excuses)?);
        }
    }

    fn finish(&mut self, answer: ReceivedAnswer, world: &ViewerWorld<'_>) -> Result<(), String> {
        if answer.status() == 503 {
            self.received.refused += 1;
        } else if matches!(answer.status(), 401 | 403) {
            self.received.denied += 1;
        } else if answer.is_media() {
            self.received.media_bytes += answer.media_bytes();
            self.received.media_answers += 1;
        }
        if let Some(playlist) = answer.playlist(world.title)? {
            self.playlist = Some(playlist);
        }
        Ok(())
    }

    /// The server has closed the connection, and everything before has been read.
    fn connection_ended(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        let is_cut = self.answer.as_ref().is_some_and(ReceivedAnswer::is_media);
        self.received.cut += u64::from(is_cut);
        let is_owed = self.answer.is_some() || !self.expected.is_empty() || !self.unparsed.is_empty();
        let is_explained = self.is_spoiled && !is_owed
            || !self.faults_of_its_own.is_empty()
            || world.excuses.is_lost
            || world.excuses.was_lost && is_cut;
        let what = format!(
            "the server closed its connection; the answer was {:?}, and {:?} were expected",
            self.answer, self.expected
        );
        self.close(world, ViewerEnd::Ended(what.clone()));
        if is_explained { Ok(()) } else { Err(what) }
    }

    fn close(&mut self, world: &ViewerWorld<'_>, end: ViewerEnd) {
        world.network.lock().close_viewer_end(self.number);
        self.phase = HttpPhase::Over(end);
    }

    /// Looks whether an answer is overdue.
    ///
    /// # Errors
    /// If it is.
    pub fn look(&mut self, world: &ViewerWorld<'_>) -> Result<(), String> {
        let waits = self.answer.is_some() || !self.expected.is_empty();
        if self.phase != HttpPhase::Active || !waits || world.excuses.is_lost {
            self.progress_at = world.now;
            return Ok(());
        }
        let more_ns = if world.excuses.is_degraded { PARITY_PROGRESS_NS } else { 0 };
        let limit_ns = match (&self.answer, self.expected.front()) {
            (None, Some(ExpectedAnswer::Bad(408))) => HALF_HEAD_NS,
            _ => PROGRESS_NS,
        };
        match world.now.ns_since(self.progress_at) > limit_ns + more_ns {
            true => Err(format!(
                "no progress for {} ms; the answer is {:?}, and {:?} are expected",
                world.now.ns_since(self.progress_at) / 1_000_000,
                self.answer,
                self.expected
            )),
            false => Ok(()),
        }
    }
}

/// Name of the program of viewers.
const AGENT: &str = "simulated";

fn get(path: &str, lines: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 192.0.2.1\r\nUser-Agent: {AGENT}\r\n{lines}\r\n")
}

/// The text of a request, and its answer.
fn request_of(action: HttpAction, world: &ViewerWorld<'_>) -> (String, ExpectedAnswer) {
    let file = format!("/titles/{}.ts", world.title.name);
    let length = world.title.bytes.len() as u64;
    let ranged = |range: String| get(&file, &format!("Range: bytes={range}\r\n"));
    match action {
        HttpAction::File { from_permille, bytes } => {
            // A byte that begins no packet is the usual case.
            let from = length * u64::from(from_permille) / 1_000;
            let until = bytes.map_or(length, |bytes| (from + u64::from(bytes)).min(length));
            match (from, bytes) {
                (0, None) => (get(&file, ""), ExpectedAnswer::Bytes { bytes: 0..length, is_part: false }),
                (_, None) => {
                    (ranged(format!("{from}-")), ExpectedAnswer::Bytes { bytes: from..until, is_part: true })
                }
                (_, Some(bytes)) => {
                    let last = from + u64::from(bytes) - 1;
                    let expected = ExpectedAnswer::Bytes { bytes: from..until, is_part: true };
                    (ranged(format!("{from}-{last}")), expected)
                }
            }
        }
        HttpAction::Suffix { bytes } => {
            let from = length.saturating_sub(bytes.into());
            let expected = ExpectedAnswer::Bytes { bytes: from..length, is_part: true };
            (ranged(format!("-{bytes}")), expected)
        }
        HttpAction::PastEnd => (ranged(format!("{length}-")), ExpectedAnswer::Status(416)),
        HttpAction::TwoRanges => (ranged("0-1,5-6".to_owned()), ExpectedAnswer::Status(416)),
        HttpAction::Missing => (get("/titles/no-such.ts", ""), ExpectedAnswer::Status(404)),
        HttpAction::Head => {
            let text = get(&file, "").replacen("GET", "HEAD", 1);
            (text, ExpectedAnswer::Head { length })
        }
        HttpAction::HalfRequest => {
            let half = format!("GET {file} HTTP/1.1\r\nHost: 192.0.2.1\r\nRa");
            (half, ExpectedAnswer::Bad(408))
        }
        _ => ("\u{1} not HTTP\r\n\r\n".to_owned(), ExpectedAnswer::Bad(400)),
    }
}

/// Byte at a place of a title where a null packet replaces unreadable data.
pub fn null_byte(place: u64) -> u8 {
    match place % TS_PACKET_BYTES as u64 {
        0 => 0x47,
        1 => 0x1f,
        3 => 0x10,
        _ => 0xff,
    }
}

//! An operator's program that is also asked whether a viewer may watch a title: in addition to the
//! access rights, never instead of them. Its answers are kept for a short time. This module does
//! not know how the program is asked ([`Adviser`]).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::address::network_of;
use millrace_core::limits::rights::{MAX_ADVICE_ASKED, MAX_ADVICE_ASKED_PER_ADDRESS};
use millrace_core::time::Instant;

use crate::clock::Now;
use crate::gate::Visitor;
use crate::limits::{
    ADVICE_FAILED_NS, ADVICE_GIVEN_NS, ADVICE_REFUSED_NS, MAX_ADVICE_KEPT, MAX_ADVICE_KEPT_PER_ADDRESS,
    MAX_ADVICE_WAITING, MAX_ADVICE_WAITING_PER_ADDRESS,
};
use crate::name::base;

/// A question to the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The title; for a title made from another one, the original.
    pub title: String,
    /// The user that wants to watch it, if known.
    pub user: Option<Arc<str>>,
    /// Whether the viewer has a signed link.
    pub has_link: bool,
    /// Where it asks from.
    pub address: IpAddr,
}

impl Question {
    /// Whether this visitor may watch the title.
    pub fn of(visitor: &Visitor, title: &str, address: IpAddr) -> Self {
        let (user, has_link) = match visitor {
            Visitor::Anybody => (None, false),
            Visitor::User(name) => (Some(Arc::clone(name)), false),
            Visitor::Link(_) => (None, true),
        };
        Self { title: base(title).to_owned(), user, has_link, address: address.to_canonical() }
    }
}

/// The result of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It may.
    Allow,
    /// It may not.
    Refuse,
    /// There was no answer, and the operator's policy admits no viewer then.
    Unanswered,
    /// The program was not asked, because too many questions are pending. No viewer is admitted
    /// then, whatever the operator's policy for a missing answer: otherwise a client could choose
    /// when the program is asked.
    Crowded,
}

/// Receives the result: whether the viewer may watch, or why there is no answer.
pub type Answered = Box<dyn FnOnce(Result<bool, String>) + Send>;

/// Asks the program. It returns at once, and calls back within a bounded time, from any thread.
pub trait Adviser: Send + Sync {
    /// Asks.
    fn ask(&self, question: &Question, answered: Answered);
}

/// The program and its answers.
pub struct Advised {
    adviser: Box<dyn Adviser>,
    /// What holds without an answer.
    without: Advice,
    live: Mutex<Live>,
}

/// Called when a question has been answered, or cannot be.
type AnswerCallback = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Live {
    kept: HashMap<Question, (Advice, Instant)>,
    /// In the order in which they came, each with its end; one that came again stands here twice until its first place is reached.
    order: VecDeque<(Question, Instant)>,
    /// Questions in progress, each with all callers that wait for it.
    asked: HashMap<Question, Vec<AnswerCallback>>,
    waiting: usize,
    shares: HashMap<IpAddr, Share>,
    is_failing: bool,
    counts: QuestionCounts,
}

/// How much of each bound the viewers of one address use.
#[derive(Debug, Default, PartialEq, Eq)]
struct Share {
    asked: usize,
    waiting: usize,
    /// Their entries in the order of answers.
    kept: usize,
}

/// Counters of the questions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuestionCounts {
    pub(crate) asked: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) crowded: u64,
}

impl Advised {
    /// By this program; without its answer viewers are let in, or not.
    pub fn new(adviser: Box<dyn Adviser>, lets_in_without: bool) -> Arc<Self> {
        let without = if lets_in_without { Advice::Allow } else { Advice::Unanswered };
        Arc::new(Self { adviser, without, live: Mutex::default() })
    }

    /// Returns the program's answer; `None`: it must be asked.
    pub fn look(&self, now: Now, question: &Question) -> Option<Advice> {
        let live = self.live();
        live.kept.get(question).filter(|(_, until)| now.mono < *until).map(|(advice, _)| *advice)
    }

    /// Returns the answer after [`Self::ask`] has called back. If there still is none, the program
    /// was not asked.
    pub fn look_again(&self, now: Now, question: &Question) -> Advice {
        self.look(now, question).unwrap_or(Advice::Crowded)
    }

    /// Asks the program, once for all callers with the same question, and then calls `done`. If too
    /// many questions are pending, in total or from the question's address, the program is not
    /// asked and `done` is called at once.
    pub fn ask(self: &Arc<Self>, question: Question, done: AnswerCallback) {
        {
            let mut live = self.live();
            let is_new = !live.asked.contains_key(&question);
            if !live.has_room_to_ask(&question, is_new) {
                live.counts.crowded += 1;
                drop(live);
                return done();
            }
            live.waiting += 1;
            live.asked.entry(question.clone()).or_default().push(done);
            live.share(&question, |share| {
                share.waiting += 1;
                share.asked += usize::from(is_new);
            });
            if !is_new {
                return;
            }
            live.counts.asked += 1;
        }
        let (advised, asked) = (Arc::clone(self), question.clone());
        self.adviser.ask(&question, Box::new(move |answer| advised.answered(asked, answer, Now::read())));
    }

    fn answered(&self, question: Question, answer: Result<bool, String>, now: Now) {
        let (waiting, change) = {
            let mut live = self.live();
            let (advice, time) = match &answer {
                Ok(true) => (Advice::Allow, ADVICE_GIVEN_NS),
                Ok(false) => (Advice::Refuse, ADVICE_REFUSED_NS),
                Err(_) => (self.without, ADVICE_FAILED_NS),
            };
            live.counts.refused += u64::from(answer == Ok(false));
            live.counts.failed += u64::from(answer.is_err());
            let waiting = live.asked.remove(&question).unwrap_or_default();
            live.waiting -= waiting.len();
            live.share(&question, |share| {
                share.waiting -= waiting.len();
                share.asked -= 1;
            });
            live.keep(question, advice, now.mono.plus_ns(time));
            let was_failing = std::mem::replace(&mut live.is_failing, answer.is_err());
            (waiting, was_failing != answer.is_err())
        };
        match (answer, change) {
            (Err(why), true) => {
                let so = if self.without == Advice::Allow { "are let in" } else { "are refused" };
                tracing::warn!("the webhook does not answer: {why}; until it does, viewers {so}");
            }
            (Ok(_), true) => tracing::info!("the webhook answers again"),
            (_, false) => {}
        }
        waiting.into_iter().for_each(|done| done());
    }

    /// Returns the counters.
    pub(crate) fn counts(&self) -> QuestionCounts {
        self.live().counts
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    fn has_room_to_ask(&self, question: &Question, is_new: bool) -> bool {
        let (asked, waiting) =
            self.shares.get(&shared_by(question)).map_or((0, 0), |share| (share.asked, share.waiting));
        let may_wait = self.waiting < MAX_ADVICE_WAITING && waiting < MAX_ADVICE_WAITING_PER_ADDRESS;
        let may_ask = self.asked.len() < MAX_ADVICE_ASKED && asked < MAX_ADVICE_ASKED_PER_ADDRESS;
        may_wait && (may_ask || !is_new)
    }

    /// Changes the share of the question's address, and removes the share once it is empty.
    fn share(&mut self, question: &Question, change: impl FnOnce(&mut Share)) {
        let address = shared_by(question);
        let share = self.shares.entry(address).or_default();
        change(share);
        if *share == Share::default() {
            self.shares.remove(&address);
        }
    }

    fn keep(&mut self, question: Question, advice: Advice, until: Instant) {
        self.kept.insert(question.clone(), (advice, until));
        self.share(&question, |share| share.kept += 1);
        let address = shared_by(&question);
        self.order.push_back((question, until));
        let of_address = self.shares.get(&address).map_or(0, |share| share.kept);
        if of_address > MAX_ADVICE_KEPT_PER_ADDRESS {
            let oldest = self.order.iter().position(|(other, _)| shared_by(other) == address);
            self.forget(oldest.unwrap_or_default());
        }
        if self.order.len() > MAX_ADVICE_KEPT {
            self.forget(0);
        }
    }

    /// Forgets the answer at this position of the order, unless a later answer has replaced it.
    fn forget(&mut self, at: usize) {
        let Some((oldest, until)) = self.order.remove(at) else { return };
        if self.kept.get(&oldest).is_some_and(|(_, last)| *last == until) {
            self.kept.remove(&oldest);
        }
        self.share(&oldest, |share| share.kept -= 1);
    }
}

/// The address whose share a question counts against.
fn shared_by(question: &Question) -> IpAddr {
    network_of(question.address)
}

impl fmt::Debug for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Advised").field("without", &self.without).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;

//! Questions to disks that may never answer.
//!
//! A system call on a disk that hangs does not return, and nothing can end it. Each call is
//! therefore made on a thread that belongs to its member; the caller waits a bounded time. A member
//! that has not answered by then is given up for the rest of the run: it is not asked again, and
//! its thread stays where it is until the disk releases it or the process ends. There is at most
//! one thread for each member.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::limits::volume::ASK_SLICE_NS;

/// A question as its thread takes it: it sends the answer itself.
type Question = Box<dyn FnOnce() + Send>;

/// The thread that asks a member, until the member is given up.
enum MemberThread {
    Answers(Sender<Question>),
    GivenUp,
}

/// Asks all members of one run.
pub(crate) struct Asker {
    limit_ns: u64,
    members: BTreeMap<u16, MemberThread>,
}

impl Asker {
    /// A member may take `limit_ns` to answer.
    pub(crate) fn new(limit_ns: u64) -> Self {
        Self { limit_ns, members: BTreeMap::new() }
    }

    /// How long a member may take.
    pub(crate) fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether the member in `slot` has not answered in time.
    pub(crate) fn has_given_up(&self, slot: u16) -> bool {
        matches!(self.members.get(&slot), Some(MemberThread::GivenUp))
    }

    /// All such members.
    pub(crate) fn given_up(&self) -> Vec<u16> {
        self.members.keys().copied().filter(|&slot| self.has_given_up(slot)).collect()
    }

    /// The answer of the member in `slot`; `None` if it does not come in time, now or before. `check` is asked now and then
    /// whether to go on waiting.
    pub(crate) fn ask<T: Send + 'static, E>(
        &mut self,
        slot: u16,
        question: impl FnOnce() -> T + Send + 'static,
        check: impl Fn() -> Result<(), E>,
    ) -> Result<Option<T>, E> {
        let (reply, answer) = channel();
        // An answer that comes too late has no receiver.
        let question: Question = Box::new(move || drop(reply.send(question())));
        match self.members.get(&slot) {
            Some(MemberThread::GivenUp) => return Ok(None),
            // A thread that is not there any more has panicked, and so has the question.
            Some(MemberThread::Answers(thread)) => drop(thread.send(question)),
            None => self.begin(slot, question),
        }
        let mut left_ns = self.limit_ns;
        loop {
            let slice_ns = left_ns.min(ASK_SLICE_NS);
            match answer.recv_timeout(Duration::from_nanos(slice_ns)) {
                Ok(answer) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Timeout) if left_ns > slice_ns => left_ns -= slice_ns,
                Err(_) => break,
            }
            check()?;
        }
        self.members.insert(slot, MemberThread::GivenUp);
        Ok(None)
    }

    /// Starts a member's thread with its first question. Without a thread it is asked here: better than not at all.
    fn begin(&mut self, slot: u16, first: Question) {
        let (thread, questions) = channel::<Question>();
        let answer = move || questions.into_iter().for_each(|question| question());
        match std::thread::Builder::new().name(format!("member-{slot}")).spawn(answer) {
            Ok(_) => {
                // It waits for nothing else, so it hears this.
                let _ = thread.send(first);
                self.members.insert(slot, MemberThread::Answers(thread));
            }
            Err(_) => first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn go_on() -> Result<(), ()> {
        Ok(())
    }

    #[test]
    fn answers_come_back_and_a_silent_member_is_asked_once() {
        let mut asker = Asker::new(150_000_000);
        for i in 0..100 {
            assert_eq!(asker.ask(i % 3, move || i * 2, go_on), Ok(Some(i * 2)));
        }
        let (hold, held) = channel::<()>();
        let asked = Arc::new(AtomicUsize::new(0));
        let hang = {
            let asked = Arc::clone(&asked);
            move || {
                asked.fetch_add(1, Ordering::SeqCst);
                let _ = held.recv();
            }
        };
        assert_eq!(asker.ask(1, hang, go_on), Ok(None));
        let count = Arc::clone(&asked);
        assert_eq!(asker.ask(1, move || count.fetch_add(1, Ordering::SeqCst), go_on), Ok(None));
        assert_eq!(asked.load(Ordering::SeqCst), 1, "it was not asked again");
        assert_eq!((asker.given_up(), asker.has_given_up(0)), (vec![1], false));
        assert_eq!(asker.ask(2, || 7, go_on), Ok(Some(7)), "the others answer");
        drop(hold);
    }

    #[test]
    fn ask_of_silent_member_can_be_stopped() {
        let mut asker = Asker::new(u64::MAX);
        let (_hold, held) = channel::<()>();
        assert_eq!(asker.ask(0, move || held.recv().is_ok(), || Err("stop")), Err("stop"));
        assert!(!asker.has_given_up(0), "it may answer yet");
    }
}

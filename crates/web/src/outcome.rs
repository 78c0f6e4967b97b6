//! The outcome of an order, on its way from the server to the connection that ordered.
//!
//! A connection that was sent everything has nothing to do before its viewer's next request, so that outcome wakes it only if it waits
//! for it ([`Outcome::arrive`]); it is counted where it is reported.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::site::Delivery;
use crate::totals::Totals;

/// Takes the outcome of an [`Order`](crate::Order), once. Dropped without one: the connection is over.
pub struct OrderDone {
    slot: Arc<Mutex<Slot>>,
    count: Option<Counted>,
    is_reported: bool,
}

/// Where it arrives.
#[derive(Debug)]
pub struct Outcome(Arc<Mutex<Slot>>);

/// The counters of an order, updated when its outcome is known.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) totals: Arc<Totals>,
    /// Bytes of the title that were ordered; 0: not known.
    pub(crate) length: u64,
    /// Of the response, if nothing else counts it.
    pub(crate) status: Option<u16>,
}

#[derive(Debug, Default)]
struct Slot {
    delivery: Option<Delivery>,
    waker: Option<Waker>,
    /// The waiting task is not woken if everything was sent.
    is_quiet: bool,
}

impl fmt::Debug for OrderDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderDone").finish_non_exhaustive()
    }
}

/// The two ends for one order that is not counted.
pub fn order_outcome() -> (OrderDone, Outcome) {
    outcome(None)
}

pub(crate) fn outcome(count: Option<Counted>) -> (OrderDone, Outcome) {
    let slot = Arc::default();
    (OrderDone { slot: Arc::clone(&slot), count, is_reported: false }, Outcome(slot))
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    // Nothing in here is half done at any time.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OrderDone {
    /// Reports the outcome, after the order's socket has been dropped.
    pub fn send(mut self, delivery: Delivery) {
        self.report(delivery);
    }

    fn report(&mut self, delivery: Delivery) {
        self.is_reported = true;
        if let Some(count) = self.count.take() {
            count.add(&delivery);
        }
        let waker = {
            let mut slot = lock(&self.slot);
            let is_quiet = slot.is_quiet && delivery == Delivery::Sent;
            slot.delivery = Some(delivery);
            slot.waker.take().filter(|_| !is_quiet)
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for OrderDone {
    fn drop(&mut self) {
        if !self.is_reported {
            self.report(Delivery::Broken);
        }
    }
}

impl Outcome {
    /// Waits for the outcome.
    pub async fn arrive(&mut self) -> Delivery {
        self.wait(false).await
    }

    /// Waits for any outcome but success.
    pub(crate) async fn fail(&mut self) -> Delivery {
        self.wait(true).await
    }

    fn wait(&mut self, is_quiet: bool) -> impl Future<Output = Delivery> {
        poll_fn(move |context| {
            let mut slot = lock(&self.0);
            if let Some(delivery) = slot.delivery.take_if(|delivery| !is_quiet || *delivery != Delivery::Sent)
            {
                return Poll::Ready(delivery);
            }
            slot.is_quiet = is_quiet;
            slot.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }
}

impl Counted {
    fn add(self, delivery: &Delivery) {
        self.totals.add(|c| {
            c.media_orders += 1;
            match delivery {
                Delivery::Sent => c.media_bytes += self.length,
                Delivery::Refused(_) => c.media_refused += 1,
                Delivery::Broken => c.media_broken += 1,
            }
        });
        // A refusal is a response of its own.
        if let (Some(status), false) = (self.status, matches!(delivery, Delivery::Refused(_))) {
            self.totals.replied(status);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;
    use crate::site::DeliveryRefusal;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counted() -> (Arc<Totals>, OrderDone, Outcome) {
        let totals = Arc::new(Totals::default());
        let count = Counted { totals: Arc::clone(&totals), length: 188, status: Some(206) };
        let (done, outcome) = outcome(Some(count));
        (totals, done, outcome)
    }

    /// Polls for an outcome; returns it, and how often `report` woke the task.
    fn woken(outcome: &mut Outcome, is_quiet: bool, report: impl FnOnce()) -> (Poll<Delivery>, usize) {
        let wakes = Arc::new(Wakes::default());
        let waker = Arc::clone(&wakes).into();
        let mut wait = std::pin::pin!(outcome.wait(is_quiet));
        assert_eq!(wait.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        report();
        let count = wakes.0.load(Ordering::Relaxed);
        (wait.as_mut().poll(&mut Context::from_waker(&waker)), count)
    }

    #[test]
    fn success_wakes_only_task_that_waits_for_it() {
        let (totals, done, mut outcome) = counted();
        assert_eq!(woken(&mut outcome, true, || done.send(Delivery::Sent)), (Poll::Pending, 0));
        let read = totals.read();
        assert_eq!(
            (read.media_orders, read.media_bytes, read.replies_ok),
            (1, 188, 1),
            "counted all the same"
        );
        let mut arrive = std::pin::pin!(outcome.arrive());
        assert_eq!(
            arrive.as_mut().poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(Delivery::Sent)
        );

        let (_, done, mut outcome) = counted();
        assert_eq!(
            woken(&mut outcome, false, || done.send(Delivery::Sent)),
            (Poll::Ready(Delivery::Sent), 1)
        );
    }

    #[test]
    fn failure_wakes_quiet_task_and_is_counted_once() {
        let (totals, done, mut outcome) = counted();
        let refused = Delivery::Refused(DeliveryRefusal::Gone);
        let report = || done.send(refused.clone());
        assert_eq!(woken(&mut outcome, true, report), (Poll::Ready(refused.clone()), 1));
        let read = totals.read();
        assert_eq!((read.media_orders, read.media_refused, read.media_broken, read.replies_ok), (1, 1, 0, 0));
    }

    #[test]
    fn report_that_is_dropped_is_broken_connection() {
        let (totals, done, mut outcome) = counted();
        assert_eq!(woken(&mut outcome, true, || drop(done)), (Poll::Ready(Delivery::Broken), 1));
        let read = totals.read();
        assert_eq!((read.media_orders, read.media_broken, read.media_bytes, read.replies_ok), (1, 1, 0, 1));
    }
}

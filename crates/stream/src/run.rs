//! One run, as a future: begun at the first poll, ended when the engine reports so, or at once when
//! it is dropped.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;

use millrace_core::ids::RunSerial;
use millrace_core::seam::Clock;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::command::ConnSocket;

use crate::calls::ContextKey;
use crate::context::StreamContext;
use crate::engine::{SharedEngine, StreamEngine};
use crate::limits::HAND_BACK;
use crate::outcome::{Reason, RunError, RunOutcome};

/// The way to a viewer, open in an engine as long as this lives.
pub(crate) struct LineHandle {
    pub(crate) shared: Arc<SharedEngine>,
    pub(crate) key: ContextKey,
}

impl Drop for LineHandle {
    fn drop(&mut self) {
        self.shared.with(|calls| calls.close(self.key, false));
    }
}

/// A run that is awaited ([`StreamEngine::run_async`]). Works in any executor: it is woken from the events' thread.
#[must_use = "nothing is sent before it is awaited"]
pub struct RunFuture<'a> {
    shared: Arc<SharedEngine>,
    context: &'a mut StreamContext,
    begun: Option<(ContextKey, RunSerial)>,
}

impl StreamEngine {
    /// Sends as the context specifies; returns when this is done, when there is input on its
    /// control descriptor, or when it cannot go on. The thread sleeps meanwhile: it is woken once,
    /// at the end.
    ///
    /// # Errors
    /// [`RunError`]: it was not accepted, and nothing has been sent.
    pub fn run(&self, context: &mut StreamContext) -> Result<RunOutcome, RunError> {
        block_on(self.run_async(context))
    }

    /// The same as a future. Dropped before it is done, it ends the run at once; the next one with this context begins where that was.
    pub fn run_async<'a>(&self, context: &'a mut StreamContext) -> RunFuture<'a> {
        RunFuture { shared: Arc::clone(&self.shared), context, begun: None }
    }
}

impl RunFuture<'_> {
    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<(ContextKey, RunSerial), RunError>> {
        let (shared, context) = (&self.shared, &mut *self.context);
        if shared.is_stopping.load(Ordering::Acquire) {
            return Poll::Ready(Err(RunError::ShutDown));
        }
        if !shared.has_source(&context.source) {
            return Poll::Ready(Err(RunError::OtherEngine));
        }
        match &context.line {
            Some(line) if !Arc::ptr_eq(&line.shared, shared) => {
                return Poll::Ready(Err(RunError::OtherEngine));
            }
            // A run that was dropped may still be about to end.
            Some(line) => {
                if let Some(Ok(ended)) = ready!(shared.with(|calls| calls.poll_told(line.key, cx.waker()))) {
                    context.ended(&ended);
                }
            }
            None => context.line = Some(shared.open(&mut context.transport)?),
        }
        let Some(line) = &context.line else { return Poll::Ready(Err(RunError::ShutDown)) };
        let key = line.key;
        let plan = context.plan().map_err(RunError::Refused)?;
        shared.admit(key, context.source.is_buffer())?;
        if let Some(control) = &context.control {
            shared.watch.prepare(control).map_err(RunError::Control)?;
        }
        let first = context.first.clone();
        let started = shared.with(|calls| calls.start(key, &plan, first));
        if let (Err(_), Some(control)) = (&started, &context.control) {
            shared.watch.forget(control);
        }
        let run = started?;
        context.first.clear();
        context.began(&plan);
        self.begun = Some((key, run));
        if let Some(control) = &context.control {
            shared.watch.arm(control, key, run).map_err(RunError::Control)?;
        }
        Poll::Ready(Ok((key, run)))
    }

    fn unwatch(&mut self) {
        if let (Some(_), Some(control)) = (self.begun.take(), &self.context.control) {
            self.shared.watch.forget(control);
        }
    }
}

impl Future for RunFuture<'_> {
    type Output = Result<RunOutcome, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let run = self.get_mut();
        let (key, _) = match run.begun {
            Some(begun) => begun,
            None => ready!(run.begin(cx))?,
        };
        let told = ready!(run.shared.with(|calls| calls.poll_told(key, cx.waker())));
        run.unwatch();
        Poll::Ready(match told {
            Some(Ok(ended)) => Ok(run.context.ended(&ended)),
            Some(Err(refusal)) => Err(RunError::Engine(refusal)),
            None => Err(RunError::ShutDown),
        })
    }
}

impl Drop for RunFuture<'_> {
    fn drop(&mut self) {
        if let Some((key, run)) = self.begun {
            self.shared.with(|calls| calls.interrupt(key, run, Reason::Stopped));
            self.unwatch();
        }
    }
}

impl StreamContext {
    /// Ends the stream. A connection comes back when it has taken all that was sent; `None` if there is none, if it broke, or if that took longer than ten
    /// seconds: then it is closed. One of the offload engine comes back by its name: its owner has the socket, and may write to it again.
    ///
    /// # Errors
    /// [`RunError::ShutDown`]
    pub fn finish(mut self) -> Result<Option<ConnSocket>, RunError> {
        let Some(line) = self.line.take() else { return Ok(self.transport.socket.take()) };
        line.shared.with(|calls| calls.close(line.key, true));
        let back = poll_fn(|cx| line.shared.with(|calls| calls.poll_closed(line.key, cx.waker())));
        let until = MonotonicClock.now() + HAND_BACK;
        let limit = || until.ns_since(MonotonicClock.now());
        Ok(block_until(pin!(back), || std::time::Duration::from_nanos(limit())).flatten())
    }

    /// The same as a future, without a limit. Dropped, it closes the connection.
    pub async fn finish_async(mut self) -> Option<ConnSocket> {
        let Some(line) = self.line.take() else { return self.transport.socket.take() };
        line.shared.with(|calls| calls.close(line.key, true));
        poll_fn(|cx| line.shared.with(|calls| calls.poll_closed(line.key, cx.waker()))).await
    }
}

/// Wakes a thread that waits for a future.
struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// The same until nothing is left of the time.
fn block_until<F: Future>(
    mut future: Pin<&mut F>,
    left: impl Fn() -> std::time::Duration,
) -> Option<F::Output> {
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        match left() {
            left if left.is_zero() => return None,
            left => std::thread::park_timeout(left),
        }
    }
}

//! All receive queues of one interface: an [`XdpRaw`] for each, since the kernel gives a queue to one socket only.
//!
//! A frame may come by any of them, whichever the card or the sender's end of a veth pair chooses; all are sent by the first. So nothing that
//! is sent is overtaken, and only the first needs frames to send.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_core::limits::{MAX_XDP_RAW_QUEUES, RX_BATCH_PACKETS};
use millrace_core::time::Instant;
use rustix::event::epoll;

use super::error::XdpError;
use super::raw::{XdpRaw, XdpRawConfig};
use super::strategy::Strategy;

/// The queues of an interface, as one device.
pub struct XdpQueues {
    queues: Box<[XdpRaw]>,
    /// The queue that is looked at, and how many frames it may give before the next one has its turn.
    at: usize,
    left: usize,
    /// Readable when a frame waits in any of several queues.
    wait: Option<OwnedFd>,
    strategy: Strategy,
    /// Why a better strategy is not in use.
    refusal: Option<XdpError>,
}

impl XdpQueues {
    /// Opens the first `count` queues. Many share the frames to receive into. Without a strategy in `config`, those that suit the driver are
    /// tried, best first; a driver with a zero-copy mode may still refuse it, and memory may not be locked.
    ///
    /// # Errors
    /// Reports the failed step, the queue and the remedy; or more than [`MAX_XDP_RAW_QUEUES`]
    /// queues.
    pub fn open(config: &XdpRawConfig, count: u32) -> Result<Self, XdpError> {
        if count > MAX_XDP_RAW_QUEUES {
            return Err(XdpError::Queues { interface: config.interface.clone(), count });
        }
        first_that_opens(config.candidates(), |strategy| Self::open_as(config, count, strategy))
    }

    /// The same by one strategy.
    fn open_as(config: &XdpRawConfig, count: u32, strategy: Strategy) -> Result<Self, XdpError> {
        let each = |queue| XdpRawConfig { queue, ..config.share_of(count, queue == 0) };
        let bytes = config.locked_bytes(count, strategy);
        // The error names the memory of all queues: one queue alone may have fitted.
        let of_all = |error| match error {
            XdpError::Locked { interface, source, .. } => XdpError::Locked { interface, bytes, source },
            other => other,
        };
        let by = |queue| if queue == 0 { strategy } else { strategy.staged() };
        let queues = (0..count).map(|queue| XdpRaw::open(&each(queue), by(queue)).map_err(of_all));
        let mut this = Self::of(queues.collect::<Result<_, _>>()?, strategy);
        if count > 1 {
            let call = |source: rustix::io::Errno| XdpError::Call {
                interface: config.interface.clone(),
                queue: 0,
                what: "wait at several queues",
                source: source.into(),
                remedy: "raise the limit of open files (ulimit -n), or give the interface one queue (ethtool -L IF combined 1)",
            };
            this.wait = Some(this.epoll().map_err(call)?);
        }
        Ok(this)
    }

    /// Returns the bytes of memory that the kernel locks for `count` queues whose payload is copied.
    pub fn memory_bytes(config: &XdpRawConfig, count: u32) -> usize {
        config.locked_bytes(count, Strategy::Staging)
    }

    fn of(queues: Box<[XdpRaw]>, strategy: Strategy) -> Self {
        Self { queues, at: 0, left: RX_BATCH_PACKETS, wait: None, strategy, refusal: None }
    }

    /// The queue of rings in memory, as a device of one ([`XdpRaw::over_memory`]).
    pub fn one(raw: XdpRaw) -> Self {
        let strategy = raw.strategy();
        Self::of([raw].into(), strategy)
    }

    /// How frames are handed over.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Why a better strategy is not in use, if one was tried.
    pub fn refusal(&self) -> Option<&XdpError> {
        self.refusal.as_ref()
    }

    /// Frames sent with payload from where it lies.
    pub fn chained(&self) -> u64 {
        self.queues[0].counters().chained
    }

    fn epoll(&self) -> rustix::io::Result<OwnedFd> {
        let wait = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (queue, socket) in self.sockets() {
            epoll::add(&wait, socket, epoll::EventData::new_u64(queue.into()), epoll::EventFlags::IN)?;
        }
        Ok(wait)
    }

    /// The queues and their sockets, for [`Steering::set_socket`](super::steer::Steering::set_socket).
    pub fn sockets(&self) -> impl Iterator<Item = (u32, BorrowedFd<'_>)> {
        (0..).zip(&self.queues).filter_map(|(queue, raw)| Some((queue, raw.socket_fd()?)))
    }

    /// Lends the next frame to `take`; false: there is none in any queue now. After a batch of one queue the next one has its turn.
    pub fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> bool {
        for _ in 0..=self.queues.len() {
            if self.left > 0 && self.queues[self.at].receive(take) {
                self.left -= 1;
                return true;
            }
            (self.at, self.left) = ((self.at + 1) % self.queues.len(), RX_BATCH_PACKETS);
        }
        false
    }

    /// As [`XdpRaw::send`].
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn send(&mut self, frame: &[u8]) -> Result<bool, XdpError> {
        self.queues[0].send(frame)
    }

    /// As [`XdpRaw::gather`].
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn gather(&mut self, head: &[u8], body: &[&[u8]]) -> Result<bool, XdpError> {
        self.queues[0].gather(head, body)
    }

    /// As [`XdpRaw::flush`].
    ///
    /// # Errors
    /// The interface is down or gone.
    pub fn flush(&mut self, now: Instant) -> Result<bool, XdpError> {
        self.queues[0].flush(now)
    }

    /// Readable when a frame waits in any queue; `None` over memory.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.wait.as_ref().map(AsFd::as_fd).or_else(|| self.queues[0].socket_fd())
    }
}

/// Opens by the first candidate that works. Its error is that of the last one, unless no other could do better.
fn first_that_opens(
    candidates: Vec<Strategy>,
    mut open: impl FnMut(Strategy) -> Result<XdpQueues, XdpError>,
) -> Result<XdpQueues, XdpError> {
    let mut refusal = None;
    let mut left = candidates.len();
    for strategy in candidates {
        left -= 1;
        match open(strategy) {
            Ok(queues) => return Ok(XdpQueues { refusal, ..queues }),
            Err(error) if left == 0 || is_final(&error) => return Err(error),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    unreachable!("the last candidate has returned")
}

/// Whether no other strategy could do better.
fn is_final(error: &XdpError) -> bool {
    match error {
        XdpError::NoInterface { .. } | XdpError::Queues { .. } => true,
        XdpError::Call { source, .. } => {
            matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EPERM | libc::EAFNOSUPPORT))
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "queues_tests.rs"]
mod tests;

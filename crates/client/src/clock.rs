//! The two clocks of this crate: monotonic time for every decision, wall-clock time for arrivals, because the kernel
//! stamps packets with the wall clock. Nothing else here reads a clock.

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use rustix::time::{ClockId, clock_gettime};

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

fn read_ns(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    u64::try_from(time.tv_sec).unwrap_or(0) * NS_PER_S + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant(read_ns(ClockId::Monotonic))
    }
}

impl SystemClock {
    /// Wall-clock nanoseconds since 1970: the scale of the kernel's packet timestamps.
    pub fn unix_ns(self) -> u64 {
        read_ns(ClockId::Realtime)
    }
}

/// Random bits for an SSRC and for report intervals: unpredictable enough to differ between receivers.
pub fn random_u64() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

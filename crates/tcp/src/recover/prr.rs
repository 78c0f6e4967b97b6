//! Proportional rate reduction (RFC 6937) as revised by RFC 9937: how much is sent for each acknowledgment during a recovery.

/// State of a recovery, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Prr {
    /// prr_delivered.
    delivered: u32,
    /// prr_out.
    out: u32,
    /// RecoverFS.
    flight_at_start: u32,
    /// Bytes that may be sent now.
    quota: u32,
    /// Retransmissions among the bytes sent (R of RFC 7661 section 4.4.1).
    pub(crate) retransmitted: u32,
}

/// Progress that an acknowledgment reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckProgress {
    /// DeliveredData: bytes that arrived, cumulatively or selectively acknowledged for the first time.
    pub(crate) delivered: u32,
    /// Bytes in the network.
    pub(crate) pipe: u32,
    pub(crate) ssthresh: u32,
    pub(crate) mss: u32,
    /// The cumulative acknowledgment advanced and nothing more was found lost (RFC 9937: safeACK).
    pub(crate) is_safe: bool,
}

impl Prr {
    /// A recovery begins with `flight` bytes not acknowledged, cumulatively or selectively, before the acknowledgment that began it.
    pub(crate) fn begin(flight: u32) -> Self {
        Self { flight_at_start: flight.max(1), ..Self::default() }
    }

    pub(crate) fn acked(&mut self, progress: &AckProgress) {
        self.delivered = self.delivered.saturating_add(progress.delivered);
        let budget = if progress.pipe > progress.ssthresh {
            //= RFC 6937 section 3
            //# sndcnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out
            let share = u64::from(self.delivered) * u64::from(progress.ssthresh);
            let share = share.div_ceil(u64::from(self.flight_at_start));
            (share.min(u64::from(u32::MAX)) as u32).saturating_sub(self.out)
        } else {
            // The bound is the conservative one, unless recovery makes good progress (RFC 9937 section 6): RFC 6937's own slow-start
            // bound sends too much where retransmissions are lost as well.
            let banked = self.delivered.saturating_sub(self.out).max(progress.delivered);
            let limit = if progress.is_safe { banked + progress.mss } else { banked };
            //= RFC 6937 section 3
            //# sndcnt = MIN(ssthresh - pipe, limit)
            limit.min(progress.ssthresh - progress.pipe)
        };
        // The first retransmission is not held back (RFC 9937 section 6.2).
        self.quota = if self.out == 0 { budget.max(progress.mss) } else { budget };
    }

    /// Bytes that may be sent now.
    pub(crate) fn quota(&self) -> u32 {
        self.quota
    }

    pub(crate) fn sent(&mut self, bytes: u32, is_retransmission: bool) {
        //= RFC 6937 section 3
        //# prr_out += (data sent) // strictly less than or equal to sndcnt
        self.out = self.out.saturating_add(bytes);
        self.quota = self.quota.saturating_sub(bytes);
        if is_retransmission {
            self.retransmitted = self.retransmitted.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
#[path = "prr_tests.rs"]
mod tests;

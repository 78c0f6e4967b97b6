//! Counts of the egress path through the kernel.

millrace_core::counters! {
    /// The work of a [`KernelTx`] since it was created.
    pub struct TxCounters {
        /// Batches with at least one entry.
        sum batches,
        /// Entries.
        sum entries,
        /// UDP datagrams that the kernel took.
        sum datagrams,
        /// RTP and RTCP bytes taken, by UDP and TCP, without headers below RTP.
        sum bytes,
        /// sendmmsg calls.
        sum udp_calls,
        /// Messages that the kernel cut into datagrams.
        sum gso_sends,
        /// Messages that the kernel refused to cut and that went as single datagrams.
        sum gso_refused,
        /// Messages that the kernel need not copy.
        sum zero_copy_sends,
        /// Those of them that the kernel reported as copied after all.
        sum zero_copy_copied,
        /// Messages that were copied because too many others were still out.
        sum zero_copy_full,
        /// Entries answered `Blocked`.
        sum blocked,
        /// Entries answered `Unreachable`.
        sum unreachable,
        /// Entries answered `Closed`.
        sum closed,
        /// ICMP errors about viewers.
        sum icmp_errors,
        /// Those of them that came from neither the viewer nor this host, and so changed nothing for the viewer.
        sum icmp_hearsay,
        /// Times a socket stopped listening to ICMP because there was too much of it.
        sum icmp_storms,
        /// Interleaved frames taken by TCP connections.
        sum frames,
        /// Frames, or packets sent as bytes, that a connection took in part.
        sum split_frames,
        /// Bytes of titles that connections were given as references to their pages, without a copy.
        sum referred_bytes,
        /// Control bytes taken for TCP connections.
        sum control_bytes,
        /// sendmsg and splice calls.
        sum tcp_calls,
        /// Times a connection was full and was watched until it could be written again.
        sum tcp_waits,
    }
}

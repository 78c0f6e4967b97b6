//! What became of frames.

/// One counter for each thing that can become of a frame, and for what neighbours went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpCounters {
    /// Frames that came in.
    pub frames_in: u64,
    /// Of those, segments for TCP.
    pub segments_in: u64,
    /// Of those, ICMP errors for TCP.
    pub errors_in: u64,
    /// Of those, for the kernel.
    pub for_kernel: u64,
    /// Of those for the kernel, fragments for an own address.
    pub fragments: u64,
    /// Dropped: a header ends too early, or says what cannot be.
    pub malformed: u64,
    /// Dropped: a checksum of IP, ICMP or neighbour discovery is wrong.
    pub bad_checksums: u64,
    /// Dropped: no host sends from that address.
    pub martians: u64,
    /// Dropped: for an own address, but sent to another station or to a group of them.
    pub misdirected: u64,
    /// Dropped: source routed, or with an option that forbids to go on.
    pub bad_options: u64,
    /// Dropped: a message of neighbour discovery that did not come from this link, or breaks its rules.
    pub bad_discovery: u64,
    /// Echo requests that were answered.
    pub echo_replies: u64,
    /// Echo requests that were not, because there were too many.
    pub echo_limited: u64,
    /// ARP requests and neighbour solicitations for own addresses that were answered.
    pub solicited: u64,
    /// ARP requests and neighbour solicitations sent.
    pub solicits_out: u64,
    /// The same not sent, because there were too many.
    pub solicits_limited: u64,
    /// Neighbours that were found.
    pub resolved: u64,
    /// Neighbours that did not answer.
    pub unresolved: u64,
    /// Claims of another Ethernet address for a known neighbour.
    pub contradicted: u64,
    /// Neighbours that the table had no room for.
    pub table_full: u64,
    /// Another host used an own address.
    pub conflicts: u64,
    /// Segments for which a frame was made.
    pub segments_out: u64,
    /// Segments that were kept until their neighbour is found.
    pub segments_waiting: u64,
    /// Segments dropped because their neighbour was not found, or a later one waits in their place.
    pub segments_unresolved: u64,
    /// Segments dropped because there is no way to where they go.
    pub no_route: u64,
    /// Segments dropped because they do not fit the MTU.
    pub too_long: u64,
    /// Frames of the layer's own that there was no room for.
    pub own_dropped: u64,
}

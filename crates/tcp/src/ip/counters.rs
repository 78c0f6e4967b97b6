//! What became of frames.

millrace_core::counters! {
    /// One counter for each thing that can become of a frame, and for what neighbours went through.
    pub struct IpCounters {
        /// Frames that came in.
        sum frames_in,
        /// Of those, segments for TCP.
        sum segments_in,
        /// Of those, ICMP errors for TCP.
        sum errors_in,
        /// Of those, about neighbours, or echo requests: no other layer needs to know of them.
        sum handled,
        /// Of those, for the kernel.
        sum for_kernel,
        /// Of those for the kernel, fragments for an own address.
        sum fragments,
        /// Dropped: a header ends too early, or is impossible.
        sum malformed,
        /// Dropped: a checksum of IP, ICMP or neighbour discovery is wrong.
        sum bad_checksums,
        /// Dropped: no host sends from this address.
        sum martians,
        /// Dropped: for an own address, but sent to another station or to a group of them.
        sum misdirected,
        /// Dropped: source routed, or with an option that forbids to go on.
        sum bad_options,
        /// Dropped: a message of neighbour discovery that did not come from this link, or breaks its rules.
        sum bad_discovery,
        /// Echo requests that were answered.
        sum echo_replies,
        /// Echo requests that were not, because there were too many.
        sum echo_limited,
        /// ARP requests and neighbour solicitations for own addresses that were answered.
        sum solicited,
        /// ARP requests and neighbour solicitations sent.
        sum solicits_out,
        /// The same not sent, because there were too many.
        sum solicits_limited,
        /// Neighbours that were found.
        sum resolved,
        /// Neighbours that did not answer.
        sum unresolved,
        /// Claims of another Ethernet address for a known neighbour.
        sum contradicted,
        /// Neighbours that the table had no room for.
        sum table_full,
        /// Another host used an own address.
        sum conflicts,
        /// Segments that a frame was made for.
        sum segments_out,
        /// Segments that were kept until their neighbour is found.
        sum segments_waiting,
        /// Segments dropped because their neighbour was not found, or a later one waits in their place.
        sum segments_unresolved,
        /// Segments dropped because there is no way to where they go.
        sum no_route,
        /// Segments dropped because they do not fit the MTU.
        sum too_long,
        /// Frames of the layer's own that there was no room for.
        sum own_dropped,
    }
}

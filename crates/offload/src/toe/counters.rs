//! Counts of an engine's work, and of its socket for other programs.

millrace_core::counters! {
    /// Counts of an engine's work.
    pub struct ToeCounters {
        /// Packets for the engine that came in.
        sum packets_in,
        /// Packets for another host, or without TCP.
        sum packets_passed,
        /// Packets sent.
        sum packets_out,
        /// Those of them whose payload the device was given where it lies in the cache's memory; that of others was copied.
        sum packets_chained,
        /// 1 if the device reads and writes the engine's memory itself (AF_XDP, bound without copying); 0 if the kernel copies.
        gauge zero_copy,
        /// Records that hosts have put into their rings.
        sum requests,
        /// Those among them that could not be: nothing was done.
        sum rejected,
        /// Events put into the rings of hosts.
        sum events,
        /// Events that found no room: the host does not read its ring.
        sum events_lost,
        /// Bytes of hosts that the stack has taken.
        sum sent_bytes,
        /// Times that the stack had no descriptor or page for bytes of a host.
        sum short,
        /// Writers that were notified of room.
        sum wakes,
        /// Receive buffers handed over.
        sum buffers,
        /// Times that a connection had to wait for a receive buffer of its host.
        sum starved,
        /// Times that the engine slept.
        sum sleeps,
        /// Connections of the stack, those that its hosts have closed and that still send among them.
        gauge connections,
        /// Requests for connections that wait for the last segment of their handshake.
        gauge handshakes,
        /// Connections in TIME-WAIT.
        gauge time_waits,
        /// Entries of its send queues.
        gauge descriptors,
        /// Pages with bytes of closed sockets, and of loops, that are not acknowledged.
        gauge host_pages,
        /// Pages with received bytes that no host has yet.
        gauge receive_pages,
        /// Queue pairs of other processes that were cleared because their host is gone.
        sum pairs_cleared,
        /// Connections and listeners that such hosts had left open: they were reset and closed.
        sum left_open,
    }
}

millrace_core::counters! {
    /// Counts of events at an engine's socket.
    pub struct GateCounters {
        /// Programs that have connected.
        sum callers,
        /// Queue pairs handed to other processes.
        sum hosts_joined,
        /// Hosts whose end was noticed: they have closed their socket, or have died.
        sum hosts_left,
        /// Hosts now.
        gauge hosts,
        /// Programs that may not connect.
        sum not_allowed,
        /// Programs that found every pair taken, or no memory for one.
        sum no_pair,
        /// Programs that sent nothing in time, or anything that is no message.
        sum bad_callers,
    }
}

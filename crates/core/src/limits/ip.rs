//! Bounds of the IP layer (`crates/tcp/src/ip`).

/// Addresses of an interface: one or two of IPv4, a link-local and a few other ones of IPv6. Each incoming packet is compared with all of them.
pub const MAX_ADDRESSES: usize = 8;
/// Neighbours in one set of the table: a search compares no more than these. 8 keys are two cache lines.
pub const NEIGHBOUR_WAYS: usize = 8;
/// Neighbours that a table has room for at least; gateways have places of their own.
pub const MIN_NEIGHBOURS: u32 = 8;
/// Most neighbours of a table: the largest subnet that anybody runs without routers is a /20.
pub const MAX_NEIGHBOURS: u32 = 8192;
/// How long a neighbour counts as reachable after that was confirmed, in nanoseconds (RFC 4861 section 10, REACHABLE_TIME).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// How long a neighbour that may have gone is sent to before it is probed, in nanoseconds (RFC 4861 section 10, DELAY_FIRST_PROBE_TIME):
/// TCP confirms most of them in that time.
pub const DELAY_PROBE_NS: u64 = 5_000_000_000;
/// Time between two solicitations for one neighbour, in nanoseconds (RFC 4861 section 10, RETRANS_TIMER).
pub const SOLICIT_RETRY_NS: u64 = 1_000_000_000;
/// Solicitations without an answer after which resolution has failed, and as many unicast probes (RFC 4861 section 10,
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
pub const SOLICIT_TRIES: u8 = 3;
/// Probes of the known address after somebody has claimed another one for a neighbour. One: where the claim is true (a gateway failed over)
/// nobody answers, and each probe prolongs the outage by a second.
pub const CONTRADICTED_TRIES: u8 = 1;
/// How long nothing is solicited for a neighbour whose resolution has failed, in nanoseconds: as long as that took.
pub const UNREACHABLE_NS: u64 = 3_000_000_000;
/// A neighbour that nothing was sent to for this long may make room for another one, in nanoseconds: longer than a connection that still
/// moves data is silent (two retransmission time-outs at their longest).
pub const NEIGHBOUR_IDLE_NS: u64 = 120_000_000_000;
/// Solicitations a second for neighbours that are not known yet, so that segments to addresses that nobody has (a SYN flood with sources of the
/// own subnet) do not become a broadcast storm.
pub const SOLICITS_PER_SECOND: u32 = 200;
/// Echo replies a second: many times what people and monitoring send, and less than a thousandth of what a core can send.
pub const ECHO_REPLIES_PER_SECOND: u32 = 1000;
/// Time between two defences of an address that another host uses too, in nanoseconds (RFC 5227 section 1.1, DEFEND_INTERVAL).
pub const DEFEND_NS: u64 = 10_000_000_000;
/// Announcements of each address at the start (RFC 5227 section 1.1, ANNOUNCE_NUM).
pub const ANNOUNCEMENTS: u8 = 2;
/// Time between them, in nanoseconds (RFC 5227 section 1.1, ANNOUNCE_INTERVAL).
pub const ANNOUNCE_NS: u64 = 2_000_000_000;
/// Frames of the layer's own that wait for the device: answers to a burst of requests, one for each address of a /25. Further ones are
/// dropped, and asked for again. 190 KB with an MTU of 1500.
pub const OWN_FRAMES: usize = 128;
/// Of these, frames that wait for a neighbour's address, the latest of each. Half, so that unknown neighbours cannot keep answers from being sent.
pub const WAITING_FRAMES: usize = OWN_FRAMES / 2;
/// IPv6 extension headers of a packet: one of each kind that may be there, twice over.
pub const MAX_EXTENSION_HEADERS: usize = 8;
/// Their length together, in bytes. Nobody needs more (RFC 9098), and every byte of them is read.
pub const MAX_EXTENSION_BYTES: usize = 256;
/// Smallest MTU: what every IPv4 link has to carry (RFC 791 section 3.2).
pub const MIN_MTU: u16 = 68;
/// Smallest MTU of a link with IPv6 (RFC 8200 section 5).
pub const MIN_MTU_V6: u16 = 1280;

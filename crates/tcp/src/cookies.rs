//! SYN cookies: a listener that has no room for another half-open connection remembers it in the initial sequence number that it
//! answers with (RFC 4987 section 3.6), and the scale, SACK and ECN in its time stamp.

use millrace_core::time::Instant;

use crate::keyed::HashKey;
use crate::limits::{COOKIE_SLOT_NS, MAX_WINDOW_SCALE};
use crate::seq::Seq;
use crate::wire::FlowKey;

/// The segment sizes that a cookie can say, smallest first: what common links leave, and the defaults of IPv4 and IPv6.
const SIZES: [u16; 8] = [216, 536, 1024, 1220, 1360, 1440, 1460, 8940];

/// Bits of a cookie: slot, size, and the rest the hash.
const SLOT_BITS: u32 = 5;
const SIZE_BITS: u32 = 3;
const HASH_BITS: u32 = 32 - SLOT_BITS - SIZE_BITS;

/// Bits of the time stamp that hold options; the clock loses them, 64 ms of it.
const STAMP_BITS: u32 = 6;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;
/// In the stamp's four bits of scale: the peer does not scale.
const NO_SCALE: u32 = 15;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;

/// Options of a SYN that must be remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// The peer's MSS; from a cookie one that is not larger.
    pub mss: u16,
    /// The peer's window scale.
    pub scale: Option<u8>,
    /// Whether it permits SACK.
    pub is_sack_permitted: bool,
    /// Whether it offers ECN.
    pub is_ecn: bool,
}

/// Makes cookies and knows them again.
#[derive(Clone, Copy, Debug)]
pub struct Cookies {
    key: HashKey,
}

impl Cookies {
    /// The key must be used for nothing else.
    pub const fn new(key: HashKey) -> Self {
        Self { key }
    }

    /// Returns the initial sequence number for the answer to a SYN that has the number `peer_seq`
    /// and offers an MSS of `mss` bytes; `None` when this is less than a cookie can encode.
    pub fn seq(&self, flow: &FlowKey, peer_seq: Seq, mss: u16, now: Instant) -> Option<Seq> {
        let size = SIZES.iter().rposition(|&size| size <= mss)? as u32;
        Some(Seq(self.cookie(flow, peer_seq, size, now.0 / COOKIE_SLOT_NS)))
    }

    /// Returns the time stamp to answer with, where `clock` is its regular value: up to 127
    /// earlier, with options in it.
    pub fn stamp(clock: u32, offered: &Offered) -> u32 {
        let scale = offered.scale.map_or(NO_SCALE, |scale| u32::from(scale.min(MAX_WINDOW_SCALE)));
        let sack = if offered.is_sack_permitted { SACK_BIT } else { 0 };
        let ecn = if offered.is_ecn { ECN_BIT } else { 0 };
        let stamp = clock & !STAMP_MASK | scale | sack | ecn;
        // A stamp from the future would have later ones taken for old.
        if stamp.wrapping_sub(clock) as i32 > 0 { stamp.wrapping_sub(STAMP_MASK + 1) } else { stamp }
    }

    /// Returns the options offered, if `seq` is a cookie that was given in answer to `peer_seq` at
    /// most two slots ago: of the ACK that ends a handshake its acknowledgment number less 1, and
    /// its sequence number less 1. `echo` is the time stamp that it echoes; without one there were
    /// no options but the MSS.
    pub fn open(
        &self,
        flow: &FlowKey,
        seq: Seq,
        peer_seq: Seq,
        echo: Option<u32>,
        now: Instant,
    ) -> Option<Offered> {
        let slot_now = now.0 / COOKIE_SLOT_NS;
        let age = slot_now.wrapping_sub(u64::from(seq.0 >> (32 - SLOT_BITS))) & ((1 << SLOT_BITS) - 1);
        let slot = slot_now.checked_sub(age).filter(|_| age <= 1)?;
        let size = seq.0 >> HASH_BITS & ((1 << SIZE_BITS) - 1);
        if self.cookie(flow, peer_seq, size, slot) != seq.0 {
            return None;
        }
        let mss = *SIZES.get(size as usize)?;
        let Some(echo) = echo else { return Some(Offered { mss, ..Offered::default() }) };
        let scale = echo & NO_SCALE;
        Some(Offered {
            mss,
            scale: (scale != NO_SCALE).then_some(scale as u8),
            is_sack_permitted: echo & SACK_BIT != 0,
            is_ecn: echo & ECN_BIT != 0,
        })
    }

    fn cookie(&self, flow: &FlowKey, peer_seq: Seq, size: u32, slot: u64) -> u32 {
        let [a, b, c, d, rest] = *flow.words();
        let hash =
            self.key.strong(&[a, b, c, d, rest, u64::from(peer_seq.0) << 32 | u64::from(size), slot]) as u32;
        (slot as u32) << (32 - SLOT_BITS) | size << HASH_BITS | hash >> (32 - HASH_BITS)
    }
}

const _: () = assert!(SIZES.len() == 1 << SIZE_BITS);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOT: u64 = COOKIE_SLOT_NS;

    fn flow(port: u16) -> FlowKey {
        let remote = format!("198.51.100.7:{port}").parse().unwrap();
        FlowKey::new("192.0.2.1:80".parse().unwrap(), remote).unwrap()
    }

    fn cookies() -> Cookies {
        Cookies::new(HashKey::new([7, 8]))
    }

    #[test]
    fn cookie_opens_in_its_slot_and_the_next() {
        let given = cookies().seq(&flow(1), Seq(5), 1460, Instant(40 * SLOT + 9)).unwrap();
        let open = |at| cookies().open(&flow(1), given, Seq(5), None, Instant(at));
        let mss = |mss| Some(Offered { mss, ..Offered::default() });
        assert_eq!(open(40 * SLOT), mss(1460));
        assert_eq!(open(41 * SLOT), mss(1460));
        assert_eq!(open(42 * SLOT - 1), mss(1460));
        assert_eq!(open(42 * SLOT), None);
        assert_eq!(open(39 * SLOT), None);
        // The bits of the slot are round after 32 slots.
        assert_eq!(open(72 * SLOT), None);
        // Before the first slot there is none.
        let first = cookies().seq(&flow(1), Seq(5), 1460, Instant(31 * SLOT)).unwrap();
        assert_eq!(cookies().open(&flow(1), first, Seq(5), None, Instant(0)), None);
    }

    #[test]
    fn cookie_with_other_flow_syn_or_key_is_rejected() {
        let given = cookies().seq(&flow(1), Seq(5), 1460, Instant(0)).unwrap();
        let open = |cookies: Cookies, port, seq, peer| {
            cookies.open(&flow(port), seq, Seq(peer), None, Instant(0)).is_some()
        };
        assert!(open(cookies(), 1, given, 5));
        assert!(!open(cookies(), 2, given, 5));
        assert!(!open(cookies(), 1, given, 6));
        assert!(!open(Cookies::new(HashKey::new([7, 9])), 1, given, 5));
        for bit in 0..32 {
            assert!(!open(cookies(), 1, Seq(given.0 ^ 1 << bit), 5), "bit {bit}");
        }
    }

    #[test]
    fn cookie_mss_is_rounded_down_to_table_value() {
        let through = |mss| {
            let seq = cookies().seq(&flow(1), Seq(5), mss, Instant(0))?;
            Some(cookies().open(&flow(1), seq, Seq(5), None, Instant(0)).unwrap().mss)
        };
        assert_eq!(
            [215, 216, 535, 536, 1459, 1460, u16::MAX].map(through),
            [None, Some(216), Some(216), Some(536), Some(1440), Some(1460), Some(8940)]
        );
    }

    proptest! {
        #[test]
        fn options_come_back_by_the_stamp(scale in prop::option::of(0u8..=14), sack: bool, ecn: bool, clock: u32) {
            let offered = Offered { mss: 1460, scale, is_sack_permitted: sack, is_ecn: ecn };
            let stamp = Cookies::stamp(clock, &offered);
            // Not in the future, and not long ago.
            prop_assert!(clock.wrapping_sub(stamp) < 128);
            let seq = cookies().seq(&flow(1), Seq(5), 1460, Instant(0)).unwrap();
            prop_assert_eq!(cookies().open(&flow(1), seq, Seq(5), Some(stamp), Instant(0)), Some(offered));
        }
    }
}

//! Initial sequence numbers (RFC 6528).

use millrace_core::time::Instant;

use crate::keyed::HashKey;
use crate::seq::Seq;
use crate::wire::FlowKey;

/// Step of the clock behind the numbers (RFC 9293 section 3.4.1).
const TICK_NS: u64 = 4_000;

/// The initial sequence number of a connection between the ends of `flow` that is opened `now`.
#[inline]
pub fn initial_seq(key: &HashKey, flow: &FlowKey, now: Instant) -> Seq {
    //= RFC 9293 section 3.4.1
    //# A TCP implementation MUST use the above type of "clock" for clock-
    //# driven selection of initial sequence numbers (MUST-8)
    let clock = (now.0 / TICK_NS) as u32;
    //= RFC 9293 section 3.4.1
    //# F() MUST NOT be computable from the outside (MUST-9)
    //= RFC 6528 section 3
    //# TCP SHOULD generate its Initial Sequence Numbers with the expression:
    //# ISN = M + F(localip, localport, remoteip, remoteport, secretkey)
    Seq(clock) + key.strong(flow.words()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(remote_port: u16) -> FlowKey {
        let remote = format!("198.51.100.7:{remote_port}").parse().unwrap();
        FlowKey::new("192.0.2.1:80".parse().unwrap(), remote).unwrap()
    }

    //= RFC 9293 section 3.4.1
    //= type=test
    //# A TCP implementation MUST use the above type of "clock" for clock-
    //# driven selection of initial sequence numbers (MUST-8)
    #[test]
    fn numbers_of_the_same_ends_go_on_by_one_each_four_microseconds() {
        let key = HashKey::new([1, 2]);
        let at = |us: u64| initial_seq(&key, &flow(9), Instant(us * 1000));
        assert_eq!(at(4).since(at(0)), 1);
        assert_eq!(at(4_000_000).since(at(0)), 1_000_000);
        // 4.55 hours later the clock is round.
        assert_eq!(at((1 << 32) * 4), at(0));
    }

    //= RFC 9293 section 3.4.1
    //= type=test
    //# F() MUST NOT be computable from the outside (MUST-9)
    #[test]
    fn other_ends_and_other_keys_have_other_numbers() {
        let of = |key, port| initial_seq(&HashKey::new([key, 2]), &flow(port), Instant(0));
        assert_ne!(of(1, 9), of(1, 10));
        assert_ne!(of(1, 9), of(3, 9));
        assert_ne!(of(1, 10).since(of(1, 9)), of(3, 10).since(of(3, 9)));
    }
}

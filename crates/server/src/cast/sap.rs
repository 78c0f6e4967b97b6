//! Announcements of RTP casts in their groups' scope (RFC 2974), without sockets: the casts and the time come in, messages go out.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_core::time::{Instant, NS_PER_S};

use super::url::CastUrl;
use crate::limits::cast::{SAP_BITS_PER_S, SAP_LEAST_INTERVAL_S};

/// UDP port of announcements.
pub const SAP_PORT: u16 = 9875;
/// Header bits (section 6): version 1, IPv6 source, deletion.
const VERSION_1: u8 = 1 << 5;
const IPV6_SOURCE: u8 = 1 << 4;
const DELETION: u8 = 1 << 2;
const PAYLOAD_TYPE: &[u8] = b"application/sdp\0";

/// A cast that receivers should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedCast {
    /// Name of the session.
    pub name: String,
    /// Where it goes, as `rtp://`.
    pub url: CastUrl,
    /// Distinguishes it from other sessions of this machine.
    pub id: u32,
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SapMessage {
    /// The cast.
    pub url: CastUrl,
    /// It is over.
    pub is_deletion: bool,
    hash: u16,
    description: String,
}

impl SapMessage {
    /// The address of announcements of its scope.
    pub fn group(&self) -> SocketAddr {
        SocketAddr::new(sap_group(self.url.to.ip()), SAP_PORT)
    }

    /// The datagram, from this address.
    pub fn to_bytes(&self, source: IpAddr) -> Vec<u8> {
        let mut first = VERSION_1;
        first |= if source.is_ipv6() { IPV6_SOURCE } else { 0 };
        first |= if self.is_deletion { DELETION } else { 0 };
        let mut bytes = vec![first, 0];
        bytes.extend_from_slice(&self.hash.to_be_bytes());
        match source {
            IpAddr::V4(source) => bytes.extend_from_slice(&source.octets()),
            IpAddr::V6(source) => bytes.extend_from_slice(&source.octets()),
        }
        bytes.extend_from_slice(PAYLOAD_TYPE);
        bytes.extend_from_slice(self.description.as_bytes());
        bytes
    }
}

/// The group for announcements of casts to `group` (section 3): the highest of its administrative scope, or that of global scope; of IPv6,
/// the one with the same scope.
pub fn sap_group(group: IpAddr) -> IpAddr {
    match group {
        IpAddr::V4(group) => match group.octets() {
            [239, 255, ..] => Ipv4Addr::new(239, 255, 255, 255),
            [239, 192..=195, ..] => Ipv4Addr::new(239, 195, 255, 255),
            _ => Ipv4Addr::new(224, 2, 127, 254),
        }
        .into(),
        IpAddr::V6(group) => {
            let scope = group.segments()[0] & 0xf;
            Ipv6Addr::new(0xff00 | scope, 0, 0, 0, 0, 0, 2, 0x7ffe).into()
        }
    }
}

/// A session that has been announced.
struct Announcement {
    message: SapMessage,
    /// The last time.
    sent: Instant,
    /// Thousandths of two thirds of the interval.
    random_permille: u64,
}

/// The announcements of this server. Those of others are not counted: with many announcers in a network, the bandwidth is theirs and ours.
pub struct Announcer {
    current: BTreeMap<SocketAddr, Announcement>,
    random: RandomState,
    sent: u64,
}

impl Default for Announcer {
    fn default() -> Self {
        Self { current: BTreeMap::new(), random: RandomState::new(), sent: 0 }
    }
}

impl Announcer {
    /// The messages that are due now that these are the casts. Call it every second.
    pub fn look(&mut self, now: Instant, casts: &[AnnouncedCast]) -> Vec<SapMessage> {
        let wanted: BTreeMap<SocketAddr, SapMessage> =
            casts.iter().map(|cast| (cast.url.to, announcement(cast))).collect();
        let is_over = |(to, current): &(&SocketAddr, &Announcement)| wanted.get(to) != Some(&current.message);
        let over: Vec<_> = self.current.iter().filter(is_over).map(|(to, _)| *to).collect();
        let over = over.into_iter().filter_map(|to| self.current.remove(&to));
        let mut messages: Vec<_> = over.map(|over| deletion(over.message)).collect();
        let bytes = wanted.values().map(|message| message.to_bytes(message.url.to.ip()).len() as u64);
        // All of them in one limit, although each scope may have it: never more than the rule allows.
        let interval_s = SAP_LEAST_INTERVAL_S.max(8 * bytes.sum::<u64>() / SAP_BITS_PER_S);
        for (to, message) in wanted {
            let is_due = self.current.get(&to).is_none_or(|before| {
                let offset = interval_s * 2 / 3 * NS_PER_S / 1000 * before.random_permille;
                let wait = (interval_s - interval_s / 3) * NS_PER_S + offset;
                now.ns_since(before.sent) >= wait
            });
            if is_due {
                self.sent += 1;
                let random_permille = self.random.hash_one(self.sent) % 1000;
                messages.push(message.clone());
                self.current.insert(to, Announcement { message, sent: now, random_permille });
            }
        }
        messages
    }

    /// All sessions are over.
    pub fn end(&mut self) -> Vec<SapMessage> {
        std::mem::take(&mut self.current).into_values().map(|current| deletion(current.message)).collect()
    }
}

fn announcement(cast: &AnnouncedCast) -> SapMessage {
    let description = cast.url.session_description(&cast.name, cast.id);
    // Another description has another hash; 0 has a meaning of its own (section 6).
    let sum = description
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = ((sum >> 32) as u16).max(1);
    SapMessage { url: cast.url.clone(), is_deletion: false, hash, description }
}

fn deletion(message: SapMessage) -> SapMessage {
    SapMessage { is_deletion: true, ..message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(text: &str) -> AnnouncedCast {
        AnnouncedCast { name: "Lobby".to_owned(), url: text.parse().unwrap(), id: 7 }
    }

    fn seconds(count: u64) -> Instant {
        Instant(count * NS_PER_S)
    }

    #[test]
    fn sap_message_has_layout_of_rfc_2974() {
        let mut announcer = Announcer::default();
        let lobby = cast("rtp://239.192.1.2:20000?ttl=4");
        let [message] = &announcer.look(seconds(0), std::slice::from_ref(&lobby))[..] else { panic!() };
        assert_eq!(message.group(), "239.195.255.255:9875".parse().unwrap());
        let bytes = message.to_bytes("10.0.0.7".parse().unwrap());
        // Version 1, no other bit; no authentication data; a hash that is not 0; source; type; SDP.
        assert_eq!(bytes[..2], [0b0010_0000, 0]);
        assert_ne!(bytes[2..4], [0, 0]);
        assert_eq!(bytes[4..8], [10, 0, 0, 7]);
        assert!(bytes[8..].starts_with(b"application/sdp\0v=0\r\n"));
        let text = String::from_utf8(bytes[24..].to_vec()).unwrap();
        assert!(text.contains("c=IN IP4 239.192.1.2/4\r\n") && text.contains("m=video 20000 RTP/AVP 33\r\n"));
        let v6 = message.to_bytes("fd00::7".parse().unwrap());
        assert_eq!((v6[0], &v6[20..23]), (0b0011_0000, &b"app"[..]));
        let [over] = &announcer.look(seconds(1), &[])[..] else { panic!() };
        let deletion = over.to_bytes("10.0.0.7".parse().unwrap());
        assert_eq!((deletion[0], &deletion[2..8]), (0b0010_0100, &bytes[2..8]), "the same session");
    }

    #[test]
    fn announcement_is_repeated_by_bandwidth_and_deleted_when_it_changes() {
        let mut announcer = Announcer::default();
        let mut times = Vec::new();
        for second in 0..4000 {
            let sent = announcer.look(seconds(second), &[cast("rtp://239.192.1.2:20000")]);
            times.extend(sent.iter().map(|_| second));
        }
        let waits: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.len() > 8 && waits.iter().all(|wait| (200..=401).contains(wait)), "{waits:?}");
        let other = AnnouncedCast { name: "Bar".to_owned(), ..cast("rtp://239.192.1.2:20000") };
        let changed = announcer.look(seconds(4000), &[other]);
        assert_eq!(changed.iter().map(|message| message.is_deletion).collect::<Vec<_>>(), [true, false]);
        assert_ne!(changed[0].hash, changed[1].hash);
        assert_eq!(announcer.end().len(), 1);
        let many: Vec<_> =
            (0..1000).map(|n| cast(&format!("rtp://239.192.{}.{}:20000", n / 250, n % 250))).collect();
        let first = announcer.look(seconds(5000), &many);
        assert_eq!(first.len(), 1000);
        // These take longer than the least interval: each waits for two thirds of it to four thirds.
        let bytes = first.iter().map(|message| message.to_bytes("10.0.0.7".parse().unwrap()).len() as u64);
        let interval_s = 8 * bytes.sum::<u64>() / SAP_BITS_PER_S;
        assert!(interval_s > SAP_LEAST_INTERVAL_S);
        assert_eq!(announcer.look(seconds(5000 + interval_s * 2 / 3 - 1), &many).len(), 0);
        assert_eq!(announcer.look(seconds(5001 + interval_s * 4 / 3), &many).len(), 1000);
    }

    #[test]
    fn sap_group_has_scope_of_cast() {
        for (group, sap) in [
            ("239.255.1.1", "239.255.255.255"),
            ("239.194.1.1", "239.195.255.255"),
            ("239.1.1.1", "224.2.127.254"),
            ("224.2.128.9", "224.2.127.254"),
            ("ff18::4d52:1", "ff08::2:7ffe"),
            ("ff02::1234", "ff02::2:7ffe"),
        ] {
            assert_eq!(sap_group(group.parse().unwrap()), sap.parse::<IpAddr>().unwrap(), "{group}");
        }
    }
}

//! The stations that last sent packets of each host. Packets that only answer a caller go back
//! there, like an echo reply, so a sender of spoofed addresses takes no entry in the egress path
//! table, and the kernel is not queried for it.

use std::net::IpAddr;

use millrace_tcp::keyed::HashKey;

use crate::limits::{STATIONS, STATIONS_OF_A_SET};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

#[derive(Clone, Copy, PartialEq, Eq)]
struct Station {
    host: IpAddr,
    mac: Mac,
}

/// A table of fixed size; the latest ones of each set stay.
pub(super) struct Stations {
    key: HashKey,
    /// In each the latest one first.
    sets: Box<[[Option<Station>; STATIONS_OF_A_SET]]>,
    /// The last one of all: segments of a connection follow each other.
    latest: Option<Station>,
}

impl Stations {
    pub(super) fn new(key: HashKey) -> Self {
        let sets = (0..STATIONS / STATIONS_OF_A_SET).map(|_| [None; STATIONS_OF_A_SET]).collect();
        Self { key, sets, latest: None }
    }

    /// Records that a packet of the host came from this station. Group and null addresses are
    /// ignored.
    pub(super) fn heard(&mut self, host: IpAddr, mac: Mac) {
        let station = Some(Station { host, mac });
        if self.latest == station || mac[0] & 1 != 0 || mac == [0; 6] {
            return;
        }
        self.latest = station;
        let set = self.set_of(host);
        let set = &mut self.sets[set];
        let is_it = |of: &Option<Station>| of.is_some_and(|of| of.host == host);
        let place = set.iter().position(is_it).unwrap_or(STATIONS_OF_A_SET - 1);
        set[..=place].rotate_right(1);
        set[0] = station;
    }

    /// The station, if it is remembered.
    pub(super) fn of(&self, host: IpAddr) -> Option<Mac> {
        let set = &self.sets[self.set_of(host)];
        set.iter().flatten().find(|of| of.host == host).map(|of| of.mac)
    }

    fn set_of(&self, host: IpAddr) -> usize {
        let bits = match host {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        let hash = self.key.fast(&[(bits >> 64) as u64, bits as u64]);
        hash as usize % self.sets.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use crate::limits::FRAMES_PER_TURN;

    use super::*;

    fn host(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    #[test]
    fn those_of_the_last_turn_are_remembered_however_many_there_were_before() {
        let mut stations = Stations::new(HashKey::new([1, 2]));
        const COUNT: u32 = 100_000;
        let mut forgotten = 0;
        for number in 0..COUNT {
            stations.heard(host(number), mac(number));
            let first = number.saturating_sub(FRAMES_PER_TURN as u32 - 1);
            match stations.of(host(first)) {
                Some(station) => assert_eq!(station, mac(first)),
                None => forgotten += 1,
            }
        }
        // One in ten thousand is expected.
        assert!(forgotten < COUNT / 1000, "{forgotten} of {COUNT}");
        assert_eq!(stations.of(host(COUNT)), None);
    }

    #[test]
    fn stations_keep_last_unicast_address_of_host() {
        let mut stations = Stations::new(HashKey::new([1, 2]));
        let v6 = "2001:db8::7".parse().unwrap();
        for host in [host(1), v6] {
            for number in [1, 2, 2, 1, 3] {
                stations.heard(host, mac(number));
                assert_eq!(stations.of(host), Some(mac(number)));
            }
            for none in [[0; 6], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]] {
                stations.heard(host, none);
                assert_eq!(stations.of(host), Some(mac(3)), "{none:?}");
            }
        }
        // Another host in between.
        stations.heard(host(2), mac(2));
        stations.heard(host(1), mac(1));
        assert_eq!((stations.of(host(1)), stations.of(host(2))), (Some(mac(1)), Some(mac(2))));
    }
}

//! Datagrams dropped by the kernel, from `/proc` of the process's own network namespace.

use std::collections::HashMap;
use std::fs;
use std::net::UdpSocket;

/// UDP errors of a network namespace since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpErrors {
    /// Datagrams with a wrong checksum.
    pub checksum: u64,
    /// Datagrams dropped because a receive buffer was full.
    pub buffer: u64,
}

impl UdpErrors {
    /// Reads the counters now; zero where `/proc` is not there.
    pub fn read() -> Self {
        // Of the thread, not of the process: a thread may have entered another namespace.
        let file =
            |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
        parse_snmp(&file("snmp")).plus(parse_snmp6(&file("snmp6")))
    }

    fn plus(self, other: Self) -> Self {
        Self { checksum: self.checksum + other.checksum, buffer: self.buffer + other.buffer }
    }

    /// Returns the increase since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            checksum: self.checksum.saturating_sub(earlier.checksum),
            buffer: self.buffer.saturating_sub(earlier.buffer),
        }
    }
}

/// `/proc/net/snmp`: a line of names and a line of values for each protocol.
fn parse_snmp(text: &str) -> UdpErrors {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return UdpErrors::default() };
    let fields: HashMap<&str, &str> =
        names.split_ascii_whitespace().zip(values.split_ascii_whitespace()).collect();
    let field = |name| fields.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    UdpErrors { checksum: field("InCsumErrors"), buffer: field("RcvbufErrors") }
}

/// `/proc/net/snmp6`: a name and a value on each line.
fn parse_snmp6(text: &str) -> UdpErrors {
    let field = |name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '\t'])));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    UdpErrors { checksum: field("Udp6InCsumErrors"), buffer: field("Udp6RcvbufErrors") }
}

/// How long this thread has waited for a processor since it began, in nanoseconds; 0 where the kernel does not say.
pub fn run_delay_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    // time on a processor, time waiting for one, time slices
    text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
}

/// Datagrams that each socket of this network namespace has dropped (the counter that `SO_RXQ_OVFL` would bring with
/// each packet), by inode. From `/proc/net/udp`, whose reader needs no control messages.
fn drops_by_inode(text: &str, drops: &mut HashMap<u64, u64>) {
    for line in text.lines().skip(1) {
        // sl local remote st tx:rx tr:tm retrnsmt uid timeout inode ref pointer drops
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [inode, _, _, dropped] = fields[9.min(fields.len())..]
            && let (Ok(inode), Ok(dropped)) = (inode.parse(), dropped.parse())
        {
            drops.insert(inode, dropped);
        }
    }
}

/// Datagrams dropped at these sockets, one number each: for want of buffer space or for a wrong checksum.
pub fn socket_drops<'a>(sockets: impl Iterator<Item = &'a UdpSocket>) -> Vec<u64> {
    let mut drops = HashMap::new();
    for name in ["udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
        drops_by_inode(&text, &mut drops);
    }
    sockets
        .map(|socket| {
            rustix::fs::fstat(socket).ok().and_then(|stat| drops.get(&stat.st_ino)).copied().unwrap_or(0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_in_the_kernel_s_own_words() {
        let text = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors \
                    InCsumErrors IgnoredMulti MemErrors\nUdp: 37 0 0 38 4 0 5 0 0\nUdpLite: X\nUdpLite: 9\n";
        assert_eq!(parse_snmp(text), UdpErrors { checksum: 5, buffer: 4 });
        assert_eq!(parse_snmp("Udp: A"), UdpErrors::default());
        let text = "Udp6InCsumErrors                \t7\nUdp6RcvbufErrors \t3\nUdpLite6InCsumErrors 1\n";
        assert_eq!(parse_snmp6(text), UdpErrors { checksum: 7, buffer: 3 });
        assert_eq!(parse_snmp6("Udp6InCsumErrorsX 1"), UdpErrors::default());
        let before = UdpErrors { checksum: 1, buffer: 2 };
        assert_eq!(UdpErrors { checksum: 4, buffer: 2 }.since(before), UdpErrors { checksum: 3, buffer: 0 });
    }

    #[test]
    fn waiting_for_a_processor_is_measured() {
        let before = run_delay_ns();
        // More busy threads than processors: this one has to wait for its turn sooner or later.
        let stop = std::sync::atomic::AtomicBool::new(false);
        let threads = 2 * std::thread::available_parallelism().map_or(2, usize::from);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stop.load(relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while run_delay_ns() == before && std::time::Instant::now() < deadline {}
            stop.store(true, relaxed);
        });
        assert!(run_delay_ns() > before);
    }

    #[test]
    fn drops_of_a_socket_that_nobody_reads() {
        let (deaf, other) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        rustix::net::sockopt::set_socket_recv_buffer_size(&deaf, 4096).unwrap();
        let (sent, before) = (200u64, UdpErrors::read());
        for _ in 0..sent {
            other.send_to(&[0; 1000], deaf.local_addr().unwrap()).unwrap();
        }
        let drops = socket_drops([&deaf, &other].into_iter());
        deaf.set_nonblocking(true).unwrap();
        let mut got = 0;
        while deaf.recv_from(&mut [0; 2000]).is_ok() {
            got += 1;
        }
        assert_eq!(drops, [sent - got, 0]);
        assert!(drops[0] > 0);
        assert!(UdpErrors::read().since(before).buffer >= drops[0]);
    }
}

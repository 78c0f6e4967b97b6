//! Our TCP against this kernel's, in both roles, through bad links and with peers that make it hard: every byte arrives, once and in its place,
//! both ends agree when it is over, and nothing is left.

mod kernel;
mod ours;

use std::io::Error;
use std::path::Path;
use std::time::Duration;

use millrace_lab::tcp_host::{OUR_IP, TcpHost, TcpHostResult};
use millrace_link::LinkSpec;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::Settings;

use crate::support::{can_run, stack_settings};

use ours::{Aborter, Caller, Left, Sends, Talker, Watch};

const PORT: u16 = 7000;
/// No transfer here needs as long on any machine; a connection that is stuck does.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Seeds of the patterns that our side and the kernel's side send.
const OURS: u64 = 7;
const KERNELS: u64 = 9;
const BOTH_ROLES: [Caller; 2] = [Caller::Kernel, Caller::Us];

/// What both ends of a conversation do.
struct Conversation<'a> {
    link: LinkSpec,
    settings: Settings,
    ours: Talker,
    /// The data that the kernel's side sends.
    kernel: Sends,
    kernel_receive_bytes: Option<usize>,
    /// Called by the kernel's reader before it reads, with the bytes that have come until now.
    before_read: &'a (dyn Fn(&TcpHost, &Watch, usize) -> Result<(), String> + Sync),
    /// A kernel setting made before anything begins: a file below /proc/sys/net/ipv4, and its
    /// content.
    sysctl: Option<(&'a str, &'a str)>,
}

impl Conversation<'_> {
    fn new(ours: Talker, kernel: Sends) -> Self {
        Self {
            link: LinkSpec::default(),
            settings: stack_settings(),
            ours,
            kernel,
            kernel_receive_bytes: None,
            before_read: &|_, _, _| Ok(()),
            sysctl: None,
        }
    }

    /// The kernel sends `kernel` bytes, and we send `ours`.
    fn of(caller: Caller, ours: usize, kernel: usize) -> Self {
        let talker = Talker::new(caller, Sends::Pattern(OURS, ours), (KERNELS, kernel));
        Self::new(talker, Sends::Pattern(KERNELS, kernel))
    }

    /// Holds it; everything has arrived, and nothing is left of it.
    fn hold(self, name: &str) -> TcpHostResult {
        let (watch, caller, sends) = (self.ours.watch.clone(), self.ours.caller, self.ours.sends);
        let host = TcpHost::start(&self.link, &self.settings, self.ours).unwrap();
        let kernel_end = || {
            if let Some((file, content)) = self.sysctl {
                std::fs::write(Path::new("/proc/sys/net/ipv4").join(file), content)?;
            }
            let stream = if caller == Caller::Kernel {
                kernel::connect((OUR_IP, PORT).into(), self.kernel_receive_bytes)?
            } else {
                let listener = kernel::listen(PORT, self.kernel_receive_bytes)?;
                watch.change(|seen| seen.may_begin = true);
                listener.accept()?.0
            };
            let before = |got| (self.before_read)(&host, &watch, got).map_err(Error::other);
            match (self.kernel, sends) {
                (Sends::Echo, _) => kernel::echo(stream),
                (Sends::Pattern(seed, bytes), Sends::Echo) => {
                    kernel::talk(stream, (seed, bytes), (seed, bytes), before)
                }
                (Sends::Pattern(seed, bytes), Sends::Pattern(their, expected)) => {
                    kernel::talk(stream, (seed, bytes), (their, expected), before)
                }
            }
        };
        let said = host.in_kernel(kernel_end).unwrap();
        let seen = watch.wait(|seen| seen.outcome.is_some() && seen.left == Left::default());
        let ended = host.finish().unwrap();
        said.unwrap_or_else(|error| panic!("{name}: the kernel's end: {error}; {seen:?}, {ended:?}"));
        let seen = seen.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(seen.outcome, Some(Ok(())), "{name}: {ended:?}");
        ended
    }
}

/// A link with this in both directions.
fn both_ways(text: &str) -> LinkSpec {
    format!("{text}, seed 1; {text}, seed 2").parse().unwrap()
}

/// Links, and bytes that cross them in a few seconds.
const LINKS: [(&str, usize); 5] = [
    ("delay 0ms", 4 << 20),
    ("delay 3ms, loss 1%", 2 << 20),
    ("delay 3ms, loss 10%", 200 << 10),
    ("delay 3ms, reorder 5% by 5 within 5ms, duplicate 2%", 4 << 20),
    ("delay 3ms, burst-loss 2% x6", 1 << 20),
];

fn echoes_through_bad_links(caller: Caller) {
    for (link, bytes) in LINKS {
        let [ours, kernel] = match caller {
            Caller::Kernel => [Sends::Echo, Sends::Pattern(KERNELS, bytes)],
            Caller::Us => [Sends::Pattern(OURS, bytes), Sends::Echo],
        };
        let talker = Talker::new(caller, ours, (OURS, bytes));
        Conversation { link: both_ways(link), ..Conversation::new(talker, kernel) }.hold(link);
    }
}

#[test]
fn tcp_called_by_kernel_echoes_over_impaired_links() {
    if can_run() {
        echoes_through_bad_links(Caller::Kernel);
    }
}

#[test]
fn we_call_the_kernel() {
    if can_run() {
        echoes_through_bad_links(Caller::Us);
    }
}

#[test]
fn damaged_packets_are_never_delivered() {
    if !can_run() {
        return;
    }
    for caller in BOTH_ROLES {
        let talk = Conversation::of(caller, 1 << 20, 1 << 20);
        let link = both_ways("delay 1ms, corrupt 2%");
        let ended = Conversation { link, ..talk }.hold("damaged packets");
        assert!(ended.link.iter().all(|way| way.corrupted > 0), "{ended:?}");
        assert!(ended.tcp.bad_checksums > 0 && ended.tcp.retransmitted > 0, "{ended:?}");
    }
}

/// Marks slow a connection down; nothing is lost, and nothing is sent again.
#[test]
fn congestion_marks_are_agreed_upon_and_borne() {
    if !can_run() {
        return;
    }
    for caller in BOTH_ROLES {
        let talk = Conversation::of(caller, 1 << 20, 1 << 20);
        let link = both_ways("delay 1ms, mark 2%");
        // By itself a kernel only answers with ECN.
        let ended = Conversation { link, sysctl: Some(("tcp_ecn", "1")), ..talk }.hold("marked packets");
        // Marks are on capable packets only: both sides have agreed.
        assert!(ended.link.iter().all(|way| way.marked > 0), "{ended:?}");
    }
}

/// Larger than the payload that a connection falls back to where large segments are swallowed, headers included.
const SMALL_MTU: u32 = 1280;

#[test]
fn path_mtu_decrease_and_increase_are_survived() {
    if !can_run() {
        return;
    }
    const BYTES: usize = 2 << 20;
    for (caller, is_told) in BOTH_ROLES.into_iter().flat_map(|caller| [(caller, true), (caller, false)]) {
        let talk = Conversation::of(caller, BYTES, BYTES);
        let before_read = &|host: &TcpHost, _: &Watch, got: usize| {
            let is_small = (BYTES / 8..BYTES / 2).contains(&got);
            host.set_mtu(if is_small { SMALL_MTU } else { 1500 }, is_told);
            Ok(())
        };
        let ended = Conversation { link: both_ways("delay 1ms"), before_read, ..talk }.hold("less passes");
        // With reports, a sender sends nothing too large twice; otherwise we go on after two
        // timeouts.
        assert!(ended.too_large.iter().all(|&packets| packets > 0), "{ended:?}");
        assert_eq!(ended.tcp.icmp_too_big > 0, is_told, "{ended:?}");
        assert!(is_told || ended.tcp.timeouts >= 2, "{ended:?}");
    }
}

#[test]
fn windows_of_less_than_two_segments_pass_everything() {
    if !can_run() {
        return;
    }
    for caller in BOTH_ROLES {
        let mut settings = stack_settings();
        settings.config.receive_bytes = 2000;
        settings.clusters = vec![ClusterSize { bytes: 1 << 16, page_bytes: 512 }; 2];
        let talk = Conversation::of(caller, 100_000, 100_000);
        let kernel_receive_bytes = Some(1);
        Conversation { settings, kernel_receive_bytes, ..talk }.hold("tiny windows");
    }
}

/// A reader that reads nothing until the other side has asked for a window.
#[test]
fn zero_window_is_probed_and_reopens() {
    if !can_run() {
        return;
    }
    for caller in BOTH_ROLES {
        let talk = Conversation::of(caller, 1 << 20, 0);
        let before_read =
            &|_: &TcpHost, watch: &Watch, _| watch.wait(|seen| seen.counters.window_probes >= 2).map(|_| ());
        let kernel_receive_bytes = Some(16_384);
        Conversation { kernel_receive_bytes, before_read, ..talk }.hold("the kernel does not read");

        let mut talk = Conversation::of(caller, 0, 1 << 20);
        // A probe of the kernel's lies below the window. Nothing else does on this link.
        talk.ours.reads_when = |counters| counters.unacceptable > 0;
        talk.hold("we do not read");
    }
}

#[test]
fn half_close_keeps_other_direction_open() {
    if !can_run() {
        return;
    }
    for caller in BOTH_ROLES {
        for (ours, kernel) in [(0, 1 << 20), (1 << 20, 0), (0, 0), (5, 1 << 20), (1 << 20, 5)] {
            let link = both_ways("delay 1ms, loss 1%");
            let name = format!("{caller:?} called, {ours} and {kernel} bytes");
            Conversation { link, ..Conversation::of(caller, ours, kernel) }.hold(&name);
        }
    }
}

/// Connections of each kind: reset by the kernel, reset by us.
const ABORTS: u32 = 5_000;

fn thousands_are_aborted(caller: Caller) {
    let app = Aborter::new(caller, ABORTS);
    let watch = app.watch.clone();
    let host = TcpHost::start(&LinkSpec::default(), &stack_settings(), app).unwrap();
    let said = host.in_kernel(|| {
        if caller == Caller::Kernel {
            return kernel::connect_and_abort(OUR_IP, ABORTS);
        }
        let ports = [kernel::listen(PORT, None)?, kernel::listen(PORT + 1, None)?];
        watch.change(|seen| seen.may_begin = true);
        kernel::accept_and_abort(ports, ABORTS)
    });
    let seen = watch.wait(|seen| seen.aborted == 2 * ABORTS && seen.left == Left::default());
    let ended = host.finish().unwrap();
    said.unwrap().unwrap_or_else(|error| panic!("the kernel's end: {error}; {seen:?}"));
    let seen = seen.unwrap();
    assert_eq!(seen.outcome, None, "{ended:?}");
    // Far fewer places than connections were needed.
    assert!(seen.peak <= 64, "{seen:?}");
    assert_eq!((ended.tcp.resets_in, ended.tcp.timed_out), (u64::from(ABORTS), 0), "{ended:?}");
}

#[test]
fn ten_thousand_connections_of_the_kernel_are_aborted_and_nothing_is_left() {
    if can_run() {
        thousands_are_aborted(Caller::Kernel);
    }
}

#[test]
fn ten_thousand_connections_of_ours_are_aborted_and_nothing_is_left() {
    if can_run() {
        thousands_are_aborted(Caller::Us);
    }
}

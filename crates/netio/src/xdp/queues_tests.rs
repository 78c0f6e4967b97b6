//! Several queues over rings in memory.

use millrace_core::pool::{ExtentArena, HeapRegion};

use super::super::memory::MemoryNic;
use super::super::ring::{Consumer, Desc, Producer};
use super::*;

const FRAMES: u32 = 256;

struct Driver {
    nic: MemoryNic,
    rx: Producer<Desc>,
    fill: Consumer<u64>,
}

fn queues(count: u32) -> (XdpQueues, Vec<Driver>) {
    let config = XdpRawConfig { frames: FRAMES, ..XdpRawConfig::new("memory") };
    let (queues, drivers): (Vec<_>, Vec<_>) = (0..count)
        .map(|queue| {
            let config = XdpRawConfig { queue, ..config.clone() };
            let (raw, nic, rx, fill) = XdpRaw::over_memory(&config).unwrap();
            (raw, Driver { nic, rx, fill })
        })
        .unzip();
    (XdpQueues::of(queues.into(), Strategy::Staging), drivers)
}

impl Driver {
    /// Frames that say in their length which one it is.
    fn deliver(&mut self, lengths: impl IntoIterator<Item = u32>) {
        for len in lengths {
            let address = self.fill.pop().unwrap();
            self.fill.release();
            assert!(self.rx.push(Desc { address, len, more: false }));
        }
        self.rx.publish();
    }
}

fn next(queues: &mut XdpQueues) -> Option<usize> {
    let mut got = None;
    queues.receive(&mut |frame| got = Some(frame.len()));
    got
}

#[test]
fn full_queue_does_not_starve_others_and_keeps_order() {
    let (mut queues, mut drivers) = queues(4);
    drivers[0].deliver(1000..1200);
    drivers[2].deliver(2000..2003);
    drivers[3].deliver(3000..3001);
    let all: Vec<usize> = std::iter::from_fn(|| next(&mut queues)).collect();
    let batch = RX_BATCH_PACKETS;
    let expected: Vec<usize> =
        (1000..1000 + batch).chain(2000..2003).chain([3000]).chain(1000 + batch..1200).collect();
    assert_eq!(all, expected);
    // And again, from wherever it stands now.
    for driver in &mut drivers {
        driver.deliver(500..700);
    }
    let mut all: Vec<usize> = std::iter::from_fn(|| next(&mut queues)).collect();
    all.sort_unstable();
    assert_eq!(all, (500..700).flat_map(|length| [length; 4]).collect::<Vec<_>>());
    assert_eq!(next(&mut queues), None);
}

#[test]
fn single_queue_delivers_more_than_one_batch() {
    let (mut queues, mut drivers) = queues(1);
    drivers[0].deliver(1..201);
    assert_eq!(std::iter::from_fn(|| next(&mut queues)).count(), 200);
}

#[test]
fn send_uses_first_queue_only() {
    let (mut queues, mut drivers) = queues(3);
    for length in 60..70 {
        assert!(queues.send(&vec![1; length]).unwrap());
    }
    queues.flush(Instant(1)).unwrap();
    let sent: Vec<usize> = drivers.iter_mut().map(|driver| driver.nic.run().len()).collect();
    assert_eq!(sent, [10, 0, 0]);
}

#[test]
fn queues_share_the_memory_of_one_device() {
    let config = XdpRawConfig::new("eth7");
    assert_eq!(XdpQueues::memory_bytes(&config, 1), 8 << 20);
    let of = |count, is_first| config.share_of(count, is_first).memory_bytes(Strategy::Staging);
    assert_eq!((of(8, true), of(8, false)), (8 << 20, (4 << 20) + (256 << 10)));
    assert_eq!((of(64, true), of(64, false)), ((4 << 20) + (512 << 10), (512 << 10) + (256 << 10)));
    let media = ExtentArena::with_aside(Box::new(HeapRegion::new(40)), 0);
    let with_media = XdpRawConfig { media: Some(media), ..config.clone() };
    assert_eq!(with_media.locked_bytes(8, Strategy::Staging), (8 << 20) + 7 * of(8, false));
    assert_eq!(with_media.locked_bytes(8, Strategy::Chained), (10 << 20) + 7 * of(8, false), "all of it");
    let error = XdpQueues::open(&config, MAX_XDP_RAW_QUEUES + 1).err().unwrap().to_string();
    assert!(error.contains("eth7") && error.contains("ethtool -L eth7"), "{error}");
}

fn call(errno: i32) -> XdpError {
    let source = std::io::Error::from_raw_os_error(errno);
    XdpError::Call { interface: "eth7".into(), queue: 0, what: "bind the AF_XDP socket", source, remedy: "" }
}

#[test]
fn open_with_refused_zero_copy_falls_back_to_copies_and_keeps_the_reason() {
    let all = vec![Strategy::ZeroCopyChained, Strategy::ZeroCopyStaging, Strategy::Staging];
    let locked =
        || XdpError::Locked { interface: "eth7".into(), bytes: 1, source: std::io::ErrorKind::Other.into() };
    // A driver without such a mode, one that is switched off without a program, memory that may not be locked.
    let refusals: [&dyn Fn() -> XdpError; 3] =
        [&|| call(libc::EOPNOTSUPP), &|| call(libc::ENETDOWN), &locked];
    for refuse in refusals {
        for works in 0..3 {
            let mut tried = Vec::new();
            let opened = first_that_opens(all.clone(), |strategy| {
                tried.push(strategy);
                if strategy == all[works] { Ok(XdpQueues::of(Box::new([]), strategy)) } else { Err(refuse()) }
            });
            let opened = opened.unwrap();
            assert_eq!((opened.strategy(), &tried[..]), (all[works], &all[..=works]));
            let reason = opened.refusal().map(ToString::to_string);
            assert_eq!(reason, (works > 0).then(|| refuse().to_string()));
        }
        let mut tried = 0;
        let refused = first_that_opens(all.clone(), |_| {
            tried += 1;
            Err(refuse())
        });
        assert_eq!((refused.err().unwrap().to_string(), tried), (refuse().to_string(), 3));
    }
    // A queue of another program is in use in any mode: it is not waited for once more.
    for errno in [libc::EBUSY, libc::EPERM] {
        let mut tried = 0;
        let refused = first_that_opens(all.clone(), |_| {
            tried += 1;
            Err(call(errno))
        });
        assert_eq!((refused.err().unwrap().to_string(), tried), (call(errno).to_string(), 1));
    }
}

#[test]
fn candidates_end_with_copies_and_chain_only_with_media() {
    // Loopback has no zero-copy mode; whatever this kernel reports, the last one copies.
    let config = XdpRawConfig::new("lo");
    let all = config.candidates();
    assert_eq!(all.last(), Some(&Strategy::Staging));
    assert!(!all.iter().any(|strategy| strategy.is_chained()), "{all:?}");
    let media = ExtentArena::with_aside(Box::new(HeapRegion::new(1)), 0);
    let config = XdpRawConfig { media: Some(media), strategy: Some(Strategy::Chained), ..config };
    assert_eq!(config.candidates(), [Strategy::Chained], "as it was asked for");
    let share = config.share_of(4, false);
    assert!(share.media.is_none() && config.share_of(4, true).media.is_some(), "one queue sends");
}

use std::fs::File;
use std::io::Read;

use super::media::BlockReader;
use super::*;

fn plan(media: &TitleFolder, transport: Transport, read_bytes: usize) -> SendPlan {
    SendPlan {
        kind: SendMethod::Process,
        dir: media.dir.clone(),
        titles: media.titles,
        transport,
        blocks: media.blocks,
        streams: 4,
        to: vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        base_port: 10_000,
        listen: None,
        spread: Duration::ZERO,
        read_bytes,
        cache_bytes: 0,
        is_usual: false,
        only: None,
    }
}

fn blocks(kbps: u64, ms: u64) -> (u16, u16, u64) {
    let blocks = Blocks::of(BitRate(kbps * 1000), Duration::from_millis(ms)).unwrap();
    let rate = blocks.rate().0;
    assert!(rate.abs_diff(kbps * 1000) <= 1, "{rate}");
    (blocks.datagram_bytes, blocks.datagrams, blocks.interval_ns / 10_000)
}

#[test]
fn blocks_are_whole_datagrams_about_as_far_apart_as_asked_and_exactly_of_the_rate() {
    assert_eq!(blocks(500, 20), (1316, 1, 2_105));
    assert_eq!(blocks(500, 100), (1316, 5, 10_528));
    assert_eq!(blocks(500, 500), (1316, 24, 50_534));
    assert_eq!(blocks(300, 20), (752, 1, 2_005));
    assert_eq!(blocks(300, 100), (1316, 3, 10_528));
    assert_eq!(blocks(300, 500), (1316, 14, 49_130));
    assert_eq!(blocks(8, 20), (188, 1, 18_800));
    let error = Blocks::of(BitRate(8_000_000), Duration::from_millis(500)).unwrap_err().to_string();
    assert!(error.contains("380 datagrams"), "{error}");
    // Their times are computed from the first, so that nothing adds up.
    let blocks = Blocks::of(BitRate(500_000), Duration::from_millis(20)).unwrap();
    assert_eq!((blocks.time(0).0, blocks.time(1_000_000).0), (0, 1_895_040_000));
}

#[test]
fn streams_share_a_grid_with_even_phases_whenever_they_begin() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks { datagram_bytes: 188, datagrams: 1, interval_ns: 1000 };
    let media = TitleFolder { dir: dir.path().to_owned(), titles: 1, blocks, seconds: 1 };
    let plan = plan(&media, Transport::Udp, 0);
    let due = |now| [0, 1, 2, 3].map(|index| plan.first_due_ns(index, now));
    assert_eq!(due(5_000), [5_000, 5_250, 5_500, 5_750]);
    assert_eq!(due(5_251), [6_000, 6_250, 5_500, 5_750]);
    assert_eq!(plan.first_block(3, 10).unwrap(), 0);
    let spread = SendPlan { spread: Duration::from_micros(8), ..plan.clone() };
    assert_eq!([0, 1, 2, 3].map(|index| spread.first_block(index, 10).unwrap()), [0, 2, 4, 6]);
    assert!(spread.first_block(3, 6).unwrap_err().to_string().contains("--spread"));
    let to = |index| plan.destination(index).map(|to| to.to_string()).map_err(|error| error.to_string());
    assert_eq!(to(19_999).unwrap(), "10.0.0.1:29999");
    assert_eq!(to(20_000).unwrap(), "10.0.0.2:10000");
    assert!(to(40_000).unwrap_err().contains("too few"));
}

#[test]
fn reads_of_any_size_past_the_kernels_cache_give_the_same_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let blocks = Blocks::of(BitRate(500_000), Duration::from_millis(100)).unwrap();
    let media = TitleFolder::make(dir.path(), blocks, 3, 2).unwrap();
    media.forget().unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut whole = Vec::new();
        let extension = if transport == Transport::Udp { "rtp" } else { "ts" };
        File::open(dir.path().join("title-1").with_extension(extension))
            .unwrap()
            .read_to_end(&mut whole)
            .unwrap();
        assert_eq!(media.bytes(transport), 2 * whole.len() as u64);
        // Stream 3 plays title 1.
        for read_bytes in [0, 4096, 12_288, 131_072] {
            let mut source = BlockReader::open(&plan(&media, transport, read_bytes), 3).unwrap();
            assert_eq!(source.blocks(), 29);
            let read: Vec<u8> = (0..29).flat_map(|n| source.read(n).unwrap().to_vec()).collect();
            assert!(read == whole, "{transport:?} with reads of {read_bytes}");
            assert!(source.read(29).is_err());
        }
    }
}

#[test]
fn names_are_those_of_the_command_line() {
    for kind in SendMethod::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert!("wheel".parse::<SendMethod>().unwrap_err().contains("events-memory"));
    assert_eq!(["udp", "tcp"].map(|name| name.parse::<Transport>().unwrap().name()), ["udp", "tcp"]);
    assert!("http".parse::<Transport>().is_err());
    assert!(
        !SendMethod::EventsSendfile.can(Transport::Udp) && SendMethod::EventsSendfile.can(Transport::Tcp)
    );
}

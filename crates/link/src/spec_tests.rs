use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Impairment {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn problem(text: &str) -> String {
    text.parse::<Impairment>().unwrap_err().to_string()
}

#[test]
fn impairment_parse_reads_all_options() {
    let link = parse(
        "loss 1%, burst-loss 0.5% x5, delay 20ms, jitter 1.5ms, reorder 2% by 3, duplicate 0.0001%, \
         mark 3%, corrupt 0.1%, rate 10Mb/s queue 100, seed 7",
    );
    assert_eq!(link.loss, Share::from_ppm(10_000));
    assert_eq!(link.burst_loss, Some(BurstLoss { share: Share::from_ppm(5_000), mean_packets: 5 }));
    assert_eq!((link.delay, link.jitter), (Duration::from_millis(20), Duration::from_micros(1_500)));
    let within = Duration::from_nanos(DEFAULT_LINK_HOLD_NS);
    assert_eq!(link.reorder, Some(Reorder { share: Share::from_ppm(20_000), by_packets: 3, within }));
    assert_eq!(link.duplicate, Share::from_ppm(1));
    assert_eq!((link.mark, link.corrupt), (Share::from_ppm(30_000), Share::from_ppm(1_000)));
    assert_eq!(link.rate, Some(RateLimit { rate: BitRate(10_000_000), queue: QueueBound::Packets(100) }));
    assert_eq!(link.seed, 7);
    assert_eq!(parse("none"), Impairment::default());
    assert_eq!(parse("rate 1Mb/s queue 64KiB").rate.unwrap().queue, QueueBound::Bytes(65_536));
    let packets = QueueBound::Packets(DEFAULT_LINK_QUEUE_PACKETS);
    assert_eq!(parse("rate 1Mb/s").rate.unwrap().queue, packets);
    assert_eq!(parse("reorder 1% by 2 within 30ms").reorder.unwrap().within, Duration::from_millis(30));
}

#[test]
fn mistakes_are_named_with_the_remedy() {
    for (text, said) in [
        ("", "nothing is said"),
        ("loss 1%,", "nothing is said"),
        ("los 1%", "\"los\" is not known; write one or more of: loss 1%"),
        ("loss", "write it as loss 1%"),
        ("loss 1", "no share of packets"),
        ("loss 101%", "0% to 100%"),
        ("loss -1%", "no share"),
        ("loss 0.00001%", "four decimals"),
        ("loss 1% 2%", "write it as loss 1%"),
        ("loss 1%, loss 2%", "said twice"),
        ("burst-loss 1%", "burst-loss 1% x5"),
        ("burst-loss 1% 5", "with an x"),
        ("burst-loss 1% x0", "from 1 to"),
        ("burst-loss 60% x1", "lose at most 50%"),
        ("corrupt", "write it as corrupt 1%"),
        ("mark 200%", "0% to 100%"),
        ("delay 20", "ns, us, ms, s"),
        ("delay 20ms 5ms", "write it as delay 20ms"),
        ("jitter 11s", "at most 10s"),
        ("reorder 2%", "reorder 2% by 3"),
        ("reorder 2% by 0", "from 1 to"),
        ("reorder 2% by 3 within", "within 100ms"),
        ("rate 0b/s", "loss 100%"),
        ("rate 10", "Mb/s"),
        ("rate 1Mb/s queue x", "without a unit"),
        ("rate 1Mb/s queue 4000000000", "at most"),
        ("seed x", "whole number"),
        ("none, loss 1%", "stands alone"),
        ("none 1", "nothing behind"),
    ] {
        let got = problem(text);
        assert!(got.starts_with("link: ") && got.contains(said), "{text:?}: {got}");
    }
}

#[test]
fn link_spec_parse_reads_return_direction_after_semicolon() {
    let link: LinkSpec = "loss 1%; delay 20ms".parse().unwrap();
    assert_eq!((link.there, link.back), (parse("loss 1%"), parse("delay 20ms")));
    let link: LinkSpec = "loss 1%".parse().unwrap();
    assert_eq!(link, LinkSpec::from(parse("loss 1%")));
    assert!("loss 1%;;".parse::<LinkSpec>().is_err());
    let error = "none;none;none".parse::<LinkSpec>().unwrap_err().to_string();
    assert!(error.contains("two directions"), "{error}");
}

fn times() -> impl Strategy<Value = Duration> {
    (0..=MAX_LINK_DELAY_NS, prop_oneof![Just(1), Just(1_000), Just(1_000_000), Just(1_000_000_000)])
        .prop_map(|(ns, unit)| Duration::from_nanos(ns / unit * unit))
}

fn shares() -> impl Strategy<Value = Share> {
    (0..=1_000_000u32).prop_map(Share::from_ppm)
}

/// Any description that can be written.
fn impairments() -> impl Strategy<Value = Impairment> {
    let burst = (1..=MAX_LINK_BURST_PACKETS, any::<u32>()).prop_map(|(mean_packets, ppm)| {
        let most = MILLION * u64::from(mean_packets) / (u64::from(mean_packets) + 1);
        BurstLoss { share: Share((u64::from(ppm) % (most + 1)) as u32), mean_packets }
    });
    let reorder = (shares(), 1..=MAX_LINK_REORDER_PACKETS, times())
        .prop_map(|(share, by_packets, within)| Reorder { share, by_packets, within });
    let queue = prop_oneof![
        (0..=MAX_LINK_PACKETS as u32).prop_map(QueueBound::Packets),
        (0..1u64 << 40).prop_map(QueueBound::Bytes)
    ];
    let rate = (1..1u64 << 50, queue).prop_map(|(rate, queue)| RateLimit { rate: BitRate(rate), queue });
    (
        (shares(), proptest::option::of(burst), shares(), shares(), shares()),
        (times(), times(), proptest::option::of(reorder), proptest::option::of(rate)),
        any::<u64>(),
    )
        .prop_map(
            |((loss, burst_loss, duplicate, mark, corrupt), (delay, jitter, reorder, rate), seed)| {
                Impairment { loss, burst_loss, duplicate, mark, corrupt, delay, jitter, reorder, rate, seed }
            },
        )
}

proptest! {
    #[test]
    fn text_and_link_are_inverse(there in impairments(), back in impairments()) {
        let text = there.to_string();
        prop_assert_eq!(parse(&text), there.clone(), "{}", text);
        let link = LinkSpec { there, back };
        let text = link.to_string();
        prop_assert_eq!(text.parse::<LinkSpec>().unwrap(), link, "{}", text);
    }

    #[test]
    fn link_spec_parse_of_any_text_never_panics(text in "[a-z0-9 ,;%./x-]{0,60}") {
        let _ = text.parse::<LinkSpec>();
    }
}

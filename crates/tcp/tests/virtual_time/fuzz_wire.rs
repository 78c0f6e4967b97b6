//! For any segment contents: nothing panics, and each accepted segment equals the one that two
//! other implementations find there.
//!
//! Seeds are in `__fuzz__/segment/corpus`: one segment each.

use std::path::PathBuf;

use etherparse::TcpSlice;
use millrace_core::wire::checksum::sum16;
use millrace_tcp::seq::Seq;
use millrace_tcp::wire::{
    Body, FlowKey, Head, Segment, Stamps, TcpOptions, Template, Unfit, header, is_right, options,
};
use millrace_tcp::wire::{OPTIONS_BYTES, parse, payload_sum};
use smoltcp::wire::TcpOption;

fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_time/__fuzz__/segment/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|file| (name(file), std::fs::read(file).unwrap())).collect()
}

/// The ends that all segments here are between.
fn flow() -> FlowKey {
    FlowKey::new("192.0.2.1:80".parse().unwrap(), "198.51.100.7:4711".parse().unwrap()).unwrap()
}

/// Takes the first option of each kind as smoltcp reads it. What smoltcp refuses because a kind it knows has another length is passed
/// over here; anything else that it refuses is no list of options.
fn options_oracle(mut rest: &[u8]) -> Option<TcpOptions> {
    let mut found = TcpOptions::default();
    while !rest.is_empty() {
        let length = rest.get(1).map_or(0, |&length| usize::from(length));
        let is_listed = (2..=rest.len()).contains(&length);
        match TcpOption::parse(rest) {
            Ok((_, TcpOption::EndOfList)) => break,
            Ok((behind, TcpOption::NoOperation)) => {
                rest = behind;
                continue;
            }
            Ok((_, TcpOption::MaxSegmentSize(mss))) => found.mss = found.mss.or(Some(mss)),
            Ok((_, TcpOption::WindowScale(scale))) => found.scale = found.scale.or(Some(scale)),
            Ok((_, TcpOption::SackPermitted)) => found.is_sack_permitted = true,
            Ok((_, TcpOption::TimeStamp { tsval, tsecr })) => {
                found.stamps = found.stamps.or(Some(Stamps { value: tsval, echo: tsecr }));
            }
            Ok((_, TcpOption::SackRange(_))) if found.sacks.blocks().is_empty() => {
                // smoltcp leaves the fourth out.
                for block in rest[2..length].chunks(8) {
                    let number = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
                    assert!(found.sacks.push(Seq(number(0)), Seq(number(4))));
                }
            }
            Ok((_, TcpOption::Unknown { kind: 28, data: &[high, low] })) => {
                found.user_timeout = found.user_timeout.or(Some(u16::from_be_bytes([high, low])));
            }
            Ok(_) => {}
            Err(_) if is_listed => {}
            Err(_) => return None,
        }
        rest = &rest[length..];
    }
    Some(found)
}

fn check_options(bytes: &[u8]) {
    assert_eq!(options::parse(bytes).ok(), options_oracle(bytes), "{bytes:02x?}");
}

fn check(bytes: &[u8]) -> Result<(), Unfit> {
    let oracle = TcpSlice::from_slice(bytes).ok().filter(|_| bytes.len() <= 65_535);
    if let Some(oracle) = &oracle {
        check_options(oracle.options());
        let sums = oracle.calc_checksum_ipv4([192, 0, 2, 1], [198, 51, 100, 7]).unwrap();
        let right = oracle.checksum() % 0xffff == sums % 0xffff;
        assert_eq!(is_right(&flow(), bytes), right, "{bytes:02x?}");
        let expected = payload_sum(&flow(), bytes).unwrap();
        assert_eq!(header::is_same_sum(expected, sum16(oracle.payload())), right, "{bytes:02x?}");
    }
    let found = parse(bytes)?;
    let oracle = oracle.expect("etherparse takes it too");
    assert_eq!((found.source, found.destination), (oracle.source_port(), oracle.destination_port()));
    assert_eq!((found.seq.0, found.ack.0), (oracle.sequence_number(), oracle.acknowledgment_number()));
    assert_eq!((found.window, found.urgent), (oracle.window_size(), oracle.urgent_pointer()));
    let flags = [
        oracle.fin(),
        oracle.syn(),
        oracle.rst(),
        oracle.psh(),
        oracle.ack(),
        oracle.urg(),
        oracle.ece(),
        oracle.cwr(),
    ];
    let flags = flags.iter().enumerate().map(|(bit, &is_set)| u8::from(is_set) << bit).sum::<u8>();
    assert_eq!((found.flags.0, found.payload), (flags, oracle.payload()));
    check_written(&found);
    Ok(())
}

/// The parsed segment is written and parsed again, and stays the same except for SACK blocks that
/// do not fit.
fn check_written(found: &Segment<'_>) {
    let &Segment { seq, ack, flags, window, urgent, options, payload, .. } = found;
    let head = Head { seq, ack, flags, window, urgent, options };
    let mut out = [0; 60];
    let bytes =
        Template::new(&flow()).write(&head, Body::new(sum16(payload), payload.len() as u32), &mut out);
    let whole = [&out[..bytes], payload].concat();
    if whole.len() > 65_535 {
        return;
    }
    assert!(is_right(&flow(), &whole));
    let mut again = parse(&whole).unwrap();
    assert!(options.sacks.blocks().starts_with(again.options.sacks.blocks()));
    again.options.sacks = options.sacks;
    assert_eq!(again, Segment { source: 80, destination: 4711, ..*found });
}

#[test]
fn fuzz_segments() {
    bolero::check!(name = "segment").for_each(|bytes: &[u8]| {
        let _ = check(bytes);
    });
}

#[test]
fn fuzz_options() {
    bolero::check!(name = "options").with_iterations(20_000).for_each(|bytes: &[u8]| {
        // No header has room for more.
        check_options(&bytes[..bytes.len().min(OPTIONS_BYTES)]);
    });
}

#[test]
fn fuzz_edited_segments() {
    let seeds = seeds();
    let edits = bolero::produce::<(u8, Vec<(u8, u8)>, u8)>();
    bolero::check!(name = "segment_edited").with_generator(edits).with_iterations(20_000).for_each(
        |(seed, edits, cut)| {
            let mut bytes = seeds[usize::from(*seed) % seeds.len()].1.clone();
            for (at, value) in edits {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            // One in four is cut.
            if cut % 4 == 0 {
                bytes.truncate(bytes.len().saturating_sub(usize::from(cut / 4)));
            }
            let _ = check(&bytes);
        },
    );
}

#[test]
fn seeds_are_what_their_names_say() {
    let refused = |name: &str| match name {
        "offset_beyond_end" => Err(Unfit::Length),
        "offset_in_header" => Err(Unfit::Offset),
        "option_beyond_header" | "zero_length_option" => Err(Unfit::Options),
        _ => Ok(()),
    };
    let seeds = seeds();
    assert_eq!(seeds.len(), 13);
    for (name, bytes) in &seeds {
        assert_eq!(check(bytes), refused(name), "{name}");
    }
    let options =
        |name: &str| parse(&seeds.iter().find(|(seed, _)| seed == name).unwrap().1).unwrap().options;
    assert_eq!(options("ack_four_sacks").sacks.blocks().len(), 4);
    assert_eq!(options("ack_three_sacks").sacks.blocks().len(), 3);
    assert_eq!(options("user_timeout").user_timeout, Some(0x800a));
    assert_eq!(options("wrong_lengths"), TcpOptions::default());
    assert_eq!(
        (options("syn").mss, options("syn").scale, options("syn").is_sack_permitted),
        (Some(1460), Some(7), true)
    );
}

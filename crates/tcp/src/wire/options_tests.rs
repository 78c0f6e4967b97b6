use proptest::prelude::*;

use super::*;

fn blocks(count: u32) -> Sacks {
    let mut sacks = Sacks::default();
    (0..count).for_each(|i| assert!(sacks.push(Seq(i), Seq(i + 1))));
    sacks
}

fn written(options: &TcpOptions) -> Vec<u8> {
    let mut room = [0xee; OPTIONS_BYTES];
    let bytes = write(options, &mut room);
    room[..bytes].to_vec()
}

const ALL: TcpOptions = TcpOptions {
    mss: Some(1460),
    scale: Some(7),
    is_sack_permitted: true,
    stamps: Some(Stamps { value: 1, echo: 2 }),
    sacks: Sacks::NONE,
    user_timeout: Some(0x8001),
};

//= RFC 9293 section 3.1
//= type=test
//# the following options MUST be supported (MUST-4
//= RFC 9293 section 3.1
//= type=test
//# The content of the header beyond the End of
//# Option List Option MUST be header padding of zeros (MUST-69).
//= RFC 9293 section 3.1
//= type=test
//# The option-length counts the two octets of option-kind and option-
//# length as well as the option-data octets.
#[test]
fn options_lie_on_words_as_others_write_them() {
    assert_eq!(
        written(&ALL),
        [2, 4, 5, 180, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 28, 4, 0x80, 1]
    );
    let one = |options: TcpOptions| written(&options);
    assert_eq!(one(TcpOptions { is_sack_permitted: true, ..TcpOptions::default() }), [1, 1, 4, 2]);
    assert_eq!(
        one(TcpOptions { stamps: ALL.stamps, ..TcpOptions::default() }),
        [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]
    );
    assert_eq!(
        one(TcpOptions { sacks: blocks(1), ..TcpOptions::default() }),
        [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 1]
    );
    assert_eq!(one(TcpOptions::default()), []);
    assert_eq!(parse(&written(&ALL)), Ok(ALL));
}

//= RFC 2018 section 3
//= type=test
//# A SACK option that specifies n blocks will have a length of 8*n+2
//# bytes, so the 40 bytes available for TCP options can specify a
//# maximum of 4 blocks.
#[test]
fn sack_blocks_are_written_as_far_as_space_allows() {
    let fitting = |options: TcpOptions| parse(&written(&options)).unwrap().sacks;
    assert_eq!(fitting(TcpOptions { sacks: blocks(4), ..TcpOptions::default() }), blocks(4));
    assert_eq!(
        fitting(TcpOptions { sacks: blocks(4), stamps: ALL.stamps, ..TcpOptions::default() }),
        blocks(3)
    );
    assert_eq!(fitting(TcpOptions { sacks: blocks(4), ..ALL }), blocks(1));
    assert!(!blocks(4).clone().push(Seq(1), Seq(2)));
}

//= RFC 9293 section 3.1
//= type=test
//# All TCP Options except End of Option List Option (EOL) and
//# No-Operation (NOP) MUST have length fields, including all future
//# options (MUST-68).
//= RFC 9293 section 3.1
//= type=test
//# A TCP implementation MUST (MUST-6) ignore without error any TCP
//# Option it does not implement, assuming that the option has a length
//# field.
#[test]
fn unknown_options_are_passed_over() {
    for unknown in [&[9, 2][..], &[253, 4, 1, 2], &[34, 10, 1, 2, 3, 4, 5, 6, 7, 8], &[6, 3, 0]] {
        let bytes = [unknown, &[2, 4, 1, 2]].concat();
        assert_eq!(
            parse(&bytes),
            Ok(TcpOptions { mss: Some(0x102), ..TcpOptions::default() }),
            "{unknown:?}"
        );
    }
}

//= RFC 9293 section 3.1
//= type=test
//# TCP implementations MUST be prepared to handle
//# an illegal option length (e.g., zero); a suggested procedure is to
//# reset the connection and log the error cause (MUST-7).
#[test]
fn lengths_that_cannot_be_are_refused() {
    for bytes in [&[2, 0][..], &[2, 1, 1], &[99, 0, 1, 1], &[2, 5, 1, 2], &[99], &[1, 1, 8], &[8, 10, 1, 1]] {
        assert_eq!(parse(bytes), Err(Unfit::Options), "{bytes:?}");
    }
    // Behind the end of the list nothing is an option.
    assert_eq!(parse(&[0, 2, 0, 0]), Ok(TcpOptions::default()));
}

//= RFC 9293 section 3.2
//= type=test
//# There is
//# no guarantee that senders will use this option, so receivers MUST
//# be prepared to process options even if they do not begin on a word
//# boundary (MUST-64).
#[test]
fn options_may_begin_anywhere() {
    assert_eq!(
        parse(&[1, 2, 4, 1, 2, 3, 3, 5, 0]),
        Ok(TcpOptions { mss: Some(0x102), scale: Some(5), ..TcpOptions::default() })
    );
    let stamps = Some(Stamps { value: 0x0102_0304, echo: 5 });
    assert_eq!(
        parse(&[8, 10, 1, 2, 3, 4, 0, 0, 0, 5, 1, 1]),
        Ok(TcpOptions { stamps, ..TcpOptions::default() })
    );
    // Twelve bytes that begin like two paddings and time stamps.
    assert_eq!(parse(&[1, 1, 8, 8, 1, 2, 3, 4, 5, 6, 0, 0]), Ok(TcpOptions::default()));
}

#[test]
fn parse_repeated_option_takes_first_and_ignores_wrong_length() {
    assert_eq!(parse(&[2, 4, 0, 1, 2, 4, 0, 2]).unwrap().mss, Some(1));
    assert_eq!(parse(&[3, 3, 1, 3, 3, 2, 0, 0]).unwrap().scale, Some(1));
    let twice = [&[5, 10][..], &[0, 0, 0, 1, 0, 0, 0, 2], &[5, 10], &[9; 8]].concat();
    assert_eq!(parse(&twice).unwrap().sacks.blocks(), [(Seq(1), Seq(2))]);
    let twice = [&[8, 10][..], &[0; 8], &[8, 10], &[9; 8]].concat();
    assert_eq!(parse(&twice).unwrap().stamps, Some(Stamps::default()));
    let other_lengths = [2, 3, 1, 3, 4, 1, 1, 4, 3, 1, 5, 6, 0, 0, 0, 1, 8, 6, 0, 0, 0, 1, 28, 3, 1];
    assert_eq!(parse(&other_lengths), Ok(TcpOptions::default()));
    assert_eq!(parse(&[2, 3, 1, 2, 4, 0, 2]).unwrap().mss, Some(2));
}

proptest! {
    #[test]
    fn options_write_and_parse_round_trip(
        mss: Option<u16>,
        scale: Option<u8>,
        is_sack_permitted: bool,
        stamps: Option<(u32, u32)>,
        sacks in 0u32..2,
        user_timeout: Option<u16>,
    ) {
        let stamps = stamps.map(|(value, echo)| Stamps { value, echo });
        let options = TcpOptions { mss, scale, is_sack_permitted, stamps, sacks: blocks(sacks), user_timeout };
        let bytes = written(&options);
        prop_assert!(bytes.len().is_multiple_of(4));
        prop_assert_eq!(parse(&bytes), Ok(options));
    }
}

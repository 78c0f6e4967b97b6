use proptest::prelude::*;

use super::super::demux::Mark;
use super::*;

/// A frame of AAC-LC in ADTS: 48 kHz, stereo. Its bytes are such that no header is among them.
fn adts(length: usize, fill: u8) -> Vec<u8> {
    let whole = length + 7;
    let mut frame = vec![
        0xff,
        0xf1,
        1 << 6 | 3 << 2,
        2 << 6 | (whole >> 11) as u8,
        (whole >> 3) as u8,
        (whole << 5) as u8 | 0x1f,
        0xfc,
    ];
    frame.resize(whole, fill & 0x7f);
    frame
}

/// A stream whose PES packets begin at these places, one second apart.
fn stream(bytes: Vec<u8>, begins: &[usize]) -> Elementary {
    let mark = |(number, &at): (usize, &usize)| Mark {
        at,
        byte: at as u64,
        stamps: Some((number as u64 * 90_000, number as u64 * 90_000)),
    };
    Elementary { bytes, marks: begins.iter().enumerate().map(mark).collect(), ..Elementary::default() }
}

fn times(frames: &[AudioFrame]) -> Vec<(usize, u64)> {
    frames.iter().map(|frame| (frame.mark, frame.samples)).collect()
}

#[test]
fn headers_as_encoders_write_them() {
    let found = aac(&adts(100, 1)).unwrap();
    assert_eq!((found.skip, found.length, found.config.rate, found.config.channels), (7, 107, 48_000, 2));
    assert_eq!(found.config.codec(), "mp4a.40.2");
    // 192 kbit/s in stereo at 48 kHz, and at 44.1 kHz with the padding word; 5.1 channels of 448 kbit/s.
    let found = ac3(&[0x0b, 0x77, 0, 0, 0x14, 0x40, 0x43, 0xe0]).unwrap();
    assert_eq!((found.length, found.config.rate, found.config.channels), (768, 48_000, 2));
    let found = ac3(&[0x0b, 0x77, 0, 0, 0x55, 0x40, 0x43, 0xe0]).unwrap();
    assert_eq!((found.length, found.config.rate), (836, 44_100));
    let found = ac3(&[0x0b, 0x77, 0, 0, 0x1e, 0x40, 0xe1, 0x40]).unwrap();
    assert_eq!((found.length, found.config.channels, found.config.header), (1792, 6, [0, 8, 0, 7, 1, 15]));
    // E-AC-3: 1,536 samples of stereo in 768 bytes, and 256 samples of 5.1 channels.
    let found = eac3(&[0x0b, 0x77, 0x01, 0x7f, 0x34, 0x80]).unwrap();
    assert_eq!(
        (found.length, found.config.frame, found.config.channels, found.is_more),
        (768, 1536, 2, false)
    );
    let found = eac3(&[0x0b, 0x77, 0x40 | 0x01, 0x7f, 0x0f, 0x80]).unwrap();
    assert_eq!((found.config.frame, found.config.channels, found.is_more), (256, 6, true));
    for bytes in [&[0x0b, 0x77][..], &[0xff, 0xf1, 0xff, 0, 0, 0, 0], &[0; 8]] {
        assert!(aac(bytes).is_none() && ac3(bytes).is_none() && eac3(bytes).is_none());
    }
}

#[test]
fn times_count_from_stamps() {
    // Five frames; PES packets begin with the first, within the second, and with the fourth.
    let all: Vec<u8> = (1..6).flat_map(|n| adts(50, n)).collect();
    let found = stream(all, &[0, 100, 3 * 57]);
    let config = config(&found, Coding::Aac).unwrap();
    let found = frames(&found, &config);
    assert_eq!(times(&found), [(0, 0), (0, 1024), (1, 0), (2, 0), (2, 1024)]);
    assert!(found.iter().all(|frame| frame.length == 50));
}

#[test]
fn its_bit_rate_is_that_of_its_frames_and_never_that_of_silence() {
    let of = |length: usize| {
        let bytes = (0..10).flat_map(|fill| adts(length, fill)).collect();
        let stream = stream(bytes, &[0]);
        let config = config(&stream, Coding::Aac).unwrap();
        bit_rate(&stream, &config).0
    };
    assert_eq!(of(400), 400 * 8 * 48_000 / 1024);
    assert_eq!(of(8), 2 * LEAST_SOUND_RATE);
}

#[test]
fn aac_frames_skips_incomplete_and_foreign_data() {
    let config = aac(&adts(1, 1)).unwrap().config;
    // The tail of a frame, something like a header without a frame behind it, and a frame of another rate.
    let mut other = adts(50, 3);
    other[2] = 1 << 6 | 4 << 2;
    let all =
        [&[9; 30][..], &adts(50, 1)[..20], &adts(50, 2), &adts(50, 3), &other, &adts(50, 4), &adts(50, 5)]
            .concat();
    let found = frames(&stream(all.clone(), &[0]), &config);
    let starts: Vec<u8> = found.iter().map(|frame| all[frame.at]).collect();
    assert_eq!(starts, [2, 3, 4, 5]);
    // The last one is cut off: it is not there.
    assert_eq!(frames(&stream(all[..all.len() - 1].to_vec(), &[0]), &config).len(), 3);
    // Without a stamp nothing is known of when.
    let mut silent = stream(all, &[0]);
    silent.marks[0].stamps = None;
    assert!(frames(&silent, &config).is_empty());
}

/// Further channels of E-AC-3 are part of the frame before.
#[test]
fn further_channels_belong_to_their_frame() {
    let frame = |kind: u8, length: usize| {
        let mut frame = vec![0x0b, 0x77, kind << 6, (length / 2 - 1) as u8, 0x34, 0x80];
        frame.resize(length, 7);
        frame
    };
    let all = [frame(0, 100), frame(1, 60), frame(0, 100), frame(1, 60)].concat();
    let found = stream(all, &[0]);
    let config = config(&found, Coding::Eac3).unwrap();
    let lengths: Vec<_> = frames(&found, &config).iter().map(|frame| (frame.at, frame.length)).collect();
    assert_eq!(lengths, [(0, 160), (160, 160)]);
}

proptest! {
    /// Wherever one begins to read, from there on the frames and their times are the same.
    #[test]
    fn frames_are_cut_alike_from_anywhere(
        lengths in proptest::collection::vec(20usize..300, 8..40),
        begins in proptest::collection::btree_set(0usize..4000, 2..12),
        from in 0usize..12,
    ) {
        let bytes: Vec<u8> = lengths.iter().zip(1..).flat_map(|(&length, n)| adts(length, n)).collect();
        let begins: Vec<usize> = begins.into_iter().filter(|&at| at < bytes.len()).collect();
        prop_assume!(begins.len() > 1);
        let whole = stream(bytes.clone(), &begins);
        let config = aac(&adts(1, 1)).unwrap().config;
        let expected = frames(&whole, &config);
        let first = from % begins.len();
        let cut = begins[first];
        let mut part = Elementary { bytes: bytes[cut..].to_vec(), ..Elementary::default() };
        part.marks = whole.marks[first..].iter().map(|mark| Mark { at: mark.at - cut, ..*mark }).collect();
        let found: Vec<_> = frames(&part, &config)
            .into_iter()
            .map(|frame| AudioFrame { at: frame.at + cut, mark: frame.mark + first, ..frame })
            .collect();
        let expected: Vec<_> = expected.into_iter().filter(|frame| frame.at - 7 >= cut).collect();
        prop_assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            prop_assert_eq!((found.at, found.length), (expected.at, expected.length));
            // A PES packet in which no frame begins has a stamp that belongs to no frame.
            prop_assert!((found.mark, found.samples) == (expected.mark, expected.samples) || expected.mark < first);
        }
    }
}

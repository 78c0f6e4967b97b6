use millrace_media::units;

use super::*;
use crate::trick::mpeg2;

/// Units that are like those of the syntax: the first byte is of a kind that counts, what follows is anything.
type Units = Vec<(u8, Vec<u8>)>;

const KINDS: [(VideoSyntax, &[u8]); 3] = [
    (VideoSyntax::H264, &[0x65, 0x67, 0x68, 0x61, 0x41, 0x01, 0x09, 0x06, 0x42]),
    (VideoSyntax::H265, &[40, 42, 64, 66, 68, 70, 2, 0, 32]),
    (VideoSyntax::Mpeg2, &[0x00, 0xb3, 0xb5, 0xb8, 0x01, 0x02, 0xb2, 0xb7, 0xaf]),
];

fn stream(kinds: &[u8], units: &Units) -> Vec<u8> {
    let unit = |(kind, body): &(u8, Vec<u8>)| {
        [&[0, 0, 1, kinds[usize::from(*kind) % kinds.len()]], &body[..]].concat()
    };
    units.iter().flat_map(unit).collect()
}

/// The pictures of a stream that comes in pieces, and the bytes of each.
fn pictures(
    syntax: VideoSyntax,
    stream: &[u8],
    step: usize,
    lost: Option<usize>,
) -> (Vec<(FoundPicture, Vec<u8>)>, Finder) {
    let mut finder = Finder::new(syntax).unwrap();
    let mut found = Vec::new();
    for (number, piece) in stream.chunks(step).enumerate() {
        if lost == Some(number) {
            finder.lost();
        }
        let place = ElementaryOffset { packet: (number * step) as u64, skip: 0, pid: 7 };
        let stamps = (number % 2 == 0).then_some(Stamps { pts: number as u64, dts: 0 });
        finder.push(place, stamps, piece, &mut |picture| found.push(picture));
    }
    finder.finish(&mut |picture| found.push(picture));
    let bytes = |picture: FoundPicture| {
        let start = picture.place.packet as usize + usize::from(picture.place.skip);
        (picture, stream[start..start + picture.bytes as usize].to_vec())
    };
    (found.into_iter().map(bytes).collect(), finder)
}

#[test]
fn picture_finder_of_any_stream_yields_disjoint_pictures() {
    bolero::check!().with_type::<(Units, u8, u8)>().with_iterations(3000).for_each(|(units, step, lost)| {
        for (syntax, kinds) in KINDS {
            let stream = stream(kinds, units);
            let step = 1 + usize::from(*step) % 184;
            let (found, finder) = pictures(syntax, &stream, step, Some(usize::from(*lost)));
            let whole = pictures(syntax, &stream, 200, None).0;
            let same = found.iter().zip(&whole).all(|(a, b)| a.1 == b.1) && found.len() == whole.len();
            assert!(same, "how it comes makes no difference to where pictures are");
            let mut end = 0;
            for (picture, bytes) in &found {
                let start = picture.place.packet + u64::from(picture.place.skip);
                assert!(
                    start >= end && picture.second < picture.bytes.max(1) && bytes.starts_with(&[0, 0, 1])
                );
                end = start + u64::from(picture.bytes);
                rewritten(syntax, &finder, picture, bytes);
            }
        }
    });
}

/// What stands alone is rewritten, or refused if it is damaged behind its header.
fn rewritten(syntax: VideoSyntax, finder: &Finder, picture: &FoundPicture, bytes: &[u8]) {
    let Some(number) = picture.alone else { return };
    let parameters = &finder.parameters()[usize::from(number)];
    let mut out = Vec::new();
    match (syntax, &parameters.h264) {
        (_, Some((sps, pps))) => {
            let (first, second) = bytes.split_at(picture.second as usize);
            let (first, second) = if first.is_empty() { (second, None) } else { (first, Some(second)) };
            let _ = h264::rewrite_picture(first, second, sps, pps, 1, &mut out);
        }
        (VideoSyntax::H265, _) => units::split(bytes).for_each(|nal| h265::rewrite(trimmed(nal), &mut out)),
        _ => mpeg2::rewrite(bytes, &mut out),
    }
}

/// A picture header of a type, its coding extension with a structure, a slice.
fn coded(kind: u8, structure: u8) -> Vec<u8> {
    [
        &[0, 0, 1, 0, 0, kind << 3, 0xff, 0xf8][..],
        &[0, 0, 1, 0xb5, 0x8f, 0xff, structure, 0],
        &[0, 0, 1, 1, 9, 9],
    ]
    .concat()
}

const SEQUENCE: [u8; 12] = [0, 0, 1, 0xb3, 1, 2, 3, 4, 5, 6, 7, 0x20];
const GROUP: [u8; 8] = [0, 0, 1, 0xb8, 1, 2, 3, 4];

#[test]
fn picture_finder_joins_two_fields_with_their_tables() {
    // I and P field, then B field and B field, then P frame, then a field without its other.
    let i = [&SEQUENCE[..], &GROUP, &coded(1, 1), &coded(2, 2)].concat();
    let b = [coded(3, 1), coded(3, 2)].concat();
    let stream = [i.clone(), b.clone(), coded(2, 3), coded(1, 2), GROUP.to_vec(), coded(1, 3)].concat();
    for step in [1, 3, 184] {
        let (found, finder) = pictures(VideoSyntax::Mpeg2, &stream, step, None);
        let bytes: Vec<&[u8]> = found.iter().map(|(_, bytes)| &bytes[..]).collect();
        let last = [&GROUP[..], &coded(1, 3)].concat();
        assert_eq!(bytes, [&i, &b, &coded(2, 3), &coded(1, 2), &last]);
        let alone: Vec<bool> = found.iter().map(|(picture, _)| picture.alone.is_some()).collect();
        assert_eq!(alone, [true, false, false, false, true], "a field without its other is no picture");
        assert_eq!(found[0].0.second as usize, SEQUENCE.len() + GROUP.len() + coded(1, 1).len());
        let reference: Vec<bool> = found.iter().map(|(picture, _)| picture.is_reference).collect();
        assert_eq!(reference, [true, false, true, true, true]);
        assert_eq!(finder.parameters()[0].bytes, SEQUENCE);
        let mut out = Vec::new();
        mpeg2::rewrite(bytes[0], &mut out);
        let ids: Vec<u8> = units::split(&out).map(|unit| unit[0]).collect();
        assert_eq!(ids, [0xb8, 0, 0xb5, 1, 0, 0xb5, 1], "a group of its own, both fields");
    }
}

#[test]
fn picture_with_missing_data_does_not_stand_alone() {
    let one = [&SEQUENCE[..], &coded(1, 3)].concat();
    let stream = one.repeat(4);
    let alone = |lost| -> Vec<bool> {
        let found = pictures(VideoSyntax::Mpeg2, &stream, 4, lost).0;
        found.iter().map(|(picture, _)| picture.alone.is_some()).collect()
    };
    assert_eq!(alone(None), [true; 4]);
    let middle = (one.len() + one.len() / 2) / 4;
    assert_eq!(alone(Some(middle)), [true, false, true, true]);
    // Between two pictures either may miss something.
    assert_eq!(alone(Some(one.len() * 2 / 4)), [true, false, false, true]);
}

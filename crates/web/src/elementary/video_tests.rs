use millrace_media::sps::FieldSyntax;
use proptest::prelude::*;

use super::super::demux::Mark;
use super::*;

fn nal(bytes: &[u8]) -> Vec<u8> {
    [&[0, 0, 1][..], bytes].concat()
}

fn stream(pieces: &[Vec<u8>]) -> Elementary {
    let mut stream = Elementary::default();
    for (number, piece) in pieces.iter().enumerate() {
        let stamps = Some((number as u64, number as u64));
        stream.marks.push(Mark { at: stream.bytes.len(), byte: number as u64 * 188, stamps });
        stream.bytes.extend(piece);
    }
    stream
}

fn config_of(syntax: Syntax, sets: &[&[u8]], fields: Option<FieldSyntax>) -> VideoConfig {
    let pictures = Pictures {
        codec: String::new(),
        width: 16,
        height: 16,
        frame_rate: None,
        chroma: 1,
        depths: (8, 8),
        fields,
        colour: None,
    };
    VideoConfig { syntax, pictures, sets: sets.iter().map(|set| set.to_vec()).collect() }
}

fn sample(picture: &Picture, stream: &Elementary, config: &VideoConfig) -> Vec<u8> {
    let mut out = Vec::new();
    picture.append_to(&mut out, &stream.bytes, config, &mut false);
    out
}

#[test]
fn sample_with_new_set_has_all_its_sets() {
    let (sps, pps, other) = (&[0x67, 1, 2][..], &[0x68, 3][..], &[0x68, 4][..]);
    let idr =
        [nal(&[9, 0xf0]), nal(sps), nal(pps), nal(other), nal(&[0x65, 0x88, 5, 0, 0]), nal(&[0x65, 0x40, 6])];
    // A second slice of the same picture, then a picture without a delimiter, in the same PES packet.
    let found =
        stream(&[[idr.concat(), nal(&[0x41, 0x9a, 7])].concat(), nal(&[9, 0x10]), nal(&[0x41, 0x9b])]);
    let config = config_of(Syntax::H264, &[sps, pps], None);
    let list = pictures(&found, Syntax::H264, Some(&config));
    let told: Vec<_> = list.iter().map(|p| (p.mark, p.is_first, p.is_sync)).collect();
    assert_eq!(told, [(0, true, true), (0, false, false), (1, true, false)]);
    let slices = [0, 0, 0, 3, 0x65, 0x88, 5, 0, 0, 0, 3, 0x65, 0x40, 6];
    // One of its sets is new, so the known sets are written with it.
    let sets = [0, 0, 0, 3, 0x67, 1, 2, 0, 0, 0, 2, 0x68, 3, 0, 0, 0, 2, 0x68, 4];
    assert_eq!(sample(&list[0], &found, &config), [&sets[..], &slices].concat());
    let config = config_of(Syntax::H264, &[sps, pps, other], None);
    assert_eq!(sample(&list[0], &found, &config), slices);
    assert_eq!(sample(&list[2], &found, &config), [0, 0, 0, 2, 0x41, 0x9b]);
}

#[test]
fn pictures_skips_data_before_first_picture() {
    // The rest of a picture whose beginning is not here.
    let found =
        stream(&[[&[1, 2, 3][..], &nal(&[0x41, 0x40]), &nal(&[0x41, 0x9a]), &nal(&[9, 0x10])].concat()]);
    let list = pictures(&found, Syntax::H264, None);
    // And a delimiter alone is no picture.
    assert_eq!(list.len(), 1);
    assert!(list[0].units.len() == 1 && list[0].is_first);
}

#[test]
fn pictures_of_h265() {
    let first = |kind: u8, more: u8| nal(&[kind << 1, 1, 0x80 | more]);
    let other_layer = nal(&[1 << 1 | 1, 1, 0x80]);
    let found = stream(&[
        [
            nal(&[32 << 1, 1, 1]),
            nal(&[33 << 1, 1, 2]),
            nal(&[34 << 1, 1, 3]),
            first(21, 1),
            nal(&[21 << 1, 1, 0]),
        ]
        .concat(),
        [first(1, 2), other_layer, nal(&[40 << 1, 1, 5])].concat(),
        first(8, 3),
    ]);
    let list = pictures(&found, Syntax::H265, None);
    let told: Vec<_> = list.iter().map(|p| (p.mark, p.units.len(), p.is_sync)).collect();
    assert_eq!(told, [(0, 5, true), (1, 2, false), (2, 1, false)]);
}

#[test]
fn recovery_point_sei_marks_sync_picture() {
    for (sei, expected) in [
        (&[0x06, 6, 1, 0xc4, 0x80][..], true),
        (&[0x06, 0, 2, 9, 9, 6, 1, 0xc4, 0x80], true),
        (&[0x06, 5, 2, 6, 1, 0x80], false),
        (&[0x06, 0xff, 6, 1, 6, 0x80], false),
        (&[0x06, 0xff], false),
        (&[0x06], false),
    ] {
        assert_eq!(has_recovery_point(sei), expected, "{sei:x?}");
        let found = stream(&[[nal(sei), nal(&[0x41, 0x88, 7])].concat()]);
        assert_eq!(pictures(&found, Syntax::H264, None)[0].is_sync, expected && sei.len() > 1, "{sei:x?}");
    }
}

/// Slices of fields: first macroblock 0, type I, PPS 0, a frame's number of four bits, field, bottom.
#[test]
fn pictures_joins_both_fields_of_frame() {
    let field = |header: u8, number: u8, is_bottom: bool| {
        // 1 | 011 (type 2) | 1 (PPS 0) | nnnn | 1 | b
        let bits =
            0b1011_0000_0000_0000_u16 | 1 << 11 | u16::from(number) << 7 | 1 << 6 | u16::from(is_bottom) << 5;
        nal(&[header, (bits >> 8) as u8, bits as u8 | 0x10, 0x55])
    };
    let fields = Some(FieldSyntax { has_colour_planes: false, frame_num_bits: 4 });
    let config = config_of(Syntax::H264, &[], fields);
    let list = stream(&[
        field(0x65, 0, false),
        field(0x61, 0, true),
        field(0x41, 1, false),
        field(0x41, 1, true),
        field(0x41, 2, true),
    ]);
    let found = pictures(&list, Syntax::H264, Some(&config));
    assert_eq!(found.iter().map(|p| (p.mark, p.units.len())).collect::<Vec<_>>(), [(0, 2), (2, 2), (4, 1)]);
    // Where all pictures are frames nothing is joined.
    let frames = config_of(Syntax::H264, &[], None);
    assert_eq!(pictures(&list, Syntax::H264, Some(&frames)).len(), 5);
}

proptest! {
    /// Every byte of a unit that is kept is in one sample, whatever the zeros between.
    #[test]
    fn units_are_found(units in proptest::collection::vec((proptest::collection::vec(1u8.., 1..40), 0usize..4), 1..30)) {
        let bytes: Vec<u8> = units
            .iter()
            .flat_map(|(unit, zeros)| [&nal(unit)[..], &vec![0; *zeros]].concat())
            .collect();
        let found: Vec<&[u8]> = super::units(&bytes).map(|(_, range)| &bytes[range]).collect();
        prop_assert_eq!(found, units.iter().map(|(unit, _)| &unit[..]).collect::<Vec<_>>());
    }
}

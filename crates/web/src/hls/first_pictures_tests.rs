use super::*;

/// An H.264 picture with these `cc_data` triplets.
fn picture(triplets: &[[u8; 3]]) -> Elementary {
    let data = [
        &[0xb5, 0, 0x31][..],
        b"GA94\x03",
        &[0x40 | triplets.len() as u8, 0xff],
        triplets.as_flattened(),
        &[0xff],
    ]
    .concat();
    let unit = [&[0, 0, 0, 1, 6, 4, data.len() as u8][..], &data, &[0x80]].concat();
    Elementary { bytes: [&unit[..], &[0, 0, 1, 0x65, 0x88, 0x84]].concat(), ..Elementary::default() }
}

fn ids(triplets: &[[u8; 3]]) -> Vec<String> {
    let mut found = Captions::default();
    found.look(&picture(triplets), "H.264");
    found.instream_ids()
}

#[test]
fn captions_of_each_channel_and_service_are_found() {
    // Resume caption loading in both channels of both fields, with parity.
    assert_eq!(ids(&[[0xfc, 0x94, 0x20]]), ["CC1"]);
    assert_eq!(ids(&[[0xfc, 0x1c, 0x20], [0xfd, 0x15, 0x20], [0xfd, 0x9d, 0x20]]), ["CC2", "CC3", "CC4"]);
    // Text that continues.
    assert_eq!(ids(&[[0xfc, 0xc8, 0xe9]]), ["CC1"]);
    // Two services in one packet, one of them extended, and a packet that is cut off.
    let packet = [[0xff, 0x04, 0x22], [0xfe, 0x41, 0x42], [0xfe, 0xe1, 0x09], [0xfe, 0x43, 0x00]];
    assert_eq!(ids(&packet), ["SERVICE1", "SERVICE9"]);
    assert_eq!(ids(&[[0xff, 0x1f, 0x2a]]), ["SERVICE1"]);
}

#[test]
fn captions_of_padding_are_those_of_the_first_channel() {
    assert_eq!(ids(&[[0xfc, 0x80, 0x80], [0xfd, 0x80, 0x80], [0xfa, 0, 0]]), ["CC1"]);
    // Extended data services and invalid triplets are not captions.
    assert_eq!(ids(&[[0xfd, 0x01, 0x03], [0xf8, 0x94, 0x20]]), ["CC1"]);
    let mut none = Captions::default();
    none.look(&Elementary { bytes: vec![0, 0, 1, 0x65, 0x88], ..Elementary::default() }, "H.264");
    assert_eq!(none.instream_ids(), [""; 0]);
}

#[test]
fn captions_of_mpeg_2_and_h_265_are_found() {
    let data = [&b"GA94\x03"[..], &[0x41, 0xff, 0xfc, 0x94, 0x20, 0xff]].concat();
    let found = |codec, bytes: Vec<u8>| {
        let mut found = Captions::default();
        found.look(&Elementary { bytes, ..Elementary::default() }, codec);
        found.instream_ids()
    };
    let mpeg2 = [&[0, 0, 1, 0xb3, 9, 0, 0, 1, 0, 0, 0, 0, 1, 0xb2][..], &data, &[0, 0, 1, 1]].concat();
    assert_eq!(found("MPEG-2 video", mpeg2), ["CC1"]);
    let length = data.len() as u8 + 3;
    let h265 = [&[0, 0, 1, 0x4e, 1, 4, length, 0xb5, 0, 0x31][..], &data, &[0x80, 0, 0, 1, 0x26, 1]].concat();
    assert_eq!(found("H.265", h265), ["CC1"]);
}

#[test]
fn starts_alone_without_parameter_sets_is_false() {
    let stream = |bytes: &[u8]| Elementary { bytes: bytes.to_vec(), ..Elementary::default() };
    let (sps, pps, slice) = ([0, 0, 1, 0x67, 1], [0, 0, 1, 0x68, 1], [0, 0, 1, 0x65, 0x88]);
    assert!(starts_alone(&stream(&[sps, pps, slice].concat()), "H.264"));
    assert!(!starts_alone(&stream(&[sps, slice, pps].concat()), "H.264"));
    assert!(!starts_alone(&stream(&[pps, slice].concat()), "H.264"));
    assert!(!starts_alone(&stream(&slice), "H.264"));
    let sets = [0x40, 0x42, 0x44].map(|head| [0, 0, 1, head, 1]);
    let picture = [0, 0, 1, 0x26, 1];
    assert!(starts_alone(&stream(&[sets[0], sets[1], sets[2], picture].concat()), "H.265"));
    assert!(!starts_alone(&stream(&[sets[1], sets[2], picture].concat()), "H.265"));
    assert!(starts_alone(&stream(&[0, 0, 1, 0xb3, 9, 0, 0, 1, 0xb8, 9, 0, 0, 1, 0, 9]), "MPEG-2 video"));
    assert!(!starts_alone(&stream(&[0, 0, 1, 0xb8, 9, 0, 0, 1, 0, 9]), "MPEG-2 video"));
    assert!(starts_alone(&stream(&[]), "VC-1"));
}

#[test]
fn captions_of_any_bytes_are_read_to_their_end() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let mut found = Captions::default();
        found.read_user_data(bytes);
        found.read_user_data(&[b"GA94\x03\x5f\xff", bytes].concat());
        let stream = Elementary { bytes: bytes.to_vec(), ..Elementary::default() };
        for codec in ["H.264", "H.265", "MPEG-2 video"] {
            found.look(&stream, codec);
            starts_alone(&stream, codec);
        }
        assert!(found.instream_ids().len() <= 4 + 63);
    });
}

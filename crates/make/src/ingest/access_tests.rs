use super::*;

/// Whether a decoder can start at a PES packet without the random access indicator.
fn look(syntax: VideoSyntax, bytes: &[u8]) -> bool {
    verdict(syntax, bytes, false) == PictureAccess::Access
}

/// Examines one PES payload, split in two at every possible place; all results must agree.
fn verdict(syntax: VideoSyntax, bytes: &[u8], is_indicated: bool) -> PictureAccess {
    let verdict = |pieces: &[&[u8]]| {
        let mut look = PictureLook::new(syntax);
        look.begin(is_indicated);
        for piece in pieces {
            match look.push(piece) {
                PictureAccess::More => {}
                decided => return decided,
            }
        }
        look.end()
    };
    let whole = verdict(&[bytes]);
    for cut in 0..bytes.len() {
        assert_eq!(verdict(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(verdict(&single), whole);
    whole
}

fn units(units: &[&[u8]]) -> Vec<u8> {
    units.iter().flat_map(|unit| [&[0, 0, 1], *unit].concat()).collect()
}

#[test]
fn h264() {
    let (aud, sps, pps, sei) =
        (&[9, 0xf0][..], &[0x67, 100, 0, 31][..], &[0x68, 1][..], &[6, 5, 2, 1, 1][..]);
    let idr = &[0x65, 0x88, 0x84, 0, 0x10, 0xff, 0xff, 0xfe][..];
    // first_mb_in_slice 0 = '1'; slice_type 7 (I) = '0001000', 5 (P) = '00110'.
    let (i, p) = (&[0x41, 0b1000_1000, 0x80, 9, 9, 9, 9, 9][..], &[0x41, 0b1001_1010, 9, 9, 9, 9, 9, 9][..]);
    assert!(look(VideoSyntax::H264, &units(&[aud, sps, pps, sei, idr])));
    assert_eq!(verdict(VideoSyntax::H264, &units(&[idr]), false), PictureAccess::Bare);
    assert_eq!(
        verdict(VideoSyntax::H264, &units(&[sps, idr]), false),
        PictureAccess::Bare,
        "no picture parameter set"
    );
    assert!(look(VideoSyntax::H264, &units(&[aud, sps, pps, i])), "parameter sets and an I picture");
    assert!(!look(VideoSyntax::H264, &units(&[aud, i])), "an I picture without parameter sets");
    assert!(!look(VideoSyntax::H264, &units(&[aud, sps, pps, p])));
    assert!(!look(VideoSyntax::H264, &units(&[aud, p, idr])), "the first picture decides");
    let marked = |parts: &[&[u8]]| verdict(VideoSyntax::H264, &units(parts), true);
    assert_eq!(marked(&[aud, sps, pps, p]), PictureAccess::Access, "gradual refresh");
    assert_eq!(marked(&[aud, i]), PictureAccess::Bare);
    assert_eq!(marked(&[&[9; 8]]), PictureAccess::Access, "no picture says otherwise");
}

#[test]
fn h265() {
    let unit = |kind: u8| vec![kind << 1, 1, 0xaf, 9, 9, 9, 9, 9, 9];
    for (kind, access) in [(19, true), (20, true), (21, true), (16, true), (1, false), (0, false), (9, false)]
    {
        let bytes = units(&[&unit(35), &unit(32), &unit(33), &unit(34), &unit(39), &unit(kind)]);
        assert_eq!(look(VideoSyntax::H265, &bytes), access, "NAL unit type {kind}");
        let bare = units(&[&unit(35), &unit(33), &unit(34), &unit(kind)]);
        let expected = if access { PictureAccess::Bare } else { PictureAccess::NoAccess };
        assert_eq!(verdict(VideoSyntax::H265, &bare, false), expected, "NAL unit type {kind} without VPS");
    }
}

#[test]
fn mpeg_2_and_mpeg_4() {
    let (sequence, group) = (&[0xb3, 0x2d, 0x02, 0x40, 0x33][..], &[0xb8, 0, 8, 0, 0][..]);
    let picture = |kind: u8| vec![0x00, 0x00, kind << 3, 0xff, 0xf8, 9, 9, 9];
    assert!(look(VideoSyntax::Mpeg2, &units(&[sequence, group, &picture(1)])));
    assert!(!look(VideoSyntax::Mpeg2, &units(&[sequence, &picture(2)])));
    assert!(!look(VideoSyntax::Mpeg2, &units(&[group, &picture(1)])), "no sequence header to decode with");
    assert!(!look(VideoSyntax::Mpeg2, &units(&[&[0x01, 9, 9, 9, 9, 9, 9, 9], sequence, &picture(1)])));
    let layer = &[0x20, 1, 2, 3][..];
    assert!(look(VideoSyntax::Mpeg4, &units(&[layer, &[0xb6, 0x10, 9, 9, 9, 9, 9, 9]])));
    assert!(!look(VideoSyntax::Mpeg4, &units(&[layer, &[0xb6, 0x50, 9, 9, 9, 9, 9, 9]])));
    assert!(!look(VideoSyntax::Opaque, &units(&[&[0x65; 8]])));
    assert_eq!(verdict(VideoSyntax::Opaque, &units(&[&[0x65; 8]]), true), PictureAccess::Access);
    assert_eq!(verdict(VideoSyntax::Mpeg2, &units(&[group, &picture(1)]), true), PictureAccess::Bare);
}

#[test]
fn endless_headers_are_given_up() {
    let mut look = PictureLook::new(VideoSyntax::H264);
    look.begin(false);
    let mut pushed = 0;
    while look.push(&[6; 184]) == PictureAccess::More {
        pushed += 184;
        assert!(pushed <= MAX_LOOK_BYTES);
    }
    assert!(look.bytes.len() <= MAX_LOOK_BYTES);
    // The next one is looked at afresh.
    look.begin(false);
    assert_eq!(look.push(&units(&[&[0x65, 1, 2, 3, 4, 5, 6, 7]])), PictureAccess::Bare);
}

#[test]
fn config_counts_a_repeated_set_once() {
    let config = |sets: &[&[u8]]| {
        let mut look = PictureLook::new(VideoSyntax::H264);
        look.begin(false);
        look.push(&units(sets));
        look.config()
    };
    let unit = |kind: u8| [kind, 1, 2, 3, 4, 5, 6, 7];
    let (sequence, other, picture) = (unit(0x67), [0x67; 8], unit(0x65));
    let once = config(&[&sequence, &unit(0x68), &picture]);
    assert!(once.is_some());
    assert_eq!(config(&[&sequence, &unit(0x68), &unit(0x06), &sequence, &unit(0x68), &picture]), once);
    assert_ne!(config(&[&other, &unit(0x68), &picture]), once);
    assert_eq!(config(&[&unit(0x68), &picture]), None);
}

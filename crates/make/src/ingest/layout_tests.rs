use super::*;

const AAC_STEREO: [u8; 8] = [0xff, 0xf1, 0x4c, 0x80, 0x03, 0xff, 0xfc, 0x21];
const AAC_MONO: [u8; 8] = [0xff, 0xf1, 0x4c, 0x40, 0x03, 0xff, 0xfc, 0x21];

fn stream(pid: u16, codec: &str, kind: StreamKind) -> PmtStream {
    PmtStream { pid, stream_type: 0x0f, codec: codec.to_owned(), kind, language: None, role: None }
}

fn sound(pid: u16) -> PmtStream {
    stream(pid, "AAC", StreamKind::Audio)
}

fn places(list: LayoutList) -> Vec<(u64, u16)> {
    list.into_streams(u64::MAX).iter().map(|stream| (stream.byte, stream.pid)).collect()
}

#[test]
fn announce_of_same_streams_is_no_layout() {
    let mut list = LayoutList::default();
    list.announce(188, &[sound(1)]);
    list.announce(376, &[sound(1)]);
    assert_eq!(places(list), [(0, 1)], "and the first one holds from the title's beginning");
}

#[test]
fn announce_of_other_pids_begins_a_layout() {
    let mut list = LayoutList::default();
    list.announce(188, &[sound(1), stream(9, "teletext", StreamKind::Other)]);
    assert!(list.take_first_access() && !list.take_first_access());
    list.announce(376, &[sound(1), sound(2)]);
    assert!(list.take_first_access());
    assert_eq!(places(list), [(0, 1), (376, 1), (376, 2)]);
}

#[test]
fn sound_format_seen_twice_begins_a_layout_where_it_was_seen_first() {
    let mut list = LayoutList::default();
    list.announce(0, &[sound(1)]);
    list.sound(1, &AAC_STEREO, 188);
    list.sound(1, &AAC_MONO, 376);
    list.sound(1, &AAC_STEREO, 564);
    list.sound(1, &AAC_MONO, 752);
    list.sound(1, &AAC_MONO, 940);
    let streams = list.into_streams(u64::MAX);
    assert_eq!(streams.iter().map(|s| s.byte).collect::<Vec<_>>(), [0, 752], "one damaged header is none");
    assert_ne!(streams[0].config, streams[1].config);
}

#[test]
fn ac3_format_ignores_bit_rate() {
    let frame = |size: u8, mode: u8| sound_config("AC-3", &[0x0b, 0x77, 1, 2, size, 0x40, mode, 0]).unwrap();
    assert_eq!(frame(0x14, 0x40), frame(0x1e, 0x40));
    assert_ne!(frame(0x14, 0x40), frame(0x14, 0xe0), "two channels and five");
    assert_ne!(frame(0x14, 0x40), frame(0x54, 0x40), "48 and 44.1 kHz");
}

#[test]
fn name_of_private_data_is_that_of_earlier_layouts_too() {
    let mut list = LayoutList::default();
    let private = |language: &str| PmtStream {
        language: Some(language.to_owned()),
        ..stream(1, codec::PRIVATE, StreamKind::Other)
    };
    list.announce(0, &[private("deu")]);
    list.announce(188, &[private("eng"), stream(2, codec::PRIVATE, StreamKind::Other)]);
    list.name(1, "AC-3");
    let streams = list.into_streams(u64::MAX);
    let all: Vec<_> = streams.iter().map(|s| (s.byte, s.pid, s.codec.as_str())).collect();
    assert_eq!(all, [(0, 1, "AC-3"), (188, 1, "AC-3")], "what never got a name is neither picture nor sound");
}

#[test]
fn changes_without_end_leave_the_last_layout_in_force() {
    let mut list = LayoutList::default();
    for n in 0..20_000u64 {
        list.announce(n * 188, &[sound((n % 7) as u16)]);
    }
    assert!(list.into_streams(u64::MAX).len() <= MAX_LAYOUT_STREAMS);
}

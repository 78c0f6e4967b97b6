//! Playlists as ffmpeg, packagers and their mistakes make them.

use super::*;

fn base() -> HttpUrl {
    HttpUrl::parse("http://h/films/a/index.m3u8?token=1").unwrap()
}

fn media(text: &str) -> Arc<MediaPlaylist> {
    match parse_playlist(text.as_bytes(), &base(), VariantChoice::default()).unwrap() {
        Playlist::Media(media) => media,
        Playlist::Master(url) => panic!("a master playlist: {url}"),
    }
}

#[test]
fn parse_playlist_on_demand_lists_all_segments() {
    let text = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:7\n\
        #EXTINF:4.000000,\nindex0.ts\n#EXTINF:3.5,a title\n../b/index1.ts?x=1\n#EXT-X-ENDLIST";
    for text in [text.to_owned(), text.replace('\n', "\r\n"), format!("\u{feff}{text}\n\n")] {
        let list = media(&text);
        assert_eq!((list.first_sequence, list.target_ns, list.is_whole), (7, 4_000_000_000, true));
        let found: Vec<(String, u64)> =
            list.segments.iter().map(|s| (s.resource.url.to_string(), s.media_ns)).collect();
        let expected = [
            ("http://h/films/a/index0.ts", 4_000_000_000),
            ("http://h/films/b/index1.ts?x=1", 3_500_000_000),
        ];
        assert_eq!(found, expected.map(|(url, ns)| (url.to_owned(), ns)));
        assert!(list.segments.iter().all(|s| s.is_plain_ts && s.resource.range == ByteRange::Whole));
    }
}

#[test]
fn live_playlists_have_no_end() {
    let list = media("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:100\n#EXTINF:2,\na.ts\n");
    assert_eq!((list.first_sequence, list.is_whole, list.segments.len()), (100, false, 1));
    let empty = media("#EXTM3U\n#EXT-X-TARGETDURATION:2\n");
    assert_eq!((empty.segments.len(), empty.target_ns), (0, 2_000_000_000));
}

#[test]
fn byte_ranges_go_on_where_the_one_before_ended() {
    let list = media(
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MAP:URI=\"init.mp4\",BYTERANGE=\"720@0\"\n\
        #EXTINF:4,\n#EXT-X-BYTERANGE:1000@720\nall.mp4\n#EXTINF:4,\n#EXT-X-BYTERANGE:500\nall.mp4\n\
        #EXT-X-MAP:URI=\"two.mp4\"\n#EXTINF:4,\nlast.m4s\n#EXT-X-ENDLIST\n",
    );
    let ranges: Vec<ByteRange> = list.segments.iter().map(|s| s.resource.range).collect();
    let part = |start, len| ByteRange::Part { start, len };
    assert_eq!(ranges, [part(720, 1000), part(1720, 500), ByteRange::Whole]);
    assert_eq!(list.segments.iter().map(|s| s.map).collect::<Vec<_>>(), [Some(0), Some(0), Some(1)]);
    assert_eq!(list.maps[0].range, part(0, 720));
    assert_eq!((list.maps[1].range, list.maps[1].url.target()), (ByteRange::Whole, "/films/a/two.mp4"));
    assert!(list.segments.iter().all(|s| !s.is_plain_ts));
    for bad in ["500", "0@3", "18446744073709551615@2"] {
        let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n#EXT-X-BYTERANGE:{bad}\na.ts\n");
        let got = parse_playlist(text.as_bytes(), &base(), VariantChoice::default());
        assert_eq!(got, Err(PlaylistFault::Range), "{bad}");
    }
}

#[test]
fn encrypted_segments_are_not_looked_into() {
    let list = media(
        "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n0.ts\n#EXT-X-KEY:METHOD=AES-128,URI=\"k\"\n\
        #EXTINF:4,\n1.ts\n#EXTINF:4,\n2.ts\n#EXT-X-KEY:METHOD=NONE\n#EXTINF:4,\n3.ts\n",
    );
    assert_eq!(list.segments.iter().map(|s| s.is_plain_ts).collect::<Vec<_>>(), [true, false, false, true]);
}

#[test]
fn variant_choice_selects_one_stream_of_master_playlist() {
    let text = "#EXTM3U\n\
        #EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"x\",URI=\"audio.m3u8\"\n\
        #EXT-X-STREAM-INF:BANDWIDTH=2000000,RESOLUTION=640x360\nmid.m3u8\n\
        #EXT-X-STREAM-INF:BANDWIDTH=8000000,CODECS=\"avc1.4d001f,mp4a.40.2\"\nhigh/index.m3u8\n\
        #EXT-X-STREAM-INF:BANDWIDTH=500000\n/low.m3u8\n\
        #EXT-X-STREAM-INF:BANDWIDTH=8000000\nbackup.m3u8\n\
        #EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=99000000,URI=\"frames.m3u8\"\n";
    for (choice, expected) in [
        (VariantChoice::Highest, "http://h/films/a/high/index.m3u8"),
        (VariantChoice::Lowest, "http://h/low.m3u8"),
        (VariantChoice::First, "http://h/films/a/mid.m3u8"),
    ] {
        let chosen = parse_playlist(text.as_bytes(), &base(), choice).unwrap();
        assert_eq!(chosen, Playlist::Master(HttpUrl::parse(expected).unwrap()), "{choice:?}");
    }
    let frames_only = "#EXTM3U\n#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=99000000,URI=\"frames.m3u8\"\n";
    let got = parse_playlist(frames_only.as_bytes(), &base(), VariantChoice::Highest);
    assert_eq!(got, Err(PlaylistFault::NoVariant));
}

#[test]
fn parse_playlist_of_unplayable_input_returns_fault() {
    let parse = |bytes: &[u8]| parse_playlist(bytes, &base(), VariantChoice::Highest);
    assert_eq!(parse(b"<html>"), Err(PlaylistFault::NotPlaylist));
    assert_eq!(parse(b""), Err(PlaylistFault::NotPlaylist));
    assert_eq!(parse(&vec![b'#'; MAX_PLAYLIST_BYTES + 1]), Err(PlaylistFault::TooLong));
    let secure = b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nhttps://h/a.ts\n";
    assert_eq!(parse(secure), Err(PlaylistFault::Address("HTTPS is not supported: use http://")));
}

#[test]
fn playlists_read_shares_equal_lists_up_to_limit() {
    let list =
        |n: u64| format!("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-MEDIA-SEQUENCE:{n}\n#EXTINF:2,\na.ts\n");
    let (known, other) = (Playlists::default(), HttpUrl::parse("http://h/other").unwrap());
    let read =
        |text: &str, base: &HttpUrl| match known.read(text.as_bytes(), base, VariantChoice::Highest).unwrap()
        {
            Playlist::Media(list) => list,
            Playlist::Master(url) => panic!("a master playlist: {url}"),
        };
    let first = read(&list(0), &base());
    assert!(Arc::ptr_eq(&first, &read(&list(0), &base())));
    assert!(!Arc::ptr_eq(&first, &read(&list(0), &other)), "its segments are elsewhere");
    for n in 1..20 {
        assert_eq!(read(&list(n), &base()).first_sequence, n);
    }
    assert_eq!(known.known.lock().unwrap().len(), MAX_REMEMBERED);
    assert!(!Arc::ptr_eq(&first, &read(&list(0), &base())), "forgotten");
    assert!(known.read(b"<html>", &other, VariantChoice::Highest).is_err());
}

#[test]
fn senseless_durations_are_bounded() {
    for (text, ns) in [("0", 0), ("99999999999999", 3_600_000_000_000), ("4", 4_000_000_000)] {
        let text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:{text},\na.ts\n");
        let list = media(&text);
        assert_eq!(list.segments[0].media_ns, ns, "{text}");
    }
}

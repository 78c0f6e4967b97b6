use super::*;

#[test]
fn url_without_secrets_keeps_scheme_host_and_path() {
    for (text, shown) in [
        ("rtsp://cam/live", "rtsp://cam/live"),
        ("a=rtsp://boss:it's-secret@cam/1?key=ab'cd, b", "a=rtsp://cam/1 b"),
        ("fetching 'rtsp://boss:it's@cam/1': refused", "fetching 'rtsp://cam/1': refused"),
        ("rtsp://user:pa@ss@cam:554/live?key=secret", "rtsp://cam:554/live"),
        ("rtsp://user:a/b@cam/live", "rtsp://cam/live"),
        ("rtsp://user:a#b?c@cam/live?key=secret", "rtsp://cam/live"),
        ("https://host/a.m3u8#secret", "https://host/a.m3u8"),
        ("rtsp://u:secret@cam/live: Connection refused", "rtsp://cam/live: Connection refused"),
        ("https://host/a?token=secret: Server returned 404", "https://host/a: Server returned 404"),
        (
            "'http://u:secret@a/x' and \"http://b/y?z=secret\" failed",
            "'http://a/x' and \"http://b/y\" failed",
        ),
        ("nothing here", "nothing here"),
        ("", ""),
    ] {
        assert_eq!(without_secrets(text), shown, "{text}");
    }
    let url = PullUrl::new("rtsp://user:secret@cam/live?key=secret").unwrap();
    assert_eq!(format!("{url} {url:?}"), "rtsp://cam/live PullUrl(rtsp://cam/live)");
}

#[test]
fn url_of_other_scheme_or_without_host_is_refused() {
    for url in
        ["rtsp://cam", "rtsps://u:p@cam:1/x", "http://h/x.m3u8", "https://h/x", "rtmp://h/a/b", "srt://h:1"]
    {
        assert!(PullUrl::new(url).is_some(), "{url}");
    }
    for url in [
        "",
        "cam",
        "file:///etc/passwd",
        "rtsp://",
        "rtsp:///x",
        "rtsp://u@/x",
        "http://:80/",
        "concat://a",
        "http://a b",
    ] {
        assert!(PullUrl::new(url).is_none(), "{url}");
    }
}

#[test]
fn plan_copies_what_a_transport_stream_carries() {
    let plan = |streams: &[(&str, &str)]| {
        let stream = |&(kind, codec): &(&str, &str)| ProbedStream {
            codec_type: kind.to_owned(),
            codec_name: codec.to_owned(),
        };
        Probed { streams: streams.iter().map(stream).collect() }.plan()
    };
    let copied = plan(&[("video", "h264"), ("audio", "aac"), ("data", "klv")]).unwrap();
    assert!(
        copied.copies_audio && copied.output_args().contains(&"h264_mp4toannexb,dump_extra=freq=keyframe")
    );
    let made = plan(&[("video", "hevc"), ("audio", "pcm_mulaw")]).unwrap();
    assert!(
        !made.copies_audio && made.output_args().contains(&"aac") && !made.output_args().contains(&"-bsf:v")
    );
    assert_eq!(plan(&[("audio", "mp2")]).unwrap(), PullPlan { video: None, copies_audio: true });
    assert!(plan(&[("video", "mjpeg")]).unwrap_err().contains("mjpeg"));
    assert!(plan(&[("data", "klv")]).unwrap_err().contains("neither video nor audio"));
}

#[test]
fn program_that_is_missing_is_named_with_the_remedy() {
    let pull = LivePull { ffmpeg: "/no/such/ffmpeg".into(), bounds: FfmpegBounds::default() };
    let url = PullUrl::new("rtsp://user:secret@127.0.0.1:1/x").unwrap();
    let why = pull.run(&url, &AtomicBool::new(false), &mut |_| ()).unwrap();
    assert!(why.starts_with("ffprobe cannot be started: ") && why.contains("--ffmpeg"), "{why}");
}

#[test]
fn source_that_refuses_is_reported_without_its_password() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let pull = LivePull { ffmpeg: "ffmpeg".into(), bounds: FfmpegBounds::default() };
    for scheme in ["rtsp", "http"] {
        let url = PullUrl::new(&format!("{scheme}://user:secret@127.0.0.1:{port}/x?key=secret")).unwrap();
        let why = pull.run(&url, &AtomicBool::new(false), &mut |_| ()).unwrap();
        assert!(why.contains("Connection refused") && !why.contains("secret"), "{why}");
    }
    assert_eq!(
        pull.run(&PullUrl::new("http://127.0.0.1").unwrap(), &AtomicBool::new(true), &mut |_| ()),
        None
    );
}

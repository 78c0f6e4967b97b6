use super::*;

fn probe(streams: &str) -> ProbeOutput {
    let json =
        format!(r#"{{"streams":[{streams}],"format":{{"format_name":"matroska,webm","duration":"12.5"}}}}"#);
    ProbeOutput::parse(json.as_bytes()).unwrap()
}

fn args(plan: &RemuxPlan) -> String {
    let args = plan.ffmpeg_args();
    args.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[test]
fn plan_copies_streams_that_mpeg_ts_can_carry() {
    let plan = probe(
        r#"{"index":0,"codec_type":"video","codec_name":"hevc"},
           {"index":1,"codec_type":"audio","codec_name":"ac3","channels":6,"sample_rate":"48000"},
           {"index":2,"codec_type":"audio","codec_name":"aac","tags":{"language":"ger"}}"#,
    )
    .plan(WebAudio::Never)
    .unwrap();
    assert_eq!((plan.duration, plan.notes.len()), (Some(MediaTicks(1_125_000)), 0));
    let args = args(&plan);
    assert!(
        args.contains(
            "-i file:/proc/self/fd/0 -map 0:0 -c:v:0 copy -map 0:1 -c:a:0 copy -map 0:2 -c:a:1 copy"
        ),
        "{args}"
    );
    assert!(
        args.ends_with("-f mpegts -pcr_period 20 -muxdelay 0.7 -omit_video_pes_length 0 pipe:1")
            && !args.contains("muxrate"),
        "{args}"
    );
}

#[test]
fn plan_transcodes_or_omits_other_streams_and_notes_it() {
    let plan = probe(
        r#"{"index":0,"codec_type":"video","codec_name":"mjpeg","disposition":{"attached_pic":1}},
           {"index":1,"codec_type":"video","codec_name":"vp9"},
           {"index":2,"codec_type":"audio","codec_name":"flac","channels":2,"sample_rate":"192000","tags":{"language":"ger"}},
           {"index":3,"codec_type":"subtitle","codec_name":"subrip","tags":{"language":"eng"}},
           {"index":7,"codec_type":"subtitle","codec_name":"hdmv_pgs_subtitle","tags":{"language":"ger"}},
           {"index":8,"codec_type":"subtitle","codec_name":"ass","tags":{"language":"ger","title":"Signs"},"disposition":{"forced":1}},
           {"index":4,"codec_type":"video","codec_name":"h264"},
           {"index":5,"codec_type":"attachment","codec_name":"ttf"},
           {"index":6,"codec_type":"audio","codec_name":"pcm_s16le","channels":12}"#,
    )
    .plan(WebAudio::Never)
    .unwrap();
    let text = args(&plan);
    for part in [
        "-map 0:1 -c:v:0 libx264",
        "-map 0:2 -c:a:0 aac -b:a:0 192k -filter:a:0 aresample=async=1,aformat=channel_layouts=mono|stereo|3.0|4.0|5.0|5.1|7.1 \
         -ar:a:0 48000",
        "-filter:a:1 aresample=async=1,pan=stereo|c0=c0|c1=c1",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(
        plan.notes,
        [
            "picture: vp9 cannot be carried, transcoded to H.264",
            "sound stream 2 (ger, flac): cannot be carried, transcoded to AAC",
            "sound stream 6 (pcm_s16le): cannot be carried, transcoded to AAC; only the first two of its channels, because it names none",
            "left out, not carried in the stream: cover picture, subtitles 7 (ger, hdmv_pgs_subtitle), which are pictures, \
             further picture stream (h264), attachment stream (ttf)",
        ]
    );
    let texts = plan.subtitles.iter().map(|text| (text.index, text.label.to_string(), text.name.as_deref()));
    let expected = [(3, "en".to_owned(), None), (8, "de.forced".to_owned(), Some("Signs"))];
    assert_eq!(texts.collect::<Vec<_>>(), expected);
}

#[test]
fn plan_without_video_and_audio_is_refused() {
    let nothing =
        probe(r#"{"index":0,"codec_type":"subtitle","codec_name":"ass"}"#).plan(WebAudio::Never).unwrap_err();
    assert_eq!(nothing.found, "subtitles 0 (ass)");
    assert_eq!(probe("").plan(WebAudio::Never).unwrap_err().found, "no stream at all");
}

#[test]
fn video_with_rotation_is_turned_and_noted() {
    let plan =
        probe(r#"{"index":0,"codec_type":"video","codec_name":"h264","side_data_list":[{"rotation":-90}]}"#)
            .plan(WebAudio::Never)
            .unwrap();
    assert!(plan.notes[0].contains("-90 degrees"), "{:?}", plan.notes);
    assert!(args(&plan).contains("-c:v:0 libx264"));
}

#[test]
fn video_copied_from_a_file_gets_its_parameter_sets_back() {
    for (codec, sets) in [("h264", true), ("mpeg2video", true), ("mpeg4", true), ("hevc", false)] {
        let stream = format!(r#"{{"index":0,"codec_type":"video","codec_name":"{codec}"}}"#);
        let text = args(&probe(&stream).plan(WebAudio::Never).unwrap());
        assert!(text.contains("-c:v:0 copy"), "{text}");
        assert_eq!(text.contains("dump_extra=freq=keyframe"), sets, "{text}");
    }
}

#[test]
fn video_that_begins_between_key_pictures_is_transcoded() {
    let plan = |pts: &str, flags: &str| {
        let json = format!(
            r#"{{"packets":[{{"stream_index":0,"pts_time":"{pts}","flags":"{flags}"}},{{"stream_index":1,"pts_time":"{pts}","flags":"{flags}"}}],
                "streams":[{{"index":0,"codec_type":"video","codec_name":"h264"}},{{"index":1,"codec_type":"audio","codec_name":"aac"}}]}}"#
        );
        args(&ProbeOutput::parse(json.as_bytes()).unwrap().plan(WebAudio::Never).unwrap())
    };
    let text = plan("-1.32", "KD");
    assert!(text.contains("-c:v:0 libx264") && text.contains("-c:a:0 copy -copypriorss:a:0 0"), "{text}");
    for (pts, flags) in [("0.000000", "K_"), ("-0.04", "K_"), ("N/A", "KD")] {
        let text = plan(pts, flags);
        assert!(text.contains("-c:v:0 copy") && !text.contains("copypriorss"), "{text}");
    }
}

#[test]
fn interlaced_video_that_is_transcoded_is_deinterlaced() {
    let stream = |order: &str| {
        format!(r#"{{"index":0,"codec_type":"video","codec_name":"dvvideo","field_order":"{order}"}}"#)
    };
    let text = |order| args(&probe(&stream(order)).plan(WebAudio::Never).unwrap());
    assert!(text("bt").contains("bwdif=mode=send_field"));
    assert!(!text("progressive").contains("bwdif"));
}

#[test]
fn web_audio_is_added_once_for_each_language_without() {
    let stream = |index: u32, codec: &str, language: &str| {
        format!(
            r#"{{"index":{index},"codec_type":"audio","codec_name":"{codec}","channels":6,"tags":{{"language":"{language}"}}}}"#
        )
    };
    let streams = [
        r#"{"index":0,"codec_type":"video","codec_name":"h264"}"#.to_owned(),
        stream(1, "ac3", "ger"),
        stream(2, "dts", "ger"),
        stream(3, "ac3", "eng"),
        stream(4, "aac", "eng"),
        stream(5, "eac3", "fre"),
        stream(6, "mp3", "ita"),
        stream(7, "flac", "spa"),
    ];
    let with = |setting| probe(&streams.join(",")).plan(setting).unwrap();
    let plan = with(WebAudio::Auto);
    let text = args(&plan);
    assert!(text.contains("-map 0:1 -c:a:7 aac -b:a:7 128k"), "{text}");
    assert!(text.contains("-map 0:5 -c:a:8 aac -b:a:8 128k"), "{text}");
    assert!(!text.contains("-c:a:9"), "{text}");
    assert!(plan.adds_audio && plan.notes.iter().filter(|note| note.contains("--web-audio")).count() == 2);
    assert!(!with(WebAudio::Never).adds_audio);
    // H.265 reaches browsers in fragmented MP4 only, which has no place for MP3.
    let with_hevc = streams.join(",").replace("h264", "hevc");
    assert!(args(&probe(&with_hevc).plan(WebAudio::Auto).unwrap()).contains("-map 0:6 -c:a:9 aac"));
}

#[test]
fn nonsense_from_ffprobe_is_an_error_or_nothing() {
    assert!(ProbeOutput::parse(b"{").is_err());
    assert!(ProbeOutput::parse(b"{}").unwrap().plan(WebAudio::Never).is_err());
    let odd =
        ProbeOutput::parse(br#"{"streams":[{"index":0,"codec_type":"audio"}],"format":{"duration":"N/A"}}"#)
            .unwrap();
    assert_eq!(odd.plan(WebAudio::Never).unwrap().duration, None);
}

#[test]
fn bare_pictures_without_time_stamps_are_transcoded() {
    let json = br#"{"streams":[{"index":0,"codec_type":"video","codec_name":"h264"}],"format":{"format_name":"h264"}}"#;
    let plan = ProbeOutput::parse(json).unwrap().plan(WebAudio::Never).unwrap();
    assert!(args(&plan).contains("-map 0:0 -c:v:0 libx264"));
    assert_eq!(plan.notes, ["picture: a bare h264 file has no time stamps, transcoded to H.264"]);
}

use super::*;

fn probe(streams: &str) -> Probe {
    let json =
        format!(r#"{{"streams":[{streams}],"format":{{"format_name":"matroska,webm","duration":"12.5"}}}}"#);
    Probe::parse(json.as_bytes()).unwrap()
}

fn args(plan: &RemuxPlan) -> String {
    let args = plan.ffmpeg_args(Path::new("-odd name.mkv"));
    args.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_a_stream_can_carry_is_copied() {
    let plan = probe(
        r#"{"index":0,"codec_type":"video","codec_name":"hevc"},
           {"index":1,"codec_type":"audio","codec_name":"ac3","channels":6,"sample_rate":"48000"},
           {"index":2,"codec_type":"audio","codec_name":"aac","tags":{"language":"ger"}}"#,
    )
    .plan()
    .unwrap();
    assert_eq!((plan.duration, plan.notes.len()), (Some(MediaTicks(1_125_000)), 0));
    let args = args(&plan);
    assert!(
        args.contains("-i file:-odd name.mkv -map 0:0 -c:v:0 copy -map 0:1 -c:a:0 copy -map 0:2 -c:a:1 copy"),
        "{args}"
    );
    assert!(
        args.ends_with("-f mpegts -pcr_period 20 -omit_video_pes_length 0 pipe:1")
            && !args.contains("muxrate"),
        "{args}"
    );
}

#[test]
fn what_it_cannot_carry_is_transcoded_or_left_out_and_said() {
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
    .plan()
    .unwrap();
    let text = args(&plan);
    for part in ["-map 0:1 -c:v:0 libx264", "-map 0:2 -c:a:0 aac -b:a:0 192k -ar:a:0 48000", "-ac:a:1 2"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(
        plan.notes,
        [
            "picture: vp9 cannot be carried, transcoded to H.264",
            "sound stream 2 (ger, flac): cannot be carried, transcoded to AAC",
            "sound stream 6 (pcm_s16le): cannot be carried, transcoded to AAC",
            "left out, not carried in the stream: cover picture, subtitles 7 (ger, hdmv_pgs_subtitle), which are pictures, \
             further picture stream (h264), attachment stream (ttf)",
        ]
    );
    let texts = plan.subtitles.iter().map(|text| (text.index, text.label.to_string(), text.name.as_deref()));
    let expected = [(3, "en".to_owned(), None), (8, "de.forced".to_owned(), Some("Signs"))];
    assert_eq!(texts.collect::<Vec<_>>(), expected);
}

#[test]
fn a_container_without_picture_and_sound_is_refused() {
    let nothing = probe(r#"{"index":0,"codec_type":"subtitle","codec_name":"ass"}"#).plan().unwrap_err();
    assert_eq!(nothing.found, "subtitles 0 (ass)");
    assert_eq!(probe("").plan().unwrap_err().found, "no stream at all");
}

#[test]
fn a_turned_picture_is_copied_with_a_note() {
    let plan =
        probe(r#"{"index":0,"codec_type":"video","codec_name":"h264","side_data_list":[{"rotation":-90}]}"#)
            .plan()
            .unwrap();
    assert!(plan.notes[0].contains("-90 degrees"), "{:?}", plan.notes);
}

#[test]
fn nonsense_from_ffprobe_is_an_error_or_nothing() {
    assert!(Probe::parse(b"{").is_err());
    assert!(Probe::parse(b"{}").unwrap().plan().is_err());
    let odd = Probe::parse(br#"{"streams":[{"index":0,"codec_type":"audio"}],"format":{"duration":"N/A"}}"#)
        .unwrap();
    assert_eq!(odd.plan().unwrap().duration, None);
}

#[test]
fn bare_pictures_without_time_stamps_are_transcoded() {
    let json = br#"{"streams":[{"index":0,"codec_type":"video","codec_name":"h264"}],"format":{"format_name":"h264"}}"#;
    let plan = Probe::parse(json).unwrap().plan().unwrap();
    assert!(args(&plan).contains("-map 0:0 -c:v:0 libx264"));
    assert_eq!(plan.notes, ["picture: a bare h264 file has no time stamps, transcoded to H.264"]);
}

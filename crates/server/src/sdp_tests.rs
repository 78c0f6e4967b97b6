use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::packet::WireLayout;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_core::wire::rtp::Timeline;

use super::*;
use crate::service::{AccessPoint, AccessPoints, FecMatrix, FecMode, Presentation, Transformed};

struct Nowhere;

impl AccessPoints for Nowhere {
    fn access_at_or_before(&self, _: MediaTicks) -> AccessPoint {
        AccessPoint { packet: 0, time: MediaTicks(0) }
    }
    fn access_at_or_after(&self, _: MediaTicks) -> Option<AccessPoint> {
        None
    }
    fn packet_at(&self, _: MediaTicks) -> u32 {
        0
    }
    fn time_of(&self, _: u32) -> Option<MediaTicks> {
        None
    }
}

fn entry(name: &str) -> TitleEntry {
    TitleEntry {
        id: TitleId([1; 16]),
        name: name.into(),
        title: name.into(),
        is_made: false,
        scale: Scale::NORMAL,
        duration: MediaTicks(90_000 * 83 + 45_000),
        presentation: Presentation::default(),
        mean_rate: BitRate(4_000_000),
        peak_rate: BitRate(4_500_000),
        packets: 100,
        timeline: Timeline { ssrc: 77, timestamp_base: 0 },
        layout: WireLayout::new(1316).unwrap(),
        fec: None,
        access: Arc::new(Nowhere),
        transform: None,
        began_unix_ms: None,
    }
}

#[test]
fn describe_plain_title_returns_complete_sdp() {
    let text = describe(&entry("film"), "192.0.2.1".parse().unwrap(), &[], &UrlOptions::default());
    let expected = "v=0\r\no=- 77 1 IN IP4 192.0.2.1\r\ns=film\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\na=control:*\r\n\
                    a=range:npt=0-83.500\r\nm=video 0 RTP/AVP 33\r\nb=AS:4637\r\na=rtpmap:33 MP2T/90000\r\n\
                    a=control:track1\r\n";
    assert_eq!(text, expected);
}

/// The last picture is shown after the last packet has come; players that end by the clock need to know.
#[test]
fn describe_range_extends_to_end_of_last_picture() {
    let presentation = Presentation::new(Some(MediaTicks(90_000 * 84 + 22_500)), Vec::new());
    let entry = TitleEntry { presentation, ..entry("film") };
    let text = describe(&entry, "192.0.2.1".parse().unwrap(), &[], &UrlOptions::default());
    assert!(text.contains("a=range:npt=0-84.250\r\n"), "{text}");
    // An end before the last packet would cut off media still to come.
    let entry = TitleEntry { presentation: Presentation::new(Some(MediaTicks(90_000)), Vec::new()), ..entry };
    assert!(
        describe(&entry, "::1".parse().unwrap(), &[], &UrlOptions::default())
            .contains("a=range:npt=0-83.500\r\n")
    );
}

#[test]
fn describe_title_with_fec_adds_fec_attribute() {
    let fec = Some(FecMatrix { data_units: 4, parity_units: 2, unit_packets: 20 });
    let entry = TitleEntry { fec, ..entry("film") };
    let text = describe(
        &entry,
        "192.0.2.1".parse().unwrap(),
        &[],
        &UrlOptions { fec: Some(FecMode::Xor), ..UrlOptions::default() },
    );
    let end = "a=control:track1?fec=xor\r\n\
               a=x-millrace-fec:xor,all;xor_port=+2;rs_port=+6;pt=96;L=20;D=4;k=4;m=2;U=20\r\n";
    assert!(text.ends_with(end), "{text}");
    let read = Session::parse(text.as_bytes()).unwrap();
    assert_eq!((read.medias.len(), read.medias[0].port), (1, 0));
}

#[test]
fn describe_transformed_title_names_transform_in_control_url() {
    let transform = Some(Transformed { name: "deu".into(), number: 3 });
    let entry = TitleEntry { transform, ..entry("film") };
    let text = |fec| {
        describe(&entry, "192.0.2.1".parse().unwrap(), &[], &UrlOptions { fec, ..UrlOptions::default() })
    };
    assert!(text(None).ends_with("a=control:track1?transform=deu\r\n"), "{}", text(None));
    let both = text(Some(FecMode::Xor));
    assert!(both.contains("a=control:track1?transform=deu&fec=xor\r\n"), "{both}");
}

#[test]
fn describe_title_with_renditions_lists_them() {
    let rendition = |name: &str, mean, peak| Rendition {
        name: name.parse().unwrap(),
        title: String::new(),
        mean_rate: BitRate(mean),
        peak_rate: BitRate(peak),
    };
    let all = [rendition("1080p", 4_000_000, 4_500_000), rendition("480p", 1_000_000, 1_200_000)];
    let asked = |name: &str| UrlOptions {
        fec: Some(FecMode::Xor),
        rendition: Some(name.to_owned()),
        ..UrlOptions::default()
    };
    let text = |name| describe(&entry("film"), "192.0.2.1".parse().unwrap(), &all, &asked(name));
    let end = "b=AS:1237\r\na=rtpmap:33 MP2T/90000\r\na=control:track1?fec=xor&rendition=480p\r\n\
               a=x-millrace-rendition:1080p;mean=4000000;peak=4500000\r\n\
               a=x-millrace-rendition:480p;mean=1000000;peak=1200000\r\n";
    assert!(text("480p").ends_with(end), "{}", text("480p"));
    assert!(text("auto").contains("b=AS:4637\r\n") && text("auto").contains("&rendition=auto\r\n"));
    assert_eq!(Session::parse(text("auto").as_bytes()).unwrap().medias.len(), 1);
}

#[test]
fn ipv6_and_names_that_would_break_a_line() {
    let text = describe(
        &entry("a\r\nm=audio 1 RTP/AVP 0"),
        "2001:db8::1".parse().unwrap(),
        &[],
        &UrlOptions::default(),
    );
    assert!(text.contains("o=- 77 1 IN IP6 2001:db8::1\r\n") && text.contains("c=IN IP6 ::\r\n"), "{text}");
    assert_eq!(Session::parse(text.as_bytes()).unwrap().medias.len(), 1);
    assert!(
        describe(&entry(""), "::1".parse().unwrap(), &[], &UrlOptions::default()).contains("\r\ns= \r\n")
    );
}

//! Lists for TV players: `/playlist.m3u`, and `/guide.xml` with the programme of channels, as XMLTV
//! (<https://github.com/XMLTV/xmltv/blob/master/xmltv.dtd>).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quick_xml::escape::escape;

use super::api::M3U;
use super::tuner::guide_numbers;
use crate::access::{LiveName, SeenBy};
use crate::answer::{Answer, SERVER};
use crate::context::RoutedRequest;
use crate::failures::failed;
use crate::guide::{ChannelGuide, GuideProgramme, server_origin};
use crate::site::{PicturesState, Site};

/// Media type of a guide.
pub(crate) const XML: &str = "application/xml; charset=utf-8";

/// The id of a live title in playlists and in the guide: with a dot, as XMLTV asks for.
fn guide_id(name: &str) -> String {
    format!("{name}.live")
}

/// `/playlist.m3u`: channels, live titles and titles, channels first, with the attributes that Kodi, Jellyfin and VLC group entries by, and the
/// address of the guide. The addresses of entries are relative to the playlist, so they work behind any proxy prefix.
pub(crate) fn playlist(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let mut text = String::from("#EXTM3U");
    if let Some(origin) = server_origin(routed.request, routed.source) {
        // Players know the one or the other.
        text += &format!(" x-tvg-url=\"{origin}/guide.xml\" url-tvg=\"{origin}/guide.xml\"");
    }
    text.push('\n');
    for LiveName { name, is_channel } in seen.live_names() {
        let (group, id) = (if is_channel { "Channels" } else { "Live" }, guide_id(&name));
        text += &format!("#EXTINF:-1 tvg-id=\"{id}\" group-title=\"{group}\",{name}\nlive/{name}.ts\n");
    }
    for title in seen.titles() {
        let (name, display_name) = (&title.name, title.display_name());
        let seconds = title.duration.as_secs_f64().round();
        text += &format!(
            "#EXTINF:{seconds} tvg-id=\"{name}\" group-title=\"Titles\",{display_name}\ntitles/{name}/index.m3u8\n"
        );
    }
    Answer::new(200, M3U, text).with("Cache-Control", "no-cache")
}

/// `/guide.xml`
pub(crate) async fn guide(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let origin = server_origin(routed.request, routed.source);
    let seen = seen.clone();
    let made = routed.shared.reading(move |_| Ok(guide_text(&seen, origin.as_deref(), &TimeZone::system())));
    match made.await {
        Ok(text) => Answer::new(200, XML, text).with("Cache-Control", "no-cache"),
        Err(error) => failed(&error),
    }
}

fn guide_text(seen: &SeenBy, origin: Option<&str>, zone: &TimeZone) -> String {
    let mut text =
        String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE tv SYSTEM \"xmltv.dtd\">\n");
    text += &format!("<tv source-info-name=\"Millrace\" generator-info-name=\"{SERVER}\">\n");
    let live = seen.live_names();
    let numbers = guide_numbers(seen);
    for LiveName { name, .. } in &live {
        text += &format!("  <channel id=\"{}\"><display-name>{name}</display-name>", guide_id(name));
        // Clients with the lineup of the tuner find a channel by its number, too.
        if let Some(number) = numbers.get(name) {
            text += &format!("<display-name>{number}</display-name>");
        }
        text += "</channel>\n";
    }
    let guides: Arc<[ChannelGuide]> = seen.site.guide();
    let by_channel: BTreeMap<&str, &ChannelGuide> =
        guides.iter().map(|guide| (guide.channel.as_str(), guide)).collect();
    for LiveName { name, .. } in &live {
        for programme in by_channel.get(name.as_str()).iter().flat_map(|guide| &guide.programmes) {
            write_programme(&mut text, name, programme, (seen, origin, zone));
        }
    }
    text += "</tv>\n";
    text
}

/// One programme. Viewers without the right to its title get the name of the channel instead.
fn write_programme(
    text: &mut String,
    channel: &str,
    programme: &GuideProgramme,
    (seen, origin, zone): (&SeenBy, Option<&str>, &TimeZone),
) {
    let Some(start) = guide_time(programme.from_unix_ms, zone) else { return };
    let stop = programme.to_unix_ms.and_then(|to| guide_time(to, zone));
    let stop = stop.map_or_else(String::new, |stop| format!(" stop=\"{stop}\""));
    let is_shown = seen.may_watch_name(&programme.title);
    let title = if is_shown { xml_text(&programme.display_name) } else { channel.to_owned() };
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "  <programme start=\"{start}\"{stop} channel=\"{}\"><title>{title}</title>",
        guide_id(channel)
    );
    if let Some(poster) =
        origin.filter(|_| is_shown).and_then(|origin| poster(seen, origin, &programme.title))
    {
        let _ = write!(text, "<icon src=\"{poster}\"/>");
    }
    *text += "</programme>\n";
}

/// The address of a title's poster, if it has one.
fn poster(seen: &SeenBy, origin: &str, title: &str) -> Option<String> {
    let title = seen.title(title)?;
    let has_poster = matches!(seen.pictures(&title), PicturesState::Made(_));
    has_poster.then(|| format!("{origin}/titles/{}/poster.jpg", title.name))
}

/// Local time with its distance from UTC, as XMLTV has it; `None`: beyond the year 9999.
fn guide_time(unix_ms: u64, zone: &TimeZone) -> Option<String> {
    let time = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    Some(time.to_zoned(zone.clone()).strftime("%Y%m%d%H%M%S %z").to_string())
}

/// Text for an element. Characters that XML 1.0 does not have are left out.
fn xml_text(text: &str) -> String {
    let is_of_xml = |c: &char| !matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    let clean: String = text.chars().filter(is_of_xml).collect();
    let clean = clean.trim();
    // An element without text is no title.
    if clean.is_empty() { "-".to_owned() } else { escape(clean).into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_time_is_local_and_follows_the_change_of_the_clocks() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        for (unix_s, expected) in [
            (1_792_886_399, "20261025015959 +0200"),
            (1_792_889_999, "20261025025959 +0200"),
            (1_792_890_000, "20261025020000 +0100"),
            (951_782_400, "20000229010000 +0100"),
        ] {
            assert_eq!(guide_time(unix_s * 1000, &berlin).as_deref(), Some(expected), "{unix_s}");
        }
        assert_eq!(guide_time(951_782_400_999, &TimeZone::UTC).as_deref(), Some("20000229000000 +0000"));
        assert_eq!(guide_time(u64::MAX, &TimeZone::UTC), None);
        assert_eq!(guide_time(i64::MAX as u64, &TimeZone::UTC), None);
    }

    #[test]
    fn xml_text_has_no_character_that_xml_forbids() {
        assert_eq!(
            xml_text("A & B <c> \u{1}\u{b}\u{fffe}\"d\" \u{e9}"),
            "A &amp; B &lt;c&gt; &quot;d&quot; \u{e9}"
        );
        assert_eq!(xml_text(" \u{0} "), "-");
    }
}

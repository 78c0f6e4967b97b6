//! `/discover.json`, `/lineup.json` and `/lineup_status.json`: the live titles as the channels of an HDHomeRun tuner, which Plex, Jellyfin and Emby
//! read from an address that is entered there. There is no discovery by UDP.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::access::SeenBy;
use crate::answer::Answer;
use crate::context::RoutedRequest;
use crate::guide::server_origin;
use crate::limits::{FIRST_GUIDE_NUMBER, GUIDE_NUMBERS, TUNERS};

/// The device.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TunerDevice {
    friendly_name: &'static str,
    /// Of a device that sends MPEG-TS as it comes.
    model_number: &'static str,
    firmware_name: &'static str,
    firmware_version: &'static str,
    /// Eight hexadecimal digits with a checksum; the same after a restart.
    #[serde(rename = "DeviceID")]
    device_id: String,
    /// Empty: it has no account at the maker of the devices.
    device_auth: &'static str,
    #[serde(rename = "BaseURL")]
    base_url: String,
    #[serde(rename = "LineupURL")]
    lineup_url: String,
    /// Streams at once that clients ask for at most. Admission decides how many they get.
    tuner_count: u32,
}

/// A channel of the device.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct LineupChannel {
    /// Follows from the name, so it stays when other channels come and go.
    guide_number: String,
    guide_name: String,
    /// The live title by HTTP.
    #[serde(rename = "URL")]
    url: String,
}

/// The state of its search for channels: there is none.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct LineupStatus {
    scan_in_progress: u8,
    scan_possible: u8,
    source: &'static str,
    source_list: [&'static str; 1],
}

/// `/discover.json`
pub(crate) fn discover(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let Some(base_url) = server_origin(routed.request, routed.source) else { return no_host() };
    Answer::json(&TunerDevice {
        friendly_name: "Millrace",
        model_number: "HDHR5-4DT",
        firmware_name: "millrace",
        firmware_version: env!("CARGO_PKG_VERSION"),
        device_id: format!("{:08X}", device_id(&seen.site.server_id())),
        device_auth: "",
        lineup_url: format!("{base_url}/lineup.json"),
        base_url,
        tuner_count: TUNERS,
    })
}

/// `/lineup.json`
pub(crate) fn lineup(routed: RoutedRequest<'_>, seen: &SeenBy) -> Answer {
    let Some(origin) = server_origin(routed.request, routed.source) else { return no_host() };
    let numbers = guide_numbers(seen);
    let channels = seen.live_names().into_iter().map(|live| LineupChannel {
        guide_number: numbers.get(&live.name).map_or_else(String::new, u32::to_string),
        url: format!("{origin}/live/{}.ts", live.name),
        guide_name: live.name,
    });
    Answer::json(&channels.collect::<Vec<_>>())
}

/// `/lineup_status.json`
pub(crate) fn lineup_status() -> Answer {
    let source = "Cable";
    Answer::json(&LineupStatus { scan_in_progress: 0, scan_possible: 0, source, source_list: [source] })
}

fn no_host() -> Answer {
    Answer::error(400, "the request names no host that an address can have")
}

/// The numbers of all live titles. They do not depend on the viewer's rights, so all users have the same.
pub(crate) fn guide_numbers(seen: &SeenBy) -> HashMap<String, u32> {
    number_by_name(seen.site.live().into_iter().map(|live| live.name).collect())
}

/// A number for each name, by a hash of the name; the next free one if it is taken. So a channel that is added hardly ever changes the number of another.
fn number_by_name(mut names: Vec<String>) -> HashMap<String, u32> {
    names.sort();
    let mut owners: HashMap<u32, String> = HashMap::new();
    for name in names.into_iter().take(GUIDE_NUMBERS as usize) {
        let hash = blake3::hash(name.as_bytes());
        let [a, b, c, d, ..] = *hash.as_bytes();
        let mut place = u32::from_le_bytes([a, b, c, d]) % GUIDE_NUMBERS;
        while owners.contains_key(&place) {
            place = (place + 1) % GUIDE_NUMBERS;
        }
        owners.insert(place, name);
    }
    owners.into_iter().map(|(place, name)| (name, FIRST_GUIDE_NUMBER + place)).collect()
}

/// A device's number, made of the server's id. Its last digit is a checksum, which clients verify: all digits, every second one replaced by its entry in
/// [`CHECKSUM_DIGITS`], make zero.
fn device_id(server: &[u8; 16]) -> u32 {
    // No devices were made with numbers that begin so.
    const FIRST: u32 = 0x1f00_0000;
    let [a, b, c, ..] = *blake3::hash(server).as_bytes();
    let id = FIRST | (u32::from_le_bytes([a, b, c, 0]) << 4) & 0x00ff_fff0;
    id | checksum(id)
}

/// Zero if the checksum of a number is right.
fn checksum(id: u32) -> u32 {
    let digit = |place: u32| id >> (4 * place) & 0xf;
    (0..8).fold(0, |sum, place| match place % 2 {
        1 => sum ^ CHECKSUM_DIGITS[digit(place) as usize],
        _ => sum ^ digit(place),
    })
}

const CHECKSUM_DIGITS: [u32; 16] =
    [0xa, 0x5, 0xf, 0x6, 0x7, 0xc, 0x1, 0xb, 0x9, 0x2, 0x8, 0xd, 0x4, 0x3, 0xe, 0x0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_id_has_a_checksum_that_clients_accept() {
        // Numbers of devices, and of none.
        assert_eq!([0x1031_1e80, 0x1011_f855, 0x1018_3772, 0x10b1_37f8].map(checksum), [0; 4]);
        assert!([0x1031_1e81, 0x1031_1e08, 0x1234_5678].map(checksum).iter().all(|&sum| sum != 0));
        for server in 0..=u8::MAX {
            let id = device_id(&[server; 16]);
            assert!(checksum(id) == 0 && id >> 24 == 0x1f, "{id:08X}");
        }
        assert_ne!(device_id(&[1; 16]), device_id(&[2; 16]));
    }

    #[test]
    fn number_by_name_stays_when_others_come_and_go() {
        let of = |names: &[&str]| number_by_name(names.iter().map(|name| (*name).to_owned()).collect());
        let (two, three) = (of(&["lobby", "bar"]), of(&["alpha", "news", "bar", "lobby"]));
        assert!(["lobby", "bar"].iter().all(|name| two[*name] == three[*name]), "{two:?} {three:?}");
        // As many as there are numbers: each is given once.
        let names: Vec<String> = (0..GUIDE_NUMBERS).map(|number| format!("channel-{number}")).collect();
        let mut numbers: Vec<u32> = number_by_name(names).into_values().collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(FIRST_GUIDE_NUMBER..FIRST_GUIDE_NUMBER + GUIDE_NUMBERS));
    }
}

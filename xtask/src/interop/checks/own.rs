//! Our own receiver: its output must be the stored file, byte for byte.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde_json::Value;

use super::{Check, CheckOutcome, END_SECONDS, SHORT_FILMS, Transport};
use crate::interop::Lab;
use crate::interop::films::TestMedia;
use crate::interop::process::ProgramSpec;
use crate::interop::server::Server;

/// Viewers of one film at once in the long form.
const CROWD: usize = 8;

pub(super) fn add(checks: &mut Vec<Check>) {
    for transport in Transport::BOTH {
        for film in SHORT_FILMS {
            checks.push(Check::playing(
                "own",
                "whole",
                film,
                transport,
                &[],
                move |lab, server, film, log| whole(lab, server, film, transport, log),
            ));
        }
        let crowd = move |lab: &Lab, server: &Server, film: &TestMedia, log: &str| {
            crowd(lab, server, film, transport, log)
        };
        checks.push(Check::playing("own", "crowd", "big", transport, &[], crowd).only_long());
    }
}

fn player(
    lab: &Lab,
    server: &Server,
    film: &TestMedia,
    transport: Transport,
    file: &Path,
) -> Result<ProgramSpec, String> {
    Ok(server
        .client(&lab.millrace)
        .arg("play")
        .arg(server.url(film)?)
        .args(&format!("--transport {} --stats json -o", transport.word()))
        .arg(file)
        .arg("--verify")
        .arg(&film.stored()?.data))
}

/// One viewer.
pub(super) fn whole(
    lab: &Lab,
    server: &Server,
    film: &TestMedia,
    transport: Transport,
    log: &str,
) -> CheckOutcome {
    let file = server.log(log).with_extension("ts");
    let program = player(lab, server, film, transport, &file)?;
    let ended = program.run(&server.log(log), film.seconds + END_SECONDS)?;
    ended.ok("millrace play")?;
    same_bytes(&film.stored()?.data, &file)?;
    let figures = judge(&ended.out)?;
    std::fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let late = ended.seconds - film.seconds;
    let bytes = film.stored()?.bytes;
    Ok(format!("all {bytes} bytes equal, {figures}, ended {late:.1} s after the film's length"))
}

/// Several viewers of the same film at the same time.
fn crowd(lab: &Lab, server: &Server, film: &TestMedia, transport: Transport, log: &str) -> CheckOutcome {
    let mut players = Vec::new();
    for number in 0..CROWD {
        let name = server.log(&format!("{log}-{number}"));
        let file = name.with_extension("ts");
        players.push((player(lab, server, film, transport, &file)?.start(&name)?, file));
    }
    for (running, file) in &mut players {
        running.wait(film.seconds + END_SECONDS)?.ok("millrace play")?;
        same_bytes(&film.stored()?.data, file)?;
        std::fs::remove_file(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(format!("{CROWD} viewers at once, all {} bytes equal for each", film.stored()?.bytes))
}

/// The shortest time between the last packet and the BYE: players are still playing their buffered
/// media.
const BYE_AFTER_US: u64 = 2_000_000;

/// Judges the protocol as the receiver saw it: the end announced and not too early, RTP-Info exact
/// (players trust it).
fn judge(report: &str) -> CheckOutcome {
    let report: Value =
        serde_json::from_str(report).map_err(|e| format!("millrace play printed no JSON: {e}"))?;
    let problems = report["problems"].as_array().map_or(0, Vec::len);
    if problems != 0 {
        return Err(format!("the receiver complains: {}", report["problems"]));
    }
    if report["rtp_info_exact"] != true {
        return Err(format!("RTP-Info is not that of the first packet: {}", report["plays"]));
    }
    let bye = report["bye"]["after_last_packet_us"].as_u64();
    if report["end"] != "bye" || bye.is_none_or(|us| us < BYE_AFTER_US) {
        return Err(format!("ended by {}, BYE {bye:?} us after the last packet", report["end"]));
    }
    let late = report["timing"]["lateness"]["p99_us"].as_f64().ok_or("the report has no lateness")?;
    Ok(format!("{} packets, 99 % within {:.1} ms", report["packets"], late / 1000.0))
}

fn same_bytes(wanted: &Path, got: &Path) -> Result<(), String> {
    let open =
        |path: &Path| File::open(path).map(BufReader::new).map_err(|e| format!("{}: {e}", path.display()));
    let (mut a, mut b) = (open(wanted)?, open(got)?);
    let (mut left, mut right) = (vec![0u8; 1 << 16], vec![0u8; 1 << 16]);
    let mut offset = 0;
    loop {
        let (n, m) = (fill(&mut a, &mut left)?, fill(&mut b, &mut right)?);
        if left[..n] != right[..m] {
            let same = left[..n].iter().zip(&right[..m]).take_while(|(a, b)| a == b).count();
            return Err(format!("the received file differs from the stored one at byte {}", offset + same));
        }
        if n == 0 {
            return Ok(());
        }
        offset += n;
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> Result<usize, String> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) => return Err(format!("reading a film: {e}")),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_are_compared_to_the_last_byte() {
        let dir = std::env::temp_dir().join(format!("millrace-xtask-own-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut bytes = vec![7u8; 100_000];
        let stored = file("a", &bytes);
        assert_eq!(same_bytes(&stored, &file("b", &bytes)), Ok(()));
        assert!(same_bytes(&stored, &file("c", &bytes[..99_999])).unwrap_err().ends_with("at byte 99999"));
        bytes[70_000] = 8;
        assert!(same_bytes(&stored, &file("d", &bytes)).unwrap_err().ends_with("at byte 70000"));
        assert!(same_bytes(&stored, &dir.join("none")).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn judge_requires_bye_rtp_info_and_lateness() {
        let good = json!({"packets": 10, "end": "bye", "rtp_info_exact": true, "problems": [],
                          "bye": {"after_last_packet_us": 2_500_100}, "timing": {"lateness": {"p99_us": 12_345}}});
        assert_eq!(judge(&good.to_string()).unwrap(), "10 packets, 99 % within 12.3 ms");
        for (name, value, words) in [
            ("problems", json!(["odd"]), "complains"),
            ("rtp_info_exact", json!(false), "RTP-Info"),
            ("rtp_info_exact", Value::Null, "RTP-Info"),
            ("bye", json!({"after_last_packet_us": 100}), "BYE Some(100) us"),
            ("bye", Value::Null, "BYE None"),
            ("end", json!("timeout"), "ended by \"timeout\""),
            ("timing", Value::Null, "no lateness"),
        ] {
            let mut report = good.clone();
            report[name] = value;
            let fault = judge(&report.to_string()).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
        assert!(judge("").is_err());
    }
}

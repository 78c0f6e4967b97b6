//! Every structure is shown as it is, as text and as JSON, damaged ones too.

use std::fs;
use std::path::PathBuf;

use millrace_store::inspect::inspect;
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::{Film, SIZE};

fn store() -> (tempfile::TempDir, PathBuf, TitleInfo) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(6000, 1).add_sizes(&volume, "film", &[SIZE, 9024]);
    let title = dir.path().join(format!("titles/{}", info.id));
    (dir, title, info)
}

#[test]
fn inspect_of_superblock_and_store_shows_their_fields() {
    let (dir, _, info) = store();
    let volume = Volume::open(dir.path()).unwrap();
    let shown = inspect(&dir.path().join("volume.mrv"), None).unwrap();
    assert_eq!(shown.json["frame"]["kind"], "superblock");
    assert_eq!(shown.json["k"], 1);
    assert_eq!(shown.json["m"], 0);
    assert_eq!(shown.json["unit_packets"], 20);
    assert_eq!(shown.json["volume"], volume.superblock().volume.to_string());
    let text = shown.to_string();
    assert!(text.contains("file_bytes: 128\n") && text.contains("\nmembers: 1\n"), "{text}");
    let whole = inspect(dir.path(), None).unwrap();
    assert_eq!(whole.json["volume"], shown.json);
    assert_eq!(whole.json["titles"][0]["title"]["id"], info.id.to_string());
    assert!(whole.to_string().contains("name: film"), "{whole}");
}

#[test]
fn inspect_of_manifest_shows_stored_fields() {
    let (_dir, title, info) = store();
    let shown = inspect(&title.join("manifest.mrm"), None).unwrap();
    assert_eq!(shown.json["title"], serde_json::to_value(&info).unwrap());
    assert_eq!(shown.json["placement"]["rows"], 858u64.div_ceil(20));
    assert_eq!(shown.json["files"][1]["name"], "data.ts");
    let text = shown.to_string();
    assert!(text.contains("packet_sizes: 1316, 9024") && text.contains("meta-9024.mrp"), "{text}");
    // The list of files is a table: a line of names, then one line for each.
    let table: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("files:")).skip(1).take(5).collect();
    assert!(
        table[0].contains("blake3") && table[0].contains("bytes") && table[2].ends_with("data.ts"),
        "{text}"
    );
}

#[test]
fn inspect_of_index_shows_all_or_requested_range() {
    let (_dir, title, _) = store();
    let whole = inspect(&title.join("index.mri"), None).unwrap().json;
    assert_eq!(whole["packets"], 858);
    assert_eq!(whole["times"].as_array().unwrap().len(), 4);
    assert_eq!(whole["times"][1]["packet"], 256);
    assert_eq!(whole["access_points"].as_array().unwrap().len(), 9);
    assert_eq!(whole["access_points"][2]["byte"], 200 * 1316);
    assert_eq!(whole["pids"][1]["role"], "stream");
    assert_eq!(whole["pids"][1]["pcr"], true);
    let part = inspect(&title.join("index.mri"), Some(2..4)).unwrap().json;
    assert_eq!(
        part["access_points"].as_array().unwrap()[..],
        whole["access_points"].as_array().unwrap()[2..4]
    );
    assert_eq!(part["access_points_total"], 9);
    let beyond = inspect(&title.join("index.mri"), Some(100..200)).unwrap().json;
    assert_eq!(beyond["access_points"].as_array().unwrap().len(), 0);
    let text = inspect(&title.join("index.mri"), Some(0..1)).unwrap().to_string();
    assert!(text.contains("duration: 0:00:00.533"), "{text}");
}

#[test]
fn meta_data_by_block_and_by_record() {
    let (_dir, title, _) = store();
    let film = Film::new(6000, 1);
    let path = title.join("meta-1316.mrp");
    let shown = inspect(&path, None).unwrap();
    assert_eq!(shown.json["blocks"].as_array().unwrap().len(), 2);
    assert_eq!(shown.json["blocks"][1]["packets"], "510..=857");
    assert_eq!(shown.json["blocks"][0]["state"], "ok");
    assert_eq!(shown.json["blocks"][0]["random_access"], 6);
    assert_eq!(shown.json.get("records"), None);
    let shown = inspect(&path, Some(508..512)).unwrap();
    let records = shown.json["records"].as_array().unwrap();
    assert_eq!(records.len(), 4);
    for (record, packet) in records.iter().zip(508u32..) {
        assert_eq!(record["packet"], packet);
        assert_eq!(record["ticks"], film.meta(SIZE, packet).time().0);
        let payload = &film.bytes[packet as usize * 1316..][..1316];
        let sum = millrace_core::wire::checksum::sum16(payload);
        assert_eq!(record["sum"], format!("{sum:04x}"));
    }
    let shown = inspect(&path, Some(500..501)).unwrap();
    assert_eq!(shown.json["records"][0]["flags"], "random-access");
    assert_eq!(inspect(&path, Some(9000..9001)).unwrap().json["records"].as_array().unwrap().len(), 0);
}

#[test]
fn range_sums_and_what_every_form_costs() {
    let (_dir, title, info) = store();
    let film = Film::new(6000, 1);
    let shown = inspect(&title.join("sums.mrr"), Some(2038..2042)).unwrap();
    assert_eq!((&shown.json["grains"], &shown.json["blocks_total"]), (&6000.into(), &3.into()));
    assert_eq!(shown.json["damaged_blocks"].as_array().unwrap().len(), 0);
    let grains = shown.json["grains_listed"].as_array().unwrap();
    assert_eq!(grains.len(), 4);
    for (listed, grain) in grains.iter().zip(2038..) {
        let sum = millrace_core::wire::checksum::sum16(&film.bytes[grain * 188..][..188]);
        assert_eq!(listed["sum"], format!("{sum:04x}"), "grain {grain}");
    }
    let whole = inspect(&title, None).unwrap();
    let table = whole.json["storage"].as_array().unwrap();
    let line = |form: &str, size: serde_json::Value| {
        let mut lines = table.iter().filter(|line| line["packet_bytes"] == size);
        lines.find(|line| line["form"].as_str().unwrap().starts_with(form)).unwrap()
    };
    assert_eq!(line("data", "any".into())["bytes"], info.bytes);
    for (form, size, stored) in [
        ("records", 1316.into(), "yes"),
        ("records", 9024.into(), "yes"),
        ("records", 8084.into(), "no"),
        ("sums alone", 940.into(), "no"),
        ("range sums", "any".into(), "yes"),
    ] {
        let line = line(form, size);
        assert_eq!(line["stored"], stored, "{line}");
        let percent = line["bytes"].as_f64().unwrap() * 100.0 / info.bytes as f64;
        assert!((line["percent"].as_f64().unwrap() - percent).abs() < 0.001, "{line}");
    }
    let on_disk = |name: &str| fs::metadata(title.join(name)).unwrap().len();
    let files = ["meta-1316.mrp", "meta-9024.mrp", "sums.mrr", "crcs.mrc"];
    let total = line("stored beside the data", "any".into());
    assert_eq!(total["bytes"], files.map(on_disk).iter().sum::<u64>(), "{whole}");
    assert!(whole.to_string().contains("storage:\n"), "{whole}");
    // A damaged block is named.
    let mut bytes = fs::read(title.join("sums.mrr")).unwrap();
    bytes[2 * 4096 + 5] ^= 1;
    fs::write(title.join("sums.mrr"), bytes).unwrap();
    let shown = inspect(&title.join("sums.mrr"), None).unwrap();
    assert_eq!(shown.json["damaged_blocks"][0]["block"], 1, "{shown}");
}

#[test]
fn damage_is_shown_where_it_is() {
    let (dir, title, _) = store();
    let path = title.join("meta-1316.mrp");
    let mut bytes = fs::read(&path).unwrap();
    bytes[2 * 4096 + 5] ^= 1;
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let shown = inspect(&path, None).unwrap();
    assert_eq!(shown.json["blocks"][0]["state"], "ok");
    assert_eq!(shown.json["blocks"][1]["state"], "failed to fill whole buffer");
    fs::write(&path, &bytes).unwrap();
    let text = inspect(&title, None).unwrap().to_string();
    assert!(text.contains("metadata block 1: checksum is"), "{text}");
    for (file, version, words) in
        [("index.mri", 3, "index: body checksum is"), ("manifest.mrm", 4, "manifest: body checksum is")]
    {
        let path = title.join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[90] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let shown = inspect(&path, None).unwrap();
        assert_eq!(shown.json["frame"]["version"], version, "the frame itself is whole");
        assert!(shown.json["error"].as_str().unwrap().contains(words), "{shown}");
    }
    fs::write(dir.path().join("volume.mrv"), b"what is this").unwrap();
    let shown = inspect(dir.path(), None).unwrap();
    assert!(shown.json["volume"]["error"].as_str().unwrap().contains("frame: magic is"), "{shown}");
    assert!(shown.json["titles"][0]["error"].is_string(), "{shown}");
}

#[test]
fn inspect_of_unsupported_or_missing_path_returns_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = inspect(dir.path(), None).unwrap_err().to_string();
    assert!(error.contains("neither volume.mrv nor manifest.mrm"), "{error}");
    assert!(inspect(&dir.path().join("missing"), None).is_err());
}

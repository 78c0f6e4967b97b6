//! `millrace volume` and `--member`: volumes of several directories by the command line.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{fails, film, ok, run};
use serde_json::Value;

/// Directories of a volume as arguments.
fn members(dir: &Path, count: usize) -> Vec<String> {
    (0..count).map(|i| dir.join(format!("m{i}")).to_str().unwrap().to_owned()).collect()
}

fn status(dir: &str) -> (i32, Value) {
    let output = run(&["volume", "status", dir, "--json"]);
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn create_add_look_lose_replace() {
    let dir = tempfile::tempdir().unwrap();
    let m = members(dir.path(), 3);
    let said = ok(&["volume", "create", &m[0], &m[1], &m[2]]);
    assert!(said.contains("stripes of 4 + 2 units") && said.contains("1 member may be lost"), "{said}");
    assert!(said.contains(&format!("millrace serve --store {}", m[0])), "{said}");
    let source = film(dir.path(), "film.ts", 4);
    ok(&["add", source.to_str().unwrap(), "--store", &m[1]]);
    for store in &m {
        let list: Value = serde_json::from_str(&ok(&["ls", "--json", "--store", store])).unwrap();
        assert_eq!(list[0]["name"], "film");
    }
    let (code, found) = status(&m[2]);
    assert_eq!((code, &found["health"]), (0, &Value::from("whole")));
    assert_eq!((&found["k"], &found["m"], &found["members_may_be_lost"]), (&4.into(), &2.into(), &1.into()));
    assert!(found["members"].as_array().unwrap().iter().all(|member| member["titles"] == 1));
    assert!(ok(&["volume", "status", &m[0]]).contains("all members are present"));
    assert!(ok(&["inspect", "film", "--store", &m[2]]).contains("parity.mru"));

    // One is lost: films are listed, none can be added, and the answer names the lost disk.
    fs::rename(&m[1], dir.path().join("lost")).unwrap();
    let (code, found) = status(&m[0]);
    assert_eq!((code, &found["health"], &found["members_lost"]), (1, &Value::from("degraded"), &1.into()));
    assert!(ok(&["ls", "--store", &m[0]]).contains("film"));
    let error = fails(&["add", source.to_str().unwrap(), "--name", "again", "--store", &m[0]]);
    assert!(error.contains(&m[1]) && error.contains("every member"), "{error}");
    let new = dir.path().join("new").to_str().unwrap().to_owned();
    // The option's earlier name.
    let said = ok(&["volume", "replace", &m[0], "--member", "1", &new]);
    assert!(said.contains("millrace repair --store"), "{said}");
    let (code, found) = status(&new);
    assert_eq!((code, &found["members"][1]["state"]), (1, &Value::from("rebuilding")));
    let error = fails(&["volume", "replace", &m[0], "--old", "3", &m[1]]);
    assert!(error.contains("no member 3"), "{error}");

    // A second one is too many.
    fs::rename(&m[2], dir.path().join("lost too")).unwrap();
    let (code, found) = status(&m[0]);
    assert_eq!((code, &found["health"]), (4, &Value::from("lost")));
    let error = fails(&["scrub", "--store", &m[0]]);
    assert!(error.contains("tolerates 1") && error.contains(&m[2]), "{error}");
}

#[test]
fn members_named_one_by_one_are_a_new_volume_or_the_old_one_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let m = members(dir.path(), 2);
    let source = film(dir.path(), "film.ts", 3);
    let source = source.to_str().unwrap();
    ok(&["add", source, "--member", &m[0], "--member", &m[1], "--parity", "1"]);
    assert_eq!(status(&m[1]).1["members_may_be_lost"], 1);
    let error = fails(&["add", source, "--member", &m[0], "--member", &m[1], "--parity", "0"]);
    assert!(error.contains("created with 1"), "{error}");
    let moved: Vec<PathBuf> = (0..2).map(|i| dir.path().join(format!("moved{i}"))).collect();
    (0..2).for_each(|i| fs::rename(&m[i], &moved[i]).unwrap());
    let [a, b] = [0, 1].map(|i| moved[i].to_str().unwrap());
    assert_eq!(status(a).0, 1, "the other is not where it was");
    assert!(ok(&["ls", "--member", b, "--member", a]).contains("film"));
    assert_eq!(status(a).0, 0, "where they are now has been noted");
    ok(&["rm", "film", "--member", a, "--member", b]);
    assert_eq!(ok(&["ls", "--json", "--store", b]).trim(), "[]");
}

#[test]
fn volume_add_extends_store_and_create_accepts_network_parity() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let source = film(dir.path(), "film.ts", 3);
    ok(&["add", source.to_str().unwrap(), "--store", &at("store")]);
    let said = ok(&["volume", "add", &at("store"), &at("disk2")]);
    assert!(said.contains("member 1 is") && said.contains("stripes of 4 + 4 units"), "{said}");
    ok(&["add", source.to_str().unwrap(), "--name", "second", "--store", &at("disk2")]);
    let (code, found) = status(&at("store"));
    assert_eq!(
        (code, &found["members"][0]["titles"], &found["members"][1]["titles"]),
        (0, &2.into(), &1.into())
    );

    let said =
        ok(&["volume", "create", &at("alone"), "--fec", "2", "--data-units", "10", "--unit-packets", "10"]);
    assert!(said.contains("stripes of 10 + 2 units of 10 packets; the parity is for the network"), "{said}");
    ok(&["add", source.to_str().unwrap(), "--store", &at("alone")]);
    assert_eq!(status(&at("alone")).1["is_st2022_fec"], true);
}

#[test]
fn volume_with_invalid_arguments_is_refused_with_reason() {
    let dir = tempfile::tempdir().unwrap();
    let m = members(dir.path(), 3);
    let refused = |args: &[&str], words: &str| {
        let error = fails(&[&["volume"][..], args].concat());
        assert!(error.contains(words), "{args:?}: {error}");
    };
    refused(&["create", &m[0], &m[1], "--parity", "2"], "parity 2 with 2 members");
    refused(&["create", &m[0], &m[1], "--fec", "1"], "for one member");
    refused(&["create", &m[0], &m[0]], "named twice");
    refused(&["create", &m[0], &m[1], &m[2], "--data-units", "5"], "multiples of 2 from 2 to 16");
    refused(&["create", &m[0], &m[1], "--data-units", "0"], "multiples of 1 from 1 to 8");
    refused(&["create", &m[0], "--parity", "1"], "of 1 member at most 0 may be lost");
    refused(&["create", &m[0], "--data-units", "5"], "only with --fec");
    refused(&["create", &m[0], &m[1], "--unit-packets", "21"], "allowed 1 to 20");
    refused(&["status", &m[0]], "not a Millrace store");
    assert_eq!(
        run(&["volume", "status", &m[0]]).status.code(),
        Some(3),
        "neither degraded nor lost: not known"
    );
    refused(&["status", &m[0], "--member", &m[1]], "cannot be used with");
    assert!(!Path::new(&m[0]).join("volume.mrv").exists());
    ok(&["volume", "create", &m[0], &m[1]]);
    refused(&["create", &m[1], &m[2]], "is there already");
    refused(&["add", &m[0], &m[1]], "is there already");
    // Members of two volumes are not mixed.
    let others: Vec<String> =
        (3..5).map(|i| dir.path().join(format!("m{i}")).to_str().unwrap().to_owned()).collect();
    ok(&["volume", "create", &others[0], &others[1]]);
    let error = fails(&["ls", "--member", &m[0], "--member", &others[1]]);
    assert!(error.contains("belongs to volume"), "{error}");
    let with_slash = format!("{}/", m[0]);
    let error = fails(&["ls", "--member", &m[0], "--member", &with_slash]);
    assert!(error.contains("is named twice"), "{error}");
}

#[test]
fn status_says_what_to_do_about_each_member() {
    let dir = tempfile::tempdir().unwrap();
    let m = members(dir.path(), 3);
    ok(&["volume", "create", &m[0], &m[1], &m[2]]);
    let said = |dir: &str| String::from_utf8(run(&["volume", "status", dir]).stdout).unwrap();
    fs::rename(&m[1], dir.path().join("lost")).unwrap();
    let text = said(&m[0]);
    let advice = format!("millrace volume replace {} --old 1 NEW", m[0]);
    assert!(text.contains("member 1: mount its disk again") && text.contains(&advice), "{text}");
    assert!(text.contains("name all of them once"), "{text}");
    let new = dir.path().join("new").to_str().unwrap().to_owned();
    let error = fails(&["volume", "replace", &m[0], "--old", &new, &new]);
    assert!(error.contains("a member's index or directory"), "{error}");
    ok(&["volume", "replace", &m[0], "--old", &m[1], &new]);
    let text = said(&new);
    assert!(text.ends_with(&format!("rebuild what they lack: millrace repair --store {}\n", m[0])), "{text}");
    ok(&["repair", "--store", &m[0]]);
    assert!(said(&m[0]).ends_with("all members are present\n"));
}

#[test]
fn add_to_missing_store_reports_its_creation() {
    let dir = tempfile::tempdir().unwrap();
    let source = film(dir.path(), "film.ts", 3);
    let source = source.to_str().unwrap();
    let told = |args: &[&str]| {
        let output = run(&[&["add", "-q", source][..], args].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let store = dir.path().join("store").to_str().unwrap().to_owned();
    let first = told(&["--store", &store]);
    assert!(first.contains(&format!("created a new store of plain files in {store}")), "{first}");
    assert_eq!(told(&["--store", &store]), "", "it is there now");
    let m = members(dir.path(), 2);
    let named = ["--member", &m[0], "--member", &m[1]];
    let first = told(&named);
    assert!(first.contains("created a new volume of 2 members"), "{first}");
    assert_eq!(told(&named), "");
}

#[test]
fn rm_of_unreadable_title_by_id_removes_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let title = store.join("titles").join("ab".repeat(16));
    let store = store.to_str().unwrap();
    let source = film(dir.path(), "film.ts", 3);
    ok(&["add", source.to_str().unwrap(), "--store", store]);
    fs::create_dir(&title).unwrap();
    fs::write(title.join("manifest.mrm"), b"torn").unwrap();
    let said = ok(&["rm", &"ab".repeat(16), "--store", store]);
    assert!(said.contains(&"ab".repeat(16)) && !title.exists(), "{said}");
    for nobody in ["cd".repeat(16), "nobody".to_owned()] {
        let error = fails(&["rm", &nobody, "--store", store]);
        assert!(error.contains("no such title"), "{error}");
    }
    assert!(ok(&["ls", "--store", store]).contains("film"));
}

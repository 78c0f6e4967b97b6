//! `/api/v1/reload`: the outcome reaches the caller, and callers without the right cause nothing.

use std::sync::Arc;

use millrace_web::{ChangeEffect, ReloadReport, SettingChange, WebLimits};

use super::client::Client;
use super::openapi::Described;
use super::site::{MadeUp, serve};

const JSON: &str = "Content-Type: application/json\r\n";
const PATH: &str = "/api/v1/reload";

fn changed() -> ReloadReport {
    let change = SettingChange {
        name: "cache".to_owned(),
        before: "1GiB".to_owned(),
        now: "2GiB".to_owned(),
        effect: ChangeEffect::NeedsRestart,
        until_restart: Some("1GiB".to_owned()),
    };
    ReloadReport { at_unix_s: Some(7), changes: vec![change], faults: Vec::new() }
}

#[test]
fn reload_answers_with_its_outcome() {
    let faults = vec!["millrace.toml:2: what".to_owned()];
    let refused = ReloadReport { at_unix_s: Some(8), changes: Vec::new(), faults };
    let site = Arc::new(MadeUp::default());
    site.reloads.lock().unwrap().extend([changed(), refused.clone()]);
    let (_web, address, _) = serve(&site, WebLimits::default());
    let described = Described::by(address);
    let mut client = Client::to(address);
    let answer = client.ask("POST", PATH, JSON);
    assert_eq!((answer.status, described.judge(PATH, "POST", &answer)), (200, Ok(())));
    assert_eq!(serde_json::from_str::<ReloadReport>(answer.text()).unwrap(), changed());
    let answer = client.ask("POST", PATH, JSON);
    assert_eq!((answer.status, described.judge(PATH, "POST", &answer)), (422, Ok(())));
    assert!(answer.text().contains("no setting was changed: millrace.toml:2: what"), "{}", answer.text());
    assert_eq!(serde_json::from_str::<ReloadReport>(answer.text()).unwrap(), refused);
    let answer = client.ask("POST", PATH, JSON);
    assert_eq!((answer.status, described.judge(PATH, "POST", &answer)), (503, Ok(())));
    assert!(
        answer.header("Retry-After").is_some() && answer.text().contains("too many"),
        "{}",
        answer.text()
    );
    let answer = client.get(PATH);
    assert_eq!(answer.text(), "{\"at_unix_s\":null,\"changes\":[],\"faults\":[]}\n");
}

#[test]
fn reload_by_page_of_another_site_or_with_a_body_is_refused() {
    let site = Arc::new(MadeUp::default());
    site.reloads.lock().unwrap().push_back(changed());
    let (_web, address, _) = serve(&site, WebLimits::default());
    for (lines, status) in [
        (String::new(), 415),
        (format!("{JSON}Content-Length: 1\r\n\r\n["), 400),
        (format!("{JSON}X-Forwarded-For: 192.0.2.1\r\n"), 403),
        (format!("{JSON}Origin: http://other.example\r\n"), 403),
    ] {
        let answer = Client::to(address).ask("POST", PATH, &lines);
        assert_eq!(answer.status, status, "{lines}: {}", answer.text());
    }
    assert_eq!(site.reloads.lock().unwrap().len(), 1, "no reload was begun");
}

//! Posters and pictures for seeking: caching, access, and the answer if there are none.

use std::sync::Arc;

use millrace_rights::{Gate, Keys, Now, Policy, RightsSnapshot, SignedLink, TrustHere, Watching};
use millrace_web::{PicturesState, WebLimits};
use serde_json::Value;

use super::client::Client;
use super::site::{Film, MadeUp, Manner, made_up_pictures, serve, serve_to};

const PATHS: [&str; 3] = ["/titles/film/poster.jpg", "/titles/film/sprites.jpg", "/titles/film/sprites.vtt"];

fn site() -> Arc<MadeUp> {
    MadeUp::with(vec![Film::pattern("film", 10, Manner::Sends)])
}

#[test]
fn versioned_picture_address_is_cached_forever() {
    let (_web, address, _) = serve(&site(), WebLimits::default());
    let mut client = Client::to(address);
    let title: Value = serde_json::from_str(client.get("/api/v1/titles/film").text()).unwrap();
    let address_of = |what: &str| title[what].as_str().unwrap().to_owned();
    assert_eq!(title["pictures"], "made");
    let pictures = made_up_pictures();
    let (poster, list) = (client.get(&address_of("poster")), client.get(&address_of("sprites")));
    assert_eq!((&poster.body, poster.header("Content-Type")), (&pictures.poster, Some("image/jpeg")));
    assert_eq!(list.header("Content-Type"), Some("text/vtt; charset=utf-8"));
    let version = address_of("poster").split_once("?v=").unwrap().1.to_owned();
    let expected = format!(
        "WEBVTT\n\n00:00:00.000 --> 00:00:20.000\nsprites.jpg?v={version}#xywh=0,0,160,90\n\n\
         00:00:20.000 --> 00:00:40.000\nsprites.jpg?v={version}#xywh=160,0,160,90\n\n\
         00:00:40.000 --> 00:01:00.000\nsprites.jpg?v={version}#xywh=320,0,160,90\n"
    );
    assert_eq!(list.text(), expected);
    let sheet = client.get(&format!("/titles/film/sprites.jpg?v={version}"));
    assert_eq!(sheet.body, pictures.sheet);
    for answer in [&poster, &list, &sheet] {
        assert_eq!(answer.header("Cache-Control"), Some("public, max-age=31536000, immutable"));
        assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("*"));
    }
    for path in PATHS {
        for path in [path.to_owned(), format!("{path}?v=0123456789abcdef"), format!("{path}?vv={version}")] {
            let answer = client.get(&path);
            assert_eq!(answer.header("Cache-Control"), Some("no-cache"), "{path}");
            let tag = answer.header("ETag").unwrap();
            let again = client.ask("GET", &path, &format!("If-None-Match: {tag}\r\n"));
            assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
            let other = client.ask("GET", &path, "If-None-Match: \"x\"\r\n");
            assert_eq!((other.status, &other.body), (200, &answer.body), "{path}");
        }
    }
}

#[test]
fn missing_pictures_return_404_with_reason() {
    let site = site();
    let (_web, address, _) = serve(&site, WebLimits::default());
    for (state, said, retry) in [
        (PicturesState::Waiting, "waiting", true),
        (PicturesState::Delayed("no space now".to_owned()), "no space now", true),
        (PicturesState::Never("no ffmpeg here".to_owned()), "no ffmpeg here", false),
    ] {
        *site.pictures.lock().unwrap() = Some(state);
        let mut client = Client::to(address);
        let title: Value = serde_json::from_str(client.get("/api/v1/titles/film").text()).unwrap();
        assert_eq!(
            (&title["pictures"], &title["poster"], &title["sprites"]),
            (&said.into(), &Value::Null, &Value::Null)
        );
        for path in PATHS {
            let answer = client.get(path);
            assert_eq!((answer.status, answer.header("Retry-After").is_some()), (404, retry), "{path}");
            assert!(retry || answer.text().contains(said), "{}", answer.text());
            assert_eq!(answer.header("Cache-Control"), Some("no-store"), "{path}");
        }
    }
    assert_eq!(Client::to(address).get("/titles/none/poster.jpg").status, 404);
}

/// A client with a link to the title has access to its pictures, by addresses that carry the link
/// on; no shared cache keeps them.
#[test]
fn picture_addresses_carry_signed_link() {
    let keys = Keys { links: [3; 32], tokens: [4; 32] };
    let link = SignedLink::sign(&keys.links, "film", Now::read().unix_s + 600);
    let policy = Policy { watching: Watching::ByRights, trust_here: TrustHere::Never, ..Policy::default() };
    let gate = Arc::new(
        Gate::new(policy, RightsSnapshot { keys: Some(keys), ..RightsSnapshot::default() }).unwrap(),
    );
    let (_web, address, _) = serve_to(&site(), WebLimits::default(), &gate);
    let mut client = Client::to(address);
    for path in PATHS {
        assert_eq!(client.get(path).status, 401, "{path}");
        assert_eq!(client.get(&format!("{path}?{}", link.query())).status, 200, "{path}");
    }
    let list = client.get(&format!("/titles/film/sprites.vtt?{}", link.query()));
    let sheet = list.text().lines().find(|line| line.starts_with("sprites.jpg")).unwrap();
    assert!(sheet.contains(link.query()), "{sheet}");
    let sheet = client.get(&format!("/titles/film/{}", sheet.split('#').next().unwrap()));
    assert_eq!((sheet.status, &sheet.body), (200, &made_up_pictures().sheet));
    assert_eq!(sheet.header("Cache-Control"), Some("private, max-age=31536000, immutable"));
}

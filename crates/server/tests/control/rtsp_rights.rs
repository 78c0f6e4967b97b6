//! Viewing access by RTSP: every method without rights, and each way to present them.

use std::sync::{Arc, Mutex};

use crate::rtsp_support::{Answer, SECOND, World};
use millrace_core::limits::rights::{FAILURES_AT_ONCE, NONCE_NS};
use millrace_rights::{
    Advised, Adviser, Answered, Cost, Gate, NewUser, Policy, Question, RightsFile, RightsSnapshot,
    SignedLink, Watching,
};
use millrace_server::rtsp::reply::PUBLIC;

const PASSWORD: &str = "secret-word";
/// Unix time at the beginning of a world.
const BEGIN: u64 = 1_000_100;

/// `anna` may watch `film`, `plain` too but cannot sign in by Digest, `other` may watch something else.
fn known() -> RightsSnapshot {
    let dir = tempfile::tempdir().unwrap();
    let mut file = RightsFile::open_or_create(&dir.path().join("rights.sqlite")).unwrap();
    for (name, pattern, digest) in [("anna", "film", true), ("plain", "fil?", false), ("other", "x*", true)] {
        let cost = Cost { kib: 8, passes: 1 };
        file.add_user(&NewUser { name, password: PASSWORD, digest, manages: false, cost }, 0).unwrap();
        file.grant(name, pattern).unwrap();
    }
    file.grant("other", "torn").unwrap();
    file.read().unwrap()
}

fn world(known: RightsSnapshot) -> (World, Arc<Gate>) {
    let policy = Policy { watching: Watching::ByRights, ..Policy::default() };
    let gate = Arc::new(Gate::new(policy, known).unwrap());
    let given = Arc::clone(&gate);
    let world = World::with(|config| {
        config.gate = Some(given);
        config.wall_offset_ns = 1_000_000 * SECOND;
    });
    (world, gate)
}

/// The hash of a text, by a program that shares nothing with ours.
fn hash(program: &str, text: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut child =
        Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("coreutils");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// The value of a parameter of a challenge.
fn param<'a>(challenge: &'a str, name: &str) -> &'a str {
    let start = challenge.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
    challenge[start..].split('"').next().unwrap()
}

/// A player with a name and a password.
struct Player {
    user: &'static str,
    password: &'static str,
    /// `md5sum` or `sha256sum`.
    program: &'static str,
    /// Number of the next request, if it counts them (`qop=auth`).
    count: Option<u32>,
    nonce: String,
}

impl Player {
    fn new(user: &'static str, asked: &Answer) -> Self {
        let nonce = param(asked.get("www-authenticate"), "nonce").to_owned();
        Self { user, password: PASSWORD, program: "md5sum", count: None, nonce }
    }

    fn authorization(&mut self, method: &str, uri: &str) -> String {
        let Self { user, password, program, nonce, .. } = self;
        let ha1 = hash(program, &format!("{user}:millrace:{password}"));
        let ha2 = hash(program, &format!("{method}:{uri}"));
        let (middle, more) = match &mut self.count {
            None => (String::new(), String::new()),
            Some(count) => {
                *count += 1;
                (format!("{count:08x}:0a4f:auth:"), format!(", qop=auth, nc={count:08x}, cnonce=\"0a4f\""))
            }
        };
        let response = hash(program, &format!("{ha1}:{nonce}:{middle}{ha2}"));
        let algorithm = if *program == "md5sum" { "MD5" } else { "SHA-256" };
        format!(
            "Authorization: Digest username=\"{user}\", realm=\"millrace\", nonce=\"{nonce}\", uri=\"{uri}\", \
             response=\"{response}\", algorithm={algorithm}{more}"
        )
    }

    fn request(&mut self, method: &str, url: &str, more: &str) -> String {
        let authorization = self.authorization(method, url);
        format!("{method} {url} RTSP/1.0\nCSeq: 2\n{authorization}{more}")
    }
}

const URL: &str = "rtsp://192.0.2.1/film";
const TRACK: &str = "rtsp://192.0.2.1/film/track1";
const BY_TCP: &str = "\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1";

fn describe(w: &mut World, conn: millrace_server::service::ConnKey, more: &str) -> Answer {
    w.ask(conn, &format!("DESCRIBE {URL} RTSP/1.0\nCSeq: 1{more}"))
}

#[test]
fn request_without_rights_returns_401_for_all_but_options() {
    let (mut w, _) = world(known());
    let methods = PUBLIC.split(", ").chain(["ANNOUNCE", "RECORD", "REDIRECT", "FROBNICATE"]);
    for method in methods {
        for url in [URL, TRACK, "rtsp://192.0.2.1/none", "rtsp://192.0.2.1/"] {
            for session in ["", "\nSession: 0123456789abcdef"] {
                let conn = w.connect();
                let answer = w.ask(conn, &format!("{method} {url} RTSP/1.0\nCSeq: 1{BY_TCP}{session}"));
                match method {
                    // OPTIONS lists the methods, and players ask for them first.
                    "OPTIONS" => assert_ne!(answer.status, 401),
                    _ => {
                        assert_eq!(answer.status, 401, "{method} {url}{session}");
                        assert!(answer.has("www-authenticate") && answer.body.is_empty(), "{answer:?}");
                    }
                }
                w.hang_up(conn);
            }
        }
    }
    assert!(
        w.notices.iter().all(|event| !format!("{event:?}").contains("401")),
        "asking is nothing for the log"
    );
    w.assert_empty();
}

#[test]
fn session_id_of_another_user_grants_no_access() {
    let (mut w, _) = world(known());
    let conn = w.connect();
    let asked = describe(&mut w, conn, "");
    let mut anna = Player::new("anna", &asked);
    let set_up = w.ask(conn, &anna.request("SETUP", TRACK, BY_TCP));
    assert_eq!(set_up.status, 200, "{set_up:?}");
    let session = format!("\nSession: {}", set_up.session());
    let thief = w.connect();
    for method in PUBLIC.split(", ").filter(|method| *method != "OPTIONS") {
        let answer = w.ask(thief, &format!("{method} {URL} RTSP/1.0\nCSeq: 1{BY_TCP}{session}"));
        assert_eq!(answer.status, 401, "{method}");
        let mut other = Player::new("other", &answer);
        let answer = w.ask(thief, &other.request(method, URL, &format!("{BY_TCP}{session}")));
        assert_eq!(answer.status, 403, "{method}");
        // By a title that this user may watch.
        let own = "rtsp://192.0.2.1/xyz";
        let answer = w.ask(thief, &other.request(method, own, &format!("{BY_TCP}{session}")));
        assert_eq!(answer.status, 403, "{method}");
    }
    assert_eq!(w.ask(conn, &anna.request("PLAY", URL, &session)).status, 200);
}

#[test]
fn digest_with_and_without_counting_by_both_hashes() {
    let (mut w, _) = world(known());
    for program in ["md5sum", "sha256sum"] {
        for count in [None, Some(0)] {
            let conn = w.connect();
            let asked = describe(&mut w, conn, "");
            let mut player = Player { program, count, ..Player::new("anna", &asked) };
            let sdp = w.ask(conn, &player.request("DESCRIBE", URL, ""));
            assert_eq!(sdp.status, 200, "{program} {count:?} {sdp:?}");
            let session = w.ask(conn, &player.request("SETUP", TRACK, BY_TCP)).session();
            let session = format!("\nSession: {session}");
            assert_eq!(w.ask(conn, &player.request("PLAY", URL, &session)).status, 200);
            for method in ["GET_PARAMETER", "PAUSE", "TEARDOWN"] {
                assert_eq!(w.ask(conn, &player.request(method, URL, &session)).status, 200, "{method}");
            }
            w.hang_up(conn);
        }
    }
}

#[test]
fn digest_response_is_accepted_once_and_only_for_its_request() {
    let (mut w, _) = world(known());
    let conn = w.connect();
    let asked = describe(&mut w, conn, "");
    let mut player = Player { count: Some(0), ..Player::new("anna", &asked) };
    let request = player.request("DESCRIBE", URL, "");
    assert_eq!(w.ask(conn, &request).status, 200);
    let again = w.ask(conn, &request);
    assert_eq!(again.status, 401);
    assert!(again.get("www-authenticate").contains("stale=true"), "{again:?}");
    // Overheard, and used for something else.
    let overheard = player.authorization("DESCRIBE", URL);
    let conn = w.connect();
    for request in [
        format!("SETUP {TRACK} RTSP/1.0\nCSeq: 1\n{overheard}{BY_TCP}"),
        format!("DESCRIBE rtsp://192.0.2.1/fila RTSP/1.0\nCSeq: 1\n{overheard}"),
    ] {
        let answer = w.ask(conn, &request);
        assert_eq!(answer.status, 401, "{request}");
        assert!(answer.get("www-authenticate").contains("stale=false"), "{answer:?}");
    }
}

#[test]
fn digest_with_expired_nonce_gets_stale_challenge_and_can_retry() {
    let (mut w, _) = world(known());
    let conn = w.connect();
    let asked = describe(&mut w, conn, "");
    let mut player = Player { count: Some(0), ..Player::new("anna", &asked) };
    w.now = w.now.plus_ns(NONCE_NS);
    let stale = w.ask(conn, &player.request("DESCRIBE", URL, ""));
    assert_eq!(stale.status, 401);
    assert!(stale.get("www-authenticate").contains("stale=true"), "{stale:?}");
    player.nonce = param(stale.get("www-authenticate"), "nonce").to_owned();
    assert_eq!(w.ask(conn, &player.request("DESCRIBE", URL, "")).status, 200);
}

#[test]
fn basic_for_every_user_by_a_check_elsewhere() {
    let (mut w, gate) = world(known());
    // printf 'plain:secret-word' | base64
    let basic = "\nAuthorization: Basic cGxhaW46c2VjcmV0LXdvcmQ=";
    let conn = w.connect();
    assert_eq!(describe(&mut w, conn, basic).status, 200);
    assert_eq!(describe(&mut w, conn, basic).status, 200);
    assert_eq!(gate.counters().passwords_checked, 1);
    // A user that cannot sign in by Digest gets the same reply as others.
    let asked = describe(&mut w, conn, "\nAuthorization: Basic cGxhaW46d3JvbmctLXdvcmQ=");
    assert_eq!(asked.status, 401);
    let mut player = Player::new("plain", &asked);
    assert_eq!(w.ask(conn, &player.request("DESCRIBE", URL, "")).status, 401);
}

#[test]
fn connection_keeps_granted_access_until_rights_change() {
    let (mut w, gate) = world(known());
    let conn = w.connect();
    let asked = describe(&mut w, conn, "");
    let mut player = Player::new("anna", &asked);
    assert_eq!(w.ask(conn, &player.request("DESCRIBE", URL, "")).status, 200);
    assert_eq!(describe(&mut w, conn, "").status, 200);
    assert_eq!(w.ask(conn, "DESCRIBE rtsp://192.0.2.1/xyz RTSP/1.0\nCSeq: 1").status, 403);
    gate.replace(RightsSnapshot::default());
    assert_eq!(describe(&mut w, conn, "").status, 401);
    let other = w.connect();
    assert_eq!(describe(&mut w, other, "").status, 401);
}

#[test]
fn too_many_wrong_answers_and_none_is_looked_at() {
    let (mut w, _) = world(known());
    let conn = w.connect_from("192.0.2.66:4000");
    let asked = describe(&mut w, conn, "");
    let mut wrong = Player { password: "wrong-word", ..Player::new("anna", &asked) };
    for _ in 0..FAILURES_AT_ONCE {
        assert_eq!(w.ask(conn, &wrong.request("DESCRIBE", URL, "")).status, 401);
    }
    let mut right = Player::new("anna", &asked);
    let shut = w.ask(conn, &right.request("DESCRIBE", URL, ""));
    assert_eq!((shut.status, shut.get("retry-after")), (503, "6"));
    let elsewhere = w.connect();
    let asked = describe(&mut w, elsewhere, "");
    let mut there = Player::new("anna", &asked);
    assert_eq!(w.ask(elsewhere, &there.request("DESCRIBE", URL, "")).status, 200);
    w.now = w.now.plus_ns(7 * SECOND);
    assert_eq!(w.ask(conn, &right.request("DESCRIBE", URL, "")).status, 200);
}

#[test]
fn signed_link_grants_its_title_and_session_outlives_it() {
    let known = known();
    let link = |title: &str| SignedLink::sign(&known.keys.as_ref().unwrap().links, title, BEGIN + 60);
    let (film, other) = (link("film"), link("xyz"));
    let (mut w, _) = world(known.clone());
    let ask = |w: &mut World, conn, method: &str, url: &str, more: &str| {
        w.ask(conn, &format!("{method} {url} RTSP/1.0\nCSeq: 1{more}")).status
    };
    let conn = w.connect();
    let signed = format!("{URL}?{}", film.query());
    assert_eq!(ask(&mut w, conn, "DESCRIBE", &signed, ""), 200);
    // The following requests name the base URL from the reply.
    let set_up = w.ask(conn, &format!("SETUP {TRACK} RTSP/1.0\nCSeq: 1{BY_TCP}"));
    assert_eq!(set_up.status, 200, "{set_up:?}");
    let session = format!("\nSession: {}", set_up.session());
    assert_eq!(ask(&mut w, conn, "PLAY", URL, &session), 200);
    assert_eq!(ask(&mut w, conn, "DESCRIBE", "rtsp://192.0.2.1/xyz", ""), 401);
    // It ends; the session does not.
    w.now = w.now.plus_ns(60 * SECOND);
    assert_eq!(ask(&mut w, conn, "GET_PARAMETER", URL, &session), 200);
    assert_eq!(ask(&mut w, conn, "DESCRIBE", URL, ""), 403);
    assert_eq!(ask(&mut w, conn, "DESCRIBE", &signed, ""), 403);
    let conn = w.connect();
    for bad in [format!("{URL}?{}", other.query()), format!("{signed}x"), signed.replace("film", "fil")] {
        assert_eq!(ask(&mut w, conn, "DESCRIBE", &bad, ""), 403, "{bad}");
    }
}

#[test]
fn open_servers_do_not_look_at_credentials() {
    let gate = Arc::new(Gate::new(Policy::default(), known()).unwrap());
    let given = Arc::clone(&gate);
    let mut w = World::with(|config| config.gate = Some(given));
    let conn = w.connect();
    assert_eq!(describe(&mut w, conn, "\nAuthorization: Basic x").status, 200);
    assert_eq!(gate.counters().wrong_credentials, 0);
}

/// Allows all users except `other`, and fails for `plain`; records the questions.
#[derive(Clone, Default)]
struct Webhook(Arc<Mutex<Vec<Question>>>);

impl Adviser for Webhook {
    fn ask(&self, question: &Question, answered: Answered) {
        self.0.lock().unwrap().push(question.clone());
        answered(match question.user.as_deref() {
            Some("plain") => Err("it is gone".to_owned()),
            user => Ok(user != Some("other")),
        });
    }
}

#[test]
fn webhook_is_asked_only_after_rights_grant_access() {
    for lets_in_without in [false, true] {
        let (webhook, (mut w, gate)) = (Webhook::default(), world(known()));
        gate.be_advised(Advised::new(Box::new(webhook.clone()), lets_in_without));
        let asked = |webhook: &Webhook| webhook.0.lock().unwrap().len();
        // Whom the rights refuse it is not asked about.
        let conn = w.connect();
        let challenge = describe(&mut w, conn, "");
        assert_eq!((challenge.status, asked(&webhook)), (401, 0));
        let mut other = Player::new("other", &challenge);
        assert_eq!(w.ask(conn, &other.request("DESCRIBE", URL, "")).status, 403);
        assert_eq!(asked(&webhook), 0);
        // A whole session by Digest, whose answer to a challenge is good once; counted requests too.
        let mut anna = Player { count: Some(0), ..Player::new("anna", &challenge) };
        assert_eq!(w.ask(conn, &anna.request("DESCRIBE", URL, "")).status, 200);
        let set_up = w.ask(conn, &anna.request("SETUP", TRACK, BY_TCP));
        assert_eq!(set_up.status, 200, "{set_up:?}");
        let session = format!("\nSession: {}", set_up.session());
        for method in ["PLAY", "GET_PARAMETER", "TEARDOWN"] {
            assert_eq!(w.ask(conn, &anna.request(method, URL, &session)).status, 200, "{method}");
        }
        // One question for all of it: the answer is kept.
        let questions = webhook.0.lock().unwrap().clone();
        assert_eq!(questions.len(), 1);
        assert_eq!((&*questions[0].title, questions[0].user.as_deref()), ("film", Some("anna")));
        assert_eq!(questions[0].address.to_string(), "192.0.2.7");
        // The webhook refuses, or does not answer.
        let conn = w.connect();
        let mut other = Player::new("other", &challenge);
        // The program is not asked about a missing title, because a client could invent any number
        // of them.
        let nowhere = w.ask(conn, &other.request("DESCRIBE", "rtsp://192.0.2.1/xyz", ""));
        assert_eq!((nowhere.status, asked(&webhook)), (404, 1));
        let refused = w.ask(conn, &other.request("DESCRIBE", "rtsp://192.0.2.1/torn", ""));
        assert_eq!(refused.status, 403, "{refused:?}");
        let basic = "\nAuthorization: Basic cGxhaW46c2VjcmV0LXdvcmQ="; // plain:secret-word
        let silent = describe(&mut w, conn, basic);
        assert_eq!(silent.status, if lets_in_without { 200 } else { 503 }, "{silent:?}");
        let counters = gate.counters();
        assert_eq!((counters.webhook_asked, counters.webhook_refused, counters.webhook_failed), (3, 1, 1));
    }
}

#[test]
fn user_stream_limit_spans_all_connections() {
    let mut known = known();
    known.users.get_mut("anna").unwrap().limits.streams = Some(1);
    let (mut w, _) = world(known);
    let conn = w.connect();
    let challenge = describe(&mut w, conn, "");
    let mut anna = Player { count: Some(0), ..Player::new("anna", &challenge) };
    let set_up = w.ask(conn, &anna.request("SETUP", TRACK, BY_TCP));
    let session = format!("\nSession: {}", set_up.session());
    assert_eq!(w.ask(conn, &anna.request("PLAY", URL, &session)).status, 200);
    let second = w.connect();
    let refused = w.ask(second, &anna.request("SETUP", TRACK, BY_TCP));
    assert_eq!(refused.status, 453, "{refused:?}");
    assert_eq!(w.ask(conn, &anna.request("TEARDOWN", URL, &session)).status, 200);
    assert_eq!(w.ask(second, &anna.request("SETUP", TRACK, BY_TCP)).status, 200);
    assert_eq!(w.counters().refused_user, 1);
}

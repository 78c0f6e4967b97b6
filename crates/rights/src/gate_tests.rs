use std::cell::Cell;
use std::sync::mpsc::channel;
use std::time::Duration;

use base64ct::{Base64, Encoding};
use md5::{Digest, Md5};
use millrace_core::time::Instant;

use super::*;
use crate::decide::TrustHere;
use crate::file::{NewUser, RightsFile};
use crate::known::{Keys, Token};
use crate::secret::Cost;

const CHEAP: Cost = Cost { kib: 8, passes: 1 };
const PASSWORD: &str = "secret-word";

fn known() -> RightsSnapshot {
    let mut known =
        RightsSnapshot { keys: Some(Keys { links: [1; 32], tokens: [2; 32] }), ..RightsSnapshot::default() };
    for (name, watches, manages, digest) in
        [("anna", "film*", false, true), ("boss", "*", true, true), ("plain", "*", false, false)]
    {
        let user = User {
            password: secret::hash_password(PASSWORD, CHEAP).unwrap(),
            ha1: digest.then(|| secret::ha1(name, PASSWORD)),
            ..User::for_test(name, &[watches], manages)
        };
        known.users.insert(name.into(), user);
    }
    known
}

fn gate() -> Gate {
    Gate::new(Policy { watching: Watching::ByRights, ..Policy::default() }, known()).unwrap()
}

fn at(s: u64) -> Now {
    Now { mono: Instant(s * 1_000_000_000), unix_s: 1_000_000 + s }
}

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn asked<'a>(what: RequestedAction<'a>, authorization: Option<&'a str>) -> AccessRequest<'a> {
    AccessRequest {
        what,
        place: RequestOrigin::Elsewhere,
        address: ADDRESS,
        authorization,
        query: None,
        digest: None,
        before: None,
        is_again: false,
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", Base64::encode_string(format!("{user}:{password}").as_bytes()))
}

/// Returns the verdict after any checks.
fn settle(gate: &Gate, now: Now, asked: &AccessRequest<'_>) -> AccessVerdict {
    match gate.ask(now, asked) {
        AccessVerdict::Check(check) => {
            gate.carry_out(check, now);
            gate.ask(now, &AccessRequest { is_again: true, ..*asked })
        }
        other => other,
    }
}

fn is_user(verdict: &AccessVerdict, name: &str) -> bool {
    matches!(verdict, AccessVerdict::Allow(Visitor::User(user)) if &**user == name)
}

#[test]
fn password_check_is_reused_until_expiry_or_rights_change() {
    let gate = gate();
    let right = basic("anna", PASSWORD);
    let asked = asked(RequestedAction::Watch("film1"), Some(&right));
    assert!(matches!(gate.ask(at(0), &asked), AccessVerdict::Check(_)));
    assert!(is_user(&settle(&gate, at(0), &asked), "anna"));
    assert!(is_user(&gate.ask(at(599), &asked), "anna"));
    assert!(matches!(gate.ask(at(600), &asked), AccessVerdict::Check(_)));
    let other = AccessRequest { what: RequestedAction::Watch("other"), ..asked };
    assert!(matches!(gate.ask(at(1), &other), AccessVerdict::Refuse(Reason::NotThisTitle)));
    assert_eq!(gate.counters().passwords_checked, 1);
    // Whatever changes in the file may be this password.
    gate.replace(known());
    assert!(matches!(gate.ask(at(1), &asked), AccessVerdict::Check(_)));
}

#[test]
fn password_check_overtaken_by_rights_change_is_discarded() {
    let gate = gate();
    let right = basic("anna", PASSWORD);
    let asked = asked(RequestedAction::Watch("film1"), Some(&right));
    let AccessVerdict::Check(check) = gate.ask(at(0), &asked) else { panic!("no check") };
    gate.replace(known());
    gate.carry_out(check, at(0));
    assert!(matches!(gate.ask(at(0), &AccessRequest { is_again: true, ..asked }), AccessVerdict::Busy));
    assert!(matches!(gate.ask(at(0), &asked), AccessVerdict::Check(_)));
}

#[test]
fn wrong_passwords_and_unknown_users_look_the_same() {
    let gate = gate();
    for (user, password) in [("anna", "wrong-word"), ("nobody", PASSWORD), ("", "")] {
        let wrong = basic(user, password);
        let verdict = settle(&gate, at(0), &asked(RequestedAction::Watch("film1"), Some(&wrong)));
        assert!(
            matches!(verdict, AccessVerdict::Ask { is_wrong: true, is_stale: false }),
            "{user}: {verdict:?}"
        );
    }
    assert_eq!(gate.counters().passwords_checked, 3);
    assert_eq!(gate.counters().wrong_credentials, 3);
}

#[test]
fn ask_after_ten_wrong_passwords_returns_too_many() {
    let gate = gate();
    for number in 0..10 {
        let wrong = basic("anna", &format!("wrong-word-{number}"));
        let verdict = settle(&gate, at(0), &asked(RequestedAction::List, Some(&wrong)));
        assert!(matches!(verdict, AccessVerdict::Ask { .. }) == (number < 9), "{number}: {verdict:?}");
    }
    let (wrong, right) = (basic("anna", "wrong-word-x"), basic("anna", PASSWORD));
    for authorization in [&wrong, &right] {
        assert!(matches!(
            gate.ask(at(0), &asked(RequestedAction::List, Some(authorization))),
            AccessVerdict::TooMany
        ));
    }
    assert_eq!(gate.counters().passwords_checked, 10);
    // Other clients are not held up, nor are requests without credentials, nor tokens.
    let elsewhere =
        AccessRequest { address: IpAddr::from([192, 0, 2, 2]), ..asked(RequestedAction::List, Some(&right)) };
    assert!(is_user(&settle(&gate, at(0), &elsewhere), "anna"));
    assert!(matches!(
        gate.ask(at(0), &asked(RequestedAction::List, None)),
        AccessVerdict::Ask { is_wrong: false, .. }
    ));
    // A password known to be right is admitted from there as well.
    assert!(is_user(&gate.ask(at(0), &asked(RequestedAction::List, Some(&right))), "anna"));
    // In time one more is looked at.
    assert!(matches!(gate.ask(at(7), &asked(RequestedAction::List, Some(&wrong))), AccessVerdict::Check(_)));
}

#[test]
fn ask_with_repeated_wrong_password_checks_it_once() {
    let gate = gate();
    let wrong = basic("anna", "wrong-word");
    for _ in 0..5 {
        settle(&gate, at(0), &asked(RequestedAction::List, Some(&wrong)));
    }
    assert_eq!(gate.counters().passwords_checked, 1);
}

#[test]
fn tokens() {
    let gate = gate();
    let token = secret::new_token().unwrap();
    let mut known = known();
    let entry = Token { user: "boss".into(), expires_unix_s: Some(1_000_010) };
    known.tokens.insert(secret::hash_token(&token, &[2; 32]).unwrap(), entry);
    let bearer = format!("Bearer {token}");
    let change = asked(RequestedAction::Change, Some(&bearer));
    assert!(matches!(gate.ask(at(0), &change), AccessVerdict::Ask { is_wrong: true, .. }));
    gate.replace(known);
    assert!(is_user(&gate.ask(at(9), &change), "boss"));
    assert!(matches!(gate.ask(at(10), &change), AccessVerdict::Ask { is_wrong: true, .. }));
    // A hundred thousand wrong ones change nothing for the right one.
    for number in 0..100_000 {
        let bad = format!("Bearer mr_{number:043}");
        let verdict = gate.ask(at(0), &asked(RequestedAction::Change, Some(&bad)));
        assert!(matches!(verdict, AccessVerdict::Ask { .. } | AccessVerdict::TooMany), "{verdict:?}");
    }
    assert!(is_user(&gate.ask(at(0), &change), "boss"));
    assert_eq!(gate.counters().passwords_checked, 0);
}

#[test]
fn credentials_are_not_looked_at_where_none_are_needed() {
    let policy = Policy { trust_here: TrustHere::Always, ..Policy::default() };
    let gate = Gate::new(policy, known()).unwrap();
    for authorization in ["Basic ?", "Bearer x", &basic("anna", "wrong-word")] {
        let watch = asked(RequestedAction::Watch("film1"), Some(authorization));
        assert!(matches!(gate.ask(at(0), &watch), AccessVerdict::Allow(Visitor::Anybody)));
        let here = AccessRequest {
            place: RequestOrigin::Here,
            ..asked(RequestedAction::Change, Some(authorization))
        };
        assert!(matches!(gate.ask(at(0), &here), AccessVerdict::Allow(Visitor::Anybody)));
    }
    assert_eq!(gate.counters().wrong_credentials, 0);
}

#[test]
fn ask_of_this_machine_needs_credentials_from_the_first_manager_on() {
    let here = |authorization| AccessRequest {
        place: RequestOrigin::Here,
        ..asked(RequestedAction::Change, authorization)
    };
    let gate = Gate::new(Policy::default(), RightsSnapshot::default()).unwrap();
    assert!(matches!(gate.ask(at(0), &here(None)), AccessVerdict::Allow(Visitor::Anybody)));
    gate.replace(known());
    assert!(matches!(gate.ask(at(0), &here(None)), AccessVerdict::Ask { .. }));
}

#[test]
fn links() {
    let gate = gate();
    let link = SignedLink::sign(&[1; 32], "film1", 1_000_010);
    let watch =
        |title, query| AccessRequest { query: Some(query), ..asked(RequestedAction::Watch(title), None) };
    let verdict = gate.ask(at(0), &watch("film1@540p", link.query()));
    let AccessVerdict::Allow(visitor) = verdict else { panic!("{verdict:?}") };
    assert_eq!(visitor, Visitor::Link(Arc::new(link.clone())));
    assert!(gate.may_watch(&visitor, "film1") && !gate.may_watch(&visitor, "film2"));
    assert!(matches!(
        gate.ask(at(10), &watch("film1", link.query())),
        AccessVerdict::Refuse(Reason::OldLink)
    ));
    assert!(matches!(gate.ask(at(0), &watch("film2", link.query())), AccessVerdict::Refuse(Reason::BadLink)));
    assert!(matches!(gate.ask(at(0), &watch("film1", "x=1")), AccessVerdict::Ask { .. }));
    // A client with more than a link is admitted by its other credentials.
    let right = basic("anna", PASSWORD);
    let both = AccessRequest { authorization: Some(&right), ..watch("film2", link.query()) };
    assert!(is_user(&settle(&gate, at(0), &both), "anna"));
    // A link is for watching.
    let change = AccessRequest { query: Some(link.query()), ..asked(RequestedAction::Change, None) };
    assert!(matches!(gate.ask(at(0), &change), AccessVerdict::Ask { .. }));
}

#[test]
fn ask_with_previous_visitor_keeps_its_identity() {
    let gate = gate();
    let anna = Visitor::User("anna".into());
    let link = Visitor::Link(Arc::new(SignedLink::sign(&[1; 32], "film1", 1_000_010)));
    let ask = |visitor: &Visitor, title: &str, goes_on: bool, now: Now| {
        gate.ask(
            now,
            &AccessRequest { before: Some((visitor, goes_on)), ..asked(RequestedAction::Watch(title), None) },
        )
    };
    assert!(is_user(&ask(&anna, "film2", false, at(0)), "anna"));
    assert!(matches!(ask(&anna, "other", true, at(0)), AccessVerdict::Refuse(Reason::NotThisTitle)));
    assert!(matches!(ask(&link, "film1", false, at(0)), AccessVerdict::Allow(Visitor::Link(_))));
    assert!(matches!(ask(&link, "film2", true, at(0)), AccessVerdict::Ask { .. }));
    assert!(matches!(ask(&link, "film1", false, at(10)), AccessVerdict::Refuse(Reason::OldLink)));
    assert!(matches!(ask(&link, "film1", true, at(10)), AccessVerdict::Allow(Visitor::Link(_))));
    assert!(matches!(ask(&Visitor::Anybody, "film1", true, at(0)), AccessVerdict::Ask { .. }));
    gate.replace(RightsSnapshot::default());
    assert!(matches!(ask(&anna, "film2", true, at(0)), AccessVerdict::Ask { .. }));
}

/// An answer by MD5 without `qop`, or with it and this count.
fn digest_answer(user: &str, password: &str, nonce: &str, uri: &str, count: Option<u32>) -> String {
    let md5 = |text: String| Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let ha1 = md5(format!("{user}:millrace:{password}"));
    let ha2 = md5(format!("PLAY:{uri}"));
    let (middle, more) = match count {
        None => (String::new(), String::new()),
        Some(count) => (format!("{count:08x}:c:auth:"), format!(", qop=auth, nc={count:08x}, cnonce=\"c\"")),
    };
    let response = md5(format!("{ha1}:{nonce}:{middle}{ha2}"));
    format!(
        "Digest username=\"{user}\", realm=\"millrace\", nonce=\"{nonce}\", uri=\"{uri}\", response=\"{response}\"{more}"
    )
}

#[test]
fn digest() {
    let gate = gate();
    let asked_with = gate.rtsp_challenges(ADDRESS, at(0), false);
    assert!(asked_with[0].contains("algorithm=SHA-256") && asked_with[2] == "Basic realm=\"millrace\"");
    let nonce = asked_with[1].split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
    let looked = Cell::new(0);
    let is_uri = |uri: &str| {
        looked.set(looked.get() + 1);
        uri == "rtsp://h/film1"
    };
    let ask = |authorization: &str, method: &'static str, now: Now| {
        let digest = Some(DigestOf { method, is_uri: &is_uri });
        gate.ask(
            now,
            &AccessRequest { digest, ..asked(RequestedAction::Watch("film1"), Some(authorization)) },
        )
    };
    let answer =
        |user: &str, password: &str, count| digest_answer(user, password, nonce, "rtsp://h/film1", count);
    assert!(is_user(&ask(&answer("anna", PASSWORD, None), "PLAY", at(1)), "anna"));
    assert!(is_user(&ask(&answer("anna", PASSWORD, Some(1)), "PLAY", at(1)), "anna"));
    let again = ask(&answer("anna", PASSWORD, Some(1)), "PLAY", at(1));
    assert!(matches!(again, AccessVerdict::Ask { is_stale: true, .. }), "{again:?}");
    assert!(is_user(&ask(&answer("anna", PASSWORD, Some(2)), "PLAY", at(1)), "anna"));
    // An overheard answer is repeated from another address.
    let right = answer("anna", PASSWORD, None);
    let repeated = AccessRequest {
        digest: Some(DigestOf { method: "PLAY", is_uri: &is_uri }),
        address: IpAddr::from([192, 0, 2, 2]),
        ..asked(RequestedAction::Watch("film1"), Some(&right))
    };
    let repeated = gate.ask(at(1), &repeated);
    assert!(matches!(repeated, AccessVerdict::Ask { is_stale: true, .. }), "{repeated:?}");
    assert!(looked.get() > 0);
    let too_old = ask(&answer("anna", PASSWORD, None), "PLAY", at(3600));
    assert!(matches!(too_old, AccessVerdict::Ask { is_stale: true, .. }), "{too_old:?}");
    for wrong in [
        answer("anna", "wrong-word", None),
        answer("nobody", PASSWORD, None),
        answer("plain", PASSWORD, None), // without what Digest needs
        digest_answer("anna", PASSWORD, nonce, "rtsp://h/film2", None),
        digest_answer("anna", PASSWORD, "made-up", "rtsp://h/film1", None).replace("made-up", nonce),
    ] {
        let verdict = ask(&wrong, "PLAY", at(1));
        assert!(
            matches!(verdict, AccessVerdict::Ask { is_wrong: true, is_stale: false }),
            "{wrong}: {verdict:?}"
        );
    }
    // Right, to a nonce that is not ours: of a run before this.
    let of_before = digest_answer("anna", PASSWORD, "other", "rtsp://h/film1", None);
    assert!(matches!(ask(&of_before, "PLAY", at(1)), AccessVerdict::Ask { is_stale: true, .. }));
    assert!(matches!(
        ask(&answer("anna", PASSWORD, None), "SETUP", at(1)),
        AccessVerdict::Ask { is_stale: false, .. }
    ));
    // No challenge is sent that no user could answer.
    gate.replace(RightsSnapshot {
        users: known().users.into_iter().filter(|(name, _)| &**name == "plain").collect(),
        ..known()
    });
    assert_eq!(gate.rtsp_challenges(ADDRESS, at(0), false), ["Basic realm=\"millrace\""]);
    gate.replace(known());
    // In a protocol that has not asked so, it is nothing.
    let right = answer("anna", PASSWORD, None);
    let http = gate.ask(at(1), &asked(RequestedAction::Watch("film1"), Some(&right)));
    assert!(matches!(http, AccessVerdict::Ask { is_wrong: true, .. }));
}

#[test]
fn gate_thread_checks_passwords_and_exits_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rights.sqlite");
    let mut file = RightsFile::open_or_create(&path).unwrap();
    file.add_user(
        &NewUser { name: "anna", password: PASSWORD, digest: true, manages: false, cost: CHEAP },
        0,
    )
    .unwrap();
    file.grant("anna", "*").unwrap();
    let gate =
        Gate::start(Policy { watching: Watching::ByRights, ..Policy::default() }, &crate::Copies::one(&path))
            .unwrap();
    let right = basic("anna", PASSWORD);
    let asked = asked(RequestedAction::Watch("film"), Some(&right));
    let AccessVerdict::Check(check) = gate.ask(Now::read(), &asked) else { panic!("no check") };
    let (done, is_done) = channel();
    gate.check(check, Box::new(move || done.send(()).unwrap()));
    is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(is_user(&gate.ask(Now::read(), &asked), "anna"));
    // It looks at the file again and again.
    file.remove_user("anna").unwrap();
    let until = Now::read().mono.plus_ns(60_000_000_000);
    while gate.counters().users > 0 {
        assert!(Now::read().mono < until, "the file was not looked at");
        std::thread::yield_now();
    }
    assert!(!is_user(&gate.ask(Now::read(), &asked), "anna"));
    let weak = Arc::downgrade(&gate);
    drop(gate);
    let until = Now::read().mono.plus_ns(60_000_000_000);
    while weak.upgrade().is_some() {
        assert!(Now::read().mono < until, "the thread keeps the gate");
        std::thread::yield_now();
    }
}

#[test]
fn limits_are_of_users_who_have_some() {
    let gate = gate();
    let anna = Visitor::User("anna".into());
    assert_eq!(gate.quota(&anna), None);
    let mut known = known();
    let limits = Limits { streams: Some(1), bits_per_s: None };
    known.users.get_mut("anna").unwrap().limits = limits;
    gate.replace(known);
    assert_eq!(gate.quota(&anna), Some(Quota { user: "anna".into(), limits }));
    for other in [Visitor::Anybody, Visitor::User("plain".into()), Visitor::User("gone".into())] {
        assert_eq!(gate.quota(&other), None, "{other:?}");
    }
}

use super::*;
use crate::secret::ha1;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

fn at(s: u64) -> Instant {
    Instant(s * 1_000_000_000)
}

/// RFC 7616 section 3.9.1: the hashes of its user, realm and password.
fn mufasa() -> Ha1 {
    let text = "Mufasa:http-auth@example.org:Circle of Life";
    Ha1 { md5: Md5::digest(text).into(), sha256: Sha256::digest(text).into() }
}

fn example(algorithm: &str, response: &str) -> Response {
    let text = format!(
        "username=\"Mufasa\", realm=\"http-auth@example.org\", uri=\"/dir/index.html\", algorithm={algorithm}, \
         nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", nc=00000001, \
         cnonce=\"f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ\", qop=auth, response=\"{response}\", \
         opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\""
    );
    Response::read(&text).unwrap()
}

#[test]
fn is_right_accepts_rfc_7616_examples() {
    let (md5, sha256) = (
        "8ca523f5e9506fed4657c9700eebdbec",
        "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1",
    );
    assert!(example("MD5", md5).is_right(&mufasa(), "GET"));
    assert!(example("SHA-256", sha256).is_right(&mufasa(), "GET"));
    assert!(example("MD5", &md5.to_uppercase()).is_right(&mufasa(), "GET"));
    assert!(!example("MD5", md5).is_right(&mufasa(), "HEAD"));
    assert!(!example("SHA-256", md5).is_right(&mufasa(), "GET"));
    assert!(!example("MD5", "").is_right(&mufasa(), "GET"));
    assert!(!example("MD5", md5).is_right(&ha1("Mufasa", "Circle of Life"), "GET"), "another realm");
}

/// As RFC 2069 has it; players that do not know `qop` still answer so.
#[test]
fn response_without_qop_verifies_as_in_rfc_2069() {
    let text = "username=\"Mufasa\", realm=\"testrealm@host.com\", nonce=\"dcd98b7102dd2f0e8b11d0f600bfb0c093\", \
                uri=\"/dir/index.html\", response=\"1949323746fe6a43ef61f9606e7febea\"";
    let of = "Mufasa:testrealm@host.com:CircleOfLife";
    let ha1 = Ha1 { md5: Md5::digest(of).into(), sha256: Sha256::digest(of).into() };
    let response = Response::read(text).unwrap();
    assert!(response.is_right(&ha1, "GET") && !response.is_right(&ha1, "PLAY"));
    assert_eq!(response.count(), Ok(None));
}

#[test]
fn answers_that_are_none() {
    let whole = "username=\"a\", realm=\"millrace\", nonce=\"n\", uri=\"u\", response=\"r\"";
    assert!(Response::read(whole).is_some());
    for part in ["username=\"a\", ", "nonce=\"n\", ", "uri=\"u\", ", ", response=\"r\""] {
        assert_eq!(Response::read(&whole.replace(part, "")), None, "{part}");
    }
    for more in [
        "algorithm=MD5-sess",
        "algorithm=SHA-512-256",
        "qop=auth-int, nc=00000001, cnonce=x",
        "qop=auth",
        "uri=v",
    ] {
        assert_eq!(Response::read(&format!("{whole}, {more}")), None, "{more}");
    }
    for (nc, count) in [
        ("00000001", Ok(Some(1))),
        ("ffffffff", Ok(Some(u32::MAX))),
        ("00000000", Err(())),
        ("1", Err(())),
        ("+0000001", Err(())),
    ] {
        let counted = Response::read(&format!("{whole}, qop=\"auth\", nc={nc}, cnonce=\"c\"")).unwrap();
        assert_eq!(counted.count(), count, "{nc}");
    }
}

#[test]
fn nonce_from_another_address_is_refused_with_and_without_qop() {
    let mut nonces = Nonces::new([1; 32]);
    let nonce = nonces.issue(HERE, at(0));
    for other in ["10.0.0.2", "::1", "::10.0.0.1"] {
        let other = other.parse().unwrap();
        assert!(!nonces.take(&nonce, other, None, at(1)) && !nonces.take(&nonce, other, Some(1), at(1)));
    }
    // A dual-stack socket shows the same client like this.
    assert!(nonces.take(&nonce, "::ffff:10.0.0.1".parse().unwrap(), None, at(1)));
    assert!(nonces.take(&nonce, HERE, None, at(1)) && nonces.take(&nonce, HERE, Some(1), at(1)));
}

#[test]
fn nonces_take_rejects_foreign_and_expired_nonces() {
    let mut nonces = Nonces::new([1; 32]);
    let nonce = nonces.issue(HERE, at(0));
    assert_ne!(nonce, nonces.issue(HERE, at(0)));
    assert!(nonces.take(&nonce, HERE, None, at(0)) && nonces.take(&nonce, HERE, None, Instant(NONCE_NS - 1)));
    assert!(
        !nonces.take(&nonce, HERE, None, Instant(NONCE_NS))
            && !nonces.take(&nonce, HERE, Some(1), Instant(NONCE_NS))
    );
    let of_others = Nonces::new([2; 32]).issue(HERE, at(0));
    for other in [&*of_others, "", "x", &nonce[1..], &nonce.replace(&nonce[..1], "Z")] {
        assert!(!nonces.take(other, HERE, None, at(0)), "{other}");
    }
}

#[test]
fn nonces_take_rejects_repeated_count() {
    let mut nonces = Nonces::new([1; 32]);
    let nonce = nonces.issue(HERE, at(0));
    let mut take = |count| nonces.take(&nonce, HERE, Some(count), at(1));
    for (count, is_new) in [
        (1, true),
        (1, false),
        (3, true),
        (2, true),
        (2, false),
        (100, true),
        (37, true),
        (36, false),
        (37, false),
        (164, true),
        (100, false),
        (u32::MAX, true),
        (1, false),
    ] {
        assert_eq!(take(count), is_new, "{count}");
    }
}

#[test]
fn nonces_over_limit_drop_the_oldest() {
    let mut nonces = Nonces { most: 3, ..Nonces::new([1; 32]) };
    let made: Vec<_> = (0..6).map(|_| nonces.issue(HERE, at(0))).collect();
    for nonce in &made[1..5] {
        assert!(nonces.take(nonce, HERE, Some(1), at(1)));
    }
    assert_eq!(nonces.used.len(), 3);
    // The one that had to go, and the one before it that was never used.
    assert!(!nonces.take(&made[1], HERE, Some(2), at(1)) && !nonces.take(&made[0], HERE, Some(1), at(1)));
    assert!(nonces.take(&made[2], HERE, Some(2), at(1)) && nonces.take(&made[5], HERE, Some(1), at(1)));
    assert!(!nonces.take(&made[1], HERE, Some(1), at(1)) && nonces.used.len() == 3);
}

#[test]
fn challenges_can_be_read_by_old_players() {
    let [sha256, md5] = challenges("NONCE", true);
    assert!(sha256.starts_with("Digest realm=\"millrace\", nonce=\"NONCE\", stale=true, algorithm=SHA-256"));
    assert!(md5.contains("algorithm=MD5, qop=\"auth\""));
}

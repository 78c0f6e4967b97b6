use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use super::*;
use crate::copies::RIGHTS_FILE;

const CHEAP: Cost = Cost { kib: 8, passes: 1 };

fn user(name: &str) -> NewUser<'_> {
    NewUser { name, password: "secret-word", digest: true, manages: false, cost: CHEAP }
}

fn new_file() -> (tempfile::TempDir, RightsFile) {
    let dir = tempfile::tempdir().unwrap();
    let file = RightsFile::open_or_create(&dir.path().join(RIGHTS_FILE)).unwrap();
    (dir, file)
}

#[test]
fn open_of_file_accessible_to_others_returns_error() {
    let (dir, mut file) = new_file();
    file.add_user(&user("anna"), 7).unwrap();
    let path = dir.path().join(RIGHTS_FILE);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    for mode in [0o644, 0o640, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = RightsFile::open(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("{mode:o}")) && error.contains("chmod 600"), "{error}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(RightsFile::open_or_create(&path).unwrap().read().unwrap().users.len(), 1);
}

#[test]
fn read_after_changes_returns_current_rights() {
    let (_dir, mut file) = new_file();
    assert!(file.read().unwrap().users.is_empty());
    file.add_user(&user("anna"), 7).unwrap();
    file.add_user(&NewUser { digest: false, manages: true, ..user("boss") }, 8).unwrap();
    file.set_group("kids", &["k-*".to_owned(), "cartoon".to_owned()]).unwrap();
    file.grant("anna", "film*").unwrap();
    file.grant("anna", "@kids").unwrap();
    let (listed, token) = file.add_token("boss", 10, Some(20)).unwrap();
    let known = file.read().unwrap();
    let anna = &known.users["anna"];
    assert!(anna.may_watch("film2") && anna.may_watch("k-1") && anna.may_watch("cartoon@540p"));
    assert!(!anna.may_watch("other") && !anna.may_watch("@kids") && !anna.manages);
    assert_eq!(anna.ha1, Some(secret::ha1("anna", "secret-word")));
    assert!(secret::is_password("secret-word", &anna.password));
    let boss = &known.users["boss"];
    assert!(boss.manages && boss.ha1.is_none() && boss.watches.is_empty());
    let hash = secret::hash_token(&token, &known.keys.as_ref().unwrap().tokens).unwrap();
    assert_eq!(known.tokens[&hash], Token { user: "boss".into(), expires_unix_s: Some(20) });

    let (users, groups) = file.list().unwrap();
    assert_eq!(users[0].grants, ["@kids", "film*"]);
    assert_eq!(users[1].tokens.first(), Some(&listed));
    assert_eq!(groups, [ListedGroup { name: "kids".into(), patterns: vec!["cartoon".into(), "k-*".into()] }]);

    file.set_group("kids", &["other".to_owned()]).unwrap();
    file.revoke("anna", "film*").unwrap();
    file.remove_token("boss", &listed.id).unwrap();
    file.set_manages("boss", false).unwrap();
    file.set_uploads("anna", true).unwrap();
    file.set_password(&NewUser { password: "other-word", digest: false, ..user("anna") }).unwrap();
    let known = file.read().unwrap();
    assert_eq!(known.users["anna"].watches, ["other"]);
    assert!(known.users["anna"].uploads && !known.users["boss"].uploads && known.has_uploaders());
    let (users, _) = file.list().unwrap();
    assert_eq!(users.iter().map(|user| user.uploads).collect::<Vec<_>>(), [true, false]);
    assert!(
        known.users["anna"].ha1.is_none() && secret::is_password("other-word", &known.users["anna"].password)
    );
    assert!(known.tokens.is_empty() && !known.has_managers());
    file.set_group("kids", &[]).unwrap();
    assert!(file.list().unwrap().0[0].grants.is_empty());
}

#[test]
fn remove_user_deletes_its_grants_and_tokens() {
    let (_dir, mut file) = new_file();
    file.add_user(&user("anna"), 0).unwrap();
    file.grant("anna", "*").unwrap();
    file.add_token("anna", 0, None).unwrap();
    file.remove_user("anna").unwrap();
    file.add_user(&user("anna"), 0).unwrap();
    let known = file.read().unwrap();
    assert!(known.tokens.is_empty() && known.users["anna"].watches.is_empty());
}

#[test]
fn rights_file_invalid_change_returns_specific_error() {
    let (_dir, mut file) = new_file();
    file.add_user(&user("anna"), 0).unwrap();
    let said = |result: Result<(), FileError>, part: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    said(file.add_user(&user("anna"), 0), "passwd anna");
    said(file.add_user(&user("a:b"), 0), "a:b: a name has");
    said(file.add_user(&NewUser { password: "short", ..user("bob") }, 0), "8 to 256");
    said(file.grant("anna", "a/b"), "a pattern has");
    said(file.grant("anna", "@none"), "no such group");
    said(file.grant("bob", "x"), "no such user");
    said(file.revoke("anna", "x"), "no such grant");
    said(file.remove_user("bob"), "no such user");
    said(file.set_password(&user("bob")), "no such user");
    said(file.remove_token("anna", "12345678"), "no such token");
    said(file.add_token("bob", 0, None).map(drop), "no such user");
    said(file.set_group("@a", &[]), "a name has");
    said(file.set_uploads("bob", true), "no such user");
    for _ in 0..MAX_TOKENS_PER_USER {
        file.add_token("anna", 0, Some(5)).unwrap();
    }
    said(file.add_token("anna", 1, None).map(drop), "tokens of this user");
    file.add_token("anna", 5, None).unwrap(); // those that are over make room
}

#[test]
fn renew_links_replaces_link_key_and_keeps_token_key() {
    let (_dir, mut file) = new_file();
    let before = file.read().unwrap().keys.unwrap();
    file.renew_links().unwrap();
    let keys = file.read().unwrap().keys.unwrap();
    assert_ne!(keys.links, before.links);
    assert_eq!(keys.tokens, before.tokens);
}

#[test]
fn open_of_foreign_file_returns_error_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    assert!(matches!(RightsFile::open(&path), Err(FileError::Missing(_))));
    let (_other, file) = new_file();
    file.db.pragma_update(None, "user_version", 99).unwrap();
    assert!(matches!(RightsFile::open(file.path()), Err(FileError::Format { format: 99, .. })));
    std::fs::write(&path, vec![b'x'; 5000]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(RightsFile::open(&path), Err(FileError::Sqlite { .. })));
    assert_eq!(std::fs::read(&path).unwrap().len(), 5000);
}

#[test]
fn limits_are_kept_with_their_user() {
    let (_dir, mut file) = new_file();
    file.add_user(&user("anna"), 7).unwrap();
    assert_eq!(file.read().unwrap().users["anna"].limits, Limits::default());
    let limits = Limits { streams: Some(2), bits_per_s: Some(8_000_000) };
    file.set_limits("anna", limits).unwrap();
    let known = file.read().unwrap();
    assert_eq!((known.users["anna"].limits, known.users["anna"].uploads), (limits, false));
    assert_eq!(file.list().unwrap().0[0].limits, limits);
    file.set_limits("anna", Limits { streams: None, ..limits }).unwrap();
    assert_eq!(file.read().unwrap().users["anna"].limits.streams, None);
    assert!(matches!(file.set_limits("ben", limits), Err(FileError::NoUser(_))));
}

/// What earlier versions have written: their tables as they were, not as this one makes them.
const WRITTEN_THEN: &str = "
CREATE TABLE keys (name TEXT PRIMARY KEY, key BLOB NOT NULL) STRICT;
CREATE TABLE users (
    name TEXT PRIMARY KEY, manages INTEGER NOT NULL, argon2id TEXT NOT NULL, ha1_md5 BLOB, ha1_sha256 BLOB,
    added_unix_s INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
    user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE, pattern TEXT NOT NULL, PRIMARY KEY (user, pattern)
) STRICT;
CREATE TABLE groups (name TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (name, pattern)) STRICT;
CREATE TABLE tokens (
    hash BLOB PRIMARY KEY, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE,
    made_unix_s INTEGER NOT NULL, expires_unix_s INTEGER
) STRICT;
INSERT INTO keys VALUES ('links', zeroblob(32)), ('tokens', zeroblob(32));
INSERT INTO users VALUES ('anna', 1, 'hash', zeroblob(16), zeroblob(32), 7), ('ben', 0, 'other', NULL, NULL, 8);
INSERT INTO grants VALUES ('anna', '@kids'), ('ben', 'film');
INSERT INTO groups VALUES ('kids', 'zoo');
INSERT INTO tokens VALUES (zeroblob(32), '01234567', 'ben', 9, 10);
PRAGMA user_version = 1;
";

/// The additions of the second format to the first, with data in them.
const WRITTEN_SECOND: &str = "
ALTER TABLE users ADD COLUMN uploads INTEGER NOT NULL DEFAULT 0;
UPDATE users SET uploads = 1 WHERE name = 'ben';
PRAGMA user_version = 2;
";

#[test]
fn files_of_earlier_formats_are_taken_over_with_everything_in_them() {
    for (written, uploads) in [(&[WRITTEN_THEN][..], false), (&[WRITTEN_THEN, WRITTEN_SECOND], true)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RIGHTS_FILE);
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        let db = Connection::open(&path).unwrap();
        written.iter().for_each(|sql| db.execute_batch(sql).unwrap());
        drop(db);
        let limits = Limits { streams: Some(1), bits_per_s: None };
        // The second time it is of this format, and has limits.
        for bens in [Limits::default(), limits] {
            let mut file = RightsFile::open(&path).unwrap();
            let known = file.read().unwrap();
            assert_eq!(known.keys, Some(Keys { links: [0; 32], tokens: [0; 32] }));
            let (anna, ben) = (&known.users["anna"], &known.users["ben"]);
            assert!(anna.manages && anna.password == "hash" && anna.may_watch("zoo") && !anna.uploads);
            assert_eq!(anna.ha1, Some(Ha1 { md5: [0; 16], sha256: [0; 32] }));
            assert!(!ben.manages && ben.password == "other" && ben.may_watch("film") && ben.ha1.is_none());
            assert_eq!((ben.uploads, anna.limits, ben.limits), (uploads, Limits::default(), bens));
            assert_eq!(known.tokens[&[0; 32]], Token { user: "ben".into(), expires_unix_s: Some(10) });
            let (users, groups) = file.list().unwrap();
            assert_eq!(users.iter().map(|user| user.added_unix_s).collect::<Vec<_>>(), [7, 8]);
            assert_eq!(groups, [ListedGroup { name: "kids".into(), patterns: vec!["zoo".into()] }]);
            assert_eq!((users[1].uploads, users[1].limits), (uploads, bens));
            file.set_limits("ben", limits).unwrap();
        }
        // All columns of a new user are there too.
        let mut file = RightsFile::open(&path).unwrap();
        file.add_user(&user("cleo"), 8).unwrap();
        file.set_uploads("cleo", true).unwrap();
        let cleo = &file.read().unwrap().users["cleo"];
        assert!(cleo.uploads && !cleo.manages && cleo.limits == Limits::default());
    }
}

use super::*;
use crate::file::NewUser;
use crate::secret::Cost;

fn add(file: &mut RightsFile, name: &str) {
    let cost = Cost { kib: 8, passes: 1 };
    file.add_user(&NewUser { name, password: "secret-word", digest: true, manages: false, cost }, 0).unwrap();
}

#[test]
fn changes_of_the_file_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rights.sqlite");
    let mut source = WatchedRightsFile::new(Copies::one(&path));
    let names = |known: Option<RightsSnapshot>| {
        known.map(|known| known.users.keys().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(names(source.news()), None);
    let mut file = RightsFile::open_or_create(&path).unwrap();
    add(&mut file, "anna");
    assert_eq!(names(source.news()), Some(vec!["anna".to_owned()]));
    assert_eq!(names(source.news()), None);
    add(&mut file, "bob");
    assert_eq!(names(source.news()), Some(vec!["anna".to_owned(), "bob".to_owned()]));
    assert_eq!(names(source.news()), None);

    // Another file in its place, as when a copy is put back.
    let copy = dir.path().join("copy");
    let mut other = RightsFile::open_or_create(&copy).unwrap();
    add(&mut other, "zoe");
    std::fs::rename(&copy, &path).unwrap();
    assert_eq!(names(source.news()), Some(vec!["zoe".to_owned()]));

    // Without it everything stays as it was, until there is one again.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(names(source.news()), None);
    assert!(source.trouble.is_some());
    add(&mut RightsFile::open_or_create(&path).unwrap(), "carl");
    assert_eq!(names(source.news()), Some(vec!["carl".to_owned()]));
    assert!(source.trouble.is_none());
}

#[test]
fn gate_start_with_unreadable_file_returns_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rights.sqlite");
    std::fs::write(&path, "x").unwrap();
    assert!(matches!(Gate::start(Policy::default(), &Copies::one(&path)), Err(StartError::File(_))));
}

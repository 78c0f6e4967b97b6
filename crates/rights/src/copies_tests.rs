use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;

use super::*;
use crate::decide::Policy;
use crate::file::NewUser;
use crate::gate::Gate;
use crate::secret::Cost;

/// A volume of three members that can each be absent.
struct Members {
    root: tempfile::TempDir,
    there: Arc<Mutex<BTreeSet<usize>>>,
}

impl Members {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for member in 0..3 {
            let dir = root.path().join(member.to_string());
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(MEMBER_FILE), "superblock").unwrap();
        }
        Self { root, there: Arc::new(Mutex::new((0..3).collect())) }
    }

    fn with(&self, there: &[usize]) -> Copies {
        *self.there.lock().unwrap() = there.iter().copied().collect();
        let (root, there) = (self.root.path().to_owned(), Arc::clone(&self.there));
        Copies::on_members(move || {
            there.lock().unwrap().iter().map(|member| root.join(member.to_string())).collect()
        })
    }

    fn path(&self, member: usize) -> PathBuf {
        self.root.path().join(member.to_string()).join(RIGHTS_FILE)
    }

    fn names_on(&self, member: usize) -> Vec<String> {
        names(&mut RightsFile::open(&self.path(member)).unwrap())
    }
}

fn add(file: &mut RightsFile, name: &str) {
    let cost = Cost { kib: 8, passes: 1 };
    file.add_user(&NewUser { name, password: "secret-word", digest: true, manages: false, cost }, 0).unwrap();
}

#[test]
fn creation_that_fails_leaves_no_file_and_an_empty_one_is_no_hindrance() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none").join(RIGHTS_FILE);
    assert!(matches!(RightsFile::open_or_create(&path), Err(FileError::Open { .. })));
    let path = dir.path().join(RIGHTS_FILE);
    fs::write(&path, "").unwrap();
    assert!(matches!(RightsFile::open(&path), Err(FileError::Missing(_))));
    add(&mut RightsFile::open_or_create(&path).unwrap(), "anna");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

fn names(file: &mut RightsFile) -> Vec<String> {
    let mut names: Vec<_> = file.read().unwrap().users.keys().map(ToString::to_string).collect();
    names.sort();
    names
}

#[test]
fn change_is_on_every_member_whichever_is_named_first() {
    let members = Members::new();
    add(&mut RightsFile::open_or_create_copies(&members.with(&[0, 1, 2])).unwrap(), "anna");
    for member in 0..3 {
        assert_eq!(members.names_on(member), ["anna"], "member {member}");
        let mode = fs::metadata(members.path(member)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(names(&mut RightsFile::open_copies(&members.with(&[member])).unwrap()), ["anna"]);
    }
    let left: BTreeSet<_> = fs::read_dir(members.path(1).parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, [RIGHTS_FILE, RIGHTS_RECORD_FILE, MEMBER_FILE].map(str::to_owned).into());
}

#[test]
fn member_that_was_away_is_brought_up_to_date_when_it_is_back() {
    let members = Members::new();
    add(&mut RightsFile::open_or_create_copies(&members.with(&[0, 1, 2])).unwrap(), "anna");
    let mut file = RightsFile::open_copies(&members.with(&[1, 2])).unwrap();
    add(&mut file, "ben");
    file.remove_user("anna").unwrap();
    assert_eq!(members.names_on(0), ["anna"]);
    // The old copy is named first, but must not bring the removed user back.
    assert_eq!(names(&mut RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap()), ["ben"]);
    assert_eq!(members.names_on(0), ["ben"]);
    // A change goes to the newest copy, even if another one was opened for it.
    let mut old = RightsFile::open_copies(&members.with(&[0])).unwrap();
    add(&mut RightsFile::open_copies(&members.with(&[1, 2])).unwrap(), "carl");
    members.with(&[0, 1, 2]);
    add(&mut old, "dora");
    (0..3).for_each(|member| assert_eq!(members.names_on(member), ["ben", "carl", "dora"]));
}

#[test]
fn torn_or_missing_copy_is_recognised_and_replaced() {
    let members = Members::new();
    add(&mut RightsFile::open_or_create_copies(&members.with(&[0, 1, 2])).unwrap(), "anna");
    let good = fs::read(members.path(0)).unwrap();
    let write = |bytes: &[u8]| {
        fs::write(members.path(0), bytes).unwrap();
        fs::set_permissions(members.path(0), fs::Permissions::from_mode(0o600)).unwrap();
    };
    // A power cut during a write may leave only the beginning of the file, or all but one block.
    for length in (0..good.len()).step_by(509) {
        write(&good[..length]);
        assert_eq!(names(&mut RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap()), ["anna"]);
        assert_eq!(members.names_on(0), ["anna"], "{length} bytes");
    }
    for block in 0..good.len() / 512 {
        let mut torn = good.clone();
        torn[block * 512..(block + 1) * 512].fill(0);
        write(&torn);
        assert_eq!(names(&mut RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap()), ["anna"]);
        assert_eq!(members.names_on(0), ["anna"], "block {block}");
    }
    fs::remove_file(members.path(0)).unwrap();
    RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap();
    assert_eq!(members.names_on(0), ["anna"]);
}

#[test]
fn row_that_was_changed_on_the_disk_does_not_match_the_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(RIGHTS_FILE);
    let mut file = RightsFile::open_or_create(&path).unwrap();
    add(&mut file, "anna");
    file.grant("anna", "film").unwrap();
    drop(file);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(4).rposition(|bytes| bytes == b"film").unwrap();
    bytes[at] = b'*';
    fs::write(&path, bytes).unwrap();
    let error = RightsFile::open(&path).err();
    assert!(matches!(error, Some(FileError::Damaged(_) | FileError::Sqlite { .. })), "{error:?}");
}

#[test]
fn rights_that_are_recorded_and_not_found_are_no_start() {
    let members = Members::new();
    // A server without any users starts, and creates nothing.
    Gate::start(Policy::default(), &members.with(&[0, 1, 2])).unwrap();
    assert_eq!(fs::read_dir(members.root.path().join("0")).unwrap().count(), 1);
    add(&mut RightsFile::open_or_create_copies(&members.with(&[0, 1])).unwrap(), "anna");
    fs::remove_file(members.path(1)).unwrap();
    for copies in [members.with(&[1, 2]), members.with(&[1])] {
        let error = Gate::start(Policy::default(), &copies).err().unwrap().to_string();
        assert!(error.contains(RIGHTS_RECORD_FILE) && error.contains("bring back the member"), "{error}");
        assert!(matches!(RightsFile::open_or_create_copies(&copies), Err(FileError::Lost(_))));
    }
    Gate::start(Policy::default(), &members.with(&[0, 1])).unwrap();
    assert_eq!(members.names_on(1), ["anna"]);
}

#[test]
fn copies_that_were_changed_apart_are_an_error() {
    let members = Members::new();
    RightsFile::open_or_create_copies(&members.with(&[0, 1, 2])).unwrap();
    for (member, name) in [(0, "anna"), (1, "ben")] {
        add(&mut RightsFile::open_copies(&members.with(&[member])).unwrap(), name);
    }
    let error = RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap_err();
    assert!(matches!(error, FileError::Apart { .. }), "{error}");
    fs::remove_file(members.path(1)).unwrap();
    assert_eq!(names(&mut RightsFile::open_copies(&members.with(&[0, 1, 2])).unwrap()), ["anna"]);
    assert_eq!(members.names_on(2), ["anna"]);
}

#[test]
fn file_of_an_earlier_version_on_one_member_is_taken_over() {
    let members = Members::new();
    // Earlier versions left this: a file on the first member that was named, without a record.
    add(&mut RightsFile::open_or_create(&members.path(1)).unwrap(), "anna");
    let db = Connection::open(members.path(1)).unwrap();
    db.execute_batch("DROP TABLE state; PRAGMA user_version = 3;").unwrap();
    drop(db);
    Gate::start(Policy::default(), &members.with(&[0, 1, 2])).unwrap();
    for member in 0..3 {
        assert_eq!(members.names_on(member), ["anna"]);
        assert!(is_recorded(&members.path(member).with_file_name(RIGHTS_RECORD_FILE)));
    }
}

#[test]
fn open_or_create_copies_skips_unmounted_member() {
    let members = Members::new();
    fs::remove_file(members.root.path().join("0").join(MEMBER_FILE)).unwrap();
    add(&mut RightsFile::open_or_create_copies(&members.with(&[0, 1, 2])).unwrap(), "anna");
    assert_eq!(fs::read_dir(members.root.path().join("0")).unwrap().count(), 0);
    assert!(matches!(RightsFile::open_or_create_copies(&members.with(&[0])), Err(FileError::NoMember)));
}

#[test]
fn users_added_at_once_are_all_there() {
    let members = Members::new();
    std::thread::scope(|scope| {
        for number in 0..6 {
            // Each thread opens the rights on all members.
            let (members, copies) = (&members, members.with(&[0, 1, 2]));
            scope.spawn(move || {
                let mut file = RightsFile::open_or_create_copies(&copies).unwrap();
                add(&mut file, &format!("user{number}"));
                assert!(members.path(number % 3).exists());
            });
        }
    });
    let expected: Vec<_> = (0..6).map(|number| format!("user{number}")).collect();
    (0..3).for_each(|member| assert_eq!(members.names_on(member), expected));
}

use std::fs;

use super::*;
use crate::format::members::MEMBERS_FILE;
use crate::format::superblock::Superblock;

/// Directories of a volume of three, with superblocks and a list of members of this generation.
struct Three {
    dir: tempfile::TempDir,
    record: MembersRecord,
}

impl Three {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry::choose(3, 1, 0).unwrap();
        let entry = |index: u16| MemberEntry {
            index,
            member: Uuid([index as u8 + 1; 16]),
            path: dir.path().join(format!("m{index}")),
            state: MemberState::Active,
        };
        let record = MembersRecord {
            volume: Uuid([9; 16]),
            generation: 1,
            k: geometry.k,
            m: geometry.m,
            unit_packets: geometry.unit_packets,
            members: (0..3).map(entry).collect(),
        };
        let three = Self { dir, record };
        for i in 0..3 {
            three.make(&three.at(i), three.record.members[i].member, i as u16);
            three.say(i, &three.record);
        }
        three
    }

    fn at(&self, i: usize) -> PathBuf {
        self.dir.path().join(format!("m{i}"))
    }

    fn make(&self, dir: &Path, member: Uuid, member_index: u16) {
        let (volume, geometry) = (self.record.volume, self.record.geometry());
        let block = Superblock { volume, member, member_index, geometry, created_unix_s: 1 };
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("volume.mrv"), block.encode()).unwrap();
    }

    fn say(&self, i: usize, record: &MembersRecord) {
        fs::write(self.at(i).join(MEMBERS_FILE), record.encode()).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.dir.path().join(from), self.dir.path().join(to)).unwrap();
    }
}

#[test]
fn find_from_any_member_opens_all_members() {
    let three = Three::new();
    for i in 0..3 {
        let members = Members::find(&three.at(i)).unwrap();
        assert_eq!((members.len(), members.usable(), members.generation()), (3, vec![0, 1, 2], 1));
        assert_eq!(members.dir(1), three.at(1));
    }
    assert!(Members::find(&three.dir.path().join("nothing")).is_err());
}

#[test]
fn find_uses_record_of_highest_generation() {
    let three = Three::new();
    let mut newer = three.record.clone();
    newer.generation = 2;
    newer.members[0].state = MemberState::Stale;
    three.say(2, &newer);
    let members = Members::find(&three.at(0)).unwrap();
    assert_eq!((members.generation(), members.usable()), (2, vec![1, 2]));
    assert_eq!(members.state(0), MemberState::Stale);
    assert!(members.is_present(0) && !members.is_usable(0));
}

#[test]
fn find_with_conflicting_records_of_one_generation_fails() {
    let three = Three::new();
    let mut other = three.record.clone();
    other.members[0].state = MemberState::Stale;
    three.say(2, &other);
    let error = Members::find(&three.at(0)).unwrap_err();
    assert!(matches!(error, StoreError::Apart { generation: 1, .. }), "{error}");
}

/// A later list in which only member `alone` is active.
fn alone(three: &Three, alone: usize, generation: u64) -> MembersRecord {
    let mut record = three.record.clone();
    record.generation = generation;
    record.members.iter_mut().enumerate().filter(|(i, _)| *i != alone).for_each(|(_, entry)| {
        entry.state = MemberState::Stale;
    });
    record
}

#[test]
fn find_with_diverged_members_fails_despite_higher_generation() {
    let three = Three::new();
    three.say(0, &alone(&three, 0, 2));
    three.say(2, &alone(&three, 2, 3));
    for i in 0..3 {
        let error = Members::find(&three.at(i)).unwrap_err();
        assert!(matches!(error, StoreError::Apart { generation: 2, .. }), "{error}");
    }
}

#[test]
fn refresh_ignores_returning_member_that_diverged() {
    let three = Three::new();
    three.say(0, &alone(&three, 0, 2));
    three.rename("m2", "away");
    let members = Members::find(&three.at(0)).unwrap();
    assert_eq!((members.generation(), members.usable()), (2, vec![0]));
    three.rename("away", "m2");
    three.say(2, &alone(&three, 2, 3));
    members.refresh();
    assert_eq!((members.generation(), members.usable()), (2, vec![0]), "it goes on as before");
}

#[test]
fn find_accepts_member_rebuilt_while_another_was_absent() {
    let three = Three::new();
    let mut before = three.record.clone();
    before.generation = 2;
    before.members[2].state = MemberState::Stale;
    three.say(0, &before);
    // The second made the third active again; now it is away, and the first is back.
    let mut after = three.record.clone();
    after.generation = 4;
    three.say(1, &after);
    three.say(2, &after);
    three.rename("m1", "away");
    let members = Members::find(&three.at(0)).unwrap();
    assert_eq!((members.generation(), members.usable()), (4, vec![0, 2]));
}

#[test]
fn another_member_in_the_place_is_not_believed() {
    let three = Three::new();
    three.make(&three.at(1), Uuid([77; 16]), 1);
    let members = Members::find(&three.at(0)).unwrap();
    assert_eq!(members.usable(), [0, 2]);
    assert!(members.report()[1].absent.as_ref().unwrap().contains("holds member"), "{:?}", members.report());
}

#[test]
fn explicit_directories_override_the_hints() {
    let three = Three::new();
    three.rename("m1", "moved");
    assert_eq!(Members::find(&three.at(0)).unwrap().usable(), [0, 2]);
    let moved = three.dir.path().join("moved");
    let members = Members::among(&[three.at(0), moved.clone()]).unwrap();
    assert_eq!(members.usable(), [0, 1], "the third is there, but was not named");
    assert_eq!(members.dir(1), moved);
    assert!(!members.refresh(), "nothing has changed");
    assert_eq!(members.usable(), [0, 1]);
}

#[test]
fn members_dir_under_alternative_path_is_kept_when_absent() {
    let three = Three::new();
    let odd = |i: usize| three.dir.path().join(".").join(format!("x/../m{i}"));
    fs::create_dir(three.dir.path().join("x")).unwrap();
    let members = Members::among(&[odd(0), odd(1), odd(2)]).unwrap();
    assert_eq!(members.usable(), [0, 1, 2]);
    // Gone, but for an empty place where a disk was mounted.
    three.rename("m1", "gone");
    fs::create_dir(three.at(1)).unwrap();
    assert!(members.refresh());
    assert_eq!(members.report()[1].absent.as_deref(), Some("volume.mrv is missing"));
    assert_eq!(members.dir(1), odd(1));
}

#[test]
fn directories_of_two_volumes_are_refused() {
    let (one, other) = (Three::new(), Three::new());
    let mut foreign = other.record.clone();
    foreign.volume = Uuid([8; 16]);
    let block = Superblock {
        volume: foreign.volume,
        member: foreign.members[0].member,
        member_index: 0,
        geometry: foreign.geometry(),
        created_unix_s: 1,
    };
    fs::write(other.at(0).join("volume.mrv"), block.encode()).unwrap();
    let error = Members::among(&[one.at(0), other.at(0)]).unwrap_err().to_string();
    assert!(error.contains("belongs to volume"), "{error}");
}

#[test]
fn refresh_sees_members_go_come_back_and_be_replaced() {
    let three = Three::new();
    let members = Members::find(&three.at(0)).unwrap();
    let (epoch, disk) = (members.epoch(1), members.disk(1));
    assert!(!members.refresh());
    three.rename("m1", "gone");
    assert!(members.refresh());
    assert_eq!((members.usable(), members.missing()), (vec![0, 2], vec![1]));
    assert_eq!(members.epoch(1), epoch, "a file that is open can still be read");
    three.rename("gone", "m1");
    assert!(members.refresh());
    assert_eq!((members.usable(), members.epoch(1)), (vec![0, 1, 2], epoch + 1));
    assert_eq!(members.disk(1), disk + 1);
    // Files have been repaired: they are opened again, but the disks are the same as before.
    let before = [0, 1, 2].map(|i| (members.epoch(i), members.disk(i)));
    let repaired = MembersRecord { generation: 2, ..three.record.clone() };
    three.say(0, &repaired);
    assert!(members.refresh());
    assert_eq!(
        [0, 1, 2].map(|i| (members.epoch(i), members.disk(i))),
        before.map(|(epoch, disk)| (epoch + 1, disk))
    );
    // Another member takes the slot.
    let mut newer = three.record.clone();
    newer.generation = 3;
    newer.members[1].member = Uuid([50; 16]);
    newer.members[1].path = three.dir.path().join("new");
    newer.members[1].state = MemberState::Rebuilding;
    three.make(&newer.members[1].path, newer.members[1].member, 1);
    three.say(0, &newer);
    assert!(members.refresh());
    assert_eq!((members.usable(), members.state(1)), (vec![0, 2], MemberState::Rebuilding));
    assert_eq!((members.dir(1), members.epoch(1)), (newer.members[1].path.clone(), epoch + 3));
    assert_eq!((members.disk(0), members.disk(1)), (before[0].1, disk + 2));
    assert!(members.is_present(1));
}

#[test]
fn refresh_does_not_hear_a_member_with_a_history_of_its_own() {
    let three = Three::new();
    let members = Members::find(&three.at(0)).unwrap();
    let mut other = three.record.clone();
    other.members[0].state = MemberState::Stale;
    three.say(2, &other);
    assert!(!members.refresh());
    assert_eq!(members.usable(), [0, 1, 2]);
}

#[test]
fn find_of_member_without_list_works_only_from_others() {
    let three = Three::new();
    fs::remove_file(three.at(1).join(MEMBERS_FILE)).unwrap();
    assert_eq!(Members::find(&three.at(0)).unwrap().usable(), [0, 1, 2]);
    let error = Members::find(&three.at(1)).unwrap_err().to_string();
    assert!(error.contains("members.mrm is missing"), "{error}");
    fs::write(three.at(1).join(MEMBERS_FILE), b"damaged").unwrap();
    assert!(Members::find(&three.at(1)).is_err());
    assert_eq!(Members::find(&three.at(2)).unwrap().usable(), [0, 1, 2]);
}

#[test]
fn find_with_unlistable_titles_reports_member_missing() {
    let three = Three::new();
    for i in 0..3 {
        fs::create_dir_all(three.at(i).join("titles")).unwrap();
    }
    // No member has a title: one that has no directory for them is new.
    fs::remove_dir(three.at(1).join("titles")).unwrap();
    assert_eq!(Members::find(&three.at(1)).unwrap().usable(), [0, 1, 2]);
    fs::create_dir(three.at(2).join("titles").join("0123456789abcdef0123456789abcdef")).unwrap();
    let members = Members::find(&three.at(1)).unwrap();
    assert_eq!((members.usable(), members.missing()), (vec![0, 2], vec![1]));
    let why = members.report()[1].absent.clone().unwrap();
    assert!(why.contains("m1/titles") && why.contains("volume replace"), "{why}");
    // Found out while it is open, and seen when it is right again.
    for name in ["titles", "tmp"] {
        fs::create_dir_all(three.at(1).join("titles")).unwrap();
        assert!(members.refresh());
        assert_eq!(members.usable(), [0, 1, 2]);
        let path = three.at(1).join(name);
        let _ = fs::remove_dir(&path);
        fs::write(&path, b"not a directory").unwrap();
        assert!(members.refresh());
        let why = members.report()[1].absent.clone().unwrap();
        assert!(members.missing() == [1] && why.contains(&*path.display().to_string()), "{why}");
        fs::remove_file(&path).unwrap();
    }
}

/// Starts a blocking call in this member's directory that times out; it comes back when the
/// returned sender is dropped.
fn hang(members: &Members, i: usize) -> std::sync::mpsc::Sender<()> {
    let (go, gate) = std::sync::mpsc::channel();
    let wait = move || gate.recv().is_ok();
    assert!(members.blocking(i).begin(Timeout::Call, wait).unwrap().take(Timeout::Call).is_err());
    go
}

#[test]
fn hung_member_is_missing_until_it_responds() {
    let three = Three::new();
    let members = Members::find(&three.at(0)).unwrap();
    let epoch = members.epoch(1);
    let go = hang(&members, 1);
    assert_eq!((members.usable(), members.missing(), members.is_present(1)), (vec![0, 2], vec![1], false));
    let said = |members: &Members| members.report()[1].absent.clone().unwrap_or_default();
    assert!(said(&members).contains("not responding"), "{}", said(&members));
    assert!(members.ask(1, Timeout::Work, |_| ()).is_err());
    assert!(members.ask(0, Timeout::Work, Path::is_dir).unwrap());
    // The list of members is the same by others, and this one is not waited for.
    assert!(members.refresh());
    assert!(said(&members).contains("not responding"), "{}", said(&members));
    assert!(!members.refresh());
    drop(go);
    while members.blocking(1).hangs() {
        std::thread::yield_now();
    }
    assert!(!members.is_usable(1), "it is looked at before it is used again");
    assert!(members.refresh());
    assert_eq!((members.usable(), members.epoch(1)), (vec![0, 1, 2], epoch.wrapping_add(1)));
}

#[test]
fn look_at_hung_store_returns_timed_out() {
    let three = Three::new();
    let book = BlockingCallsByDir::default();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let wait = move || gate.recv().is_ok();
    assert!(book.at(&three.at(0)).begin(Timeout::Call, wait).unwrap().take(Timeout::Call).is_err());
    let error = Members::look(&[three.at(0)], true, (&book, Timeout::Call)).unwrap_err();
    assert!(matches!(&error, StoreError::TimedOut { path } if *path == three.at(0)), "{error}");
    // By another member the volume is found all the same.
    let now = Members::look(&[three.at(1)], true, (&book, Timeout::Call)).unwrap();
    let there: Vec<bool> = now.slots.iter().map(MemberSlot::is_usable).collect();
    assert_eq!(there, [false, true, true]);
    drop(go);
}

#[test]
fn install_uses_no_member_outside_named_directories() {
    let three = Three::new();
    let members = Members::among(&[three.at(0), three.at(1)]).unwrap();
    assert_eq!(members.usable(), [0, 1]);
    let mut record = three.record.clone();
    record.generation = 2;
    let planned = members.with_list(record);
    assert_eq!(planned.there().count(), 2);
    members.install(planned);
    assert_eq!((members.generation(), members.usable()), (2, vec![0, 1]));
    assert!(!members.refresh(), "it finds the same");
    assert_eq!(members.usable(), [0, 1], "the third was not named");
}

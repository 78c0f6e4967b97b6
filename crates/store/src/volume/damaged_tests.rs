use std::fs;

use super::*;
use crate::format::superblock::Geometry;

fn id(number: u8) -> TitleId {
    TitleId([number; 16])
}

#[test]
fn damaged_list_parse_returns_written_titles_and_skips_garbage() {
    let list: List = [(id(1), "first".to_owned()), (id(2), String::new())].into();
    assert_eq!(parse(write(&list).as_bytes()), list);
    let mut text = write(&list).into_bytes();
    text.extend_from_slice(b"\xff\xfe\0\n\nnonsense\n0123 short\n");
    text.extend_from_slice(format!("{}\n{} third", "f".repeat(4000), id(3)).as_bytes());
    let found: Vec<_> = parse(&text).into_keys().collect();
    assert_eq!(found, [id(1), id(2), id(3)]);
    let many: List = (0..3000u32)
        .map(|n| {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&n.to_be_bytes());
            (TitleId(id), "x".repeat(millrace_core::limits::MAX_TITLE_NAME_BYTES))
        })
        .collect();
    assert_eq!(parse(write(&many).as_bytes()).len(), MAX_DAMAGED_TITLES);
    let full: List = many.into_iter().take(MAX_DAMAGED_TITLES).collect();
    assert!(write(&full).len() as u64 <= MAX_DAMAGED_LIST_BYTES);
}

/// Changes the list without the steps that need the title to exist.
fn note(volume: &Volume, title: TitleId) {
    change(&volume.inner, move |list| drop(list.insert(title, "film".to_owned())));
}

#[test]
fn damaged_list_is_on_all_members_until_last_title_is_forgotten() {
    let root = tempfile::tempdir().unwrap();
    let dirs: Vec<_> = (0..3).map(|i| root.path().join(i.to_string())).collect();
    let volume = Volume::create(&dirs, Geometry::choose(3, 1, 0).unwrap()).unwrap();
    volume.note_damaged(id(9));
    assert!(volume.damaged_titles().is_empty(), "there is no such title");
    note(&volume, id(1));
    note(&volume, id(2));
    note(&volume, id(1));
    assert_eq!(volume.damaged_titles(), [id(1), id(2)]);
    let lists: Vec<_> = dirs.iter().map(|dir| fs::read_to_string(dir.join(DAMAGED_FILE)).unwrap()).collect();
    assert!(lists[0].contains(&format!("{} film\n", id(2))) && lists.iter().all(|list| *list == lists[0]));
    // One list is enough.
    fs::remove_file(dirs[0].join(DAMAGED_FILE)).unwrap();
    fs::write(dirs[1].join(DAMAGED_FILE), b"\0\xff").unwrap();
    assert_eq!(volume.damaged_titles(), [id(1), id(2)]);
    volume.forget_damaged(&[id(1)]);
    assert_eq!(volume.damaged_titles(), [id(2)]);
    volume.forget_damaged(&[id(2)]);
    assert!(!dirs[2].join(DAMAGED_FILE).exists());
    assert!(volume.damaged_titles().is_empty());
}

#[test]
fn note_damaged_on_unwritable_disk_keeps_previous_list() {
    let root = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(root.path()).unwrap();
    note(&volume, id(1));
    let path = root.path().join(DAMAGED_FILE);
    let before = fs::read(&path).unwrap();
    // Where the new list would be written is a directory: as good as a disk that refuses.
    let new = root.path().join(format!("{DAMAGED_FILE}.new"));
    fs::create_dir(&new).unwrap();
    note(&volume, id(2));
    assert_eq!(volume.damaged_titles(), [id(1)]);
    assert_eq!(fs::read(&path).unwrap(), before);
    fs::remove_dir(&new).unwrap();
    note(&volume, id(2));
    assert_eq!(volume.damaged_titles(), [id(1), id(2)]);
}

use super::*;
use proptest::prelude::*;

fn record(members: u16) -> MembersRecord {
    let geometry = Geometry::choose(usize::from(members), usize::from(members > 1), 0).unwrap();
    MembersRecord {
        volume: Uuid::from_random([1; 16]),
        generation: 3,
        k: geometry.k,
        m: geometry.m,
        unit_packets: geometry.unit_packets,
        members: (0..members)
            .map(|index| MemberEntry {
                index,
                member: Uuid::from_random([index as u8; 16]),
                path: PathBuf::from(format!("/disks/{index}")),
                state: [MemberState::Active, MemberState::Rebuilding, MemberState::Stale]
                    [usize::from(index % 3)],
            })
            .collect(),
    }
}

#[test]
fn members_record_of_one_to_six_members_round_trips() {
    for members in 1..=6 {
        let record = record(members);
        assert_eq!(MembersRecord::decode(&record.encode()), Ok(record));
    }
}

#[test]
fn members_record_with_longest_paths_fits_size_limit() {
    use std::os::unix::ffi::OsStringExt;
    let mut record = record(3);
    let mut path = vec![0xff; 4096];
    path[0] = b'/';
    for entry in &mut record.members {
        entry.path = PathBuf::from(std::ffi::OsString::from_vec(path.clone()));
    }
    let file = record.encode();
    assert_eq!(MembersRecord::decode(&file), Ok(record));
    assert!(file.len() as u64 <= MAX_MEMBERS_FILE_BYTES / MAX_MEMBERS as u64 * 3 + 4096, "{}", file.len());
}

#[test]
fn contradictions_are_refused_by_name() {
    let refused = |change: fn(&mut MembersRecord), field: &str| {
        let mut record = record(3);
        change(&mut record);
        let error = MembersRecord::decode(&record.encode()).unwrap_err().to_string();
        assert!(error.contains("list of members") && error.contains(field), "{field}: {error}");
    };
    refused(|r| r.generation = 0, "generation");
    refused(|r| r.members.clear(), "members");
    refused(|r| r.members[1].index = 2, "member index");
    refused(|r| r.members[1].path = PathBuf::from("here"), "member path");
    refused(|r| r.members[1].member = r.members[0].member, "member uuid");
    refused(|r| r.k = 5, "k + m");
    refused(|r| r.unit_packets = 21, "unit packets");
    refused(|r| r.k = 70, "data units k is 70");
}

proptest! {
    #[test]
    fn members_record_decode_of_arbitrary_bytes_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(MembersRecord::decode(&body).is_err());
        let _ = MembersRecord::decode(&frame::seal_file(FileKind::Members, &body));
    }

    #[test]
    fn members_record_decode_with_changed_byte_does_not_panic(place: usize, byte: u8) {
        let mut body = record(3).encode()[frame::FRAME_BYTES..].to_vec();
        let place = place % body.len();
        body[place] = byte;
        if let Ok(read) = MembersRecord::decode(&frame::seal_file(FileKind::Members, &body)) {
            prop_assert_eq!(MembersRecord::decode(&read.encode()), Ok(read));
        }
    }
}

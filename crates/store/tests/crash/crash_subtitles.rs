//! Power cuts while subtitles of a title are replaced and removed: in every state, the track in the
//! manifest can be read, and completed changes persist.

use std::path::{Path, PathBuf};

use crate::crash_support::{assert_sound, each_state, scratch};
use crate::sim::Sim;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{NewSubtitles, Volume};
use millrace_testkit::titles::Film;

fn track(text: &str) -> NewSubtitles {
    let text = format!("WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n{text}\n\n");
    NewSubtitles { label: "de".parse().unwrap(), name: None, text, source: None }
}

/// Text of the track; `None` if there is none.
fn said(roots: &[PathBuf], what: &str) -> Option<String> {
    let volume = Volume::open_members(roots).unwrap_or_else(|e| panic!("{what}: {e}"));
    let title = volume.find("film").unwrap().unwrap_or_else(|| panic!("{what}: the title is lost"));
    let track = title.subtitles.first()?;
    let text = volume.read_subtitles(title.id, &track.file).unwrap_or_else(|e| panic!("{what}: {e}"));
    Some(text.lines().nth(3).unwrap().to_owned())
}

#[test]
fn power_cut_while_subtitles_change_leaves_those_before_or_behind() {
    for members in [1, 3] {
        let dir = scratch();
        let roots: Vec<PathBuf> = (0..members).map(|i| dir.path().join(format!("m{i}"))).collect();
        roots.iter().for_each(|root| std::fs::create_dir(root).unwrap());
        let parity = usize::from(members > 1);
        let volume = Volume::create(&roots, Geometry::choose(members, parity, 0).unwrap()).unwrap();
        let id = Film::new(60, 1).add(&volume, "film").id;
        volume.put_subtitles(id, &track("first")).unwrap();
        drop(volume);
        let sim = Sim::new(&roots.iter().map(PathBuf::as_path).collect::<Vec<&Path>>()).unwrap();
        let volume = Volume::open_members_on(&roots, sim.disk()).unwrap();
        volume.put_subtitles(id, &track("second")).unwrap();
        sim.mark("replaced");
        volume.remove_subtitles(id, &"de".parse().unwrap()).unwrap();
        sim.mark("removed");
        drop(volume);
        // Those that are rebuilt name these as their places.
        roots.iter().for_each(|root| std::fs::rename(root, root.with_extension("done")).unwrap());
        let mut seen = [0; 3];
        each_state(&sim.recording(), members, 4, |left| {
            let said = said(left.roots, &left.what);
            let state = match said.as_deref() {
                Some("first") => 0,
                Some("second") => 1,
                None => 2,
                other => panic!("{}: {other:?}", left.what),
            };
            let least = left.marks.iter().filter(|mark| ["replaced", "removed"].contains(mark)).count();
            assert!(state >= least, "{}: {said:?} after {:?}", left.what, left.marks);
            left.roots.iter().for_each(|root| assert_sound(root, &left.what));
            seen[state] += 1;
        });
        assert!(seen.iter().all(|count| *count > 1), "{members} members: {seen:?}");
    }
}
